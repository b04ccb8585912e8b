//! The whole distribution of an experiment's latencies, all rounds together: what wrk2 calls
//! the detailed percentile spectrum.

use crate::{
    histogram::Latencies,
    model::{Column, Table, Text},
    number::{self, NONE},
    schema::Experiment,
};

/// Each step halves, or nearly so, what is above.
const PERCENTILES: [f64; 16] = [
    0.0, 25.0, 50.0, 75.0, 87.5, 90.0, 93.75, 95.0, 97.5, 99.0, 99.5, 99.75, 99.9, 99.95, 99.99,
    99.999,
];

/// A row for each percentile, a column for each path; None where no histogram was kept.
pub fn table(experiment: &Experiment) -> Option<Table> {
    let latencies: Vec<_> = experiment.series.iter().map(Latencies::of).collect();
    if latencies.iter().all(Option::is_none) {
        return None;
    }
    let paths = experiment.series.iter();
    let mut columns = vec![Column::words("percentile")];
    columns.extend(paths.map(|series| Column::numbers(&*series.path)));
    let mut table = Table::new("Percentile spectrum of all rounds together, µs", columns);
    for percentile in PERCENTILES {
        let mut row = vec![Text::from(format!("{percentile} %"))];
        row.extend(
            latencies
                .iter()
                .map(|of_path| cell(of_path.as_ref(), percentile)),
        );
        table.row(row);
    }
    Some(table)
}

/// A percentile that less than one operation is above says nothing.
fn cell(latencies: Option<&Latencies>, percentile: f64) -> Text {
    let above = 1.0 - percentile / 100.0;
    let known = latencies.filter(|all| all.count() as f64 * above >= 1.0);
    let us = known.map(|all| all.quantile_us(percentile / 100.0));
    match us {
        Some(us) => number::short(us).into(),
        None => NONE.into(),
    }
}
