//! Findings of a run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};

use super::{check::Wrong, stream::Direction};

/// Findings of each kind that are kept; more are only counted.
const KEPT: usize = 64;

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The one that connects.
    Client,
    /// The one that accepts.
    Server,
}

impl Side {
    /// Direction of the bytes that this end sends.
    pub(super) fn sends(self) -> Direction {
        match self {
            Self::Client => Direction::Up,
            Self::Server => Direction::Down,
        }
    }

    /// Direction of the bytes that this end receives.
    pub(super) fn receives(self) -> Direction {
        self.other().sends()
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Bytes never came.
    Lost,
    /// Bytes came twice.
    Duplicated,
    /// Bytes came in another order.
    Reordered,
    /// Bytes of another stream came.
    Foreign,
    /// Bytes that nobody sent came.
    Garbled,
    /// The connection was reset, though nobody was to reset it.
    Reset,
    /// The connection could not be made, or its first messages were not right.
    Handshake,
    /// Another error of a socket.
    Error,
}

/// Something wrong on one connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corruption {
    /// All that it is.
    pub kinds: BTreeSet<Kind>,
    /// The connection's number.
    pub connection: u64,
    /// Traffic pattern of the connection, by name.
    pub shape: String,
    /// The end that noticed.
    pub side: Side,
    /// Whether all that came was right, and only its end is missing or the connection's end is not
    /// as it should be.
    pub cut_short: bool,
    /// In bytes, and in words.
    pub wrong: Wrong,
}

/// A connection that did not get on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hang {
    /// The connection's number.
    pub connection: u64,
    /// Traffic pattern of the connection, by name.
    pub shape: String,
    /// The end that noticed.
    pub side: Side,
    /// When it was noticed, since 1970.
    pub at_ms: u64,
    /// Without progress for so long.
    pub stalled_ms: u64,
    /// Positions of both directions, and what this end waits for.
    pub state: String,
}

/// Findings of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// Repeats the run.
    pub seed: u64,
    /// Connections begun.
    pub connections: u64,
    /// Connections that were to be reset or killed.
    pub aborted: u64,
    /// Bytes from clients that servers found right.
    pub bytes_up: u64,
    /// Bytes from servers that clients found right.
    pub bytes_down: u64,
    /// Frames that came as an edit on their way makes them, of directions that came whole.
    pub edited_frames: u64,
    /// How many connections (shapes) and ends (the rest) did what.
    pub behaviours: BTreeMap<String, u64>,
    /// How many connections gave which driver's name.
    pub drivers: BTreeMap<String, u64>,
    /// Connections with wrong bytes; all of them, though not all are kept.
    pub corrupted: u64,
    /// Faults that were found in bytes.
    pub corruption: Vec<Corruption>,
    /// Number of times that sockets said or did what a direct connection's would not have, by name.
    pub violations: BTreeMap<String, u64>,
    /// An example of each.
    pub examples: BTreeMap<String, String>,
    /// Connections that hung; all of them, though not all are kept.
    pub hung: u64,
    /// How they hung.
    pub hangs: Vec<Hang>,
    /// The longest time without progress that no script explains.
    pub longest_stall_ms: u64,
    /// How long the slowest connection took, and which it was.
    pub slowest: (u64, String),
    /// How long it took.
    pub elapsed_ms: u64,
}

impl Report {
    /// Nothing was wrong but violations that are in `allowed`.
    pub fn passed(&self, allowed: &[String]) -> bool {
        self.corrupted == 0
            && self.hung == 0
            && self.violations.keys().all(|name| allowed.contains(name))
    }

    /// Whether something of this kind was found.
    pub fn found(&self, kind: Kind) -> bool {
        self.corruption.iter().any(|c| c.kinds.contains(&kind))
    }

    /// Adds what `other` has found; the time is the longer of both.
    pub fn merge(&mut self, other: Self) {
        self.seed = self.seed.max(other.seed);
        self.connections += other.connections;
        self.aborted += other.aborted;
        self.bytes_up += other.bytes_up;
        self.bytes_down += other.bytes_down;
        self.edited_frames += other.edited_frames;
        add(&mut self.behaviours, other.behaviours);
        add(&mut self.drivers, other.drivers);
        add(&mut self.violations, other.violations);
        for (name, example) in other.examples {
            self.examples.entry(name).or_insert(example);
        }
        self.corrupted += other.corrupted;
        self.corruption.extend(other.corruption);
        self.corruption.truncate(KEPT);
        self.hung += other.hung;
        self.hangs.extend(other.hangs);
        self.hangs.truncate(KEPT);
        self.longest_stall_ms = self.longest_stall_ms.max(other.longest_stall_ms);
        self.slowest = std::mem::take(&mut self.slowest).max(other.slowest);
        self.elapsed_ms = self.elapsed_ms.max(other.elapsed_ms);
    }

