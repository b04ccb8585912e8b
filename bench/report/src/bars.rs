//! Bars: bounds that must hold on a machine of any speed, and whether they do. Each decides something: which path a rule
//! should take, or whether a change to the hot path may land. `underpass-bench bars` measures them all, and
//! nothing else, until each is decided.

use crate::{
    metric::{Metric, Process},
    model::{Column, Table, Text},
    number,
    schema::{Experiment, Run},
    sequential::Estimate,
    view::AGAIN,
};

mod verdict;

pub use verdict::{Verdict, again_differs};

/// The figure that is held against a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// The path ÷ direct.
    Ratio(Metric),
    /// The path − direct, in µs.
    Added(Metric),
    /// The path ÷ another one.
    Against(&'static str, Metric),
    /// The path's addition to direct ÷ another path's addition.
    Share(&'static str, Metric),
    /// The proxy's memory, in MiB.
    RssMib,
    /// The longest pause of 99 of 100 flows while they were handed to the kernel, in µs.
    HandOver,
    /// The proxy's CPU time, in percent of one CPU's.
    OfOneCpu,
}

/// The bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The figure must be this or more.
    AtLeast(f64),
    /// The figure must be this or less.
    AtMost(f64),
}

/// A bar: one bound that must hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// The path that it is about.
    pub path: &'static str,
    /// The experiment in which it must hold, by its id.
    pub experiment: &'static str,
    /// The figure that it bounds.
    pub measure: Measure,
    /// The bound.
    pub bound: Bound,
    /// The reason for this bound.
    pub reason: &'static str,
}

const ONE: &str = "node-raw-nonblocking-1";
const MANY: &str = "node-raw-nonblocking-32";
const READS: &str = "stress-read-raw";
const WRITES: &str = "stress-write-raw";
const CROWD: &str = "crowd";
const GATEWAY: &str = "gateway-32";
const OP_S: Measure = Measure::Ratio(Metric::OpS);
const ADDED: Measure = Measure::Added(Metric::P50);
const NOTHING_PER_BYTE: &str = "no code of ours runs for its bytes: nothing but noise";
const A_LOOK: &str = "one program for each segment";
const A_COPY: &str = "a copy of each packet, for which nobody waits and nobody is woken";
const IN_KERNEL: &str = "bytes skip TCP between two sockets of one host";
const PAST_THE_AGENT: &str = "bytes that nobody reads do not wake the agent";
const SHORT_LEGS: &str = "what agent, client and database exchange skips TCP";
const LIKE_COPIERS: &str = "two trips more through TCP, as every proxy that only copies takes";
const FEWER_WAKE_UPS: &str = "the database wakes up for one connection instead of eight";
const NO_BUFFER: &str = "chunks are read into their worker's buffer: a flow that waits has none";
const A_REWRITE: &str = "a look-up and a few words of the header for each packet";

use Bound::{AtLeast, AtMost};

