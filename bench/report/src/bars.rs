//! Bars: bounds that must hold on a machine of any speed, and whether they do.

use crate::{
    metric::{Metric, Process},
    model::{Column, Table, Text},
    number,
    schema::Run,
};

mod verdict;

pub use verdict::{Value, Verdict};

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

/// The experiments in which a bar must hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Where {
    /// In the experiment of this id.
    Id(&'static str),
    /// In every experiment whose id begins so: the worst of them counts. Those that are named
    /// must be among them, for a figure that nobody measured may be the worst.
    Begins(&'static str, &'static [&'static str]),
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
    /// The place where it must hold.
    pub place: Where,
    /// The figure that it bounds.
    pub measure: Measure,
    /// The bound.
    pub bound: Bound,
    /// The reason for this bound.
    pub reason: &'static str,
}

const NODE: Where = Where::Id("node-raw");
const ONE: Where = Where::Id("node-raw-nonblocking-1");
const MANY: Where = Where::Id("node-raw-nonblocking-32");
const STRESS: Where = Where::Begins(
    "stress-",
    &[
        "stress-read",
        "stress-read-raw",
        "stress-write",
        "stress-write-raw",
    ],
);
const OP_S: Measure = Measure::Ratio(Metric::OpS);
const P50: Measure = Measure::Ratio(Metric::P50);
const DATABASES_CPU: Measure = Measure::Ratio(Metric::Cpu(Process::Database));
const NOTHING_PER_BYTE: &str = "no code of ours runs for its bytes: nothing but noise";
const LIKE_COPIERS: &str = "what proxies that only copy reach";
const DECODES_NOTHING: &str = "that one decodes nothing";
const CUTS_FRAMES: &str = "that one cuts frames, and counts nothing in them";
const NO_BUFFER: &str = "chunks are read into their worker's buffer: a flow that waits has none";
const FEWER_WAKE_UPS: &str = "the database wakes up for one connection instead of eight";
const IN_KERNEL: &str = "bytes skip TCP between two sockets of one host";
const PAST_THE_AGENT: &str = "bytes that nobody reads do not wake the agent";
const CROWD: Where = Where::Id("crowd");
const AN_ENTRY: &str = "of a flow that the kernel carries little is left in the agent";
const NOTHING_WAITS: &str = "what comes meanwhile is relayed";
const GATEWAY_ONE: Where = Where::Id("gateway-1");
const GATEWAY_MANY: Where = Where::Id("gateway-32");
const A_REWRITE: &str = "a look-up and a few words of the header for each packet";
const NO_SOCKET: &str = "packets go on, no socket of the gateway's sees them";
const A_LOOK: &str = "one program for each segment";

const A_COPY: &str = "a copy of each packet, for which nobody waits and nobody is woken";

/// All of them, also those of paths that have not landed.
pub const ALL: &[Bar] = &[
    bar("bypass", NODE, OP_S, Bound::AtLeast(0.98), NOTHING_PER_BYTE),
    bar("bypass", NODE, P50, Bound::AtMost(1.02), NOTHING_PER_BYTE),
    bar(
        "bypass",
        Where::Id("connect"),
        Measure::Added(Metric::P50),
        Bound::AtMost(5.0),
        "a few look-ups for each connection",
    ),
    enrich("stress-read"),
    enrich("stress-write"),
    enrich("stress-read-raw"),
    enrich("stress-write-raw"),
    stats("stress-read"),
    stats("stress-write"),
    stats("stress-read-raw"),
    stats("stress-write-raw"),
    level("haproxy", DECODES_NOTHING),
    level("nginx", DECODES_NOTHING),
    level("envoy", DECODES_NOTHING),
    level("shotover", CUTS_FRAMES),
    bar(
        "stats",
        Where::Id("stress-read-raw"),
        Measure::Against("nginx", Metric::Cpu(Process::Proxy)),
        Bound::AtMost(1.12),
        DECODES_NOTHING,
    ),
    bar(
        "enrich",
        STRESS,
        Measure::RssMib,
        Bound::AtMost(20.0),
        "the agent lives beside applications",
    ),
    bar(
        "stats",
        Where::Id("crowd-enriched"),
        Measure::RssMib,
        Bound::AtMost(60.0),
        NO_BUFFER,
    ),
    fold("stress-read", OP_S, Bound::AtLeast(1.0)),
    fold("stress-read-raw", OP_S, Bound::AtLeast(1.0)),
    fold("stress-read", DATABASES_CPU, Bound::AtMost(0.8)),
    fold("stress-read-raw", DATABASES_CPU, Bound::AtMost(0.8)),
    bar(
        "observe",
        NODE,
        Measure::Added(Metric::P50),
        Bound::AtMost(0.8),
        A_LOOK,
    ),
    bar("observe", NODE, OP_S, Bound::AtLeast(0.92), A_LOOK),
    bar("observe", MANY, OP_S, Bound::AtLeast(0.92), A_LOOK),
    bar(
        "tap",
        ONE,
        Measure::Added(Metric::P50),
        Bound::AtMost(1.5),
        A_COPY,
    ),
    bar("tap", MANY, OP_S, Bound::AtLeast(0.93), A_COPY),
    tap("stress-read-raw"),
    tap("stress-write-raw"),
    bar(
        "tap",
        Where::Id("stress-read-raw"),
        Measure::Against("nginx", Metric::Cpu(Process::Proxy)),
        Bound::AtMost(0.1),
        A_COPY,
    ),
    bar("shortcut", NODE, P50, Bound::AtMost(0.75), IN_KERNEL),
    bar("shortcut", NODE, OP_S, Bound::AtLeast(1.4), IN_KERNEL),
    bar("shortcut", ONE, P50, Bound::AtMost(0.75), IN_KERNEL),
    bar("shortcut", MANY, OP_S, Bound::AtLeast(1.4), IN_KERNEL),
    bar(
        "observe",
        ONE,
        Measure::Added(Metric::P50),
        Bound::AtMost(0.8),
        A_LOOK,
    ),
    bar(
        "remembered",
        ONE,
        P50,
        Bound::AtMost(1.02),
        NOTHING_PER_BYTE,
    ),
    bar(
        "splice",
        ONE,
        Measure::Share("relay", Metric::P50),
        Bound::AtMost(0.55),
        PAST_THE_AGENT,
    ),
    bar(
        "splice",
        MANY,
        Measure::Against("relay", Metric::OpS),
        Bound::AtLeast(1.3),
        PAST_THE_AGENT,
    ),
    less_cpu(ONE),
    less_cpu(MANY),
    bar(
        "splice",
        CROWD,
        Measure::RssMib,
        Bound::AtMost(40.0),
        AN_ENTRY,
    ),
    bar(
        "splice",
        CROWD,
        Measure::OfOneCpu,
        Bound::AtMost(1.0),
        PAST_THE_AGENT,
    ),
    bar(
        "splice",
        CROWD,
        Measure::HandOver,
        Bound::AtMost(1_000.0),
        NOTHING_WAITS,
    ),
    forward(GATEWAY_ONE, P50, Bound::AtMost(1.1), A_REWRITE),
    forward(GATEWAY_MANY, P50, Bound::AtMost(1.1), A_REWRITE),
    forward(GATEWAY_ONE, OP_S, Bound::AtLeast(0.95), A_REWRITE),
    forward(GATEWAY_MANY, OP_S, Bound::AtLeast(0.95), A_REWRITE),
    forward(
        Where::Id("gateway-connect"),
        OP_S,
        Bound::AtLeast(0.9),
        A_REWRITE,
    ),
    than_proxies("haproxy", GATEWAY_ONE),
    than_proxies("haproxy", GATEWAY_MANY),
    than_proxies("nginx", GATEWAY_ONE),
    than_proxies("nginx", GATEWAY_MANY),
    third_of("haproxy", GATEWAY_MANY),
    third_of("nginx", GATEWAY_MANY),
    than_nftables(GATEWAY_ONE),
    than_nftables(GATEWAY_MANY),
];

const fn forward(place: Where, measure: Measure, bound: Bound, reason: &'static str) -> Bar {
    bar("forward", place, measure, bound, reason)
}

const fn than_proxies(proxy: &'static str, place: Where) -> Bar {
    let measure = Measure::Against(proxy, Metric::OpS);
    forward(place, measure, Bound::AtLeast(2.0), NO_SOCKET)
}

const fn third_of(proxy: &'static str, place: Where) -> Bar {
    let measure = Measure::Share(proxy, Metric::AllCpu);
    forward(place, measure, Bound::AtMost(0.33), NO_SOCKET)
}

const fn than_nftables(place: Where) -> Bar {
    let measure = Measure::Against("nftables", Metric::OpS);
    forward(place, measure, Bound::AtLeast(1.0), A_REWRITE)
}

const fn less_cpu(place: Where) -> Bar {
    bar(
        "splice",
        place,
        Measure::Against("relay", Metric::AllCpu),
        Bound::AtMost(0.75),
        PAST_THE_AGENT,
    )
}

const fn bar(
    path: &'static str,
    place: Where,
    measure: Measure,
    bound: Bound,
    reason: &'static str,
) -> Bar {
    Bar {
        path,
        place,
        measure,
        bound,
        reason,
    }
}

const fn enrich(id: &'static str) -> Bar {
    bar(
        "enrich",
        Where::Id(id),
        OP_S,
        Bound::AtLeast(0.80),
        LIKE_COPIERS,
    )
}

const fn stats(id: &'static str) -> Bar {
    bar(
        "stats",
        Where::Id(id),
        OP_S,
        Bound::AtLeast(0.85),
        LIKE_COPIERS,
    )
}

const fn tap(id: &'static str) -> Bar {
    bar("tap", Where::Id(id), OP_S, Bound::AtLeast(0.97), A_COPY)
}

const fn fold(id: &'static str, measure: Measure, bound: Bound) -> Bar {
    bar("fold", Where::Id(id), measure, bound, FEWER_WAKE_UPS)
}

const fn level(proxy: &'static str, reason: &'static str) -> Bar {
    bar(
        "stats",
        Where::Id("stress-read-raw"),
        Measure::Against(proxy, Metric::OpS),
        Bound::AtLeast(1.0),
        reason,
    )
}

impl Bar {
    /// `op/s ≥ 0.98 × direct`.
    pub fn text(&self) -> String {
        let (sign, bound) = match self.bound {
            Bound::AtLeast(bound) => ('≥', bound),
            Bound::AtMost(bound) => ('≤', bound),
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

impl Where {
    fn text(self) -> String {
        match self {
            Self::Id(id) => id.into(),
            Self::Begins(with, _) => format!("{with}*"),
        }
    }
}

/// The bars, and what became of them.
pub fn table(run: &Run) -> Table {
    of(run, ALL.iter())
}

/// The bars that the run was to decide. Another run may have measured the others.
pub fn measured(run: &Run) -> Table {
    of(run, asked(run))
}

fn asked(run: &Run) -> impl Iterator<Item = &'static Bar> {
    ALL.iter().filter(|bar| bar.is_part_of(run))
}

/// How many bars of a run have each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bars that hold.
    pub met: usize,
    /// Bars that do not hold.
    pub missed: usize,
    /// Bars whose bound is in the spread of the figure.
    pub within_noise: usize,
    /// Bars without a figure.
    pub not_measured: usize,
}

/// The count of verdicts over the bars that [`measured`] shows.
pub fn tally(run: &Run) -> Tally {
    let mut tally = Tally::default();
    for bar in asked(run) {
        *match bar.verdict(run) {
            Verdict::Met(_) => &mut tally.met,
            Verdict::Missed(_) => &mut tally.missed,
            Verdict::WithinNoise(_) => &mut tally.within_noise,
            Verdict::NotMeasured(_) => &mut tally.not_measured,
        } += 1;
    }
    tally
}

fn of<'b>(run: &Run, bars: impl Iterator<Item = &'b Bar>) -> Table {
    let columns = vec![
        Column::words("path"),
        Column::words("must hold"),
        Column::words("in"),
        Column::words("because"),
        Column::numbers("measured"),
        Column::words("verdict"),
    ];
    let mut table = Table::new("Bars: what must hold on a machine of any speed", columns);
    for bar in bars {
        let (measured, verdict) = match bar.verdict(run) {
            Verdict::Met(value) => (bar.measure.text(value), Text::new().plain("met")),
            Verdict::Missed(value) => (bar.measure.text(value), Text::new().strong("missed")),
            Verdict::WithinNoise(value) => (
                bar.measure.text(value.figure),
                Text::new().plain("within noise").muted(format!(
                    " ({} … {})",
                    bar.measure.text(value.low),
                    bar.measure.text(value.high)
                )),
            ),
            Verdict::NotMeasured(why) => (
                number::NONE.into(),
                Text::new().muted(format!("not measured: {why}")),
            ),
        };
        table.path_row(
            bar.path,
            [
                bar.text().into(),
                Text::new().code(bar.place.text()),
                Text::new().muted(bar.reason),
                measured.into(),
                verdict,
            ],
        );
    }
    table
}
