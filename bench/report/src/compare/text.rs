//! A comparison in a terminal.

use std::fmt;

use super::{Comparison, Move};
use crate::number;

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [
            ("warning", &self.warnings),
            ("for information", &self.information),
            ("not measured in the second run", &self.not_measured),
            ("more errors", &self.more_errors),
            ("too noisy to judge", &self.too_noisy),
        ];
        for (what, all) in lists {
            for line in all {
                writeln!(f, "{what}: {line}")?;
            }
        }
        for (which, all) in [("first", &self.only_first), ("second", &self.only_second)] {
            if !all.is_empty() {
                writeln!(f, "only in the {which}: {}", all.join(", "))?;
            }
        }
        moves(&self.moves, f)?;
        let (judged, moved) = (self.judged, self.ours().count());
        match moved {
            0 => writeln!(
                f,
                "{judged} figures of ours compared, none moved beyond noise"
            )?,
            _ => writeln!(
                f,
                "{judged} figures of ours compared, {moved} moved beyond noise"
            )?,
        }
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
    Ok(())
}

impl Move {
    const CELLS: usize = 7;

    fn cells(&self) -> [String; Self::CELLS] {
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
