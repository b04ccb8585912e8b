//! One experiment: what was done, and tables of what came of it.

use crate::{
    cell::by_series,
    markdown::{Page, Table, Text},
    metric::{Metric, Process},
    number::{self, NONE, or_none},
    pace,
    schema::{Experiment, Published, Series},
};

/// The database of a workload that asks nothing: against a server that does nothing it would
/// be the same.
const LISTENER: &str = "listener";
/// Percentiles of the spectrum: each step halves, or nearly so, what is above.
const PERCENTILES: [f64; 16] = [
    0.0, 25.0, 50.0, 75.0, 87.5, 90.0, 93.75, 95.0, 97.5, 99.0, 99.5, 99.75, 99.9, 99.95, 99.99,
    99.999,
];

/// Adds the purpose of an experiment's workload, and its source.
pub fn origin(page: &mut Page, experiment: &Experiment) {
    let origin = &experiment.origin;
    let line = Text::new()
        .plain(format!("{} From ", sentence(&experiment.title)))
        .link(&*origin.name, &*origin.url)
        .plain(".");
    page.paragraph(match origin.changed.is_empty() {
        true => line,
        false => line.plain(format!(" Changed here: {}", sentence(&origin.changed))),
    });
}

fn sentence(text: &str) -> String {
    match text.is_empty() || text.ends_with(['.', '!', '?']) {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

/// Adds what one experiment says.
pub fn section(page: &mut Page, experiment: &Experiment) {
    page.paragraph(load(experiment));
    headroom(page, experiment);
    match &experiment.refused {
        Some(reason) => page.warning(
            Text::new()
                .strong("Figures are withheld")
                .plain(format!(": {reason}")),
        ),
        None => measured(page, experiment),
    }
    let left_out = experiment.left_out.iter();
    let left_out: Vec<String> = left_out
        .map(|(path, why)| format!("{path} ({why})"))
        .collect();
    if !left_out.is_empty() {
        page.paragraph(format!("Not here: {}.", left_out.join(", ")));
    }
    published(page, experiment);
}

fn measured(page: &mut Page, experiment: &Experiment) {
    for series in experiment.series.iter().filter(|s| s.errors() > 0) {
        let why = series.first_error().unwrap_or("no reason was kept");
        page.warning(
            Text::new()
                .strong(format!("{} had errors", series.path))
                .plain(format!(", the first: {why}")),
        );
    }
    for series in &experiment.series {
        if let Some(behind) = pace::warning(experiment, series) {
            page.warning(behind);
        }
    }
    throughput(page, experiment);
    added(page, experiment);
    if experiment.rate.is_some() {
        spectrum(page, experiment);
    }
    usage(page, experiment);
    shared(page, experiment);
}

/// The database, and how many of its nodes: `cassandra`, `4 × node`.
pub fn database(experiment: &Experiment) -> String {
    match experiment.nodes {
        0 | 1 => experiment.database.clone(),
        n => format!("{n} × {}", experiment.database),
    }
}

/// The load that the generator makes.
fn load(experiment: &Experiment) -> Text {
    let plural = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    let nodes = database(experiment);
    let text = Text::new().plain(format!(
        "{nodes}, {} client: {}, {}, {} in flight on each. ",
        experiment.client,
        plural(experiment.threads, "thread"),
        plural(experiment.connections, "connection"),
        plural(experiment.depth, "request"),
    ));
    match experiment.rate {
        None => text
            .strong("Maximum throughput")
            .plain(" (closed loop: latencies leave out what waiting would have cost)."),
        Some(rate) => text
            .strong(format!("Open loop at {} op/s", number::grouped(rate)))
            .plain("; latencies count from the intended time."),
    }
}

fn headroom(page: &mut Page, experiment: &Experiment) {
    let Some(headroom) = &experiment.headroom else {
        if experiment.database != LISTENER && experiment.is_usable() {
            page.paragraph("Headroom not measured.");
        }
        return;
    };
    page.paragraph(format!(
        "Headroom: against {} the generator alone does {} op/s, p50 {} µs, p99 {} µs, with {} µs \
         of its CPU for an operation.",
        match &*headroom.server {
            "null" => "a server that does nothing",
            other => other,
        },
        number::grouped(headroom.op_s),
        number::short(headroom.p50_us),
        number::short(headroom.p99_us),
        number::short(headroom.generator_cpu_us),
    ));
}

fn throughput(page: &mut Page, experiment: &Experiment) {
    let mut table = by_series()
        .numbers("op/s", |s| or_none(s.median(Metric::OpS), number::grouped))
        .numbers("÷ direct", |s| match s.is_direct() {
            true => NONE.into(),
            false => Text::difference(experiment.ratio(s, Metric::OpS), number::ratio),
        });
    let lateness = experiment.rate.map(|_| Metric::Lateness);
    let latencies = Metric::LATENCIES.into_iter().chain([Metric::Max]);
    for metric in latencies.chain(lateness) {
        table = table.numbers(metric.name(), move |s| {
            or_none(s.median(metric), number::short)
        });
    }
    table = table
        .numbers("rounds", |s| s.rounds.len().to_string())
        .numbers("errors", |s| match s.errors() {
            0 => "0".into(),
            errors => Text::new().strong(number::grouped(errors as f64)),
        });
    let caption = match experiment.rate {
        None => "Maximum throughput, and latency under it (µs)",
        Some(_) => "Achieved rate, and latency at it (µs)",
    };
    page.table(caption, &table, &experiment.series);
}

fn added(page: &mut Page, experiment: &Experiment) {
    let mut table = by_series();
    for metric in Metric::LATENCIES {
        table = table.numbers(metric.name(), move |s| {
            Text::difference(experiment.added(s, metric), number::signed)
        });
    }
    let others = experiment.series.iter().filter(|s| !s.is_direct());
    page.table("Added latency: difference to direct, µs", &table, others);
}

/// Adds the whole distribution of latencies, all rounds together: what wrk2 calls the detailed percentile spectrum. A percentile
/// that less than one operation is above says nothing.
fn spectrum(page: &mut Page, experiment: &Experiment) {
    let latencies = experiment.series.iter().map(|s| (s, s.latencies()));
    let latencies: Vec<_> = latencies.collect();
    if latencies.iter().all(|(_, latencies)| latencies.is_none()) {
        return;
    }
    let mut table = Table::of_rows().words("percentile", |p: &f64| format!("{p} %"));
    for (series, latencies) in &latencies {
        table = table.numbers(&*series.path, move |percentile| {
            let above = 1.0 - percentile / 100.0;
            let known = latencies.as_ref();
            let known = known.filter(|all| all.len() as f64 * above >= 1.0);
            let us = known.map(|all| all.value_at_quantile(percentile / 100.0) as f64 / 1e3);
            or_none(us, number::short)
        });
    }
    let caption = "Percentile spectrum of all rounds together, µs";
    page.table(caption, &table, PERCENTILES);
}

fn usage(page: &mut Page, experiment: &Experiment) {
    let mut table = by_series();
    for process in Process::ALL {
        let name = format!("{}: user + system, µs", process.name());
        let both = [Metric::User(process), Metric::System(process)];
        table = table.numbers(name, move |s| sum(s, process, both));
    }
    for (name, metric) in [
        ("kernel's threads, µs", Metric::KernelCpu),
        ("all CPU, µs", Metric::AllCpu),
    ] {
        table = table.numbers(name, move |s| or_none(s.median(metric), number::short));
    }
    for process in Process::ALL {
        let name = format!("{}: switches, vol. + invol.", process.name());
        let both = [Metric::Voluntary(process), Metric::Involuntary(process)];
        table = table.numbers(name, move |s| sum(s, process, both));
    }
    let of_proxy =
        |s: &Series, figure: Option<f64>, text| or_none(figure.filter(|_| !s.is_direct()), text);
    table = table
        .numbers("bytes copied", move |s| {
            of_proxy(s, s.median(Metric::Copied), number::grouped)
        })
        .numbers("copies avoided, bytes", move |s| {
            of_proxy(s, s.median(Metric::Avoided), number::grouped)
        })
        .numbers("proxy's RSS, peak, MiB", move |s| {
            of_proxy(s, s.peak(Metric::RssPeak), number::mib)
        });
    let caption = "For one operation: CPU, context switches, copies";
    page.table(caption, &table, &experiment.series);
}

/// Adds how many requests and answers went at once where flows share connections.
fn shared(page: &mut Page, experiment: &Experiment) {
    let shared = experiment.series.iter().filter_map(|series| {
        let shared = series.shared.as_ref()?;
        let each = |times: u64| number::short(shared.requests as f64 / times as f64);
        Some(format!(
            "{}: {} requests for each write to a shared connection, and {} for each read from one.",
            series.path,
            each(shared.writes),
            each(shared.reads),
        ))
    });
    shared.for_each(|line| page.paragraph(line));
}

/// Two figures of a process; direct has no proxy.
fn sum(series: &Series, process: Process, [a, b]: [Metric; 2]) -> String {
    let is_there = !(series.is_direct() && process == Process::Proxy);
    match (series.median(a), series.median(b)) {
        (Some(a), Some(b)) if is_there => format!("{} + {}", number::short(a), number::short(b)),
        _ => NONE.into(),
    }
}

/// Adds the source's figures beside ours.
fn published(page: &mut Page, experiment: &Experiment) {
    // By its id, or by what of the id comes after the workload's name.
    let workload = format!("{}-", experiment.workload);
    let short = experiment.id.strip_prefix(&workload);
    let is_of_this = |variant: &Option<String>| match variant.as_deref() {
        None => true,
        Some(variant) => variant == experiment.id || Some(variant) == short,
    };
    let theirs = experiment.published.iter();
    let mut all: Vec<Published> = theirs.filter(|p| is_of_this(&p.variant)).cloned().collect();
    if all.is_empty() {
        return;
    }
    let ours = experiment.series.iter().filter(|_| experiment.is_usable());
    all.extend(ours.map(|series| {
        let ms = |metric| series.median(metric).map(|us| us / 1e3);
        Published {
            variant: None,
            system: series.path.clone(),
            op_s: series.median(Metric::OpS),
            mean_ms: ms(Metric::Mean),
            p50_ms: ms(Metric::P50),
            p99_ms: ms(Metric::P99),
            hardware: String::new(),
            url: String::new(),
        }
    }));
    let ms = |ms| or_none(ms, number::plain);
    let table = Table::of_rows()
        .words("system", |one: &Published| one.system.clone())
        .numbers("op/s", |one| or_none(one.op_s, number::grouped))
        .numbers("mean, ms", move |one| ms(one.mean_ms))
        .numbers("p50, ms", move |one| ms(one.p50_ms))
        .numbers("p99, ms", move |one| ms(one.p99_ms))
        .words("where", |one| match &*one.url {
            "" => Text::from("this machine"),
            url => Text::new()
                .plain(format!("different hardware: {}; ", one.hardware))
                .link(url, url),
        });
    let caption = "Beside what others published, on different hardware";
    page.table(caption, &table, all);
}
