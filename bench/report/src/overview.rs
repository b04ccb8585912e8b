//! The README's one table: nine ways from a client to its database, and what each costs.

use crate::{
    cell::beside_direct,
    markdown::{Page, Table, Text},
    metric::Metric,
    number::{self, NONE, or_none},
    schema::{Run, Series},
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
pub(crate) const ONE: &str = "node-raw-nonblocking-1";
/// The experiment with 32 connections, for throughput and CPU time.
pub(crate) const MANY: &str = "node-raw-nonblocking-32";

/// The README's table, and how it was measured. A path that its run did not measure has a row of dashes.
pub fn readme(runs: Runs<'_>) -> String {
    let table = Table::of_rows()
        .words("path", |(path, _): &(&str, MeasuredBy)| Text::from(*path))
        .numbers("added p50, µs", |(path, by)| {
            let own = |direct: &Series| {
                let p50 = or_none(direct.median(Metric::P50), number::short);
                format!("p50 {p50} µs")
            };
            let one = runs.by(*by).experiment(ONE);
            beside_direct(one, path, own, |experiment, series| {
                Text::brief(experiment.added(series, Metric::P50), number::signed)
            })
        })
        .numbers("throughput", |(path, by)| {
            ratio(runs.by(*by), path, Metric::OpS, |op_s| {
                format!("{} op/s", number::grouped(op_s))
            })
        })
        .numbers("CPU per operation", |(path, by)| {
            ratio(runs.by(*by), path, Metric::AllCpu, |us| {
                format!("{} µs", number::short(us))
            })
        })
        .words("how bytes travel", |(path, by)| {
            let path = runs.by(*by).path(path);
            path.map_or_else(|| NONE.to_owned(), |path| path.about.clone())
        });
    let mut page = Page::default();
    page.table("", &table, ROWS);
    page.paragraph(method(runs));
    page.end()
}

/// The ratio to direct with many connections; of direct its own figure.
fn ratio(run: &Run, path: &str, metric: Metric, text: fn(f64) -> String) -> Text {
    let own = |direct: &Series| or_none(direct.median(metric), text);
    beside_direct(run.experiment(MANY), path, own, |experiment, series| {
        Text::brief(experiment.ratio(series, metric), times)
    })
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
