//! Two runs, side by side: which figures moved beyond noise, and whether the second is a
//! regression.
//!
//! Rounds of two runs are not pairs, so the test is stricter than within a run: a figure moved
//! when its estimates are further apart than both runs' intervals are wide, together, and further
//! than its floor. A gate looks at hundreds of figures at once and must not cry at one of them.
//!
//! Nor may it be quiet where there is nothing to look at: what of ours the second run does not
//! show any more is a regression as well, and so is a pair of runs of which nothing can be
//! judged. Only our paths can be one; what became of others is told.

use crate::{
    metric::Metric,
    number,
    schema::{Experiment, Run, Series},
    stats::{Estimate, MIN_ROUNDS, median},
};

mod circumstances;
mod figure;
mod text;

pub use figure::Figure;

/// Noise of more than this share of a figure hides what a gate is there to see.
const TOO_NOISY: f64 = 0.20;
/// Where operations failed before, more of them are told from as many by this share of all.
const MORE_ERRORS: f64 = 0.001;
/// `direct` has none of our code in it: when it moves by more than this share, the machine did.
const MOOD: f64 = 0.10;

/// A figure that moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// The experiment in which it did.
    pub experiment: String,
    /// The path that moved.
    pub path: String,
    /// Whether it is one of our paths.
    pub is_ours: bool,
    /// The figure that moved.
    pub figure: Figure,
    /// In the first run.
    pub from: f64,
    /// In the second.
    pub to: f64,
    /// The noise: a smaller move counts as none.
    pub noise: f64,
    /// In the right direction.
    pub is_better: bool,
}

/// The kind of a note on a comparison, in the order of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// A reason why the runs may not be comparable.
    Warning,
    /// Errors of a path that is not ours.
    Information,
    /// A figure of ours that only the first run shows: `enrich in connect (withheld: …)`.
    NotMeasured,
    /// Operations over a path of ours that fail and did not, or not so often.
    MoreErrors,
    /// A figure that did not move beyond noise, but much could hide in it.
    TooNoisy,
    /// Others' figures that only the first run shows.
    OnlyFirst,
    /// Figures that only the second run shows.
    OnlySecond,
}

/// The difference of a second run to a first one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Figures of our paths that both have and that could be judged.
    pub judged: usize,
    /// The moves of our paths, then those of others, in the order of the second run's tables.
    pub moves: Vec<Move>,
    /// The notes of everything else that a reader has to know.
    pub notes: Vec<(Note, String)>,
}

impl Comparison {
    /// Something of ours is worse beyond noise, or cannot be seen to be as good.
    pub fn is_regression(&self) -> bool {
        !self.reasons().is_empty()
    }

