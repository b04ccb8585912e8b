//! Latency as the rate rises.

use super::{
    Plot,
    axis::{self, Kind},
    lines::{self, Across, Line, Panel},
};
use crate::{
    constant,
    metric::Metric,
    number,
    schema::{Experiment, Run},
};

const HEIGHT: f64 = 360.0;
const TICKS: usize = 4;

/// Over the variants of the workload that has several rates.
pub fn plot(run: &Run) -> Plot {
    let new = |about: &str, drawn| {
        Plot::new(
            "latency-by-rate",
            "Latency as the rate rises",
            about.into(),
            drawn,
        )
    };
    let is_one = |e: &&Experiment| e.workload == constant::WORKLOAD && e.rate.is_some();
    let experiments: Vec<&Experiment> = run.usable().filter(is_one).collect();
    let panels = [("p50", Metric::P50), ("p99", Metric::P99)].map(|(title, metric)| Panel {
        title,
        lines: over(run, &experiments, |e, path| {
            let series = e.series(path)?;
            Some((series.median(Metric::OpS)?, series.median(metric)?))
        }),
    });
    let rates = panels.iter().flat_map(|p| &p.lines).flat_map(|l| &l.points);
    let (_, most) = axis::range(rates.map(|(op_s, _)| *op_s)).unwrap_or((0.0, 1.0));
    let ticks = axis::linear(0.0, most, TICKS);
    let across = Across {
        title: "achieved op/s",
        kind: Kind::Linear,
        range: axis::range(ticks.iter().copied()).unwrap_or((0.0, 1.0)),
        ticks: ticks.into_iter().map(|t| (t, number::grouped(t))).collect(),
    };
    match lines::chart(&panels, &across, HEIGHT) {
        Some(drawn) => new("Open loop, counted from the intended time", Some(drawn)),
        None => new("Not measured: no experiment of several rates.", None),
    }
}

/// A line for each path over several experiments.
pub(super) fn over(
    run: &Run,
    experiments: &[&Experiment],
    point: impl Fn(&Experiment, &str) -> Option<(f64, f64)>,
) -> Vec<Line> {
    let lines = run.measured().map(|path| {
        let points = experiments.iter().filter_map(|e| point(e, &path.name));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line {
            path: path.name.clone(),
            marked: points.clone(),
            points,
        }
    });
    lines.filter(|line| !line.points.is_empty()).collect()
}