/// All of them.
pub const ALL: &[Bar] = &[
    bar("bypass", MANY, OP_S, AtLeast(0.98), NOTHING_PER_BYTE),
    bar(
        "bypass",
        ONE,
        Measure::Ratio(Metric::P50),
        AtMost(1.02),
        NOTHING_PER_BYTE,
    ),
    bar(
        "bypass",
        "connect",
        ADDED,
        AtMost(5.0),
        "a few look-ups for each connection",
    ),
    bar("observe", ONE, ADDED, AtMost(0.8), A_LOOK),
    bar("observe", MANY, OP_S, AtLeast(0.92), A_LOOK),
    bar("tap", ONE, ADDED, AtMost(1.5), A_COPY),
    bar("tap", MANY, OP_S, AtLeast(0.93), A_COPY),
    bar("tap", READS, OP_S, AtLeast(0.97), A_COPY),
    bar("tap", WRITES, OP_S, AtLeast(0.97), A_COPY),
    bar(
        "tap",
        READS,
        against("nginx", Metric::Cpu(Process::Proxy)),
        AtMost(0.1),
        A_COPY,
    ),
    bar(
        "shortcut",
        ONE,
        Measure::Ratio(Metric::P50),
        AtMost(0.75),
        IN_KERNEL,
    ),
    bar("shortcut", MANY, OP_S, AtLeast(1.4), IN_KERNEL),
    bar(
        "splice",
        ONE,
        Measure::Share("relay", Metric::P50),
        AtMost(0.55),
        PAST_THE_AGENT,
    ),
    bar(
        "splice",
        MANY,
        against("relay", Metric::OpS),
        AtLeast(1.3),
        PAST_THE_AGENT,
    ),
    bar(
        "splice",
        MANY,
        against("relay", Metric::AllCpu),
        AtMost(0.75),
        PAST_THE_AGENT,
    ),
    bar(
        "splice",
        CROWD,
        Measure::RssMib,
        AtMost(40.0),
        "a flow that the kernel carries leaves little in the agent",
    ),
    bar(
        "splice",
        CROWD,
        Measure::OfOneCpu,
        AtMost(1.0),
        PAST_THE_AGENT,
    ),
    bar(
        "splice",
        CROWD,
        Measure::HandOver,
        AtMost(1_000.0),
        "what comes meanwhile is relayed",
    ),
    bar("enrich", ONE, ADDED, AtMost(17.0), LIKE_COPIERS),
    bar("enrich", MANY, OP_S, AtLeast(0.55), LIKE_COPIERS),
    bar(
        "enrich",
        MANY,
        against("haproxy", Metric::OpS),
        AtLeast(1.0),
        "that one decodes nothing",
    ),
    bar("enrich-short-both", ONE, ADDED, AtMost(11.0), SHORT_LEGS),
    bar("enrich-short-both", MANY, OP_S, AtLeast(0.7), SHORT_LEGS),
    bar("enrich", READS, OP_S, AtLeast(0.9), LIKE_COPIERS),
    bar("enrich", WRITES, OP_S, AtLeast(0.88), LIKE_COPIERS),
    bar(
        "enrich",
        "crowd-enriched",
        Measure::RssMib,
        AtMost(60.0),
        NO_BUFFER,
    ),
    bar("fold", READS, OP_S, AtLeast(1.1), FEWER_WAKE_UPS),
    bar(
        "fold",
        READS,
        Measure::Ratio(Metric::Cpu(Process::Database)),
        AtMost(0.7),
        FEWER_WAKE_UPS,
    ),
    bar("forward", GATEWAY, OP_S, AtLeast(0.95), A_REWRITE),
    bar(
        "forward",
        GATEWAY,
        against("haproxy", Metric::OpS),
        AtLeast(2.0),
        "packets go on, no socket of the gateway's sees them",
    ),
];

const fn against(other: &'static str, metric: Metric) -> Measure {
    Measure::Against(other, metric)
}

const fn bar(
    path: &'static str,
    experiment: &'static str,
    measure: Measure,
    bound: Bound,
    reason: &'static str,
) -> Bar {
    Bar {
        path,
        experiment,
        measure,
        bound,
        reason,
    }
}

/// The bars that must hold in an experiment.
pub fn of(experiment: &str) -> impl Iterator<Item = &'static Bar> {
    ALL.iter().filter(move |bar| bar.experiment == experiment)
}

impl Bar {
    /// The paths whose rounds it takes, besides direct's.
    pub fn paths(&self) -> impl Iterator<Item = &'static str> {
        let other = match self.measure {
            Measure::Against(other, _) | Measure::Share(other, _) => Some(other),
            _ => None,
        };
        [self.path].into_iter().chain(other)
    }

    /// `op/s ≥ 0.98 × direct`.
    pub fn text(&self) -> String {
        let (sign, bound) = match self.bound {
            AtLeast(bound) => ('≥', bound),
            AtMost(bound) => ('≤', bound),
        };
        let text = match self.measure {
            Measure::Ratio(metric) => format!("{} {sign} {bound:.2} × direct", metric.name()),
            Measure::Added(metric) => {
                format!(
                    "{} {sign} direct + {} µs",
                    metric.name(),
                    number::plain(bound)
                )
            }
            Measure::Against(other, metric) => {
                format!("{} {sign} {bound:.2} × {other}", metric.name())
            }
            Measure::Share(other, metric) => {
                format!("added {} {sign} {bound:.2} × {other}'s", metric.name())
            }
            Measure::RssMib => format!("RSS peak {sign} {} MiB", number::plain(bound)),
            Measure::HandOver => format!("p99 of pauses {sign} {} µs", number::plain(bound)),
            Measure::OfOneCpu => format!("CPU {sign} {} % of one", number::plain(bound)),
        };
        // One line, however narrow its column.
        text.replace(' ', "\u{a0}")
    }
}

impl Measure {
    fn text(self, value: f64) -> String {
        match self {
            Self::Ratio(_) | Self::Against(..) | Self::Share(..) => number::ratio(value),
            Self::Added(_) => format!("{} µs", number::signed(value)),
            Self::RssMib => format!("{value:.1} MiB"),
            Self::HandOver => format!("≤ {} µs", number::plain(value)),
            Self::OfOneCpu => format!("{value:.2} %"),
        }
    }
}

