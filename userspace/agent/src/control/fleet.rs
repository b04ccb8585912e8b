//! The fleet's policy: put into force as a change of the file is, whole or not at all.

use std::sync::Arc;

use policy_source::{Fragments, Verdict};

use super::Control;
use crate::config::Sources;

/// The fleet's part of what is in force.
#[derive(Default)]
pub(super) struct FromFleet {
    /// The files in force.
    pub(super) good: Arc<Fragments>,
    /// Files that were refused. They may be right after the next change of the host's own files.
    refused: Option<Arc<Fragments>>,
}

impl FromFleet {
    pub(super) fn of(good: Arc<Fragments>) -> Self {
        Self {
            good,
            refused: None,
        }
    }
}

impl Control {
    /// Puts the policy that was offered last into force, if it is another than the one that is.
    pub(super) fn look_at_fleet(&mut self) {
        let offered = self.heard.offers.borrow_and_update().clone();
        if let Some(offered) = offered {
            self.offer(offered);
        }
    }

    /// Looks again at files that were refused, after a change of the host's own.
    pub(super) fn offer_again(&mut self) {
        if let Some(refused) = self.from_fleet.refused.take() {
            self.offer(refused);
        }
    }

    fn offer(&mut self, offered: Arc<Fragments>) {
        let digest = offered.digest();
        let is_new = offered.files != self.from_fleet.good.files;
        let error = match is_new.then(|| self.try_fleet(&offered)) {
            None => {
                self.heard.fleet_metrics.in_force(offered.revision);
                self.from_fleet = FromFleet::of(offered.clone());
                None
            }
            Some(Ok(())) => {
                self.heard.fleet_metrics.applied(offered.revision);
                self.from_fleet = FromFleet::of(offered.clone());
                tracing::info!(
                    revision = offered.revision,
                    digest,
                    "the fleet's policy is in force"
                );
                None
            }
            Some(Err(error)) => {
                self.heard.fleet_metrics.refused();
                self.from_fleet.refused = Some(offered.clone());
                tracing::error!(
                    revision = offered.revision,
                    digest,
                    "cannot put the fleet's policy into force, the old one stays: {error:#}"
                );
                Some(format!("{error:#}"))
            }
        };
        self.told.verdicts.send_replace(Some(Verdict {
            revision: offered.revision,
            digest,
            error,
            in_force: self.from_fleet.good.digest(),
        }));
    }

    /// Tries files of the fleet beside those of the host. **Invariant**: refused, they leave no trace, also not in what the host's own
    /// files are compared with.
    fn try_fleet(&mut self, offered: &Fragments) -> anyhow::Result<()> {
        let own = Sources::read(&self.file)?;
        let (sources, unreadable) = (self.sources.clone(), self.unreadable);
        self.try_sources(own.with(offered)).inspect_err(|_| {
            self.sources = sources;
            self.unreadable = unreadable;
        })
    }
}
