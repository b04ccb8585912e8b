//! Bars: bounds that must hold on a machine of any speed, and whether they do. Each decides something: which path a rule
//! should take, or whether a change to the hot path may land. `underpass-bench bars` measures them all, and
//! nothing else, until each is decided.

use crate::{
    markdown::{Page, Table, Text},
    metric::{Metric, Process},
    number::{self, NONE},
    schema::{Experiment, Run},
    stats::{Estimate, RESOLVED},
    view::{AGAIN, DIRECT},
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
/// Reads by sockets that do not block, as those of drivers: others' legs are not short.
const DRIVERS_READS: &str = "stress-read-raw-nonblocking";
const DRIVERS_WRITES: &str = "stress-write-raw-nonblocking";
const CROWD: &str = "crowd";
const CROWD_ENRICHED: &str = "crowd-enriched";
const GATEWAY: &str = "gateway-32";
const OP_S: Measure = Measure::Ratio(Metric::OpS);
const P50: Measure = Measure::Ratio(Metric::P50);
const ADDED: Measure = Measure::Added(Metric::P50);
const DATABASE: Measure = Measure::Ratio(Metric::Cpu(Process::Database));
const PROXY_TO_NGINX: Measure = Measure::Against("nginx", Metric::Cpu(Process::Proxy));
const OP_S_TO_HAPROXY: Measure = Measure::Against("haproxy", Metric::OpS);
const OP_S_TO_RELAY: Measure = Measure::Against("relay", Metric::OpS);
const ADDED_BY_RELAY: Measure = Measure::Share("relay", Metric::P50);
const A_CONNECTION: &str = "a few look-ups for each connection";
const LITTLE_LEFT: &str = "a flow that the kernel carries leaves little in the agent";
const MEANWHILE: &str = "what comes meanwhile is relayed";
const DECODES_NOTHING: &str = "that one decodes nothing";
const NO_SOCKET: &str = "packets go on, no socket of the gateway's sees them";
const NOTHING_PER_BYTE: &str = "no code of ours runs for its bytes: nothing but noise";
const NOT_ITS_SOCKET: &str = "a packet's socket is looked up in vain, for both directions";
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
    bar("bypass", ONE, P50, AtMost(1.02), NOTHING_PER_BYTE),
    bar("bypass", "connect", ADDED, AtMost(5.0), A_CONNECTION),
    bar("beside", ONE, ADDED, AtMost(0.5), NOT_ITS_SOCKET),
    bar("observe", ONE, ADDED, AtMost(0.8), A_LOOK),
    bar("observe", MANY, OP_S, AtLeast(0.92), A_LOOK),
    bar("tap", ONE, ADDED, AtMost(1.5), A_COPY),
    bar("tap", MANY, OP_S, AtLeast(0.93), A_COPY),
    bar("tap", READS, OP_S, AtLeast(0.97), A_COPY),
    bar("tap", WRITES, OP_S, AtLeast(0.97), A_COPY),
    bar("tap", READS, PROXY_TO_NGINX, AtMost(0.1), A_COPY),
    bar("shortcut", ONE, P50, AtMost(0.75), IN_KERNEL),
    bar("shortcut", MANY, OP_S, AtLeast(1.4), IN_KERNEL),
    bar("splice", ONE, ADDED_BY_RELAY, AtMost(0.55), PAST_THE_AGENT),
    bar("splice", MANY, OP_S_TO_RELAY, AtLeast(1.3), PAST_THE_AGENT),
    bar("splice", CROWD, Measure::RssMib, AtMost(40.0), LITTLE_LEFT),
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
        MEANWHILE,
    ),
    bar("enrich", ONE, ADDED, AtMost(17.0), LIKE_COPIERS),
    bar("enrich", MANY, OP_S, AtLeast(0.55), LIKE_COPIERS),
    bar(
        "enrich",
        MANY,
        OP_S_TO_HAPROXY,
        AtLeast(1.0),
        DECODES_NOTHING,
    ),
    bar("enrich-short-both", ONE, ADDED, AtMost(11.0), SHORT_LEGS),
    bar("enrich-short-both", MANY, OP_S, AtLeast(0.7), SHORT_LEGS),
    bar(
        "enrich-short-both",
        DRIVERS_READS,
        OP_S,
        AtLeast(0.9),
        SHORT_LEGS,
    ),
    bar(
        "enrich-short-both",
        DRIVERS_WRITES,
        OP_S,
        AtLeast(0.88),
        SHORT_LEGS,
    ),
    bar(
        "enrich",
        CROWD_ENRICHED,
        Measure::RssMib,
        AtMost(60.0),
        NO_BUFFER,
    ),
    bar(
        "fold-short-both",
        DRIVERS_READS,
        OP_S,
        AtLeast(1.1),
        FEWER_WAKE_UPS,
    ),
    bar(
        "fold-short-both",
        DRIVERS_READS,
        DATABASE,
        AtMost(0.7),
        FEWER_WAKE_UPS,
    ),
    bar("forward", GATEWAY, OP_S, AtLeast(0.95), A_REWRITE),
    bar("forward", GATEWAY, OP_S_TO_HAPROXY, AtLeast(2.0), NO_SOCKET),
];

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
    /// Whether two paths of the same rounds are compared.
    fn is_of_two(self) -> bool {
        !matches!(self, Self::RssMib | Self::HandOver | Self::OfOneCpu)
    }

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

