//! The counters of `coalesce`.

use prometheus::{IntCounter, IntCounterVec, Registry};
use strum::VariantNames;
use telemetry::counters_by;

/// The reason why a window has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Cause {
    /// The window has taken as many writes or bytes as it may.
    Full,
    /// The window was open for its full time.
    Time,
    /// A request came that must not overtake the window's writes.
    Flush,
    /// The window had one write, which went on as it was.
    Alone,
}

const CAUSES: &[&str] = Cause::VARIANTS;

/// The outcome of a write to a chosen table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Became {
    /// The write is in a batch.
    Merged,
    /// Nothing came to be merged with the write.
    Alone,
    /// The write has a timestamp of its own beside its statement.
    Timestamp,
    /// The write has parameters that a batch cannot carry for one statement.
    Parameters,
    /// A value of the write's key is null or unset.
    Shape,
    /// The write is larger than a batch may be.
    Size,
    /// The flow has had too many windows with one write.
    Resting,
    /// The flow has as many windows as it may.
    Windows,
    /// The limit on requests that wait is reached.
    NoRoom,
}

const BECAME: &[&str] = Became::VARIANTS;

/// The metrics of `coalesce`.
#[derive(Clone, Debug)]
pub struct CoalesceMetrics {
    windows: IntCounterVec,
    writes: IntCounterVec,
}

/// The counters of one rule, each looked up once.
#[derive(Debug)]
pub(super) struct Counters {
    windows: Vec<IntCounter>,
    writes: Vec<IntCounter>,
}

impl CoalesceMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            windows: counters_by(
                registry,
                "underpass_coalesce_windows_total",
                "Windows in which writes waited to be merged, by rule and why they ended: `full`, `time`, `flush` \
                 (something came that was not to overtake them), each a batch; `alone`: one write, which went on as \
                 it was.",
                &["rule", "ended"],
            )?,
            writes: counters_by(
                registry,
                "underpass_coalesce_writes_total",
                "Prepared writes to tables of `coalesce`, by rule and what became of them: `merged`, `alone` (nothing \
                 to be merged with), `timestamp` (of its own), `parameters`, `shape` (null or unset in its key), `size`, `resting` (too often \
                 alone), `windows` (too many), `no_room`.",
                &["rule", "outcome"],
            )?,
        })
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.of("rule");
    }

    pub(super) fn of(&self, rule: &str) -> Counters {
        let windows = CAUSES
            .iter()
            .map(|cause| self.windows.with_label_values(&[rule, cause]));
        let writes = BECAME
            .iter()
            .map(|became| self.writes.with_label_values(&[rule, became]));
        Counters {
            windows: windows.collect(),
            writes: writes.collect(),
        }
    }
}

impl Counters {
    pub(super) fn ended(&self, cause: Cause, writes: usize) {
        if let Some(counter) = self.windows.get(cause as usize) {
            counter.inc();
        }
        let became = match cause {
            Cause::Alone => Became::Alone,
            _ => Became::Merged,
        };
        if let Some(counter) = self.writes.get(became as usize) {
            counter.inc_by(writes as u64);
        }
    }

    pub(super) fn became(&self, became: Became) {
        if let Some(counter) = self.writes.get(became as usize) {
            counter.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_label() {
        assert_eq!(CAUSES[Cause::Full as usize], "full");
        assert_eq!(CAUSES[Cause::Alone as usize], "alone");
        assert_eq!(BECAME[Became::Merged as usize], "merged");
        assert_eq!(BECAME[Became::NoRoom as usize], "no_room");
    }
}
