//! The host's own files, beside which the fleet's are put into force. **Invariant**: a mistake in the ones keeps no change of the others out of force.

use policy_source::Fragments;

use super::{Control, own::Own};
use crate::config::Sources;

impl Control {
    /// Tries files of the fleet that are one policy.
    pub(super) fn try_fleet(&mut self, offered: &Fragments) -> anyhow::Result<()> {
        let read = Sources::read(&self.file).ok();
        let beside = read.clone().unwrap_or_else(|| self.own_in_force());
        self.try_beside(&Own { read, beside }, offered)
    }

    /// Returns the host's own files that are in force.
    pub(super) fn own_in_force(&self) -> Sources {
        self.told.in_force.borrow().sources.own()
    }

    /// Tries files of the fleet beside those of the host, and then beside those of the host that are in force: a mistake in the others, or a key that these
    /// name and that is away, is not the fleet's. The others stay refused.
    pub(super) fn try_beside(&mut self, own: &Own, offered: &Fragments) -> anyhow::Result<()> {
        let failed = self.failed.clone();
        let in_force = self.own_in_force();
        let mut beside = &own.beside;
        let mut tried = self.try_once(beside, offered);
        if tried.is_err() && *beside != in_force && self.are_refused(own) {
            let again = self.try_once(&in_force, offered);
            if again.is_ok() {
                beside = &in_force;
                tried = again;
            }
        }
        // Where they are not refused yet, they are about to be looked at.
        if tried.is_ok() && failed.is_some() && own.read.as_ref() != Some(beside) {
            self.note(failed);
            self.unreadable = own.read.is_none();
            if let Some(read) = &own.read {
                self.sources = read.clone().with(offered);
            }
        }
        tried
    }

    /// Whether the host's own files are refused, whatever the fleet's are.
    fn are_refused(&self, own: &Own) -> bool {
        let is_wrong = |own: &Sources| self.config.again(own).is_err();
        self.failed.is_some() || own.read.as_ref().is_none_or(is_wrong)
    }

    /// Tries files of the fleet beside such of the host. **Invariant**: refused, they leave no trace, also not in what the host's own
    /// files are compared with.
    fn try_once(&mut self, own: &Sources, offered: &Fragments) -> anyhow::Result<()> {
        let (sources, unreadable) = (self.sources.clone(), self.unreadable);
        let tried = self.try_sources(own.clone().with(offered));
        tried.inspect_err(|_| {
            self.sources = sources;
            self.unreadable = unreadable;
        })
    }
}
