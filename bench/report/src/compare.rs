//! Two runs, side by side: which figures moved beyond noise.
//!
//! Rounds of two runs are not pairs, so the test is stricter than within a run: a figure moved
//! when its medians are further apart than both runs' spreads are wide, together, and further
//! than its floor. A gate looks at hundreds of figures at once and must not cry at one of them.

use std::fmt;

use crate::{
    metric::{Metric, Process},
    number,
    schema::{Experiment, Run, Series},
    stats::{MIN_ROUNDS, Spread, median},
};

mod settings;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Operations in a second ÷ those of direct.
    OpS,
    /// Median latency ÷ that of direct.
    P50,
    /// 99th percentile ÷ that of direct.
    P99,
    /// The proxy's CPU for an operation, in µs.
    Cpu,
    /// The proxy's memory at its peak, in MiB.
    Rss,
}

impl Figure {
    /// All, in the order of reports.
    pub const ALL: [Self; 5] = [Self::OpS, Self::P50, Self::P99, Self::Cpu, Self::Rss];

    /// In reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpS => "op/s ÷ direct",
            Self::P50 => "p50 ÷ direct",
            Self::P99 => "p99 ÷ direct",
            Self::Cpu => "proxy's CPU, µs/op",
            Self::Rss => "RSS peak, MiB",
        }
    }

    /// Moves below this are none, whatever the spread: relative, and in the figure's unit.
    fn floor(self) -> (f64, f64) {
        match self {
            // Two builds of the same code differ by so much through where the linker puts it.
            Self::OpS | Self::P50 => (0.03, 0.0),
            // A few late wake-ups in each round decide it.
            Self::P99 => (0.10, 0.0),
            // An agent that only waits has a cost, divided by operations: hundredths of a µs.
            Self::Cpu => (0.05, 0.1),
            // Allocators ask in steps.
            Self::Rss => (0.05, 0.5),
        }
    }

    fn is_better(self, from: f64, to: f64) -> bool {
        match self {
            Self::OpS => to > from,
            _ => to < from,
        }
    }

    fn spread(self, experiment: &Experiment, series: &Series) -> Option<Spread> {
        let ratios = |metric| {
            let pairs = experiment.pairs(series, metric)?.into_iter();
            let ratios = pairs.filter(|(_, direct)| *direct > 0.0);
            Spread::of(ratios.map(|(path, direct)| path / direct))
        };
        match self {
            Self::OpS => ratios(Metric::OpS),
            Self::P50 => ratios(Metric::P50),
            Self::P99 => ratios(Metric::P99),
            Self::Cpu => Spread::of(series.values(Metric::Cpu(Process::Proxy))),
            Self::Rss => Spread::of(series.values(Metric::RssPeak).map(|kib| kib / 1024.0)),
        }
    }
}

/// A figure that moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// Where.
    pub experiment: String,
    /// Whose.
    pub path: String,
    /// What.
    pub figure: Figure,
    /// In the first run.
    pub from: f64,
    /// In the second.
    pub to: f64,
    /// It would have had to move by more than this.
    pub noise: f64,
    /// In the right direction.
    pub is_better: bool,
}

/// What became of the second run since the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Figures that both have and that could be judged.
    pub judged: usize,
    /// Those that moved, in the order of the second run's tables.
    pub moves: Vec<Move>,
    /// Operations fail that did not: `enrich in stress-read: 12 errors, the first: …`.
    pub new_errors: Vec<String>,
    /// What only the first run has, or may show.
    pub only_first: Vec<String>,
    /// What only the second run has, or may show.
    pub only_second: Vec<String>,
    /// Why the runs may not be comparable.
    pub warnings: Vec<String>,
}

impl Comparison {
    /// A figure is worse beyond noise, or operations fail that did not.
    pub fn is_regression(&self) -> bool {
        !self.new_errors.is_empty() || self.moves.iter().any(|m| !m.is_better)
    }

    /// There was nothing to judge: neither good nor bad news.
    pub fn is_empty(&self) -> bool {
        self.judged == 0
    }
}

/// What moved from `first` to `second`.
pub fn compare(first: &Run, second: &Run) -> Comparison {
    let mut comparison = Comparison {
        warnings: settings::differences(first, second),
        only_first: missing(first, second),
        only_second: missing(second, first),
        ..Comparison::default()
    };
    for new in second.usable() {
        let Some(old) = first.experiment(&new.id).filter(|e| e.is_usable()) else {
            continue;
        };
        if let Some(what) = settings::workload(old, new) {
            let line = format!("{}: not compared, {what} differ", new.id);
            comparison.warnings.push(line);
            continue;
        }
        comparison.warnings.extend(mood(old, new));
        for (before, after) in both(old, new) {
            errors(&mut comparison, before, after, new);
            for figure in Figure::ALL.into_iter().filter(|_| !after.is_direct()) {
                judge(&mut comparison, figure, (old, before), (new, after));
            }
        }
    }
    comparison
}