    /// Why it is a regression; empty: it is none.
    pub fn reasons(&self) -> Vec<String> {
        let worse = self.ours().filter(|m| !m.is_better).count();
        let counts = [
            (worse, "figures that are worse"),
            (
                self.notes(Note::NotMeasured).count(),
                "not measured in the second run",
            ),
            (
                self.notes(Note::MoreErrors).count(),
                "paths with more errors",
            ),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let mut reasons: Vec<String> = counts.map(|(n, what)| format!("{what}: {n}")).collect();
        if self.judged == 0 {
            let why = match self.notes(Note::TooNoisy).next() {
                None => format!("fewer than {MIN_ROUNDS} rounds or no common experiment"),
                Some(_) => "too noisy".into(),
            };
            reasons.push(format!("nothing comparable: {why}"));
        }
        reasons
    }

    /// The notes of one kind.
    pub fn notes(&self, kind: Note) -> impl Iterator<Item = &str> {
        let of_kind = self.notes.iter().filter(move |(of, _)| *of == kind);
        of_kind.map(|(_, line)| &**line)
    }

    /// Moves of our paths.
    pub fn ours(&self) -> impl Iterator<Item = &Move> {
        self.moves.iter().filter(|m| m.is_ours)
    }

    /// Notes a line, once.
    fn note(&mut self, kind: Note, line: String) {
        let note = (kind, line);
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// A path in an experiment of both runs.
struct Pair<'a> {
    old: (&'a Experiment, &'a Series),
    new: (&'a Experiment, &'a Series),
    is_ours: bool,
}

/// The moves from `first` to `second`.
pub fn compare(first: &Run, second: &Run) -> Comparison {
    let mut comparison = Comparison::default();
    for line in circumstances::differences(first, second) {
        comparison.note(Note::Warning, line);
    }
    for lost in circumstances::missing(first, second) {
        let kind = match lost.is_ours {
            true => Note::NotMeasured,
            false => Note::OnlyFirst,
        };
        comparison.note(kind, lost.line);
    }
    for gained in circumstances::missing(second, first) {
        comparison.note(Note::OnlySecond, gained.line);
    }
    for new in second.usable() {
        let Some(old) = first.experiment(&new.id).filter(|e| e.is_usable()) else {
            continue;
        };
        if !circumstances::is_same_load(old, new) {
            let line = format!("{}: not compared, it asks for something else", new.id);
            comparison.note(Note::Warning, line);
            continue;
        }
        if let Some(mood) = mood(old, new) {
            comparison.note(Note::Warning, mood);
        }
        for after in new.series.iter().filter(|s| !s.rounds.is_empty()) {
            let Some(before) = old.series(&after.path) else {
                continue;
            };
            let pair = Pair {
                old: (old, before),
                new: (new, after),
                is_ours: first.is_ours(&after.path) || second.is_ours(&after.path),
            };
            errors(&mut comparison, &pair);
            for figure in Figure::ALL.into_iter().filter(|_| !after.is_direct()) {
                judge(&mut comparison, figure, &pair);
            }
        }
    }
    comparison.notes.sort_by_key(|(kind, _)| *kind);
    comparison
}

fn errors(comparison: &mut Comparison, pair: &Pair<'_>) {
    let ((_, before), (new, after)) = (pair.old, pair.new);
    let rate = |series: &Series| series.error_rate().unwrap_or(0.0);
    let is_new = before.errors() == 0 && after.errors() > 0;
    if !is_new && rate(after) - rate(before) <= MORE_ERRORS {
        return;
    }
    let of_before = match is_new {
        true => String::new(),
        false => format!(" (before: {})", number::grouped(before.errors() as f64)),
    };
    let line = format!(
        "{} in {}: {} errors{of_before}, the first: {}",
        after.path,
        new.id,
        number::grouped(after.errors() as f64),
        after.first_error().unwrap_or("no reason was kept")
    );
    let kind = match pair.is_ours {
        true => Note::MoreErrors,
        false => Note::Information,
    };
    comparison.note(kind, line);
}

fn judge(comparison: &mut Comparison, figure: Figure, pair: &Pair<'_>) {
    let (new, after) = pair.new;
    let estimate = |(experiment, series)| figure.estimate(experiment, series);
    let (from, to) = match (estimate(pair.old), estimate(pair.new)) {
        (Some(from), Some(to)) => (from, to),
        // The path is there, and the figure is not: no operation succeeded, direct is missing.
        (Some(_), None) if pair.is_ours => {
            let line = format!("{} of {} in {}", figure.name(), after.path, new.id);
            return comparison.note(Note::NotMeasured, line);
        }
        _ => return,
    };
    if from.rounds.min(to.rounds) < MIN_ROUNDS {
        let line = format!("{}: {} has too few rounds to be judged", new.id, after.path);
        return comparison.note(Note::Warning, line);
    }
    let noise = noise(figure, &from, &to);
    let has_moved = (to.figure - from.figure).abs() > noise;
    if let (false, Some(share)) = (has_moved, too_noisy(figure, &from, &to)) {
        let line = format!(
            "± {} %: {} of {} in {}",
            number::grouped(share * 100.0),
            figure.name(),
            after.path,
            new.id
        );
        return comparison.note(Note::TooNoisy, line);
    }
    comparison.judged += usize::from(pair.is_ours);
    if has_moved {
        comparison.moves.push(Move {
            experiment: new.id.clone(),
            path: after.path.clone(),
            is_ours: pair.is_ours,
            figure,
            from: from.figure,
            to: to.figure,
            noise,
            is_better: figure.is_better(from.figure, to.figure),
        });
    }
}

/// Moves up to this are none.
fn noise(figure: Figure, from: &Estimate, to: &Estimate) -> f64 {
    let (relative, absolute) = figure.floor();
    let floor = absolute.max(from.figure.abs() * relative);
    floor.max(from.width() + to.width())
}

/// The share of the figure that is noise, where it is too much; what is below the floor in the
/// figure's own unit matters to nobody.
fn too_noisy(figure: Figure, from: &Estimate, to: &Estimate) -> Option<f64> {
    let width = from.width() + to.width();
    let (_, floor) = figure.floor();
    let share = width / from.figure.abs();
    (width > floor && share > TOO_NOISY).then_some(share)
}

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
