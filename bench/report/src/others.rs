//! The page of load generators of others: what they say of each path, and what the kernel says of the proxy meanwhile.

use std::fmt::Write as _;

use crate::{
    document,
    headline::{added, own, rows, throughput},
    markdown::blocks,
    metric::{Metric, Process},
    model::{Block, Column, Table, Text},
    schema::{Experiment, Run},
    summary,
};

/// The page of the generators' runs, one run each.
pub fn page(runs: &[Run]) -> String {
    let mut out = String::from("# By generators of others\n\n");
    out.push_str(
        "For people who trust no benchmark of a proxy's own authors. Each program runs as anybody would run it, against a real \
         Cassandra, once per round in every path's cgroup, in an order that is shuffled anew for each round. Throughput and latency are \
         what the program says; CPU time is the kernel's account. They are closed loops: latency is at the maximum of throughput. \
         [How to repeat it](../README.md#by-somebody-elses-generator). `cassandra-stress` is not here, because no package registry has \
         it.\n\n",
    );
    if runs.is_empty() {
        out.push_str("No run is committed.\n");
    }
    for run in runs {
        blocks(&mut out, &summary::warnings(run));
        for experiment in &run.experiments {
            let _ = writeln!(out, "## {}\n", experiment.id);
            let mut all = vec![
                Block::Paragraph(document::origin(experiment)),
                Block::Table(table(run, experiment)),
            ];
            all.extend(left_out(experiment).map(Block::Paragraph));
            blocks(&mut out, &all);
        }
        blocks(&mut out, &[Block::Paragraph(summary::origin(run))]);
    }
    format!("{}\n", out.trim_end())
}

fn table(run: &Run, experiment: &Experiment) -> Table {
    let columns = vec![
        Column::words("path"),
        Column::numbers("throughput"),
        Column::numbers("added p50, µs"),
        Column::numbers("added p99, µs"),
        Column::numbers("proxy's CPU/op, µs"),
        Column::numbers("database's CPU/op, µs"),
    ];
    let mut table = Table::new(Text::new(), columns);
    let experiment = Some(experiment);
    for path in rows(run, &[experiment]) {
        table.path_row(
            path,
            [
                throughput(experiment, path),
                added(experiment, path, Metric::P50),
                added(experiment, path, Metric::P99),
                own(experiment, path, Metric::Cpu(Process::Proxy)),
                own(experiment, path, Metric::Cpu(Process::Database)),
            ],
        );
    }
    table
}

/// The paths that were to be compared and could not be; None: there are none.
fn left_out(experiment: &Experiment) -> Option<Text> {
    let failed = experiment
        .left_out
        .iter()
        .filter(|(_, why)| why.starts_with("failed"));
    let failed: Vec<String> = failed.map(|(path, why)| format!("{path} {why}")).collect();
    (!failed.is_empty()).then(|| {
        Text::new()
            .strong("Left out")
            .plain(format!(": {}.", failed.join("; ")))
    })
}
