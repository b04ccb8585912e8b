//! The README's one table: nine ways from a client to its database, and what each costs.

use crate::{
    metric::Metric,
    model::{Block, Column, Table, Text},
    number::{self, NONE},
    schema::{Experiment, Run, Series},
};

/// The run that measured a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MeasuredBy {
    /// The run of the kernel paths.
    Host,
    /// The run of the tap, which needs more rounds: what it costs is little.
    Tap,
    /// The run of other proxies, which no distribution packages.
    Peers,
}

/// The rows, in order.
const ROWS: [(&str, MeasuredBy); 9] = [
    ("direct", MeasuredBy::Host),
    ("bypass", MeasuredBy::Host),
    ("shortcut", MeasuredBy::Host),
    ("splice", MeasuredBy::Host),
    ("observe", MeasuredBy::Host),
    ("tap", MeasuredBy::Tap),
    ("enrich", MeasuredBy::Host),
    ("haproxy", MeasuredBy::Host),
    ("shotover", MeasuredBy::Peers),
];

/// The runs that the table is of.
#[derive(Clone, Copy)]
pub struct Runs<'r> {
    /// The run of the kernel paths.
    pub host: &'r Run,
    /// The run of the tap.
    pub tap: &'r Run,
    /// The run of other proxies.
    pub peers: &'r Run,
}

impl<'r> Runs<'r> {
    fn by(self, by: MeasuredBy) -> &'r Run {
        match by {
            MeasuredBy::Host => self.host,
            MeasuredBy::Tap => self.tap,
            MeasuredBy::Peers => self.peers,
        }
    }
}

/// The experiment with one connection, for the latency.
const ONE: &str = "node-raw-nonblocking-1";
/// The experiment with 32 connections, for throughput and CPU time.
const MANY: &str = "node-raw-nonblocking-32";

/// The table, and how it was measured. A path that its run did not measure has a row of dashes.
pub fn blocks(runs: Runs<'_>) -> Vec<Block> {
    let mut table = Table::new(
        Text::new(),
        vec![
            Column::words("path"),
            Column::numbers("added p50, µs"),
            Column::numbers("throughput"),
            Column::numbers("CPU per operation"),
            Column::words("how bytes travel"),
        ],
    );
    for (path, by) in ROWS {
        row(&mut table, runs.by(by), path);
    }
    vec![Block::Table(table), Block::Paragraph(method(runs))]
}

fn row(table: &mut Table, run: &Run, path: &str) {
    let about = run.path(path).map_or(NONE, |path| &path.about);
    let cells = [
        cell(run, ONE, path, Metric::P50),
        cell(run, MANY, path, Metric::OpS),
        cell(run, MANY, path, Metric::AllCpu),
        Text::new().muted(about),
    ];
    table.path_row(path, cells);
}

/// Direct's own figure; of every other path the difference or the ratio to direct.
fn cell(run: &Run, experiment: &str, path: &str, metric: Metric) -> Text {
    let experiment = run.experiment(experiment).filter(|e| e.is_usable());
    let found = experiment.and_then(|e| Some((e, e.series(path)?)));
    match found {
        None => NONE.into(),
        Some((_, direct)) if direct.is_direct() => own(direct, metric),
        Some((experiment, series)) => compared(experiment, series, metric),
    }
}

fn own(direct: &Series, metric: Metric) -> Text {
    let figure = direct.median(metric);
    Text::new().muted(match metric {
        Metric::OpS => format!("{} op/s", number::or_none(figure, number::grouped)),
        Metric::P50 => format!("p50 {} µs", number::or_none(figure, number::short)),
        _ => format!("{} µs", number::or_none(figure, number::short)),
    })
}

fn compared(experiment: &Experiment, series: &Series, metric: Metric) -> Text {
    match metric {
        Metric::P50 => Text::brief(experiment.added(series, metric), number::signed),
        _ => Text::brief(experiment.ratio(series, metric), times),
    }
}

fn times(ratio: f64) -> String {
    match ratio.is_finite() {
        true => format!("{ratio:.2}×"),
        false => NONE.into(),
    }
}

fn method(runs: Runs<'_>) -> Text {
    let (machine, settings) = (&runs.host.machine, &runs.host.settings);
    let apart = ROWS.iter().filter(|(_, by)| *by != MeasuredBy::Host);
    let apart: Vec<String> = apart
        .map(|(path, by)| format!("{path} ({} rounds)", runs.by(*by).settings.rounds))
        .collect();
    Text::new().plain(format!(
        "Client, proxy and database share {cores} cores of {cpu} (Linux {kernel}); the database is \
         an embedded CQL node, the client uses raw sockets. Latency is at 1 connection, the rest at \
         32. Figures are medians of {rounds} rounds, each against direct in the same round; “{none}” \
         means that the spread of the rounds includes direct. CPU counts client, proxy, database \
         and kernel threads. {apart} were measured in runs of their own, each against that run's \
         direct.",
        cores = machine.cores,
        cpu = machine.cpu,
        kernel = machine.kernel,
        rounds = settings.rounds,
        none = number::NO_DIFFERENCE,
        apart = apart.join(" and "),
    ))
}
