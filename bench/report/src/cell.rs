//! The cells that several tables share: a path's figure in an experiment, beside direct's.

use crate::{
    markdown::{Table, Text},
    metric::{Metric, Process},
    number::{self, NONE},
    schema::{Experiment, Series},
    stats::Difference,
};

/// A table with a row for each path of an experiment.
pub fn by_series<'a>() -> Table<'a, &'a Series> {
    Table::of_rows().words("path", |series: &&Series| Text::from(&*series.path))
}

/// A table with a row for each path of this name.
pub fn by_name<'a>() -> Table<'a, &'a str> {
    Table::of_rows().words("path", |name: &&str| Text::from(*name))
}

/// The experiment, where its figures may be shown, and a path in it.
pub fn found<'r>(
    experiment: Option<&'r Experiment>,
    path: &str,
) -> Option<(&'r Experiment, &'r Series)> {
    let experiment = experiment.filter(|e| e.is_usable())?;
    Some((experiment, experiment.series(path)?))
}

/// A cell of direct's own figure, and of every other path's beside direct; a dash where there is none.
pub fn beside_direct(
    experiment: Option<&Experiment>,
    path: &str,
    own: impl Fn(&Series) -> String,
    compared: impl Fn(&Experiment, &Series) -> Text,
) -> Text {
    match found(experiment, path) {
        None => NONE.into(),
        Some((_, direct)) if direct.is_direct() => own(direct).into(),
        Some((experiment, series)) => compared(experiment, series),
    }
}

/// Operations in a second: of direct its own, of others the ratio to direct's.
pub fn throughput(experiment: Option<&Experiment>, path: &str) -> Text {
    beside_direct(experiment, path, op_s, |experiment, series| {
        Text::difference(experiment.ratio(series, Metric::OpS), times)
    })
}

/// Operations in a second as of [`throughput()`], without the interval.
pub fn brief_throughput(experiment: Option<&Experiment>, path: &str) -> Text {
    beside_direct(experiment, path, op_s, |experiment, series| {
        Text::brief(experiment.ratio(series, Metric::OpS), times)
    })
}

/// The latency that a path adds to direct's; of direct its own.
pub fn added(experiment: Option<&Experiment>, path: &str, metric: Metric) -> Text {
    added_as(experiment, path, metric, Text::difference)
}

/// The latency as of [`added()`], without the interval.
pub fn brief_added(experiment: Option<&Experiment>, path: &str, metric: Metric) -> Text {
    added_as(experiment, path, metric, Text::brief)
}

/// A way to show a difference: with its interval, or without.
type Shown = fn(Option<Difference>, fn(f64) -> String) -> Text;

fn added_as(experiment: Option<&Experiment>, path: &str, metric: Metric, text: Shown) -> Text {
    let own = |direct: &Series| number::or_none(direct.median(metric), number::short);
    beside_direct(
        experiment,
        path,
        own,
        |experiment, series| match experiment.behind(series) {
            Some(_) => did_not_keep_up(),
            None => text(experiment.added(series, metric), number::signed),
        },
    )
}

/// A cell of a path that fell behind its schedule.
fn did_not_keep_up() -> Text {
    Text::new().strong("did not keep up")
}

/// The CPU time of a process for an operation; none of a path that fell behind. Of the proxy there is none where no process is between the ends.
pub fn cpu(experiment: Option<&Experiment>, path: &str, process: Process) -> Text {
    let is_there = |series: &Series| {
        let mut rounds = series.rounds.iter();
        process != Process::Proxy || rounds.any(|round| round.proxy.rss_peak_kib > 0)
    };
    let both = found(experiment, path);
    if both.is_some_and(|(experiment, series)| experiment.behind(series).is_some()) {
        return did_not_keep_up();
    }
    let series = both.map(|(_, series)| series);
    let median = |series: &Series| series.median(Metric::Cpu(process));
    number::or_none(
        series.filter(|s| is_there(s)).and_then(median),
        number::short,
    )
    .into()
}

fn op_s(direct: &Series) -> String {
    let op_s = number::or_none(direct.median(Metric::OpS), number::grouped);
    format!("{op_s} op/s")
}

fn times(ratio: f64) -> String {
    format!("{}×", number::ratio(ratio))
}
