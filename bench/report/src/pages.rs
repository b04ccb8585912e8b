//! The committed Markdown pages: of a run an index and a page for each experiment, or all of it in one; the bars; profiles.

use std::collections::BTreeMap;

use crate::{
    bars,
    experiment::{self, database},
    markdown::{Page, Table, Text, escaped},
    metric::Process,
    number,
    schema::{Experiment, Path, PathKind, Profile, Program, Run},
    sequential::{self, ERROR, LOOKS, NARROW_RATIO, NARROW_US},
    summary,
};

pub use summary::{ALL, ENRICHMENT, GATEWAY, HOST, Scene};

/// The folder of the experiments' pages, beside the index.
pub const FOLDER: &str = "full";

/// The index: the summary of a run, and links to every other page. `others` are lines
/// of Markdown that describe pages which this run is not the source of.
pub fn index(run: &Run, others: &str) -> String {
    let mut page = Page::titled("Results");
    page.markdown(
        "For people who want the figures behind the README. Every page here is rendered from a \
         committed result file; [how it is measured](../README.md) explains the method.",
    );
    page.paragraph(summary::origin(run));
    page.heading(2, "Summary");
    summary::blocks(&mut page, run, ALL);
    page.heading(2, "Pages");
    page.markdown(others.trim());
    page.heading(2, "Experiments");
    list(&mut page, run);
    machine(&mut page, run);
    costs(&mut page, run);
    page.end()
}

fn list(page: &mut Page, run: &Run) {
    let table = Table::of_rows()
        .words("page", |e: &&Experiment| {
            Text::new().page(&*e.id, &format!("{FOLDER}/{}", file_name(e)))
        })
        .words("database", |e| database(e))
        .words("client", |e| e.client.clone())
        .numbers("connections", |e| e.connections.to_string())
        .numbers("in flight on each", |e| e.depth.to_string())
        .numbers("rate", |e| match e.rate {
            None => "maximum".to_owned(),
            Some(rate) => format!("{} op/s", number::grouped(rate)),
        })
        .words("what is asked", |e| e.title.clone());
    page.table("", &table, &run.experiments);
}

/// The page of each experiment, by its file's name within [`FOLDER`].
pub fn experiments(run: &Run) -> Vec<(String, String)> {
    let pages = run.experiments.iter().map(|experiment| {
        let mut page = Page::titled(&experiment.id);
        experiment::origin(&mut page, experiment);
        experiment::section(&mut page, experiment);
        long_legs(&mut page, experiment);
        page.markdown("[All results](../README.md), with the machine and the settings.");
        (file_name(experiment), page.end())
    });
    pages.collect()
}

/// Says where paths stand with short legs that are here with long ones alone.
fn long_legs(page: &mut Page, experiment: &Experiment) {
    let has = |name: &str| experiment.series.iter().any(|s| s.path == name);
    if has("fold") && !has("fold-short-both") {
        page.markdown(
            "Legs are long under `stats`, which travels as `enrich` does, and under `fold`: [enrichment](../enrichment.md) has \
             `fold` with short ones, for clients whose sockets do not block.",
        );
    }
}

/// The name of an experiment's page: nothing in an id leads out of the folder.
fn file_name(experiment: &Experiment) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = experiment.id.chars().map(plain).collect();
    format!("{name}.md")
}

/// Everything that a run says, in the order in which it is read.
pub fn full(run: &Run, scene: Scene) -> String {
    let mut page = Page::titled("underpass, measured");
    page.paragraph(summary::origin(run));
    page.heading(2, "Summary");
    summary::blocks(&mut page, run, scene);
    machine(&mut page, run);
    let mut workloads: Vec<&str> = Vec::new();
    for Experiment { workload, .. } in &run.experiments {
        if workloads.contains(&&**workload) {
            continue;
        }
        workloads.push(workload);
        page.heading(2, &**workload);
        let of_it = || run.experiments.iter().filter(|e| e.workload == *workload);
        if let Some(first) = of_it().next() {
            experiment::origin(&mut page, first);
        }
        for experiment in of_it() {
            page.heading(3, &*experiment.id);
            experiment::section(&mut page, experiment);
        }
    }
    costs(&mut page, run);
    page.end()
}

