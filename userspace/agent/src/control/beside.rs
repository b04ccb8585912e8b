//! The host's own files, beside which the fleet's are put into force. **Invariant**: a mistake in the ones keeps no change of the others out of force.

use policy_source::Fragments;
use tokio::time::Instant;

use super::{
    Control,
    own::{Failed, Own},
};
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

    /// Tries files of the fleet, once: beside those of the host, or, where these are refused, beside those of the host that are in force. A mistake in the
    /// others, or a key that these name and that is away, is not the fleet's. The others stay refused until they are tried again, which is then at once.
    pub(super) fn try_beside(&mut self, own: &Own, offered: &Fragments) -> anyhow::Result<()> {
        let failed = self.failed.clone();
        let in_force = self.own_in_force();
        let fits = |own: &Sources| self.config.again(&own.clone().with(offered)).is_ok();
        // What the fleet's files name may be in no others than the refused ones.
        let takes_in_force = own.beside != in_force
            && self.are_refused(own)
            && (fits(&in_force) || !fits(&own.beside));
        let beside = match takes_in_force {
            true => &in_force,
            false => &own.beside,
        };
        let tried = self.try_once(beside, offered);
        // Where they are not refused yet, they are about to be looked at.
        if tried.is_ok()
            && let Some(failed) = failed
            && own.read.as_ref() != Some(beside)
        {
            self.note(Some(Failed {
                again: Instant::now(),
                ..failed
            }));
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