/// Adds the bars, and what became of them.
pub fn table(page: &mut Page, run: &Run) {
    let rows = ALL.iter().map(|bar| {
        let (value, verdict) = match bar.verdict(run) {
            Verdict::Met(value) => (Some(value), Text::new().plain("met")),
            Verdict::Missed(value) => (Some(value), Text::new().strong("missed")),
            Verdict::Undecided(value, why) => {
                let undecided = Text::new().strong("undecided");
                (Some(value), undecided.plain(format!(": {why}")))
            }
            Verdict::NotMeasured(why) => {
                let not_measured = Text::new().strong("not measured");
                (None, not_measured.plain(format!(": {why}")))
            }
        };
        (bar, value, verdict)
    });
    let table = Table::of_rows()
        .words("path", |(bar, ..): &(&Bar, Option<Estimate>, Text)| {
            Text::from(bar.path)
        })
        .words("must hold", |(bar, ..)| bar.text())
        .words("in", |(bar, ..)| Text::new().code(bar.experiment))
        .words("because", |(bar, ..)| Text::from(bar.reason))
        .numbers("measured", |(bar, value, _)| figure(bar.measure, *value))
        .numbers("interval", |(bar, value, _)| interval(bar.measure, *value))
        .numbers("rounds", |(_, value, _)| rounds(*value))
        .words("verdict", |(_, _, verdict)| verdict.clone());
    let caption = "Bars: what must hold on a machine of any speed";
    page.table(caption, &table, rows);
}

fn figure(measure: Measure, value: Option<Estimate>) -> String {
    value.map_or_else(|| NONE.into(), |value| measure.text(value.figure))
}

fn interval(measure: Measure, value: Option<Estimate>) -> String {
    match value {
        None => NONE.into(),
        Some(value) if value.is_exact() => "exact".into(),
        Some(value) => format!("{} … {}", measure.text(value.low), measure.text(value.high)),
    }
}

fn rounds(value: Option<Estimate>) -> String {
    value.map_or_else(|| NONE.into(), |value| value.rounds.to_string())
}

/// Adds the noise floor: what two directs of one experiment differ by.
pub fn noise(page: &mut Page, run: &Run) {
    let of = |experiment: &Experiment, measure| verdict::again(measure, experiment);
    let mut table =
        Table::of_rows().words("experiment", |e: &&Experiment| Text::new().code(&*e.id));
    for (name, measure) in [("op/s, ÷ direct", OP_S), ("p50, − direct", ADDED)] {
        table = table
            .numbers(name, move |e| figure(measure, of(e, measure)))
            .numbers("interval", move |e| interval(measure, of(e, measure)));
    }
    let table = table
        .numbers("rounds", move |e| rounds(of(e, OP_S)))
        .numbers("seconds of a round", |e| seconds(e))
        .words("verdict", move |e| match again_differs(e) {
            None if of(e, OP_S).is_none() => Text::new().strong("not measured"),
            None if is_floor_resolved(e) => Text::new().plain(number::NO_DIFFERENCE),
            None => Text::new().plain(number::NOT_RESOLVED),
            Some(why) => Text::new().strong("thrown out").plain(format!(": {why}")),
        });
    let caption = Text::new().plain("Direct against itself: ").code(AGAIN);
    let caption = caption.plain(
        " is a second direct under another name, in each experiment that holds paths against direct",
    );
    let compared = run.experiments.iter().filter(|e| compares_two(e));
    page.table(caption, &table, compared);
    page.markdown(
        "Experiments with thousands of connections (`crowd`) have bars of the agent's memory and CPU alone, which are held against nothing.",
    );
}

/// Whether an experiment has bars that hold paths against each other.
fn compares_two(experiment: &Experiment) -> bool {
    of(&experiment.id).any(|bar| bar.measure.is_of_two())
}

/// Whether the noise floor of an experiment is known, where its bars need one.
pub fn has_floor(experiment: &Experiment) -> bool {
    !compares_two(experiment) || verdict::again(OP_S, experiment).is_some()
}

/// Whether the noise floor of an experiment is so narrow that it shows that two directs do not differ, where its bars need one.
pub fn is_floor_resolved(experiment: &Experiment) -> bool {
    let direct = experiment.series(DIRECT);
    let p50 = direct.and_then(|series| series.median(Metric::P50));
    let is_within = |measure, same: f64, most: f64| {
        let value = verdict::again(measure, experiment);
        value.is_some_and(|value| value.low >= same - most && value.high <= same + most)
    };
    !compares_two(experiment)
        || is_within(OP_S, 1.0, RESOLVED)
            && is_within(ADDED, 0.0, RESOLVED * p50.unwrap_or_default())
}

/// The seconds in which each path was loaded in a round.
fn seconds(experiment: &Experiment) -> String {
    let rounds = experiment.series.iter().flat_map(|series| &series.rounds);
    number::or_none(rounds.map(|round| round.seconds).next(), number::plain)
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
