//! What the README shows: the one table that people choose by, the bars, and where the figures
//! come from.

use crate::{
    bars,
    metric::{Metric, Process},
    model::{Block, Column, Table, Text},
    number::{self, NONE},
    schema::{Experiment, Path, Run, Series},
};

/// Compared by their maximum of throughput.
const THROUGHPUT: [(&str, &str); 3] = [
    ("node-raw", "embedded node"),
    ("stress-read", "Cassandra, reads"),
    ("stress-write", "Cassandra, writes"),
];
/// The workload that compares paths doing the same work in the same time.
pub const CONSTANT: &str = "const-rate";
/// At this rate: one that every path of a small machine keeps up with.
pub const CONSTANT_RATE: f64 = 5000.0;

/// Warnings, the table, who is not in it, and the bars.
pub fn blocks(run: &Run) -> Vec<Block> {
    let mut blocks = warnings(run);
    blocks.push(Block::Table(table(run)));
    blocks.push(Block::Paragraph(legend(run)));
    blocks.extend(not_in_it(run).map(Block::Paragraph));
    blocks.push(Block::Table(bars::table(run)));
    blocks
}

/// The experiment in which every path does the same work: at [`CONSTANT_RATE`], or else the
/// first that has a rate.
pub fn constant(run: &Run) -> Option<&Experiment> {
    let at = |e: &&Experiment| e.workload == CONSTANT && e.rate == Some(CONSTANT_RATE);
    let found = run.usable().find(at);
    found.or_else(|| run.usable().find(|e| e.rate.is_some()))
}

/// What was not as asked for.
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
    lines.into_iter().map(Block::Warning).collect()
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
    let Some((experiment, series)) =
        constant(run).and_then(|e| e.series(&path.name).map(|series| (e, series)))
    else {
        cells.extend([NONE, NONE, NONE].map(Text::from));
        cells.push(rss(run, path));
        cells.push(NONE.into());
        return cells;
    };
    for metric in [Metric::P50, Metric::P99] {
        cells.push(match series.is_direct() {
            true => Text::new().muted(format!(
                "{} {}",
                metric.name(),
                number::or_none(series.median(metric), number::short)
            )),
            false => Text::brief(experiment.added(series, metric), number::signed),
        });
    }
    let of_proxy = |metric, text: fn(f64) -> String| {
        let figure = series.median(metric).filter(|_| !series.is_direct());
        Text::from(number::or_none(figure, text))
    };
    cells.push(of_proxy(Metric::Cpu(Process::Proxy), number::short));
    cells.push(rss(run, path));
    cells.push(of_proxy(Metric::Copied, number::grouped));
    cells
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

/// What its columns are.
fn legend(run: &Run) -> Text {
    let text = Text::new().plain(
        "Throughput is the maximum, as a ratio to direct: over raw sockets on the embedded node, over a \
         driver on Cassandra. ",
    );
    let text = match constant(run) {
        Some(experiment) => text
            .plain("Added latency, the proxy's CPU and the bytes that it copied are those of ")
            .code(&*experiment.id)
            .plain(", in which every path does the same work"),
        None => text.plain("No experiment let every path do the same work"),
    };
    text.plain("; RSS is the proxy's, the most of all experiments.")
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
         the same round of direct, and where their spread (15 in 16) reaches to direct, there \
         is “no difference”. {cores} cores of {cpu}, {memory:.1} GiB, Linux {kernel}. \
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
