//! CPU time of an operation, by path and process.

use maud::html;

use super::{
    Plot,
    rows::{self, Bar, Panel, Piece},
    svg, theme,
};
use crate::{
    constant,
    metric::{Metric, Process},
    number,
    schema::{Run, Series},
};

/// The plot of the experiment in which every path does the same work.
pub fn plot(run: &Run) -> Plot {
    let new = |about, drawn| Plot::new("cpu-per-operation", "CPU per operation", about, drawn);
    let Some(experiment) = constant::choose(run).map(|c| c.experiment) else {
        return new(
            "Not measured: no experiment that all paths do at a rate.".into(),
            None,
        );
    };
    let paths: Vec<&str> = experiment.series.iter().map(|s| s.path.as_str()).collect();
    let panel = Panel {
        title: String::new(),
        unit: "µs of CPU for an operation, user and system",
        bars: experiment.series.iter().map(bar).collect(),
    };
    let drawn = rows::chart(&paths, &[panel]).map(|(height, body)| {
        let body = html! {
            (legend(110.0, "var(--generator)", "generator"))
            (legend(206.0, "none;stroke:var(--muted)", "proxy, in its path's colour"))
            (legend(402.0, "var(--database)", "database"))
            (body)
        };
        (height, body)
    });
    let rate = experiment.rate.map_or_else(String::new, |rate| {
        format!(" at {} op/s", number::grouped(rate))
    });
    let about = match drawn {
        Some(_) => format!(
            "{}{rate}, from the kernel's accounting{}",
            experiment.id,
            experiment.late_paths()
        ),
        None => format!("{}: no operation succeeded.", experiment.id),
    };
    new(about, drawn)
}

fn legend(x: f64, color: &str, name: &str) -> maud::Markup {
    let style = format!("fill:{color}");
    html! {
        rect x=(svg::px(x)) y="61" width="11" height="11" style=(style) {}
        (svg::text("sub", "start", (x + 16.0, 71.0), name))
    }
}

fn bar(series: &Series) -> Option<Bar> {
    let cpu = |process| series.median(Metric::Cpu(process));
    let pieces: Vec<Piece> = Process::ALL
        .into_iter()
        .filter_map(|process| {
            Some(Piece {
                value: cpu(process)?.max(0.0),
                color: match process {
                    Process::Generator => "var(--generator)".into(),
                    Process::Proxy => theme::color(&series.path),
                    Process::Database => "var(--database)".into(),
                },
                is_labelled: process != Process::Proxy,
            })
        })
        .collect();
    if pieces.is_empty() {
        return None;
    }
    let sum: f64 = pieces.iter().map(|piece| piece.value).sum();
    let proxy = cpu(Process::Proxy).filter(|_| !series.is_direct());
    Some(Bar {
        pieces,
        whisker: None,
        figure: match proxy {
            Some(proxy) => format!("{}, proxy {}", number::short(sum), number::short(proxy)),
            None => number::short(sum),
        },
    })
}
