//! Everything that a run says, in the order in which it is read.

use crate::{
    experiment,
    model::{Block, Column, Document, Section, Table, Text},
    number, programs,
    schema::{Experiment, Run},
    summary,
};

/// A run's.
pub fn of(run: &Run) -> Document {
    let mut sections = vec![summary(run), machine(run)];
    let mut workloads: Vec<&str> = Vec::new();
    for experiment in &run.experiments {
        if !workloads.contains(&&*experiment.workload) {
            workloads.push(&experiment.workload);
        }
    }
    sections.extend(workloads.into_iter().map(|name| workload(run, name)));
    sections.extend(costs(run));
    Document {
        title: "underpass, measured".into(),
        blocks: vec![Block::Paragraph(summary::origin(run))],
        sections,
    }
}

/// The costs of BPF programs, and profiles; None if the run has neither.
pub fn costs(run: &Run) -> Option<Section> {
    let tables = [programs::table(run), programs::profiles(run)];
    let blocks: Vec<Block> = tables.into_iter().flatten().map(Block::Table).collect();
    (!blocks.is_empty()).then(|| section("programs", "BPF programs and profiles", blocks))
}

fn section(anchor: &str, title: &str, blocks: Vec<Block>) -> Section {
    Section {
        anchor: anchor.into(),
        title: title.into(),
        blocks,
        sections: Vec::new(),
    }
}

fn summary(run: &Run) -> Section {
    section("summary", "Summary", summary::blocks(run))
}

/// The paths of a run, its machine and its settings.
pub fn machine(run: &Run) -> Section {
    let mut paths = Table::new(
        "Paths",
        ["path", "whose", "how bytes travel", "measured"]
            .map(Column::words)
            .into(),
    );
    for path in &run.paths {
        let measured = match &path.absent {
            None => Text::new().plain("yes"),
            Some(reason) => Text::new().muted(format!("no: {reason}")),
        };
        paths.path_row(
            &path.name,
            [path.kind.name().into(), (&*path.about).into(), measured],
        );
    }
    let mut table = Table::new(
        "Machine and settings",
        ["what", "value"].map(Column::words).into(),
    );
    let (machine, settings) = (&run.machine, &run.settings);
    let mut row = |what: &str, value: String| table.row(vec![what.into(), value.into()]);
    row("kernel", machine.kernel.clone());
    row("CPU", format!("{} × {}", machine.cores, machine.cpu));
    row("memory", format!("{} MiB", machine.memory_mib));
    for (name, value) in &machine.circumstances {
        row(name, value.clone());
    }
    for (name, value) in &machine.mitigations {
        row(&format!("mitigation: {name}"), value.clone());
    }
    for (name, value) in &run.versions {
        row(&format!("version: {name}"), value.clone());
    }
    row("commit", run.source.commit.clone());
    row("began", run.started.clone());
    let minutes = run.seconds / 60.0;
    row("took", format!("{} minutes", number::short(minutes)));
    row("seed", settings.seed.to_string());
    section(
        "machine",
        "Paths and machine",
        vec![Block::Table(paths), Block::Table(table)],
    )
}

fn workload(run: &Run, name: &str) -> Section {
    let all = run.experiments.iter().filter(|e| e.workload == name);
    let all: Vec<&Experiment> = all.collect();
    let first = all.first().map(|first| origin(first));
    let blocks = first.into_iter().map(Block::Paragraph).collect();
    Section {
        anchor: format!("workload-{name}"),
        title: Text::new().plain(name),
        blocks,
        sections: all.iter().map(|e| experiment::section(run, e)).collect(),
    }
}

/// The purpose of an experiment's workload, and its source.
pub fn origin(experiment: &Experiment) -> Text {
    let origin = &experiment.origin;
    let line = Text::new()
        .plain(format!("{} From ", sentence(&experiment.title)))
        .link(&*origin.name, &*origin.url)
        .plain(".");
    match origin.changed.is_empty() {
        true => line,
        false => line.plain(format!(" Changed here: {}", sentence(&origin.changed))),
    }
}

fn sentence(text: &str) -> String {
    match text.is_empty() || text.ends_with(['.', '!', '?']) {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}
