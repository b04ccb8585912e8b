//! The plot of the latency that each path adds.

use super::{
    Plot,
    rows::{self, Bar, Panel, Piece},
    theme,
};
use crate::{
    constant,
    metric::Metric,
    number,
    schema::{Experiment, Run, Series},
};

/// At p50 and at p99, of the experiment in which every path does the same work.
pub fn plot(run: &Run) -> Plot {
    let new = |about, drawn| Plot::new("added-latency", "Added latency by path", about, drawn);
    let Some(experiment) = constant::choose(run).map(|c| c.experiment) else {
        return new(
            "Not measured: no experiment that all paths do at a rate.".into(),
            None,
        );
    };
    let series: Vec<&Series> = experiment
        .series
        .iter()
        .filter(|s| !s.is_direct())
        .collect();
    let paths: Vec<&str> = series.iter().map(|s| s.path.as_str()).collect();
    let panels = [Metric::P50, Metric::P99].map(|metric| panel(experiment, &series, metric));
    let drawn = rows::chart(&paths, &panels);
    let rate = experiment.rate.map_or_else(String::new, |rate| {
        format!(" at {} op/s", number::grouped(rate))
    });
    let about = match drawn {
        Some(_) => format!(
            "{}{rate}: difference to direct; whiskers: spread of rounds{}",
            experiment.id,
            experiment.late_paths()
        ),
        None => format!("{}: nothing to hold against direct.", experiment.id),
    };
    new(about, drawn)
}

fn panel(experiment: &Experiment, series: &[&Series], metric: Metric) -> Panel {
    let bars = series.iter().map(|series| {
        let added = experiment.added(series, metric)?;
        let is_claimed = !added.is_noise || added.is_unknown();
        Some(Bar {
            pieces: vec![Piece {
                value: added.median,
                color: theme::color(&series.path),
                is_labelled: false,
            }],
            whisker: Some((added.low, added.high)),
            figure: match is_claimed {
                true => number::signed(added.median),
                false => number::NO_DIFFERENCE.into(),
            },
        })
    });
    let direct = experiment.direct().and_then(|direct| direct.median(metric));
    Panel {
        title: match direct {
            Some(us) => format!("{} (direct: {} µs)", metric.name(), number::short(us)),
            None => metric.name(),
        },
        unit: "µs added",
        bars: bars.collect(),
    }
}
