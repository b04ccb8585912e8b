//! The README's one table: ways from a client to its database, and what each costs.

use std::iter;

use crate::{
    cell,
    headline::{self, CONNECTIONS, PATHS, SHARES},
    markdown::{Page, Table, Text},
    metric::{Metric, Process},
    number::{self, NONE},
    schema::Run,
};

/// The experiment with one connection, for the latency.
pub(crate) const ONE: &str = "node-raw-nonblocking-1";
/// The experiment with 32 connections, for throughput and CPU time.
pub(crate) const MANY: &str = "node-raw-nonblocking-32";

/// The README's table, and how it was measured; None: no headline is committed. A path that was not measured has a row of
/// dashes.
pub fn readme(run: Option<&Run>) -> String {
    let mut page = Page::default();
    let Some(run) = run else {
        page.paragraph("No run is committed.");
        return page.end();
    };
    let [few, many] = CONNECTIONS;
    let at_ease = run.experiment(&headline::id(few, Some(SHARES[0]), false));
    // No schedule with which one could fail to keep up.
    let [alone, most] =
        [true, false].map(|is_apart| run.experiment(&headline::id(many, None, is_apart)));
    let table = Table::of_rows()
        .words("path", |path: &&str| Text::from(*path))
        .numbers("added p50, µs", move |path| {
            cell::brief_added(at_ease, path, Metric::P50)
        })
        .numbers("added p99, µs", move |path| {
            cell::brief_added(at_ease, path, Metric::P99)
        })
        .numbers("its CPU per operation, µs", move |path| {
            cell::cpu(alone, path, Process::Proxy)
        })
        .numbers("throughput", move |path| cell::brief_throughput(most, path))
        .words("how bytes travel", |path| {
            let path = run.path(path);
            path.map_or_else(|| NONE.into(), |path| Text::with_code(&path.about))
        });
    page.table("", &table, iter::once("direct").chain(PATHS));
    page.markdown(format_args!(
        "Latency: {few} connection, on a schedule of {share} % of direct's maximum ({rate} op/s), on cores that all share; of direct it is its own. CPU of the proxy: {many} connections, \
         as fast as they go, with a core of its own; at a rate that leaves room each request wakes it, and it takes more for one. Throughput: likewise, on {cores} cores that client, proxy and database share. “{none}”: the \
         interval of the rounds, each held against direct in the same round, includes direct and ends within 10 % of it; “{wide}”: it \
         includes direct and is wider. Estimates of {rounds} rounds on {cpu} \
         (Linux {kernel}); the database is an embedded CQL node. [With intervals, at other rates, and with a core for the proxy \
         alone](bench/results/headline.md).",
        share = SHARES[0],
        rate = number::or_none(at_ease.and_then(|e| e.rate), number::grouped),
        cores = run.machine.cores,
        none = number::NO_DIFFERENCE,
        wide = number::NOT_RESOLVED,
        rounds = run.settings.rounds,
        cpu = run.machine.cpu,
        kernel = run.machine.kernel,
    ));
    page.end()
}
