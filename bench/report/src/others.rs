//! The page of load generators of others: what they say of each path, and what the kernel says of the proxy meanwhile.

use crate::{
    cell::{self, by_name},
    experiment::origin,
    headline::add,
    markdown::{Page, Text},
    metric::{Metric, Process},
    schema::Run,
    summary,
};

/// The page of the generators' runs, one run each.
pub fn page(runs: &[Run]) -> String {
    let mut page = Page::titled("By generators of others");
    page.markdown(
        "For people who trust no benchmark of a proxy's own authors. Each program runs as anybody would run it, against a real \
         Cassandra, once per round in every path's cgroup, in an order that is shuffled anew for each round. Throughput and latency are \
         what the program says; CPU time is the kernel's account. They are closed loops: latency is at the maximum of throughput. \
         [How to repeat it](../README.md#by-somebody-elses-generator). `cassandra-stress` is not here, because no package registry has \
         it.",
    );
    if runs.is_empty() {
        page.paragraph("No run is committed.");
    }
    for run in runs {
        summary::warnings(&mut page, run);
        for experiment in &run.experiments {
            page.heading(2, &*experiment.id);
            origin(&mut page, experiment);
            let of = Some(experiment);
            let table = by_name()
                .numbers("throughput", |path| cell::throughput(of, path))
                .numbers("added p50, µs", |path| cell::added(of, path, Metric::P50))
                .numbers("added p99, µs", |path| cell::added(of, path, Metric::P99))
                .numbers("proxy's CPU/op, µs", |path| {
                    cell::cpu(of, path, Process::Proxy)
                })
                .numbers("database's CPU/op, µs", |path| {
                    cell::cpu(of, path, Process::Database)
                });
            add(&mut page, "", &table, run, &[of]);
            let failed = experiment.left_out.iter();
            let failed = failed.filter(|(_, why)| why.starts_with("failed"));
            let failed: Vec<String> = failed.map(|(path, why)| format!("{path} {why}")).collect();
            if !failed.is_empty() {
                let text = Text::new().strong("Left out");
                page.paragraph(text.plain(format!(": {}.", failed.join("; "))));
            }
        }
        page.paragraph(summary::origin(run));
    }
    page.end()
}
