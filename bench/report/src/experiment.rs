//! One experiment: what was done, and tables of what came of it.

use crate::{
    intervals,
    metric::{Metric, Process},
    model::{Block, Column, Section, Table, Text},
    number::{self, NONE},
    pace,
    schema::{Experiment, Run},
    spectrum,
};

/// The database of a workload that asks nothing: against a server that does nothing it would
/// be the same.
const LISTENER: &str = "listener";

/// The section of one experiment.
pub fn section(run: &Run, experiment: &Experiment) -> Section {
    let mut blocks = vec![Block::Paragraph(load(experiment))];
    blocks.extend(headroom(experiment).map(Block::Paragraph));
    match &experiment.refused {
        Some(reason) => blocks.push(Block::Warning(
            Text::new()
                .strong("Figures are withheld")
                .plain(format!(": {reason}")),
        )),
        None => blocks.extend(measured(run, experiment)),
    }
    blocks.extend(left_out(experiment).map(Block::Paragraph));
    blocks.extend(published(experiment).map(Block::Table));
    Section {
        anchor: experiment.id.clone(),
        title: Text::new().plain(&*experiment.id),
        blocks,
        sections: Vec::new(),
    }
}

fn measured(run: &Run, experiment: &Experiment) -> Vec<Block> {
    let mut blocks = Vec::new();
    for series in experiment.series.iter().filter(|s| s.errors() > 0) {
        let why = series.first_error().unwrap_or("no reason was kept");
        blocks.push(Block::Warning(
            Text::new()
                .strong(format!("{} had errors", series.path))
                .plain(format!(", the first: {why}")),
        ));
    }
    for series in &experiment.series {
        blocks.extend(pace::warning(experiment, series).map(Block::Warning));
    }
    blocks.push(Block::Table(throughput(experiment)));
    blocks.push(Block::Table(added(experiment)));
    if experiment.rate.is_some() {
        blocks.extend(spectrum::table(experiment).map(Block::Table));
    }
    blocks.push(Block::Table(usage(experiment)));
    let intervals = intervals::tables(run, experiment);
    blocks.extend(intervals.into_iter().map(Block::Table));
    blocks
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

fn headroom(experiment: &Experiment) -> Option<Text> {
    let Some(headroom) = &experiment.headroom else {
        let is_due = experiment.database != LISTENER && experiment.is_usable();
        return is_due.then(|| Text::new().muted("Headroom not measured."));
    };
    Some(Text::new().muted(format!(
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
    )))
}

fn left_out(experiment: &Experiment) -> Option<Text> {
    let all = experiment.left_out.iter();
    let all: Vec<String> = all.map(|(path, why)| format!("{path} ({why})")).collect();
    (!all.is_empty()).then(|| Text::new().plain(format!("Not here: {}.", all.join(", "))))
}

fn throughput(experiment: &Experiment) -> Table {
    let mut columns = vec![
        Column::words("path"),
        Column::numbers("op/s"),
        Column::numbers("÷ direct"),
    ];
    for metric in Metric::LATENCIES.into_iter().chain([Metric::Max]) {
        columns.push(Column::numbers(metric.name()));
    }
    if experiment.rate.is_some() {
        columns.push(Column::numbers(Metric::Lateness.name()));
    }
    columns.push(Column::numbers("rounds"));
    columns.push(Column::numbers("errors"));
    let mut table = Table::new(
        match experiment.rate {
            None => "Maximum throughput, and latency under it (µs)",
            Some(_) => "Achieved rate, and latency at it (µs)",
        },
        columns,
    );
    for series in &experiment.series {
        let ratio = experiment.ratio(series, Metric::OpS);
        let mut cells = vec![
            number::or_none(series.median(Metric::OpS), number::grouped).into(),
            match series.is_direct() {
                true => NONE.into(),
                false => Text::difference(ratio, number::ratio),
            },
        ];
        for metric in Metric::LATENCIES.into_iter().chain([Metric::Max]) {
            cells.push(number::or_none(series.median(metric), number::short).into());
        }
        if experiment.rate.is_some() {
            let late = series.median(Metric::Lateness);
            cells.push(number::or_none(late, number::short).into());
        }
        cells.push(series.rounds.len().to_string().into());
        cells.push(match series.errors() {
            0 => "0".into(),
            errors => Text::new().strong(number::grouped(errors as f64)),
        });
        table.path_row(&series.path, cells);
    }
    table
}

fn added(experiment: &Experiment) -> Table {
    let mut columns = vec![Column::words("path")];
    for metric in Metric::LATENCIES {
        columns.push(Column::numbers(metric.name()));
    }
    let mut table = Table::new("Added latency: difference to direct, µs", columns);
    for series in experiment.series.iter().filter(|s| !s.is_direct()) {
        let cells = Metric::LATENCIES
            .map(|metric| Text::difference(experiment.added(series, metric), number::signed));
        table.path_row(&series.path, cells);
    }
    table
}

fn usage(experiment: &Experiment) -> Table {
    let mut columns = vec![Column::words("path")];
    for process in Process::ALL {
        let name = format!("{}: user + system, µs", process.name());
        columns.push(Column::numbers(name));
    }
    columns.extend([
        Column::numbers("kernel's threads, µs"),
        Column::numbers("all CPU, µs"),
    ]);
    for process in Process::ALL {
        let name = format!("{}: switches, vol. + invol.", process.name());
        columns.push(Column::numbers(name));
    }
    columns.extend([
        Column::numbers("bytes copied"),
        Column::numbers("copies avoided, bytes"),
        Column::numbers("proxy's RSS, peak, MiB"),
    ]);
    let mut table = Table::new("For one operation: CPU, context switches, copies", columns);
    for series in &experiment.series {
        let is_there = |process| !(series.is_direct() && process == Process::Proxy);
        let sum = |process, [a, b]: [Metric; 2]| {
            let (a, b) = (series.median(a), series.median(b));
            match (a, b) {
                (Some(a), Some(b)) if is_there(process) => {
                    Text::from(format!("{} + {}", number::short(a), number::short(b)))
                }
                _ => NONE.into(),
            }
        };
        let mut cells = Vec::new();
        for process in Process::ALL {
            cells.push(sum(
                process,
                [Metric::User(process), Metric::System(process)],
            ));
        }
        for metric in [Metric::KernelCpu, Metric::AllCpu] {
            cells.push(number::or_none(series.median(metric), number::short).into());
        }
        for process in Process::ALL {
            cells.push(sum(
                process,
                [Metric::Voluntary(process), Metric::Involuntary(process)],
            ));
        }
        let of_proxy = |figure: Option<f64>, text| {
            let figure = figure.filter(|_| !series.is_direct());
            Text::from(number::or_none(figure, text))
        };
        cells.extend([
            of_proxy(series.median(Metric::Copied), number::grouped),
            of_proxy(series.median(Metric::Avoided), number::grouped),
            of_proxy(series.peak(Metric::RssPeak), number::mib),
        ]);
        table.path_row(&series.path, cells);
    }
    table
}

/// The source's figures beside ours.
fn published(experiment: &Experiment) -> Option<Table> {
    // By its id, or by what of the id comes after the workload's name.
    let workload = format!("{}-", experiment.workload);
    let short = experiment.id.strip_prefix(&workload);
    let is_of_this = |variant: &Option<String>| match variant.as_deref() {
        None => true,
        Some(variant) => variant == experiment.id || Some(variant) == short,
    };
    let theirs: Vec<_> = experiment
        .published
        .iter()
        .filter(|p| is_of_this(&p.variant))
        .collect();
    if theirs.is_empty() {
        return None;
    }
    let mut table = Table::new(
        "Beside what others published, on different hardware",
        vec![
            Column::words("system"),
            Column::numbers("op/s"),
            Column::numbers("mean, ms"),
            Column::numbers("p50, ms"),
            Column::numbers("p99, ms"),
            Column::words("where"),
        ],
    );
    for one in theirs {
        let ms = |ms| Text::from(number::or_none(ms, number::plain));
        table.row(vec![
            (&*one.system).into(),
            number::or_none(one.op_s, number::grouped).into(),
            ms(one.mean_ms),
            ms(one.p50_ms),
            ms(one.p99_ms),
            Text::new()
                .muted(format!("different hardware: {}; ", one.hardware))
                .link(&*one.url, &*one.url),
        ]);
    }
    let ours = experiment.series.iter().filter(|_| experiment.is_usable());
    for series in ours {
        let ms = |metric| {
            let ms = series.median(metric).map(|us| us / 1e3);
            Text::from(number::or_none(ms, number::plain))
        };
        table.path_row(
            &series.path,
            [
                number::or_none(series.median(Metric::OpS), number::grouped).into(),
                ms(Metric::Mean),
                ms(Metric::P50),
                ms(Metric::P99),
                Text::new().muted("this machine"),
            ],
        );
    }
    Some(table)
}