fn both<'a>(
    old: &'a Experiment,
    new: &'a Experiment,
) -> impl Iterator<Item = (&'a Series, &'a Series)> {
    let after = new.series.iter();
    after.filter_map(|after| Some((old.series(&after.path)?, after)))
}

fn errors(comparison: &mut Comparison, before: &Series, after: &Series, new: &Experiment) {
    if before.errors() == 0 && after.errors() > 0 {
        comparison.new_errors.push(format!(
            "{} in {}: {} errors, the first: {}",
            after.path,
            new.id,
            number::grouped(after.errors() as f64),
            after.first_error().unwrap_or("no reason was kept")
        ));
    }
}

fn judge(
    comparison: &mut Comparison,
    figure: Figure,
    (old, before): (&Experiment, &Series),
    (new, after): (&Experiment, &Series),
) {
    let (from, to) = match (figure.spread(old, before), figure.spread(new, after)) {
        (Some(from), Some(to)) => (from, to),
        _ => return,
    };
    if from.rounds.min(to.rounds) < MIN_ROUNDS {
        let line = format!("{}: {} has too few rounds to be judged", new.id, after.path);
        if !comparison.warnings.contains(&line) {
            comparison.warnings.push(line);
        }
        return;
    }
    comparison.judged += 1;
    let (relative, absolute) = figure.floor();
    let floor = absolute.max(from.median.abs() * relative);
    let noise = floor.max(from.width() + to.width());
    if (to.median - from.median).abs() > noise {
        comparison.moves.push(Move {
            experiment: new.id.clone(),
            path: after.path.clone(),
            figure,
            from: from.median,
            to: to.median,
            noise,
            is_better: figure.is_better(from.median, to.median),
        });
    }
}

/// Series that the other run lacks or may not show, and experiments likewise.
fn missing(run: &Run, other: &Run) -> Vec<String> {
    let mut all = Vec::new();
    for experiment in run.usable() {
        match other.experiment(&experiment.id) {
            None => all.push(experiment.id.clone()),
            Some(theirs) if !theirs.is_usable() => {
                all.push(format!("{} (withheld in the other)", experiment.id));
            }
            Some(theirs) => {
                let lacks = |s: &&Series| theirs.series(&s.path).is_none();
                let lacking = experiment.series.iter().filter(lacks);
                all.extend(lacking.map(|s| format!("{} in {}", s.path, experiment.id)));
            }
        }
    }
    all
}

/// `direct` has none of our code in it: when it moves, the machine did.
const MOOD: f64 = 0.10;

fn mood(old: &Experiment, new: &Experiment) -> Option<String> {
    let op_s = |e: &Experiment| median(e.direct()?.values(Metric::OpS)).filter(|op_s| *op_s > 0.0);
    let change = op_s(new)? / op_s(old)? - 1.0;
    (change.abs() > MOOD).then(|| {
        format!(
            "{}: direct itself moved by {}: the machine is not as it was",
            new.id,
            number::percent(change)
        )
    })
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        for error in &self.new_errors {
            writeln!(f, "new errors: {error}")?;
        }
        for (which, all) in [("first", &self.only_first), ("second", &self.only_second)] {
            if !all.is_empty() {
                writeln!(f, "only in the {which}: {}", all.join(", "))?;
            }
        }
        let worse = self.moves.iter().filter(|m| !m.is_better);
        let better = self.moves.iter().filter(|m| m.is_better);
        let rows: Vec<_> = worse.chain(better).map(Move::cells).collect();
        let width = |n: usize| {
            let cells = rows.iter().filter_map(|row| row.get(n));
            cells.map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..Move::CELLS).map(width).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths);
            let line: Vec<_> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            writeln!(f, "{}", line.join("  ").trim_end())?;
        }
        match (self.judged, self.moves.len()) {
            (0, _) => writeln!(f, "nothing to compare"),
            (judged, 0) => writeln!(f, "{judged} figures compared, none moved beyond noise"),
            (judged, moved) => writeln!(f, "{judged} figures compared, {moved} moved beyond noise"),
        }
    }
}

impl Move {
    const CELLS: usize = 7;

    fn cells(&self) -> [String; Self::CELLS] {
        let verdict = if self.is_better { "better" } else { "worse" };
        let change = match self.from.abs() > 0.0 {
            true => number::percent(self.to / self.from - 1.0),
            false => number::NONE.to_owned(),
        };
        [
            verdict.into(),
            self.experiment.clone(),
            self.path.clone(),
            self.figure.name().into(),
            format!("{} → {}", number::ratio(self.from), number::ratio(self.to)),
            change,
            format!("(noise: ±{})", number::ratio(self.noise)),
        ]
    }
}