/// How many bars have each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bars that hold.
    pub met: usize,
    /// Bars that do not hold.
    pub missed: usize,
    /// Bars of which the most rounds that there may be were not enough.
    pub undecided: usize,
    /// Bars without a figure.
    pub not_measured: usize,
}

/// The count of verdicts over all bars.
pub fn tally(run: &Run) -> Tally {
    let mut tally = Tally::default();
    for bar in ALL {
        *match bar.verdict(run) {
            Verdict::Met(_) => &mut tally.met,
            Verdict::Missed(_) => &mut tally.missed,
            Verdict::Undecided(..) => &mut tally.undecided,
            Verdict::NotMeasured(_) => &mut tally.not_measured,
        } += 1;
    }
    tally
}

/// The bars, and what became of them.
pub fn table(run: &Run) -> Table {
    let columns = vec![
        Column::words("path"),
        Column::words("must hold"),
        Column::words("in"),
        Column::words("because"),
        Column::numbers("measured"),
        Column::numbers("interval"),
        Column::numbers("rounds"),
        Column::words("verdict"),
    ];
    let mut table = Table::new("Bars: what must hold on a machine of any speed", columns);
    for bar in ALL {
        let (value, verdict) = match bar.verdict(run) {
            Verdict::Met(value) => (Some(value), Text::new().plain("met")),
            Verdict::Missed(value) => (Some(value), Text::new().strong("missed")),
            Verdict::Undecided(value, why) => (
                Some(value),
                Text::new().strong("undecided").plain(format!(": {why}")),
            ),
            Verdict::NotMeasured(why) => (
                None,
                Text::new().strong("not measured").plain(format!(": {why}")),
            ),
        };
        table.path_row(
            bar.path,
            [
                bar.text().into(),
                Text::new().code(bar.experiment),
                Text::new().muted(bar.reason),
                value.map_or(number::NONE.into(), |v| bar.measure.text(v.figure).into()),
                value.map_or(number::NONE.into(), |v| interval(bar.measure, v).into()),
                value.map_or(number::NONE.into(), |v| v.rounds.to_string().into()),
                verdict,
            ],
        );
    }
    table
}

fn interval(measure: Measure, value: Estimate) -> String {
    match value.is_exact() {
        true => "exact".into(),
        false => format!("{} … {}", measure.text(value.low), measure.text(value.high)),
    }
}

/// The noise floor: what two directs of one experiment differ by.
pub fn noise(run: &Run) -> Table {
    let columns = vec![
        Column::words("experiment"),
        Column::numbers("op/s, ÷ direct"),
        Column::numbers("interval"),
        Column::numbers("p50, − direct"),
        Column::numbers("interval"),
        Column::numbers("rounds"),
        Column::words("verdict"),
    ];
    let mut table = Table::new(
        Text::new()
            .plain("Direct against itself: ")
            .code(AGAIN)
            .plain(" is a second direct under another name"),
        columns,
    );
    for experiment in &run.experiments {
        let of = |measure| verdict::again(measure, experiment);
        let (ratio, added) = (of(OP_S), of(ADDED));
        let figure = |measure: Measure, value: Option<Estimate>| {
            value.map_or(number::NONE.into(), |v| measure.text(v.figure))
        };
        let spread = |measure: Measure, value: Option<Estimate>| {
            value.map_or(number::NONE.into(), |v| interval(measure, v))
        };
        let verdict = match again_differs(experiment) {
            None if ratio.is_none() => Text::new().strong("not measured"),
            None => Text::new().plain("no difference"),
            Some(why) => Text::new().strong("thrown out").plain(format!(": {why}")),
        };
        table.row(vec![
            Text::new().code(&*experiment.id),
            figure(OP_S, ratio).into(),
            spread(OP_S, ratio).into(),
            figure(ADDED, added).into(),
            spread(ADDED, added).into(),
            ratio
                .map_or(number::NONE.into(), |v| v.rounds.to_string())
                .into(),
            verdict,
        ]);
    }
    table
}

/// Whether nothing more has to be measured for a bar, by the rounds so far.
pub fn is_done(bar: &Bar, experiment: &Experiment) -> bool {
    match bar.measure {
        // It is asked for once all rounds are over.
        Measure::HandOver => true,
        _ => matches!(
            bar.judged(experiment),
            Ok(Verdict::Met(_) | Verdict::Missed(_))
        ),
    }
}
