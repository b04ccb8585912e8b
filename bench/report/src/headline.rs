//! The headline: what a user sees first. Latency at a rate that leaves room, what everybody's CPU does for an operation, and only then
//! the maximum; with all cores shared, and once more with a core for the proxy alone.

use std::fmt::Write as _;

use crate::{
    markdown::blocks,
    metric::{Metric, Process},
    model::{Block, Column, Table, Text},
    number, plot,
    schema::{Experiment, Run, Series},
    summary,
};

/// The numbers of connections.
pub const CONNECTIONS: [usize; 2] = [1, 64];
/// The rates, in percent of the maximum that direct reaches with as many connections on the same cores.
pub const SHARES: [u32; 2] = [30, 60];
/// The rate at which CPU time is compared.
const BUSY: u32 = SHARES[1];

/// The id of an experiment: so many connections, at this share of direct's maximum (None: a closed loop).
pub fn id(connections: usize, share: Option<u32>, is_apart: bool) -> String {
    let at = share.map_or_else(|| "max".to_owned(), |share| format!("at-{share}"));
    let apart = if is_apart { "-apart" } else { "" };
    format!("headline-{connections}-{at}{apart}")
}

/// The page of a run; None: none is committed.
pub fn page(run: Option<&Run>) -> String {
    let mut out = String::from("# The headline\n\n");
    out.push_str(
        "For people who choose a proxy. Requests leave on a schedule, and latency counts from the moment at which they were due \
         (open loop). Each figure is a median over rounds, held against the same round of direct; in brackets is its interval, and where \
         that includes direct, there is \u{201c}no difference\u{201d}. `direct-again` is a second direct: what it differs by is \
         chance. `cargo xtask bench headline` repeats it.\n\n",
    );
    let Some(run) = run else {
        out.push_str("No run is committed.\n");
        return out;
    };
    blocks(&mut out, &summary::warnings(run));
    for (is_apart, title, about) in [
        (false, "All cores shared", SHARED),
        (true, "A core for the proxy alone", APART),
    ] {
        let _ = writeln!(out, "## {title}\n\n{about}\n");
        if !is_apart && picture(run).is_some() {
            let _ = writeln!(out, "![Latency by percentile of each path]({PICTURE})\n");
        }
        for connections in CONNECTIONS {
            blocks(
                &mut out,
                &[Block::Table(latencies(run, connections, is_apart))],
            );
        }
        blocks(
            &mut out,
            &[
                Block::Table(cpu(run, is_apart)),
                Block::Table(maximum(run, is_apart)),
            ],
        );
    }
    blocks(&mut out, &[Block::Paragraph(summary::origin(run))]);
    format!("{}\n", out.trim_end())
}

/// The file of the picture, beside the page.
pub const PICTURE: &str = "headline.svg";

/// The picture: latency by percentile with many connections, at the higher rate, all cores shared.
pub fn picture(run: &Run) -> Option<String> {
    let experiment = run.experiment(&id(CONNECTIONS[1], Some(BUSY), false))?;
    let rate = number::or_none(experiment.rate, number::grouped);
    let title = format!(
        "Latency at {BUSY} % of direct's maximum ({rate} op/s), {} connections",
        CONNECTIONS[1]
    );
    plot::percentiles(experiment, &title).ok().flatten()
}

const SHARED: &str = "Client, proxy and database run where the scheduler puts them, as on a host that does everything.";
const APART: &str = "The proxy has one core; client and database share another one, also for direct and for paths without a \
    process between them. So a proxy's own cost shows apart from queueing for a core.";

/// The table of what paths add to direct's latency at a rate.
fn latencies(run: &Run, connections: usize, is_apart: bool) -> Table {
    const SHOWN: [Metric; 3] = [Metric::P50, Metric::P99, Metric::P999];
    let experiments = SHARES.map(|share| run.experiment(&id(connections, Some(share), is_apart)));
    let mut columns = vec![Column::words("path")];
    for (share, experiment) in SHARES.iter().zip(experiments) {
        let rate = experiment.and_then(|e| e.rate);
        let rate = number::or_none(rate, number::grouped);
        for metric in SHOWN {
            columns.push(Column::numbers(format!(
                "{}, {share} % ({rate} op/s)",
                metric.name()
            )));
        }
    }
    let plural = if connections == 1 { "" } else { "s" };
    let caption = format!(
        "Added latency in µs, {connections} connection{plural}, at a share of direct's maximum"
    );
    let mut table = Table::new(caption, columns);
    for path in rows(run, &experiments) {
        let cells = experiments
            .iter()
            .flat_map(|experiment| SHOWN.map(|metric| added(*experiment, path, metric)));
        let cells: Vec<Text> = cells.collect();
        table.path_row(path, cells);
    }
    table
}

