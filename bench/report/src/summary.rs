//! The summary of a run: one table over all its paths, and the origin of the figures.

use crate::{
    constant, legend,
    metric::{Metric, Process},
    model::{Block, Column, Table, Text},
    number::{self, NONE},
    pace,
    schema::{Experiment, Path, Run, Series},
};

/// Compared by their maximum of throughput.
const THROUGHPUT: [(&str, &str); 3] = [
    ("node-raw", "embedded node"),
    ("stress-read", "Cassandra, reads"),
    ("stress-write", "Cassandra, writes"),
];

/// Warnings, the table, and the paths that are not in it.
pub fn blocks(run: &Run) -> Vec<Block> {
    let mut blocks = warnings(run);
    blocks.push(Block::Table(table(run)));
    blocks.extend(legend::of_summary(run).map(Block::Paragraph));
    blocks.extend(not_in_it(run).map(Block::Paragraph));
    blocks
}

/// Warnings: everything that was not as asked for.
pub fn warnings(run: &Run) -> Vec<Block> {
    let mut lines = Vec::new();
    if !run.complete {
        lines.push(
            Text::new()
                .strong("Interrupted")
                .plain(": what was measured until then."),
        );
    }
    for (id, reason) in &run.failed {
        lines.push(
            Text::new()
                .strong("Failed")
                .plain(": ")
                .code(&**id)
                .plain(format!(", {reason}")),
        );
    }
    for experiment in &run.experiments {
        if let Some(reason) = &experiment.refused {
            lines.push(
                Text::new()
                    .strong("Withheld")
                    .plain(": ")
                    .code(&*experiment.id)
                    .plain(format!(", {reason}")),
            );
        }
        for series in experiment.series.iter().filter(|s| s.errors() > 0) {
            lines.push(errors(experiment, series));
        }
    }
    lines.extend(behind(run));
    lines.into_iter().map(Block::Warning).collect()
}

/// The paths that did not keep up, and where, in one line; the experiments' own sections say how far.
fn behind(run: &Run) -> Option<Text> {
    let mut text = Text::new().strong("Did not keep up").plain(": ");
    let mut separator = "";
    for experiment in shown_at_a_rate(run) {
        let late = experiment.series.iter();
        let late = late.filter(|series| experiment.behind(series).is_some());
        let names: Vec<&str> = late.map(|series| &*series.path).collect();
        if !names.is_empty() {
            text = text
                .plain(format!("{separator}{} in ", names.join(", ")))
                .code(&*experiment.id);
            separator = "; ";
        }
    }
    (!separator.is_empty()).then(|| {
        text.plain(format!(
            ". In a round or more less than {} % of the schedule ended in time; the latencies are \
             those of a queue that grows.",
            number::plain(pace::KEPT_UP * 100.0)
        ))
    })
}

/// The workload whose variants differ by their number of nodes.
const NODES: &str = "nodes";

/// Experiments with a schedule that the summary speaks of.
fn shown_at_a_rate(run: &Run) -> impl Iterator<Item = &Experiment> {
    let chosen = constant::choose(run).map(|c| &*c.experiment.id);
    run.usable().filter(move |e| {
        let is_shown = [constant::WORKLOAD, NODES].contains(&&*e.workload);
        is_shown || chosen == Some(&*e.id)
    })
}

fn errors(experiment: &Experiment, series: &Series) -> Text {
    let count = number::grouped(series.errors() as f64);
    let plural = if series.errors() == 1 { "" } else { "s" };
    let why = series.first_error().unwrap_or("no reason was kept");
    Text::new()
        .strong(format!("{count} error{plural}"))
        .plain(" of ")
        .plain(&*series.path)
        .plain(" in ")
        .code(&*experiment.id)
        .plain(format!(", the first: {why}"))
}

fn table(run: &Run) -> Table {
    let mut columns = vec![Column::words("path")];
    for (_, title) in THROUGHPUT {
        columns.push(Column::numbers(format!("op/s, {title}")));
    }
    columns.extend(
        [
            "added p50, µs",
            "added p99, µs",
            "CPU/op, µs",
            "RSS peak, MiB",
            "copied/op, bytes",
        ]
        .map(Column::numbers),
    );
    let mut table = Table::new(Text::new(), columns);
    for path in run.measured() {
        table.path_row(&path.name, cells(run, path));
    }
    table
}

