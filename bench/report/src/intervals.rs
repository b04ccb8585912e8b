//! Throughput and latency over intervals, and the CPU's time: the form of YugabyteDB's
//! benchmark tables.

use crate::{
    metric::Process,
    model::{Column, Table, Text},
    number::{self, NONE},
    schema::{Experiment, Run, Series, Usage},
    stats,
};

/// Shares of intervals that lie below, and their names.
const PERCENTILES: [(f64, &str); 7] = [
    (0.50, "median"),
    (0.01, "1 %"),
    (0.05, "5 %"),
    (0.10, "10 %"),
    (0.90, "90 %"),
    (0.95, "95 %"),
    (0.99, "99 %"),
];

/// Throughput, mean latency, CPU.
pub fn tables(run: &Run, experiment: &Experiment) -> Vec<Table> {
    let ms = run.settings.interval_ms;
    vec![
        over(
            experiment,
            format!("op/s over intervals of {ms} ms"),
            number::grouped,
            |(ops, _)| (ms > 0).then(|| ops as f64 * 1e3 / ms as f64),
        ),
        over(
            experiment,
            format!("Mean latency over intervals of {ms} ms, µs"),
            number::short,
            // Where nothing was done nothing took time.
            |(ops, mean_us)| (ops > 0).then_some(mean_us),
        ),
        cpu(experiment),
    ]
}

fn over(
    experiment: &Experiment,
    caption: String,
    text: fn(f64) -> String,
    value: impl Fn((u64, f64)) -> Option<f64>,
) -> Table {
    let mut columns = vec![Column::words("path")];
    columns.extend(["mean", "min", "max", "std. deviation"].map(Column::numbers));
    columns.extend(PERCENTILES.map(|(_, name)| Column::numbers(name)));
    let mut table = Table::new(caption, columns);
    for series in &experiment.series {
        let intervals = series.rounds.iter().flat_map(|round| &round.intervals);
        let values: Vec<f64> = intervals.filter_map(|one| value(*one)).collect();
        let at = |share| stats::quantile(values.iter().copied(), share);
        let mut cells = vec![
            stats::mean(values.iter().copied()),
            at(0.0),
            at(1.0),
            stats::standard_deviation(&values),
        ];
        cells.extend(PERCENTILES.map(|(share, _)| at(share)));
        let cells = cells.into_iter().map(|n| number::or_none(n, text).into());
        table.path_row(&series.path, cells);
    }
    table
}

fn cpu(experiment: &Experiment) -> Table {
    let mut columns = vec![Column::words("path")];
    for process in Process::ALL {
        for kind in ["user", "system"] {
            columns.push(Column::numbers(format!("{}, {kind}", process.name())));
        }
    }
    let mut table = Table::new(
        "CPU, per cent of one core (of the time in which requests began)",
        columns,
    );
    for series in &experiment.series {
        let mut cells = Vec::new();
        for process in Process::ALL {
            let is_there = !(series.is_direct() && process == Process::Proxy);
            for time in [|u: &Usage| u.user_us, |u: &Usage| u.system_us] {
                let share = share(series, process, time).filter(|_| is_there);
                cells.push(Text::from(match share {
                    Some(share) if share.is_finite() => format!("{:.1} %", share * 100.0),
                    _ => NONE.into(),
                }));
            }
        }
        table.path_row(&series.path, cells);
    }
    table
}

/// The share of one core's time.
fn share(series: &Series, process: Process, time: fn(&Usage) -> f64) -> Option<f64> {
    let rounds = series.rounds.iter().filter(|round| round.seconds > 0.0);
    stats::median(rounds.map(|round| time(process.of(round)) / (round.seconds * 1e6)))
}