/// The cell of what a path adds to direct; of direct its own figure.
pub(crate) fn added(experiment: Option<&Experiment>, path: &str, metric: Metric) -> Text {
    let Some((experiment, series)) = found(experiment, path) else {
        return number::NONE.into();
    };
    if series.is_direct() {
        let own = number::or_none(series.median(metric), number::short);
        return Text::new().muted(own);
    }
    if experiment.behind(series).is_some() {
        return Text::new().strong("did not keep up");
    }
    Text::difference(experiment.added(series, metric), number::signed)
}

/// Everybody's CPU time for an operation, at a rate that leaves room.
fn cpu(run: &Run, is_apart: bool) -> Table {
    let experiments =
        CONNECTIONS.map(|connections| run.experiment(&id(connections, Some(BUSY), is_apart)));
    let mut columns = vec![Column::words("path")];
    for connections in CONNECTIONS {
        for process in [Process::Proxy, Process::Generator, Process::Database] {
            let who = match process {
                Process::Generator => "client",
                process => process.name(),
            };
            columns.push(Column::numbers(format!("{who}, {connections} conn.")));
        }
    }
    let mut table = Table::new(
        format!("CPU time per operation in µs, at {BUSY} % of direct's maximum"),
        columns,
    );
    for path in rows(run, &experiments) {
        let cells = experiments.iter().flat_map(|experiment| {
            [Process::Proxy, Process::Generator, Process::Database]
                .map(|process| own(*experiment, path, Metric::Cpu(process)))
        });
        let cells: Vec<Text> = cells.collect();
        table.path_row(path, cells);
    }
    table
}

/// The cell of what a process of a path uses. A path of ours without a byte in the agent has an agent's idle time.
pub(crate) fn own(experiment: Option<&Experiment>, path: &str, metric: Metric) -> Text {
    let found = found(experiment, path);
    let is_nobody =
        metric == Metric::Cpu(Process::Proxy) && found.is_some_and(|(_, s)| is_without_proxy(s));
    match found {
        Some((_, series)) if !is_nobody => {
            number::or_none(series.median(metric), number::short).into()
        }
        _ => number::NONE.into(),
    }
}

fn is_without_proxy(series: &Series) -> bool {
    series
        .rounds
        .iter()
        .all(|round| round.proxy.rss_peak_kib == 0)
}

/// The maximum in a closed loop.
fn maximum(run: &Run, is_apart: bool) -> Table {
    let experiments =
        CONNECTIONS.map(|connections| run.experiment(&id(connections, None, is_apart)));
    let mut columns = vec![Column::words("path")];
    for connections in CONNECTIONS {
        columns.push(Column::numbers(format!("op/s, {connections} conn.")));
    }
    let caption = match is_apart {
        true => "Maximum of throughput (closed loop): what the busier of the two cores allows"
            .to_owned(),
        false => format!(
            "Maximum of throughput (closed loop): it measures the sum of everybody's CPU on {} cores, not a proxy alone",
            run.machine.cores
        ),
    };
    let mut table = Table::new(caption, columns);
    for path in rows(run, &experiments) {
        let cells = experiments.map(|experiment| throughput(experiment, path));
        table.path_row(path, cells);
    }
    table
}

/// A path's throughput as a share of direct's; of direct its own.
pub(crate) fn throughput(experiment: Option<&Experiment>, path: &str) -> Text {
    let Some((experiment, series)) = found(experiment, path) else {
        return number::NONE.into();
    };
    if series.is_direct() {
        let own = number::or_none(series.median(Metric::OpS), number::grouped);
        return Text::new().muted(format!("{own} op/s"));
    }
    Text::difference(experiment.ratio(series, Metric::OpS), |ratio| {
        format!("{}×", number::ratio(ratio))
    })
}

fn found<'r>(
    experiment: Option<&'r Experiment>,
    path: &str,
) -> Option<(&'r Experiment, &'r Series)> {
    let experiment = experiment.filter(|e| e.is_usable())?;
    Some((experiment, experiment.series(path)?))
}

/// The paths that any of these experiments has, in the order of tables.
pub(crate) fn rows<'r>(run: &'r Run, experiments: &[Option<&Experiment>]) -> Vec<&'r str> {
    let has = |name: &str| {
        experiments
            .iter()
            .flatten()
            .any(|e| e.series(name).is_some())
    };
    let measured = run.measured().map(|path| &*path.name);
    measured.filter(|name| has(name)).collect()
}