fn cells(run: &Run, path: &Path) -> Vec<Text> {
    let mut cells = Vec::new();
    for (id, _) in THROUGHPUT {
        let experiment = run.experiment(id).filter(|e| e.is_usable());
        cells.push(match experiment {
            Some(experiment) => throughput(experiment, path),
            None => NONE.into(),
        });
    }
    let chosen = constant::choose(run).map(|c| c.experiment);
    let Some((experiment, series)) =
        chosen.and_then(|e| e.series(&path.name).map(|series| (e, series)))
    else {
        cells.extend([NONE, NONE, NONE].map(Text::from));
        cells.push(rss(run, path));
        cells.push(NONE.into());
        return cells;
    };
    let flaw = experiment.flaw(series);
    let of_direct = experiment.direct().and_then(|d| experiment.flaw(d));
    for metric in [Metric::P50, Metric::P99] {
        let cell = match series.is_direct() {
            true => Text::new().muted(format!(
                "{} {}",
                metric.name(),
                number::or_none(series.median(metric), number::short)
            )),
            false => Text::brief(experiment.added(series, metric), number::signed),
        };
        cells.push(match (flaw, of_direct) {
            // A difference to a queue is none that the path made.
            (None, Some(flaw)) => marked(cell, Some(&format!("direct {flaw}"))),
            (flaw, _) => marked(cell, flaw),
        });
    }
    let of_proxy = |metric, text: fn(f64) -> String| match series.is_direct() {
        true => Text::from(NONE),
        false => marked(number::or_none(series.median(metric), text).into(), flaw),
    };
    cells.push(of_proxy(Metric::Cpu(Process::Proxy), number::short));
    cells.push(rss(run, path));
    cells.push(of_proxy(Metric::Copied, number::grouped));
    cells
}

/// A figure, and what is wrong with it.
fn marked(cell: Text, flaw: Option<&str>) -> Text {
    match flaw {
        Some(flaw) => cell.plain(" ").strong(format!("({flaw})")),
        None => cell,
    }
}

fn throughput(experiment: &Experiment, path: &Path) -> Text {
    let Some(series) = experiment.series(&path.name) else {
        return NONE.into();
    };
    if series.is_direct() {
        let op_s = number::or_none(series.median(Metric::OpS), number::grouped);
        return Text::new().muted(format!("{op_s} op/s"));
    }
    Text::brief(experiment.ratio(series, Metric::OpS), |ratio| {
        format!("{}×", number::ratio(ratio))
    })
}

/// The most of all experiments.
fn rss(run: &Run, path: &Path) -> Text {
    let peaks = run.usable().filter_map(|e| e.series(&path.name));
    let peaks = peaks.filter_map(|s| s.peak(Metric::RssPeak));
    number::or_none(peaks.max_by(f64::total_cmp), number::mib).into()
}

/// Paths and experiments that are not in the table, and why.
fn not_in_it(run: &Run) -> Option<Text> {
    let absent = run.paths.iter().filter_map(|path| {
        let reason = path.absent.as_ref()?;
        Some(format!("{} ({reason})", path.name))
    });
    let ids = THROUGHPUT.iter().filter_map(|(id, _)| {
        let why = match run.experiment(id) {
            None if run.failed.contains_key(*id) => "failed",
            None => "not part of this run",
            Some(experiment) if !experiment.is_usable() => "withheld",
            Some(_) => return None,
        };
        Some(format!("{id} ({why})"))
    });
    let all: Vec<String> = absent.chain(ids).collect();
    (!all.is_empty()).then(|| Text::new().plain(format!("Not measured: {}.", all.join(", "))))
}

/// Commit, date, machine, and how it was measured.
pub fn origin(run: &Run) -> Text {
    let (machine, settings, source) = (&run.machine, &run.settings, &run.source);
    let commit: String = source.commit.chars().take(12).collect();
    let dirty = if source.dirty {
        " with local changes"
    } else {
        ""
    };
    let day: String = run.started.chars().take(10).collect();
    let versions: Vec<String> = run
        .versions
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    Text::new().plain(format!(
        "Medians of {rounds} rounds of {seconds} s for each path, interleaved in turns of {turn} s \
         after {warm_up} s of warm-up; ratios and additions are medians of each round against \
         the same round of direct, and where their spread reaches to direct, there is “no \
         difference”. {cores} cores of {cpu}, {memory:.1} GiB, Linux {kernel}. \
         {versions}. Commit {commit}{dirty}, {day}. ",
        rounds = settings.rounds,
        seconds = number::plain(settings.seconds),
        turn = number::plain(settings.turn_seconds),
        warm_up = number::plain(settings.warm_up_seconds),
        cores = machine.cores,
        cpu = machine.cpu,
        memory = machine.memory_mib as f64 / 1024.0,
        kernel = machine.kernel,
        versions = match versions.is_empty() {
            true => "Versions were not kept".to_owned(),
            false => versions.join(", "),
        },
    ))
    .code(&*settings.command)
    .plain(" repeats it.")
}
