//! A reporter's journal: described when the policy file is read, opened when its rule is put into
//! force.

use std::sync::{Arc, OnceLock};

use cql::{Completed, Details};

use super::{
    Following,
    journal::{Format, Journal, JournalSettings, Journals},
};

#[derive(Debug)]
pub(super) struct Keeps {
    pub settings: JournalSettings,
    open: OnceLock<Arc<Journal>>,
}

impl Keeps {
    pub(super) fn new(settings: JournalSettings) -> Self {
        Self {
            settings,
            open: OnceLock::new(),
        }
    }

    /// Opens the journal. A step belongs to one file, which is put into force once.
    ///
    /// # Errors
    /// The journal cannot be written to.
    pub(super) fn open(
        &self,
        journals: &Journals,
        name: &'static str,
        format: Format,
    ) -> Result<(), String> {
        let _ = self.open.set(journals.open(name, &self.settings, format)?);
        Ok(())
    }

    /// Returns the journal. None before it is opened: no rule is in force then.
    pub(super) fn get(&self) -> Option<&Arc<Journal>> {
        self.open.get()
    }
}

/// A reporter's part in a flow that it does not report.
pub(super) struct Nobody;

impl Following for Nobody {
    fn completed(&mut self, _: &Completed<'_>, _: &Details) {}
}
