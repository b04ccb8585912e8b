//! Latency as a client speaks to more nodes.

use super::{
    Plot,
    axis::{self, Kind},
    lines::{self, Across, Panel},
    rates,
};
use crate::{
    metric::Metric,
    schema::{Experiment, Run},
};

/// The workload whose variants differ by their number of nodes.
pub const WORKLOAD: &str = "nodes";
const HEIGHT: f64 = 360.0;

/// Over the variants of that workload.
pub fn plot(run: &Run) -> Plot {
    let new = |about: &str, drawn| {
        let title = "Latency by number of nodes";
        Plot::new("latency-by-nodes", title, about.into(), drawn)
    };
    let is_one = |e: &&Experiment| e.workload == WORKLOAD && e.nodes > 0;
    let experiments: Vec<&Experiment> = run.usable().filter(is_one).collect();
    let panels = [("p50", Metric::P50), ("p99", Metric::P99)].map(|(title, metric)| Panel {
        title,
        lines: rates::over(run, &experiments, |e, path| {
            Some((e.nodes as f64, e.series(path)?.median(metric)?))
        }),
    });
    let mut counts: Vec<usize> = experiments.iter().map(|e| e.nodes).collect();
    counts.sort_unstable();
    counts.dedup();
    let across = Across {
        title: "nodes",
        kind: Kind::Log,
        range: axis::range(counts.iter().map(|n| *n as f64)).unwrap_or((1.0, 2.0)),
        ticks: counts.iter().map(|n| (*n as f64, n.to_string())).collect(),
    };
    match lines::chart(&panels, &across, HEIGHT) {
        Some(drawn) => new("One client, embedded nodes on one host", Some(drawn)),
        None => new("Not measured: no experiment of several nodes.", None),
    }
}