    pub(super) fn corrupt(&mut self, corruption: Corruption) {
        self.corrupted += 1;
        if self.corruption.len() < KEPT {
            self.corruption.push(corruption);
        }
    }

    pub(super) fn hang(&mut self, hang: Hang) {
        self.hung += 1;
        if self.hangs.len() < KEPT {
            self.hangs.push(hang);
        }
    }

    pub(super) fn violate(&mut self, name: &str, example: impl FnOnce() -> String) {
        *self.violations.entry(name.to_owned()).or_default() += 1;
        self.examples.entry(name.to_owned()).or_insert_with(example);
    }

    pub(super) fn count(&mut self, behaviour: &str) {
        *self.behaviours.entry(behaviour.to_owned()).or_default() += 1;
    }
}

fn add(to: &mut BTreeMap<String, u64>, from: BTreeMap<String, u64>) {
    for (name, count) in from {
        *to.entry(name).or_default() += count;
    }
}

impl Wrong {
    /// Kinds of fault in this report.
    pub(super) fn kinds(&self) -> BTreeSet<Kind> {
        [
            (self.lost, Kind::Lost),
            (self.duplicated, Kind::Duplicated),
            (self.reordered, Kind::Reordered),
            (self.foreign, Kind::Foreign),
            (self.garbled, Kind::Garbled),
        ]
        .into_iter()
        .filter_map(|(bytes, kind)| (bytes > 0).then_some(kind))
        .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.bytes_up + self.bytes_down;
        let seconds = self.elapsed_ms.max(1) as f64 / 1000.0;
        writeln!(
            f,
            "seed {}: {} connections ({} aborted), {} bytes up and {} down in {seconds:.1} s \
             ({:.0} MB/s)",
            self.seed,
            self.connections,
            self.aborted,
            self.bytes_up,
            self.bytes_down,
            total as f64 / 1e6 / seconds,
        )?;
        let list = |counts: &BTreeMap<String, u64>| {
            let parts: Vec<_> = counts.iter().map(|(n, c)| format!("{n} {c}")).collect();
            parts.join(", ")
        };
        writeln!(f, "behaviours: {}", list(&self.behaviours))?;
        if !self.drivers.is_empty() {
            writeln!(f, "drivers: {}", list(&self.drivers))?;
        }
        writeln!(
            f,
            "longest stall: {} ms; slowest: {} ms, {}",
            self.longest_stall_ms, self.slowest.0, self.slowest.1
        )?;
        writeln!(
            f,
            "corrupted: {}, hung: {}, violations: {}",
            self.corrupted,
            self.hung,
            self.violations.values().sum::<u64>()
        )?;
        for (name, count) in &self.violations {
            let example = self.examples.get(name).map_or("", String::as_str);
            writeln!(f, "  violation {name}, {count} times: {example}")?;
        }
        for c in &self.corruption {
            let kinds = &c.kinds;
            writeln!(
                f,
                "  connection {} ({}), {:?}: {kinds:?}",
                c.connection, c.shape, c.side
            )?;
            for text in &c.wrong.breaks {
                writeln!(f, "    {text}")?;
            }
        }
        for h in &self.hangs {
            writeln!(
                f,
                "  connection {} ({}), {:?}: no progress for {} ms: {}",
                h.connection, h.shape, h.side, h.stalled_ms, h.state
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_fails_a_run_unless_it_is_allowed() {
        let mut report = Report::default();
        assert!(report.passed(&[]));
        report.violate("fionread", || "0 of 5".into());
        assert!(!report.passed(&[]));
        assert!(!report.passed(&["waitall".into()]));
        assert!(report.passed(&["waitall".into(), "fionread".into()]));
        assert!(report.to_string().contains("fionread, 1 times: 0 of 5"));
    }

    #[test]
    fn no_permission_covers_a_hang() {
        let mut report = Report::default();
        report.hang(Hang {
            connection: 1,
            shape: "duplex".into(),
            side: Side::Client,
            at_ms: 0,
            stalled_ms: 1001,
            state: "sent 5 of 6".into(),
        });
        assert!(!report.passed(&["hang".into()]));
    }

    #[test]
    fn findings_beyond_those_kept_are_counted() {
        let mut all = Report::default();
        for connection in 0..2 * KEPT as u64 {
            let mut one = Report::default();
            one.corrupt(Corruption {
                kinds: [Kind::Lost].into(),
                connection,
                shape: "duplex".into(),
                side: Side::Server,
                cut_short: false,
                wrong: Wrong::default(),
            });
            all.merge(one);
        }
        assert_eq!(
            (all.corrupted, all.corruption.len()),
            (2 * KEPT as u64, KEPT)
        );
    }
}
