//! Findings of a run, collected from all its threads.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use super::{
    report::{Hang, Report},
    watch::lock,
};

/// A report that many threads add to.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes {
    report: Arc<Mutex<Report>>,
    /// Each finding is a line on standard output at once: this process may be killed.
    aloud: bool,
}

impl Notes {
    pub(super) fn aloud() -> Self {
        Self {
            aloud: true,
            ..Self::default()
        }
    }

    pub(super) fn add(&self, part: Report) {
        if self.aloud
            && let Ok(line) = serde_json::to_string(&part)
        {
            // Nobody listens any more: then nobody is to be told.
            let _ = writeln!(std::io::stdout(), "{line}");
        } else {
            lock(&self.report).merge(part);
        }
    }

    pub(super) fn hang(&self, hang: Hang) {
        self.note(|report| report.hang(hang));
    }

    pub(super) fn violate(&self, name: &str, example: impl FnOnce() -> String) {
        self.note(|report| report.violate(name, example));
    }

    fn note(&self, change: impl FnOnce(&mut Report)) {
        let mut part = Report::default();
        change(&mut part);
        self.add(part);
    }

    /// Report of all findings so far.
    pub(super) fn report(&self) -> Report {
        lock(&self.report).clone()
    }
}
