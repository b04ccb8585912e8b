//! The summary of a run: what was not as asked for, a comparison of its paths, and the origin of the figures.

use crate::{
    cell::{beside_direct, brief_throughput, found},
    markdown::{Page, Table, Text},
    metric::Metric,
    number::{self, or_none},
    overview::{MANY, ONE},
    pace,
    schema::{Experiment, Path, Run, Series},
    sequential::CASSANDRA_FACTOR,
    stats::{AGAIN_CHANCE, CHANCE, MIN_ROUNDS},
};

/// Experiments by which paths are compared.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    caption: &'static str,
    /// The experiment with one connection, for the latency.
    one: &'static str,
    /// The experiment with 32 connections, for throughput and CPU time.
    many: &'static str,
    /// Further experiments for the throughput, and what they are called.
    further: &'static [(&'static str, &'static str)],
}

/// Client and database on one host.
pub const HOST: Scene = Scene {
    caption: "Paths: over raw sockets that do not block, on the embedded node",
    one: ONE,
    many: MANY,
    further: &[],
};

/// Client and database on one host, and by a driver on a real Cassandra.
pub const ALL: Scene = Scene {
    caption: "Paths: over raw sockets on the embedded node, and by a driver on Cassandra",
    further: &[
        ("stress-read", "op/s, Cassandra, reads"),
        ("stress-write", "op/s, Cassandra, writes"),
    ],
    ..HOST
};

/// Client and database on hosts of their own.
pub const GATEWAY: Scene = Scene {
    caption: "Through a gateway: direct is routed, as are packets that nobody rewrites",
    one: "gateway-1",
    many: "gateway-32",
    further: &[],
};

/// Client and database on one host, for the paths that decode.
pub const ENRICHMENT: Scene = Scene {
    caption: "Enrichment: over raw sockets that do not block, on the embedded node",
    ..HOST
};

/// Adds warnings, the comparison of all paths, and how much of it is chance.
pub fn blocks(page: &mut Page, run: &Run, scene: Scene) {
    warnings(page, run);
    let (one, many) = (run.experiment(scene.one), run.experiment(scene.many));
    let mut table = Table::of_rows().words("path", |path: &&Path| path.name.clone());
    // Of what is withheld a column of dashes says nothing more.
    if one.is_none_or(Experiment::is_usable) {
        table = table.numbers("added p50, 1 connection, µs", move |path| {
            let own = |direct: &Series| {
                let own = or_none(direct.median(Metric::P50), number::short);
                format!("p50 {own}")
            };
            beside_direct(one, &path.name, own, |experiment, series| {
                Text::brief(experiment.added(series, Metric::P50), number::signed)
            })
        });
    }
    table = table
        .numbers("op/s, 32 connections", |path| {
            brief_throughput(many, &path.name)
        })
        .numbers("all CPU/op, 32 connections, µs", |path| {
            let series = found(many, &path.name).map(|(_, series)| series);
            let cpu = series.and_then(|series| series.median(Metric::AllCpu));
            or_none(cpu, number::short)
        });
    for (id, name) in scene.further {
        let experiment = run.experiment(id);
        table = table.numbers(*name, move |path| brief_throughput(experiment, &path.name));
    }
    let table = table.words("how bytes travel", |path| Text::with_code(&path.about));
    let further = scene.further.iter().map(|(id, _)| *id);
    let shown = [scene.one, scene.many].into_iter().chain(further);
    let shown: Vec<&Experiment> = shown.filter_map(|id| run.experiment(id)).collect();
    let is_in_it = |path: &&Path| shown.iter().any(|e| e.series(&path.name).is_some());
    page.table(scene.caption, &table, run.measured().filter(is_in_it));
    page.paragraph(chance(run));
}

/// How many of the differences are none: tables that make hundreds of comparisons show some
/// where there is nothing.
fn chance(run: &Run) -> String {
    let mut all = run.usable().flat_map(|e| &e.series);
    match all.any(|series| series.rounds.len() >= MIN_ROUNDS) {
        true => format!(
            "Two equal paths look different in up to 1 of {} comparisons, so some of the differences in the many tables are chance.",
            number::grouped(1.0 / CHANCE)
        ),
        false => format!(
            "With fewer than {MIN_ROUNDS} rounds chance cannot be told from a difference: these figures show \
             what was measured, and nothing is claimed of them."
        ),
    }
}

