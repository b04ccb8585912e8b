//! The headline: what a user sees first. Latency at a rate that leaves room, what everybody's CPU does for an operation, and only then
//! the maximum; with all cores shared, and once more with a core for the proxy alone.

use crate::{
    cell::{self, by_name},
    markdown::{Page, Table},
    metric::{Metric, Process},
    number, plot,
    schema::{Experiment, Run},
    summary,
};

/// The paths, beside the two directs.
pub const PATHS: [&str; 8] = [
    "bypass",
    "tap",
    "splice",
    "enrich",
    "enrich-short-both",
    "haproxy",
    "envoy",
    "shotover",
];
/// The numbers of connections.
pub const CONNECTIONS: [usize; 2] = [1, 64];
/// The rates, in percent of the maximum that direct reaches with as many connections on the same cores.
pub const SHARES: [u32; 2] = [30, 60];
/// The rate of which there is a picture.
const BUSY: u32 = SHARES[1];

/// The id of an experiment: so many connections, at this share of direct's maximum (None: a closed loop).
pub fn id(connections: usize, share: Option<u32>, is_apart: bool) -> String {
    let at = share.map_or_else(|| "max".to_owned(), |share| format!("at-{share}"));
    let apart = if is_apart { "-apart" } else { "" };
    format!("headline-{connections}-{at}{apart}")
}

/// The page of a run; None: none is committed.
pub fn page(run: Option<&Run>) -> String {
    let mut page = Page::titled("The headline");
    page.markdown(
        "For people who choose a proxy. Requests leave on a schedule, and latency counts from the moment at which they were due \
         (open loop). Each figure is an estimate of rounds, held against both directs of the same round; in brackets is its interval. Where \
         that includes direct, there is \u{201c}no difference\u{201d} if it ends within 10 % of it, and otherwise the figure is \
         \u{201c}not resolved\u{201d}. `direct-again` is a second direct: what it differs by is chance, and where it does differ, nothing in \
         its column is resolved. p99.9 of a round is what its slowest thousandth hangs on: with one connection, a few requests. \
         `cargo xtask bench headline` repeats it.",
    );
    let Some(run) = run else {
        page.paragraph("No run is committed.");
        return page.end();
    };
    summary::warnings(&mut page, run);
    for (is_apart, title, about) in [
        (false, "All cores shared", SHARED),
        (true, "A core for the proxy alone", APART),
    ] {
        page.heading(2, title);
        page.paragraph(about);
        if !is_apart && picture(run).is_some() {
            page.markdown(format_args!(
                "![Latency by percentile of each path]({PICTURE})"
            ));
        }
        for connections in CONNECTIONS {
            latencies(&mut page, run, connections, is_apart);
        }
        for share in SHARES.map(Some).into_iter().chain([None]) {
            cpu(&mut page, run, share, is_apart);
        }
        maximum(&mut page, run, is_apart);
    }
    page.paragraph(summary::origin(run));
    page.end()
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

/// Adds what paths add to direct's latency at a rate.
fn latencies(page: &mut Page, run: &Run, connections: usize, is_apart: bool) {
    let mut table = by_name();
    let experiments = SHARES.map(|share| run.experiment(&id(connections, Some(share), is_apart)));
    for (share, experiment) in SHARES.iter().zip(experiments) {
        let rate = experiment.and_then(|e| e.rate);
        let rate = number::or_none(rate, number::grouped);
        for metric in [Metric::P50, Metric::P99, Metric::P999] {
            let name = format!("{}, {share} % ({rate} op/s)", metric.name());
            table = table.numbers(name, move |path| cell::added(experiment, path, metric));
        }
    }
    let plural = if connections == 1 { "" } else { "s" };
    let caption = format!(
        "Added latency in µs, {connections} connection{plural}, at a share of direct's maximum"
    );
    add(page, &caption, &table, run, &experiments);
}

/// Adds everybody's CPU time for an operation, at a rate, or as fast as they go.
fn cpu(page: &mut Page, run: &Run, share: Option<u32>, is_apart: bool) {
    let mut table = by_name();
    let of = |connections| run.experiment(&id(connections, share, is_apart));
    for connections in CONNECTIONS {
        for (who, process) in [
            ("proxy", Process::Proxy),
            ("client", Process::Generator),
            ("database", Process::Database),
        ] {
            let name = format!("{who}, {connections} conn.");
            table = table.numbers(name, move |path| cell::cpu(of(connections), path, process));
        }
    }
    let at = share.map_or_else(
        || "each path's own maximum".to_owned(),
        |share| format!("{share} % of direct's maximum"),
    );
    let caption = format!("CPU time per operation in µs, at {at}");
    add(page, &caption, &table, run, &CONNECTIONS.map(of));
}

/// Adds the maximum in a closed loop.
fn maximum(page: &mut Page, run: &Run, is_apart: bool) {
    let mut table = by_name();
    let of = |connections| run.experiment(&id(connections, None, is_apart));
    for connections in CONNECTIONS {
        let name = format!("op/s, {connections} conn.");
        table = table.numbers(name, move |path| cell::throughput(of(connections), path));
    }
    let caption = match is_apart {
        true => "Maximum of throughput (closed loop): what the busier of the two cores allows"
            .to_owned(),
        false => format!(
            "Maximum of throughput (closed loop): it measures the sum of everybody's CPU on {} cores, not a proxy alone",
            run.machine.cores
        ),
    };
    add(page, &caption, &table, run, &CONNECTIONS.map(of));
}

/// Adds a table of the paths that any of these experiments has.
pub(crate) fn add<'r>(
    page: &mut Page,
    caption: &str,
    table: &Table<'_, &'r str>,
    run: &'r Run,
    experiments: &[Option<&Experiment>],
) {
    let has = |name: &&str| {
        let mut all = experiments.iter().flatten();
        all.any(|experiment| experiment.series(name).is_some())
    };
    let measured = run.measured().map(|path| &*path.name);
    page.table(caption, table, measured.filter(has));
}
