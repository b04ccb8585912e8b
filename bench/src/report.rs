//! `underpass-bench report`: the README's results, from the result file and nothing else.

use std::{
    fmt::Write as _,
    fs,
    path::{Path as FilePath, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, ensure};

use crate::{
    measure::results::{Comparison, Loads, Numbers, Results, SCHEMA},
    path::ByPath,
};

const BEGIN: &str = "<!-- results:begin -->";
const END: &str = "<!-- results:end -->";

/// What the paths must reach on a machine of any speed.
mod bars {
    /// Bypass against direct, operations in a second: nothing but noise may be lost.
    pub const BYPASS_OP_S: f64 = 0.98;
    /// Bypass against direct, median latency.
    pub const BYPASS_P50: f64 = 1.02;
    /// Enrich against direct on Cassandra: as good as proxies that only copy.
    pub const ENRICH_OP_S: f64 = 0.80;
    /// The agent's memory under that load.
    pub const RSS_MIB: f64 = 20.0;
    /// What a bypass rule adds to `connect()`.
    pub const CONNECT_US: f64 = 5.0;
}

/// Options of `report`.
#[derive(clap::Args)]
pub struct Args {
    /// The page, with `<!-- results:begin -->` and `<!-- results:end -->` in it
    page: PathBuf,
    /// The result file
    #[arg(long, value_name = "FILE", default_value = "bench/results/slice.json")]
    results: PathBuf,
    /// Change nothing; exit 1 when the page is out of date
    #[arg(long)]
    check: bool,
}

/// The command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let results = read(&args.results)?;
    let old = fs::read_to_string(&args.page)
        .with_context(|| format!("cannot read {}", args.page.display()))?;
    let new = replaced(&old, &render(&results))
        .with_context(|| format!("{} has no {BEGIN} … {END}", args.page.display()))?;
    if new == old {
        println!("{} is up to date", args.page.display());
        return Ok(ExitCode::SUCCESS);
    }
    if args.check {
        eprintln!(
            "{} is out of date: run `cargo xtask bench report`",
            args.page.display()
        );
        return Ok(ExitCode::FAILURE);
    }
    fs::write(&args.page, new).with_context(|| format!("cannot write {}", args.page.display()))?;
    println!("{} is brought up to date", args.page.display());
    Ok(ExitCode::SUCCESS)
}

fn read(file: &FilePath) -> anyhow::Result<Results> {
    let text = fs::read_to_string(file).with_context(|| {
        format!(
            "cannot read {}: run `cargo xtask bench measure`",
            file.display()
        )
    })?;
    let results: Results = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a result file", file.display()))?;
    ensure!(
        results.schema == SCHEMA,
        "{} is of schema {}, not {SCHEMA}: measure again",
        file.display(),
        results.schema
    );
    Ok(results)
}

/// The page with this between its markers.
fn replaced(page: &str, between: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{between}{END}{after}"))
}

/// One row. Cells that make no sense are empty.
#[derive(Default)]
struct Row {
    what: String,
    by_path: ByPath<String>,
    ratios: ByPath<Option<f64>>,
    bar: Option<Bar>,
}

struct Bar {
    text: String,
    met: bool,
}

impl Bar {
    fn at_least(what: &str, value: f64, bar: f64) -> Option<Self> {
        Self::new(format!("{what} ≥ {bar:.2}"), value >= bar)
    }

    fn at_most(what: &str, value: f64, bar: f64, unit: &str) -> Option<Self> {
        let decimals = if unit.is_empty() { 2 } else { 0 };
        Self::new(format!("{what} ≤ {bar:.decimals$}{unit}"), value <= bar)
    }

    #[expect(clippy::unnecessary_wraps, reason = "a row's bar is optional")]
    fn new(text: String, met: bool) -> Option<Self> {
        Some(Self { text, met })
    }
}

