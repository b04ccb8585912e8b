//! The fleet's policy: put into force as a change of the file is, whole or not at all.

use std::{collections::BTreeMap, sync::Arc};

use policy_source::{Fragment, Fragments, Verdict};

use super::Control;
use crate::config::{Sources, Store};

/// The fleet's part of what is in force.
#[derive(Default)]
pub(super) struct FromFleet {
    /// The files in force.
    pub(super) good: Arc<Fragments>,
    /// Files that were refused. They may be right after the next change of the host's own files.
    refused: Option<Arc<Fragments>>,
    /// Policies that are refused one by one, with the reasons that were logged.
    told: BTreeMap<String, String>,
}

impl FromFleet {
    pub(super) fn of(good: Arc<Fragments>) -> Self {
        Self {
            good,
            refused: None,
            told: BTreeMap::new(),
        }
    }
}

/// Result of files that were offered.
struct Tried {
    /// The files in force.
    good: Arc<Fragments>,
    /// Files that were refused, each with the reason.
    refused: BTreeMap<String, String>,
}

impl Tried {
    fn whole(good: Arc<Fragments>) -> Self {
        Self {
            good,
            refused: BTreeMap::new(),
        }
    }
}

/// Files with others in the place of those with the same names, and beside them.
fn with(kept: &Fragments, others: &[Fragment]) -> Fragments {
    let is_other = |name: &str| others.iter().any(|other| other.name == name);
    let mut files: Vec<Fragment> = kept
        .files
        .iter()
        .filter(|file| !is_other(&file.name))
        .cloned()
        .collect();
    files.extend_from_slice(others);
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Fragments {
        files,
        ..kept.clone()
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
        let tried = match (
            self.config.source.as_ref().map(|source| &source.store),
            is_new,
        ) {
            (Some(Store::Kubernetes(_)), _) => self.try_objects(&offered),
            (_, false) => Ok(Tried::whole(offered.clone())),
            (_, true) => self
                .try_fleet(&offered)
                .map(|()| Tried::whole(offered.clone())),
        };
        let (error, refused, kept) = match tried {
            Ok(tried) => {
                for (name, why) in &tried.refused {
                    // Others' changes are no reason to say it again.
                    if self.from_fleet.told.get(name) != Some(why) {
                        tracing::error!(
                            "the policy {name} is refused, and the one before stays: {why}"
                        );
                    }
                }
                match is_new {
                    true => self.heard.fleet_metrics.applied(offered.revision),
                    false => self.heard.fleet_metrics.in_force(offered.revision),
                }
                if !tried.refused.is_empty() {
                    self.heard.fleet_metrics.refused();
                }
                if tried.good.files != self.from_fleet.good.files {
                    tracing::info!(
                        revision = offered.revision,
                        digest = tried.good.digest(),
                        "the fleet's policy is in force"
                    );
                }
                self.from_fleet = FromFleet {
                    good: tried.good.clone(),
                    refused: (!tried.refused.is_empty()).then(|| offered.clone()),
                    told: tried.refused.clone(),
                };
                (None, tried.refused, Some(tried.good))
            }
            Err(error) => {
                self.heard.fleet_metrics.refused();
                self.from_fleet.refused = Some(offered.clone());
                tracing::error!(
                    revision = offered.revision,
                    digest,
                    "cannot put the fleet's policy into force, the old one stays: {error:#}"
                );
                (Some(format!("{error:#}")), BTreeMap::new(), None)
            }
        };
        self.told.verdicts.send_replace(Some(Verdict {
            revision: offered.revision,
            digest,
            error,
            in_force: self.from_fleet.good.digest(),
            refused,
            kept,
        }));
    }

    /// Tries policies that are objects: each is put into force or refused by itself, and of a refused one that stays which was in force. One
    /// team's mistake is no other's. Those of the cluster, whose names come first, are tried first.
    fn try_objects(&mut self, offered: &Fragments) -> anyhow::Result<Tried> {
        let good = self.from_fleet.good.clone();
        let stays = |name: &str| {
            offered.unusable.contains_key(name)
                || offered.files.iter().any(|file| file.name == name)
        };
        let of = |files: Vec<Fragment>| Fragments {
            revision: offered.revision,
            files,
            unusable: BTreeMap::new(),
        };
        let kept: Vec<Fragment> = good
            .files
            .iter()
            .filter(|file| stays(&file.name))
            .cloned()
            .collect();
        let is_same = |file: &&Fragment| kept.iter().any(|one| one == *file);
        let changes: Vec<Fragment> = offered
            .files
            .iter()
            .filter(|file| !is_same(file))
            .cloned()
            .collect();
        let mut refused = offered.unusable.clone();
        let mut kept = of(kept);
        let mut is_put = kept.files == good.files;
        let mut waiting = vec![changes];
        while let Some(mut batch) = waiting.pop() {
            let whole = with(&kept, &batch);
            if whole.files == kept.files {
                continue;
            }
            match self.try_fleet(&whole) {
                Ok(()) => {
                    kept = whole;
                    is_put = true;
                }
                Err(error) if batch.len() == 1 => {
                    refused.extend(batch.pop().map(|file| (file.name, format!("{error:#}"))));
                }
                Err(_) => {
                    let behind = batch.split_off(batch.len() / 2);
                    // The first half comes first.
                    waiting.extend([behind, batch]);
                }
            }
        }
        if !is_put {
            // Nothing but what is gone has changed.
            self.try_fleet(&kept)?;
        }
        Ok(Tried {
            good: Arc::new(kept),
            refused,
        })
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
