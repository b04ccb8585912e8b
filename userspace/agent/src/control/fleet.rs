//! The fleet's policy: put into force as a change of the file is, whole or not at all.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::anyhow;
use policy_source::{Fragment, Fragments, Verdict};
use tokio::{
    sync::watch,
    task,
    time::{self, Instant},
};

use super::Control;
use crate::{
    config::{Sources, Store},
    fleet::{Halves, LOOK_AGAIN, Refusal, Refusals, choose},
};

/// The time between two looks at policies that are objects, at least: whoever may write one does not hold the agent up.
const PAUSE: Duration = Duration::from_secs(1);

/// And how many times as long as the last look took.
const SHARE: u32 = 4;

/// Tries to put objects into force that were checked, and that the kernel refuses all the same.
const MAX_INSTALLS: usize = 64;

/// The fleet's part of what is in force.
pub(super) struct FromFleet {
    /// The files in force.
    pub(super) good: Arc<Fragments>,
    /// When what is offered is looked at, at the earliest.
    next_look: Instant,
    /// When it is looked at again though nothing else is offered. None: nothing was refused.
    look_again: Option<Instant>,
    /// Set when files were refused. They may be right after the next change of the host's own files, or later: what they
    /// name on the host may be there by then.
    has_refused: bool,
    /// The reason for which the whole was refused, and its digest, once it is logged.
    told_whole: Option<(String, String)>,
    /// Policies that are refused one by one, with the reasons that were logged.
    told: BTreeMap<String, String>,
    /// Refused policies, with what they were; and the host's own files, beside which they were refused.
    refusals: Refusals,
    own: Sources,
}

impl FromFleet {
    pub(super) fn of(good: Arc<Fragments>) -> Self {
        Self {
            good,
            next_look: Instant::now(),
            look_again: None,
            has_refused: false,
            told_whole: None,
            told: BTreeMap::new(),
            refusals: Refusals::new(),
            own: Sources::default(),
        }
    }

    /// Notes that what is offered is being looked at, or waits for something else.
    pub(super) fn note_look(&mut self) {
        self.look_again = None;
    }

