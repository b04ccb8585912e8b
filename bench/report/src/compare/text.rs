//! A comparison in a terminal.

use std::fmt;

use super::{Comparison, Move, Note};
use crate::{columns::aligned, number};

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, line) in &self.notes {
            let what = match kind {
                Note::Warning => "warning",
                Note::Information => "for information",
                Note::NotMeasured => "not measured in the second run",
                Note::MoreErrors => "more errors",
                Note::TooNoisy => "too noisy to judge",
                Note::OnlyFirst => "only in the first",
                Note::OnlySecond => "only in the second",
            };
            writeln!(f, "{what}: {line}")?;
        }
        moves(&self.moves, f)?;
        let moved = match self.ours().count() {
            0 => "none".to_owned(),
            moved => moved.to_string(),
        };
        let judged = self.judged;
        writeln!(
            f,
            "{judged} figures of ours compared, {moved} moved beyond noise"
        )?;
        match self.reasons() {
            reasons if reasons.is_empty() => writeln!(f, "no regression"),
            reasons => writeln!(f, "regression: {}", reasons.join("; ")),
        }
    }
}

/// Ours that are worse, ours that are better, others'.
fn moves(all: &[Move], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut sorted: Vec<&Move> = all.iter().collect();
    sorted.sort_by_key(|m| (!m.is_ours, m.is_better));
    let rows: Vec<_> = sorted.into_iter().map(Move::cells).collect();
    let all = aligned(&rows, usize::MAX);
    all.iter().try_for_each(|line| writeln!(f, "{line}"))
}

impl Move {
    fn cells(&self) -> Vec<String> {
        let verdict = match (self.is_ours, self.is_better) {
            (true, true) => "better",
            (true, false) => "worse",
            (false, true) => "(another's: better)",
            (false, false) => "(another's: worse)",
        };
        let change = match self.from.abs() > 0.0 {
            true => number::percent(self.to / self.from - 1.0),
            false => number::NONE.to_owned(),
        };
        vec![
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
