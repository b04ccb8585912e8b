//! Latency by percentile: HdrHistogram's form, each nine as wide as the one before.

use super::{
    Plot,
    axis::Kind,
    lines::{self, Across, Line, Panel},
};
use crate::{
    histogram::Latencies,
    number,
    schema::{Experiment, Run, Series},
};

const TITLE: &str = "Latency by percentile";
const HEIGHT: f64 = 420.0;
/// Points for each nine.
const FINE: u32 = 16;
/// Nines that are drawn at most: 99.9999 %.
const NINES: u32 = 6;
/// Marked percentiles: quantile and name.
const MARKS: [(f64, &str); 8] = [
    (0.0, "0 %"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (0.99999, "99.999 %"),
    (0.999_999, "99.9999 %"),
];

/// The plot of one experiment.
pub fn plot(_: &Run, experiment: Option<&Experiment>) -> Plot {
    let new = |about, drawn| Plot::new("latency-by-percentile", TITLE, about, drawn);
    let Some(experiment) = experiment else {
        return new(
            "Not measured: no experiment that all paths do at a rate.".into(),
            None,
        );
    };
    let lines: Vec<Line> = experiment.series.iter().filter_map(line).collect();
    let last = lines.iter().filter_map(|line| line.points.last());
    let nines = last.map(|(nines, _)| *nines).fold(1.0, f64::max);
    let across = Across {
        title: "percentile",
        kind: Kind::Linear,
        range: (0.0, nines),
        ticks: MARKS
            .iter()
            .map(|(quantile, name)| (nines_of(*quantile), (*name).to_owned()))
            .filter(|(place, _)| *place <= nines + 1e-9)
            .collect(),
    };
    let load = match experiment.rate {
        Some(rate) => format!("{} op/s, from the intended time", number::grouped(rate)),
        None => "closed loop: leaves out what waiting would have cost".into(),
    };
    let drawn = lines::chart(&[Panel { title: "", lines }], &across, HEIGHT);
    let about = match drawn {
        Some(_) => format!("{}: {load}{}", experiment.id, experiment.late_paths()),
        None => format!("{}: no latencies were kept.", experiment.id),
    };
    new(about, drawn)
}

fn nines_of(quantile: f64) -> f64 {
    -(1.0 - quantile).log10()
}

fn line(series: &Series) -> Option<Line> {
    let latencies = Latencies::of(series)?;
    // A percentile that less than one operation is above says nothing.
    let nines = (latencies.count() as f64)
        .log10()
        .clamp(0.0, f64::from(NINES));
    let at = |nines: f64| latencies.quantile_us(1.0 - 10_f64.powf(-nines));
    let steps = (0..=NINES * FINE).map(|n| f64::from(n) / f64::from(FINE));
    let points: Vec<_> = steps
        .take_while(|place| *place <= nines)
        .map(|place| (place, at(place)))
        .collect();
    let marks = MARKS.iter().map(|(quantile, _)| nines_of(*quantile));
    Some(Line {
        path: series.path.clone(),
        points,
        marked: marks
            .filter(|place| *place > 0.0 && *place <= nines)
            .map(|place| (place, at(place)))
            .collect(),
    })
}