    /// Waits until something is offered that is to be looked at.
    pub(super) async fn offered(
        &self,
        offers: &mut watch::Receiver<Option<Arc<Fragments>>>,
    ) -> Result<(), watch::error::RecvError> {
        time::sleep_until(self.next_look).await;
        match self.look_again {
            Some(at) => time::timeout_at(at, offers.changed())
                .await
                .unwrap_or(Ok(())),
            None => offers.changed().await,
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

impl Control {
    /// Puts the policy that was offered last into force, if it is another than the one that is.
    pub(super) async fn look_at_fleet(&mut self) {
        let began = Instant::now();
        let offered = self.heard.offers.borrow_and_update().clone();
        if let Some(offered) = offered {
            self.offer(offered).await;
        }
        let now = Instant::now();
        if self.has_objects() {
            self.from_fleet.next_look = now + PAUSE.max(SHARE * (now - began));
        }
        self.from_fleet.look_again = self.from_fleet.has_refused.then(|| now + LOOK_AGAIN);
    }

    /// Has files looked at again that were refused, after a change of the host's own.
    pub(super) fn offer_again(&mut self) {
        if self.from_fleet.has_refused {
            self.from_fleet.refusals.clear();
            self.heard.offers.mark_changed();
        }
    }

    /// Whether policies are objects, each of which is put into force or refused by itself.
    fn has_objects(&self) -> bool {
        let store = self.config.source.as_ref().map(|source| &source.store);
        matches!(store, Some(Store::Kubernetes(_)))
    }

    async fn offer(&mut self, offered: Arc<Fragments>) {
        let digest = offered.digest();
        let before = self.from_fleet.good.clone();
        let tried = match self.has_objects() {
            true => self.try_objects(&offered).await,
            false if offered.files == before.files => Ok(Tried::whole(offered.clone())),
            false => self
                .try_fleet(&offered)
                .map(|()| Tried::whole(offered.clone())),
        };
        let (error, refused, kept) = match tried {
            Ok(tried) => {
                match tried.good.files == before.files {
                    true => self.heard.fleet_metrics.in_force(offered.revision),
                    false => {
                        self.heard.fleet_metrics.applied(offered.revision);
                        tracing::info!(
                            revision = offered.revision,
                            digest = tried.good.digest(),
                            "the fleet's policy is in force"
                        );
                    }
                }
                self.tell_refused(&tried.refused);
                self.from_fleet.good = tried.good.clone();
                self.from_fleet.has_refused = !tried.refused.is_empty();
                self.from_fleet.told.clone_from(&tried.refused);
                self.from_fleet.told_whole = None;
                (None, tried.refused, Some(tried.good))
            }
            Err(error) => {
                self.from_fleet.has_refused = true;
                let why = format!("{error:#}");
                let refused = Some((digest.clone(), why.clone()));
                if self.from_fleet.told_whole != refused {
                    self.heard.fleet_metrics.refused();
                    tracing::error!(
                        revision = offered.revision,
                        digest,
                        "cannot put the fleet's policy into force, the old one stays: {why}"
                    );
                    self.from_fleet.told_whole = refused;
                }
                (Some(why), BTreeMap::new(), None)
            }
        };
        let verdict = Some(Verdict {
            revision: offered.revision,
            version: offered.version,
            digest,
            error,
            in_force: self.from_fleet.good.digest(),
            in_force_version: self.from_fleet.good.version,
            refused,
            kept,
        });
        self.told.verdicts.send_if_modified(|before| {
            let is_news = *before != verdict;
            *before = verdict;
            is_news
        });
    }

    /// Says which policies are refused. Others' changes are no reason to say it again.
    fn tell_refused(&self, refused: &BTreeMap<String, String>) {
        if refused.is_empty() {
            return;
        }
        self.heard.fleet_metrics.still_refused();
        let told = &self.from_fleet.told;
        let mut news = refused
            .iter()
            .filter(|(name, why)| told.get(*name) != Some(why))
            .peekable();
        if news.peek().is_some() {
            self.heard.fleet_metrics.refused();
        }
        for (name, why) in news {
            tracing::error!("the policy {name} is refused, and the one before stays: {why}");
        }
    }

    /// Tries policies that are objects. They are chosen on another thread, without a change of what is in force, and those that fit are
    /// put into force at once: a rule that goes from one object to another is always in one of them.
    async fn try_objects(&mut self, offered: &Arc<Fragments>) -> anyhow::Result<Tried> {
        let own = Sources::read(&self.file)?;
        if own != self.from_fleet.own {
            self.from_fleet.refusals.clear();
            self.from_fleet.own = own.clone();
        }
        let before = self.from_fleet.good.clone();
        let choosing = {
            let (config, own, before) = (self.config.clone(), own.clone(), before.clone());
            let (offered, known) = (offered.clone(), self.from_fleet.refusals.clone());
            move || {
                choose(&before, &offered, &known, &|whole| {
                    let checked = config.again(&own.clone().with(whole));
                    checked.map(drop).map_err(|why| why.to_string())
                })
            }
        };
        let choice = task::spawn_blocking(choosing).await?;
        let choice = choice.map_err(|why| anyhow!(why))?;
        if choice.is_open() {
            self.heard.offers.mark_changed();
        }
        let mut refused = offered.unusable.clone();
        refused.extend(choice.refused());
        self.from_fleet.refusals = choice.refusals;
        let mut good = choice.good;
        if good.files != before.files
            && let Err(error) = self.try_beside(&own, &good)
        {
            // Checked, and refused by the kernel or by what a rule opens: that is found one by one.
            let changes = good
                .files
                .iter()
                .filter(|file| !choice.kept.files.contains(file));
            let changes: Vec<Fragment> = changes.cloned().collect();
            let mut halves = Halves::new(choice.kept, MAX_INSTALLS);
            let mut is_put = false;
            halves.try_all(vec![changes], &mut |whole| {
                let tried = self.try_beside(&own, whole);
                tried
                    .map(|()| is_put = true)
                    .map_err(|why| format!("{why:#}"))
            });
            if !is_put && halves.good.files != before.files {
                // Nothing but what is gone has changed.
                self.try_beside(&own, &halves.good)?;
            }
            for name in halves.left {
                refused.insert(name, format!("it is not tried by itself: {error:#}"));
            }
            good = halves.good;
            for (file, why) in halves.refused {
                refused.insert(file.name.clone(), why.clone());
                let refusal = Refusal::beside(file.text, why, good.digest());
                self.from_fleet.refusals.insert(file.name, refusal);
            }
        }
        Ok(Tried {
            good: Arc::new(good),
            refused,
        })
    }

    fn try_fleet(&mut self, offered: &Fragments) -> anyhow::Result<()> {
        let own = Sources::read(&self.file)?;
        self.try_beside(&own, offered)
    }

    /// Tries files of the fleet beside those of the host. **Invariant**: refused, they leave no trace, also not in what the host's own
    /// files are compared with.
    fn try_beside(&mut self, own: &Sources, offered: &Fragments) -> anyhow::Result<()> {
        let (sources, unreadable) = (self.sources.clone(), self.unreadable);
        let tried = self.try_sources(own.clone().with(offered));
        tried.inspect_err(|_| {
            self.sources = sources;
            self.unreadable = unreadable;
        })
    }
}