/// Adds warnings: everything that was not as asked for.
pub fn warnings(page: &mut Page, run: &Run) {
    let of = |what: &str, id: &str, why: &str| {
        let text = Text::new().strong(what).plain(": ").code(id);
        text.plain(format!(", {why}"))
    };
    if !run.complete {
        let text = Text::new().strong("Interrupted");
        page.warning(text.plain(": what was measured until then."));
    }
    for (id, why) in &run.failed {
        page.warning(of("Failed", id, why));
    }
    for experiment in &run.experiments {
        if let Some(why) = &experiment.refused {
            page.warning(of("Withheld", &experiment.id, why));
        }
        for series in experiment.series.iter().filter(|s| s.errors() > 0) {
            page.warning(errors(experiment, series));
        }
    }
    if let Some(behind) = behind(run) {
        page.warning(behind);
    }
}

/// The paths that did not keep up, and where, in one line; the experiments' own sections say how far.
fn behind(run: &Run) -> Option<Text> {
    let mut text = Text::new().strong("Did not keep up").plain(": ");
    let mut separator = "";
    for experiment in run.usable() {
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
            ". In more than a quarter of the rounds less than {} % of the schedule ended in time; the latencies are \
             those of a queue that grows.",
            number::plain(pace::KEPT_UP * 100.0)
        ))
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

/// Commit, date, machine, how it was measured, and what intervals say.
pub fn origin(run: &Run) -> Text {
    let of_many = |chance: f64| {
        let many = 1.0 / chance;
        format!(
            "{} chances in {}",
            number::grouped(many - 1.0),
            number::grouped(many)
        )
    };
    let intervals = format!(
        " Where Wilcoxon's interval ({}; of the second direct {}) includes direct, there is “{}” if it \
         ends within 10 % of it, and otherwise they are “{}”, as is what two directs differ in.",
        of_many(CHANCE),
        of_many(AGAIN_CHANCE),
        number::NO_DIFFERENCE,
        number::NOT_RESOLVED,
    );
    measured(run, &intervals)
}

/// Commit, date, machine and how it was measured, for the page of the bars, which says itself what their intervals say.
pub fn origin_of_bars(run: &Run) -> Text {
    let intervals = format!(
        " On Cassandra rounds and turns are {} times as long, and a round on a schedule is one turn. Of the second direct there is “{}” where both of its \
         intervals end within 10 % of direct, and otherwise they are “{}”.",
        number::plain(CASSANDRA_FACTOR),
        number::NO_DIFFERENCE,
        number::NOT_RESOLVED,
    );
    measured(run, &intervals)
}

fn measured(run: &Run, intervals: &str) -> Text {
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
         after {warm_up} s of warm-up; ratios and additions are Hodges' and Lehmann's estimates of rounds, each held against both \
         directs of the same round.{intervals} {cores} cores of {cpu}, {memory:.1} GiB, Linux {kernel}. \
         {versions}. Commit {commit}{dirty}, {day}. ",
        rounds = range(run, |series| series.rounds.len() as f64, f64::from(settings.rounds)),
        seconds = range(run, seconds, settings.seconds),
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

/// The seconds in which a path was loaded in a round, to a tenth.
fn seconds(series: &Series) -> f64 {
    let first = series.rounds.first().map_or(f64::NAN, |r| r.seconds);
    (first * 10.0).round() / 10.0
}

/// A figure of all that was measured, from the least to the greatest; as it was asked for, where nothing was.
fn range(run: &Run, of: fn(&Series) -> f64, asked: f64) -> String {
    let all = || {
        let series = run.usable().flat_map(|e| &e.series).map(of);
        series.filter(|figure| *figure > 0.0)
    };
    let (least, most) = (all().min_by(f64::total_cmp), all().max_by(f64::total_cmp));
    let [least, most] = [least, most].map(|figure| number::plain(figure.unwrap_or(asked)));
    match least == most {
        true => least,
        false => format!("{least} to {most}"),
    }
}