/// Adds the paths of a run, its machine and its settings.
fn machine(page: &mut Page, run: &Run) {
    page.heading(2, "Paths and machine");
    let paths = Table::of_rows()
        .words("path", |path: &&Path| path.name.clone())
        .words("whose", |path| match path.kind {
            PathKind::Direct => "no proxy",
            PathKind::Ours => "underpass",
            PathKind::Peer => "another proxy",
        })
        .words("how bytes travel", |path| Text::with_code(&path.about))
        .words("measured", |path| match &path.absent {
            None => "yes".to_owned(),
            Some(reason) => format!("no: {reason}"),
        });
    page.table("Paths", &paths, &run.paths);
    let (machine, settings) = (&run.machine, &run.settings);
    let row = |what: &str, value: String| (what.to_owned(), value);
    let mut rows = vec![
        row("kernel", machine.kernel.clone()),
        row("CPU", format!("{} × {}", machine.cores, machine.cpu)),
        row("memory", format!("{} MiB", machine.memory_mib)),
    ];
    for (prefix, values) in [
        ("", &machine.circumstances),
        ("mitigation: ", &machine.mitigations),
        ("version: ", &run.versions),
    ] {
        let values = values.iter();
        rows.extend(values.map(|(name, value)| row(&format!("{prefix}{name}"), value.clone())));
    }
    let minutes = number::short(run.seconds / 60.0);
    rows.extend([
        row("commit", run.source.commit.clone()),
        row("began", run.started.clone()),
        row("took", format!("{minutes} minutes")),
        row("seed", settings.seed.to_string()),
    ]);
    let table = Table::of_rows()
        .words("what", |(what, _): &(String, String)| what.clone())
        .words("value", |(_, value)| value.clone());
    page.table("Machine and settings", &table, rows);
}

/// Adds the costs of BPF programs and the profiles, where a run has any.
fn costs(page: &mut Page, run: &Run) {
    if run.programs.is_empty() && run.profiles.is_empty() {
        return;
    }
    page.heading(2, "BPF programs and profiles");
    if !run.programs.is_empty() {
        let count = |n: u64| number::grouped(n as f64);
        let code = |text: &str| Text::new().code(text);
        let table = Table::of_rows()
            .words("program", move |program: &&Program| code(&program.name))
            .words("kind", move |program| code(&program.kind))
            .words("counted under", move |program| code(&program.experiment))
            .numbers("runs", move |program| count(program.runs))
            .numbers("mean, ns", |program| number::short(program.mean_ns))
            .numbers("bytes after JIT", move |program| count(program.jited_bytes))
            .numbers("instructions verified", move |program| {
                count(program.verified_instructions)
            });
        page.table("BPF programs under load", &table, &run.programs);
    }
    shares(page, run, "../..");
    calls(page, run);
}

/// Adds the users of the CPUs; nothing where nothing was profiled. `root`: the project's root, from the page's folder.
fn shares(page: &mut Page, run: &Run, root: &'static str) {
    if run.profiles.is_empty() {
        return;
    }
    let mut names: Vec<&String> = run.profiles.iter().flat_map(|p| p.shares.keys()).collect();
    names.sort();
    names.dedup();
    let mut table = Table::of_rows()
        .words("path", |profile: &&Profile| profile.path.clone())
        .words("experiment", |profile| {
            Text::new().code(&*profile.experiment)
        });
    for name in names {
        table = table.numbers(name.as_str(), move |profile| {
            let share = profile.shares.get(name).filter(|share| share.is_finite());
            share.map_or_else(
                || number::NONE.into(),
                |share| format!("{:.1} %", share * 100.0),
            )
        });
    }
    let table = table
        .numbers("samples", |profile| number::grouped(profile.samples as f64))
        .words("flame graph", |profile| match &profile.flame_graph {
            Some(file) => Text::new().page("picture", &format!("{root}/{file}")),
            None => number::NONE.into(),
        });
    let caption = "Share of all CPUs' busy time, from a profile";
    page.table(caption, &table, &run.profiles);
}

/// The kinds of system calls in tables, with their names in the kernel. All others are one more kind.
pub const CALLS: [(&str, &[&str]); 4] = [
    ("reads", &["recvfrom", "recvmsg", "read", "readv"]),
    (
        "writes",
        &["sendto", "sendmsg", "write", "writev", "io_uring_enter"],
    ),
    (
        "waits",
        &["epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll"],
    ),
    ("futexes", &["futex"]),
];

/// The name of all system calls together, in [`Profile::calls`].
pub const ALL_CALLS: &str = "all";

