//! The metrics of journals.

use export::Full;
use prometheus::{IntCounterVec, Registry};
use telemetry::counters_by;

/// The metrics of all journals.
#[derive(Clone, Debug)]
pub struct JournalMetrics {
    records: IntCounterVec,
    failures: IntCounterVec,
    held: IntCounterVec,
}

/// The kind of what went wrong with a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failed {
    Write,
    Sync,
    Reopen,
    /// A part of a line was at the end of the file when it was opened.
    Torn,
}

impl JournalMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name, help, labels: &[&str]| counters_by(registry, name, help, labels);
        Ok(Self {
            records: counters(
                "underpass_journal_records_total",
                "Records of journals, by journal and what became of them: `written`, `full` (there was no \
                 room), `too_long`, `lost` (the file could not be written).",
                &["journal", "outcome"],
            )?,
            failures: counters(
                "underpass_journal_failures_total",
                "Failed operations on journals' files, by journal and operation: `write`, `sync`, \
                 `reopen`; `torn`: the file that was opened ended in the middle of a line.",
                &["journal", "what"],
            )?,
            held: counters(
                "underpass_journal_holds_total",
                "Times that nothing was read from a client because a journal had no room, by journal.",
                &["journal"],
            )?,
        })
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.written("", 0);
        self.failed("", Failed::Write);
        self.held("");
    }

    pub(super) fn written(&self, journal: &str, records: u64) {
        self.add(journal, "written", records);
    }

    pub(super) fn lost(&self, journal: &str, records: u64) {
        self.add(journal, "lost", records);
    }

    pub(super) fn dropped(&self, journal: &str, why: Full) {
        let outcome = match why {
            Full::Now => "full",
            Full::TooLong => "too_long",
        };
        self.add(journal, outcome, 1);
    }

    pub(super) fn held(&self, journal: &str) {
        self.held.with_label_values(&[journal]).inc();
    }

    pub(super) fn failed(&self, journal: &str, what: Failed) {
        let what = match what {
            Failed::Write => "write",
            Failed::Sync => "sync",
            Failed::Reopen => "reopen",
            Failed::Torn => "torn",
        };
        self.failures.with_label_values(&[journal, what]).inc();
    }

    #[cfg(test)]
    pub(super) fn failures(&self, journal: &str) -> u64 {
        self.failures.with_label_values(&[journal, "write"]).get()
    }

    fn add(&self, journal: &str, outcome: &str, records: u64) {
        let counter = self.records.with_label_values(&[journal, outcome]);
        counter.inc_by(records);
    }
}