/// The table, and where it comes from. Ends with a newline.
fn render(results: &Results) -> String {
    let mut page = String::from(
        "\n| | direct | bypass | enrich | bypass ÷ direct | enrich ÷ direct | bar | |\n\
         | --- | --: | --: | --: | --: | --: | --- | --- |\n",
    );
    for row in rows(results) {
        let ratio = |ratio: Option<f64>| ratio.map_or(String::new(), |r| format!("{r:.3}"));
        let (bar, met) = match &row.bar {
            Some(bar) => (&*bar.text, if bar.met { "met" } else { "**missed**" }),
            None => ("", ""),
        };
        let cells = [
            &*row.what,
            &row.by_path.direct,
            &row.by_path.bypass,
            &row.by_path.enrich,
            &ratio(row.ratios.bypass),
            &ratio(row.ratios.enrich),
            bar,
            met,
        ];
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    let _ = writeln!(page, "\n{}\n", origin(results));
    page
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    let [mut op_s, mut p50] = comparison("embedded node, raw", &results.node);
    let ratios = &results.node.ratios;
    op_s.bar = Bar::at_least("bypass", ratios.bypass.op_s, bars::BYPASS_OP_S);
    p50.bar = Bar::at_most("bypass", ratios.bypass.p50, bars::BYPASS_P50, "");
    rows.extend([op_s, p50]);
    if let Some(cassandra) = &results.cassandra {
        rows.extend(loads("Cassandra, driver", &cassandra.driver));
        rows.extend(loads("Cassandra, raw", &cassandra.raw));
        let rss = &cassandra.driver.agent_rss_peak_kib;
        let bar = Bar::at_most("peak", mib(rss.under_load), bars::RSS_MIB, " MiB");
        rows.push(memory("under the driver's load", rss.under_load, bar));
        rows.push(memory("while it starts", rss.start, None));
    }
    let connects = &results.connects;
    rows.push(Row {
        what: "`connect()`, median, µs".into(),
        by_path: connects.p50_us.map(|us| format!("{us:.1}")),
        bar: Bar::at_most(
            &format!("bypass adds {:.1},", connects.added_us.bypass),
            connects.added_us.bypass,
            bars::CONNECT_US,
            " µs",
        ),
        ..Row::default()
    });
    rows
}

/// Reads and writes of one kind of client.
fn loads(client: &str, loads: &Loads) -> Vec<Row> {
    let mut rows = Vec::new();
    for (load, measured) in [("reads", &loads.read), ("writes", &loads.write)] {
        let what = format!("{client}, {load}");
        let [mut op_s, p50] = comparison(&what, measured);
        let ratio = measured.ratios.enrich.op_s;
        op_s.bar = Bar::at_least("enrich", ratio, bars::ENRICH_OP_S);
        let cpu_us = measured.medians.enrich.agent_cpu_us;
        let cpu = Row {
            what: format!("{what}: agent's CPU per operation, µs"),
            by_path: ByPath {
                enrich: format!("{cpu_us:.1}"),
                ..ByPath::default()
            },
            ..Row::default()
        };
        rows.extend([op_s, p50, cpu]);
    }
    rows
}

fn memory(when: &str, kib: u64, bar: Option<Bar>) -> Row {
    Row {
        what: format!("agent's RSS, peak {when}, MiB"),
        by_path: ByPath {
            enrich: format!("{:.1}", mib(kib)),
            ..ByPath::default()
        },
        bar,
        ..Row::default()
    }
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// Throughput and median latency.
fn comparison(what: &str, comparison: &Comparison) -> [Row; 2] {
    let row = |unit: &str, number: fn(&Numbers) -> f64, ratios| Row {
        what: format!("{what}: {unit}"),
        by_path: comparison.medians.map(|n| grouped(number(n))),
        ratios,
        bar: None,
    };
    [
        row("op/s", |n| n.op_s, comparison.ratios.map(|r| Some(r.op_s))),
        row(
            "p50, µs",
            |n| n.p50_us,
            comparison.ratios.map(|r| Some(r.p50)),
        ),
    ]
}

fn origin(results: &Results) -> String {
    let (machine, settings) = (&results.machine, &results.settings);
    let commit = results.source.commit.get(..12).unwrap_or_default();
    let dirty = if results.source.dirty {
        " with local changes"
    } else {
        ""
    };
    let cassandra = match &results.cassandra {
        Some(cassandra) => format!("Cassandra {}", cassandra.version),
        None => "Cassandra was not measured".to_owned(),
    };
    let day = results.date.get(..10).unwrap_or(&results.date);
    format!(
        "Medians of {} interleaved rounds ({} on the embedded node) of {} s for each path; ratios are medians of each \
         round's ratio. Clients are {} threads that wait for each answer: they share the \
         connections of the scylla driver {} (*driver*), or have one each (*raw*, the hardest \
         case: no two requests in one system call). {} cores of {}, {:.1} GiB, Linux {}, \
         database and clients on the same host; {cassandra}. Commit {commit}{dirty}, \
         {day}. `cargo xtask bench measure` repeats it; every round is in \
         [bench/results/slice.json](bench/results/slice.json).",
        settings.rounds,
        results.node.rounds.len(),
        settings.seconds,
        settings.threads,
        results.versions.driver,
        machine.cores,
        machine.cpu,
        machine.memory_mib as f64 / 1024.0,
        machine.kernel,
    )
}

/// A whole number, in groups of three digits.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
