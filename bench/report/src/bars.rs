//! What must hold on a machine of any speed, and whether it does.

use crate::{
    metric::Metric,
    model::{Column, Table, Text},
    number,
    schema::{Experiment, Run, Series},
};

/// What is held against a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// The path ÷ direct.
    Ratio(Metric),
    /// The path − direct, in µs.
    Added(Metric),
    /// The proxy's memory, in MiB.
    RssMib,
}

/// Where it must hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Where {
    /// In the experiment of this id.
    Id(&'static str),
    /// In every experiment whose id begins so: the worst of them counts.
    Begins(&'static str),
}

/// What it must not pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// It or more.
    AtLeast(f64),
    /// It or less.
    AtMost(f64),
}

/// One thing that must hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Of this path.
    pub path: &'static str,
    /// There.
    pub place: Where,
    /// This.
    pub measure: Measure,
    /// So much.
    pub bound: Bound,
    /// Why so much.
    pub reason: &'static str,
}

const NODE: Where = Where::Id("node-raw");
const OP_S: Measure = Measure::Ratio(Metric::OpS);
const P50: Measure = Measure::Ratio(Metric::P50);
const NOTHING_PER_BYTE: &str = "no code of ours runs for its bytes: nothing but noise";
const LIKE_COPIERS: &str = "what proxies that only copy reach";
const IN_KERNEL: &str = "bytes skip TCP between two sockets of one host";
const A_LOOK: &str = "one program for each segment";

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
    bar(
        "enrich",
        Where::Begins("stress-"),
        Measure::RssMib,
        Bound::AtMost(20.0),
        "the agent lives beside applications",
    ),
    bar(
        "observe",
        NODE,
        Measure::Added(Metric::P50),
        Bound::AtMost(0.8),
        A_LOOK,
    ),
    bar("observe", NODE, OP_S, Bound::AtLeast(0.92), A_LOOK),
    bar("shortcut", NODE, P50, Bound::AtMost(0.75), IN_KERNEL),
    bar("shortcut", NODE, OP_S, Bound::AtLeast(1.4), IN_KERNEL),
];

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

/// What became of a bar.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It holds, with this value.
    Met(f64),
    /// It does not, with this value.
    Missed(f64),
    /// Nobody knows, for this reason.
    NotMeasured(String),
}

impl Bar {
    /// Whether it holds in a run.
    pub fn verdict(&self, run: &Run) -> Verdict {
        let not = |reason: &str| Verdict::NotMeasured(reason.to_owned());
        match run.path(self.path).map(|path| &path.absent) {
            None => return not("not part of this run"),
            Some(Some(reason)) => return not(reason),
            Some(None) => {}
        }
        let places: Vec<&Experiment> = run
            .experiments
            .iter()
            .filter(|e| self.place.is(&e.id))
            .collect();
        let series = |e: &&Experiment| e.series(self.path).map(|s| self.measure.of(e, s));
        let usable = places.iter().copied().filter(|e| e.is_usable());
        let values: Vec<f64> = usable.filter_map(|e| series(&e)).flatten().collect();
        let worst = match self.bound {
            Bound::AtLeast(_) => values.into_iter().min_by(f64::total_cmp),
            Bound::AtMost(_) => values.into_iter().max_by(f64::total_cmp),
        };
        match worst {
            Some(value) if self.bound.holds(value) => Verdict::Met(value),
            Some(value) => Verdict::Missed(value),
            None => Verdict::NotMeasured(self.why_not(run, &places)),
        }
    }

    fn why_not(&self, run: &Run, places: &[&Experiment]) -> String {
        let failed = run.failed.iter().find(|(id, _)| self.place.is(id));
        if let (true, Some((_, reason))) = (places.is_empty(), failed) {
            return format!("failed: {reason}");
        }
        let reason = places.iter().find_map(|e| {
            let withheld = e.refused.as_ref().map(|why| format!("withheld: {why}"));
            withheld.or_else(|| e.left_out.get(self.path).cloned())
        });
        match (places.is_empty(), reason) {
            (true, _) => "not part of this run".into(),
            (false, Some(reason)) => reason,
            (false, None) => "no figure".into(),
        }
    }

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
            Measure::RssMib => format!("RSS peak {sign} {} MiB", number::plain(bound)),
        };
        // One line, however narrow its column.
        text.replace(' ', "\u{a0}")
    }
}

impl Measure {
    fn of(self, experiment: &Experiment, series: &Series) -> Option<f64> {
        match self {
            Self::Ratio(metric) => Some(experiment.ratio(series, metric)?.median),
            Self::Added(metric) => Some(experiment.added(series, metric)?.median),
            Self::RssMib => Some(series.peak(Metric::RssPeak)? / 1024.0),
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Ratio(_) => number::ratio(value),
            Self::Added(_) => format!("{} µs", number::signed(value)),
            Self::RssMib => format!("{value:.1} MiB"),
        }
    }
}

impl Where {
    fn is(self, id: &str) -> bool {
        match self {
            Self::Id(this) => this == id,
            Self::Begins(with) => id.starts_with(with),
        }
    }

    fn text(self) -> String {
        match self {
            Self::Id(id) => id.into(),
            Self::Begins(with) => format!("{with}*"),
        }
    }
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

/// The bars, and what became of them.
pub fn table(run: &Run) -> Table {
    let columns = vec![
        Column::words("path"),
        Column::words("must hold"),
        Column::words("in"),
        Column::words("because"),
        Column::numbers("measured"),
        Column::words("verdict"),
    ];
    let mut table = Table::new("Bars: what must hold on a machine of any speed", columns);
    for bar in ALL {
        let (measured, verdict) = match bar.verdict(run) {
            Verdict::Met(value) => (bar.measure.text(value), Text::new().plain("met")),
            Verdict::Missed(value) => (bar.measure.text(value), Text::new().strong("missed")),
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