/// Adds how often each process called the kernel; nothing where that was not counted.
fn calls(page: &mut Page, run: &Run) {
    let profiles = run
        .profiles
        .iter()
        .filter(|profile| !profile.calls.is_empty());
    let profiles: Vec<&Profile> = profiles.collect();
    if profiles.is_empty() {
        return;
    }
    let mut table = Table::of_rows()
        .words("path", |profile: &&&Profile| profile.path.clone())
        .words("experiment", |profile| {
            Text::new().code(&*profile.experiment)
        });
    for process in Process::ALL.map(Process::name) {
        table = table.numbers(process, move |profile| {
            profile
                .calls
                .get(process)
                .map_or_else(|| number::NONE.into(), by_kind)
        });
    }
    let kinds = CALLS.map(|(kind, _)| kind).join(" + ");
    page.table(
        format!("System calls for an operation: {kinds} + others, from `perf stat`"),
        &table,
        &profiles,
    );
}

/// A process's system calls by kind, those of no kind last.
fn by_kind(calls: &BTreeMap<String, f64>) -> String {
    let of = |name: &str| calls.get(name).copied().unwrap_or_default();
    let kinds = CALLS.map(|(_, names)| names.iter().map(|name| of(name)).sum::<f64>());
    let others = (of(ALL_CALLS) - kinds.iter().sum::<f64>()).max(0.0);
    let figures = kinds
        .into_iter()
        .chain([others])
        .map(|each| format!("{each:.2}"));
    figures.collect::<Vec<_>>().join(" + ")
}

/// Where the time went: shares, and a picture for each path. For a page in a folder of the
/// project's root.
pub fn profiles(run: &Run) -> String {
    let mut page = Page::default();
    if run.profiles.is_empty() {
        page.paragraph("Nothing was profiled in the committed run.");
        return page.end();
    }
    shares(&mut page, run, "..");
    calls(&mut page, run);
    let mut experiment = "";
    for profile in &run.profiles {
        let Some(file) = &profile.flame_graph else {
            continue;
        };
        if profile.experiment != experiment {
            experiment = &profile.experiment;
            page.heading(3, experiment);
        }
        let title = escaped(&format!("{} under {experiment}", profile.path));
        let path = escaped(&profile.path);
        // Folded: a page of twenty pictures shows none of them.
        page.markdown(format_args!(
            "<details><summary>{path}</summary>\n\n![{title}](../{file})\n\n</details>"
        ));
    }
    page.paragraph(summary::origin(run));
    page.end()
}

/// The bars with their verdicts, of the run that measured them; None: none is committed.
pub fn bars(run: Option<&Run>) -> String {
    let mut page = Page::titled("Bars");
    page.markdown(format_args!(
        "For people who change the code: a bar is a bound that must hold on a machine of any \
         speed, because it compares paths of the same rounds. `cargo xtask bench bars` measures them, and this page is \
         rendered from its result file.\n\n\
         - **met**, **missed**: its whole interval is on one side of the bound, or the interval is narrower than \
         ±{ratio} % (±{us} µs) and the estimate decides.\n\
         - **undecided**: after {most} rounds the bound is still within the interval: a failure of the measurement, whose cause \
         is said.\n\
         - **not measured**: there is no figure, for the reason given.\n\n\
         A figure is Hodges' and Lehmann's estimate of its rounds, each held against both directs of the same round, and the \
         interval Wilcoxon's (signed ranks). It is looked {looks} times, after fixed numbers of rounds, which share a chance \
         of {error} % of leaving the truth out for each bar (by Bonferroni's bound; the last look has half of it): stopping early costs nothing. \
         Of {bars} bars, one or two may be on the wrong side. Both take it that rounds in a random order scatter evenly around what is true.",
        bars = bars::ALL.len(),
        ratio = NARROW_RATIO * 100.0,
        us = NARROW_US,
        most = sequential::MOST_ROUNDS,
        looks = LOOKS.len(),
        error = ERROR * 100.0,
    ));
    let Some(run) = run else {
        page.paragraph("No run of the bars is committed.");
        return page.end();
    };
    let tally = bars::tally(run);
    page.paragraph(format!(
        "{} met, {} missed, {} undecided, {} not measured. In {} minutes.",
        tally.met,
        tally.missed,
        tally.undecided,
        tally.not_measured,
        number::short(run.seconds / 60.0),
    ));
    summary::warnings(&mut page, run);
    bars::table(&mut page, run);
    bars::noise(&mut page, run);
    page.paragraph(summary::origin_of_bars(run));
    page.end()
}
