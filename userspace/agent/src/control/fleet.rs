//! The fleet's policy: put into force as a change of the file is, whole or not at all.

use std::{collections::BTreeMap, future, sync::Arc, time::Duration};

use anyhow::anyhow;
use policy_source::{Fragment, Fragments, Verdict};
use tokio::{
    sync::watch,
    task::{self, JoinHandle},
    time::{self, Instant},
};

use super::{Control, own::Own};
use crate::{
    config::{Sources, Store},
    fleet::{BESIDE, Choice, Halves, Refusal, Refusals, choose, for_status, look_again_after},
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
    /// Files of the beginning, of which rules are treated by their `fail`, and as they were kept.
    treated: Option<(Arc<Fragments>, Arc<Fragments>)>,
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
    own: Option<Sources>,
}

impl FromFleet {
    /// Makes that of files in force. `as_kept`: as they were kept, if rules of them are treated by their `fail`.
    pub(super) fn of(good: Arc<Fragments>, as_kept: Option<Arc<Fragments>>) -> Self {
        Self {
            treated: as_kept.map(|as_kept| (good.clone(), as_kept)),
            good,
            next_look: Instant::now(),
            look_again: None,
            has_refused: false,
            told_whole: None,
            told: BTreeMap::new(),
            refusals: Refusals::new(),
            own: None,
        }
    }

    /// Returns files as they are to be kept: what is treated by its `fail` for now as it was.
    fn to_keep(&self, good: &Arc<Fragments>) -> Arc<Fragments> {
        let Some((treated, as_kept)) = &self.treated else {
            return good.clone();
        };
        let mut files = Fragments::clone(good);
        for Fragment { name, text } in &mut files.files {
            if treated.text(name) == Some(text)
                && let Some(kept) = as_kept.text(name)
            {
                kept.clone_into(text);
            }
        }
        Arc::new(files)
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

/// The choice among objects that another thread makes, if one does.
#[derive(Default)]
pub(super) struct Choosing(Option<Begun>);

struct Begun {
    offered: Arc<Fragments>,
    own: Option<Sources>,
    began: Instant,
    /// Set when what is refused is to be looked at again at once: what it lacked on the host may be there since this began.
    is_again: bool,
    may_wait: bool,
    task: JoinHandle<Result<(Choice, Sources), String>>,
}

/// A choice that was made.
pub(super) struct Chosen {
    offered: Arc<Fragments>,
    /// The host's own files as they were when it began. None: they could not be read.
    own: Option<Sources>,
    began: Instant,
    is_again: bool,
    /// Whether what was chosen may wait for names of its.
    may_wait: bool,
    /// The choice, and the host's files beside which it was made.
    choice: anyhow::Result<(Choice, Sources)>,
}

impl Choosing {
    pub(super) fn is_busy(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until a choice is made.
    pub(super) async fn made(&mut self) -> Chosen {
        let made = match &mut self.0 {
            Some(begun) => (&mut begun.task).await,
            None => future::pending().await,
        };
        let Some(begun) = self.0.take() else {
            return future::pending().await;
        };
        Chosen {
            offered: begun.offered,
            own: begun.own,
            began: begun.began,
            is_again: begun.is_again,
            may_wait: begun.may_wait,
            choice: made
                .map_err(Into::into)
                .and_then(|choice| choice.map_err(|why| anyhow!(why))),
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
    /// Puts the policy that was offered last into force, if it is another than the one that is. Objects are chosen first, on another thread:
    /// [`Self::take_choice`] goes on.
    pub(super) fn look_at_fleet(&mut self) {
        if self.choosing.is_busy() {
            // The look after it has what is offered now.
            self.heard.offers.mark_changed();
            return;
        }
        let began = Instant::now();
        let Some(offered) = self.heard.offers.borrow_and_update().clone() else {
            return;
        };
        let tried = match self.has_objects() {
            true => return self.begin_choice(&offered, began),
            false if offered.files == self.from_fleet.good.files => {
                Ok(Tried::whole(offered.clone()))
            }
            false => self
                .try_fleet(&offered)
                .map(|()| Tried::whole(offered.clone())),
        };
        self.conclude(&offered, tried, began);
    }

    /// Puts what was chosen into force. **Invariant**: while a choice is made, everything else goes on: the host's own files are read, marks are
    /// set, and names followed.
    pub(super) fn take_choice(&mut self, chosen: Chosen) {
        if Sources::read(&self.file).ok() != chosen.own {
            // It was checked beside other files.
            self.heard.offers.mark_changed();
            self.from_fleet.next_look = Instant::now() + PAUSE;
            return;
        }
        let tried = match chosen.choice {
            Ok((choice, beside)) => {
                let sources = beside.clone().with(&choice.good);
                if !chosen.may_wait {
                    self.tell_unknown_names(&sources);
                } else if self.waits_for_names(&sources) {
                    // Those that are to be looked at again are, with the next choice.
                    self.from_fleet.refusals = match chosen.is_again {
                        true => Refusals::new(),
                        false => choice.refusals,
                    };
                    return self.waiting.note_offer();
                }
                let read = chosen.own;
                self.put_objects(&Own { read, beside }, &chosen.offered, choice)
            }
            Err(why) => Err(why),
        };
        self.conclude(&chosen.offered, tried, chosen.began);
        if chosen.is_again {
            self.offer_again();
        }
    }

    /// Has objects looked at that are in force, after the host's own files were refused, if these are right without them.
    pub(super) fn doubt_objects(&mut self) {
        let is_right = || {
            let own = Sources::read(&self.file);
            own.and_then(|own| self.config.again(&own)).is_ok()
        };
        if self.has_objects() && is_right() {
            self.heard.offers.mark_changed();
        }
    }

    /// Has files looked at again that were refused, after a change of the host's own.
    pub(super) fn offer_again(&mut self) {
        if let Some(begun) = &mut self.choosing.0 {
            begun.is_again = true;
        }
        if self.from_fleet.has_refused {
            self.from_fleet.refusals.clear();
            self.heard.offers.mark_changed();
        }
    }

    /// Whether policies are objects, each of which is put into force or refused by itself.
    pub(super) fn has_objects(&self) -> bool {
        let store = self.config.source.as_ref().map(|source| &source.store);
        matches!(store, Some(Store::Kubernetes(_)))
    }

    /// Notes what became of files that were offered, and says so. `began`: when they began to be looked at.
    fn conclude(&mut self, offered: &Fragments, tried: anyhow::Result<Tried>, began: Instant) {
        self.end_wait();
        let digest = offered.digest();
        let before = self.from_fleet.good.clone();
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
                self.tell_refused(&tried);
                self.from_fleet.good = tried.good.clone();
                self.from_fleet.has_refused = !tried.refused.is_empty();
                self.from_fleet.told.clone_from(&tried.refused);
                self.from_fleet.told_whole = None;
                let kept = self.from_fleet.to_keep(&tried.good);
                (None, tried.refused, Some(kept))
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
                match self.has_objects() {
                    true => (None, self.refused_with_all(offered), None),
                    false => (Some(why), BTreeMap::new(), None),
                }
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
        let now = Instant::now();
        if self.has_objects() {
            self.from_fleet.next_look = now + PAUSE.max(SHARE * (now - began));
        }
        let look_again = self.from_fleet.has_refused;
        self.from_fleet.look_again = look_again.then(|| now + look_again_after());
    }

    /// Returns objects that are not in force as they are offered, after all of them were refused: the reason speaks of others or of the node, and is no
    /// business of a policy's author.
    fn refused_with_all(&self, offered: &Fragments) -> BTreeMap<String, String> {
        let in_force = &self.from_fleet.good;
        let is_other = |file: &&Fragment| in_force.text(&file.name) != Some(&file.text);
        let others = offered.files.iter().filter(is_other);
        let mut refused = offered.unusable.clone();
        refused.extend(others.map(|file| (file.name.clone(), BESIDE.to_owned())));
        refused
    }

    /// Says which policies are refused. Others' changes are no reason to say it again.
    fn tell_refused(&self, Tried { good, refused }: &Tried) {
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
            let before = match good.text(name) {
                Some(_) => "the one before stays",
                None => "none of that name is in force",
            };
            tracing::error!("the policy {name} is refused, and {before}: {why}");
        }
    }

    /// Has policies that are objects chosen on another thread, without a change of what is in force: beside the host's own files as they are, or,
    /// where nothing fits these, beside those that are in force.
    fn begin_choice(&mut self, offered: &Arc<Fragments>, began: Instant) {
        let own = Sources::read(&self.file).ok();
        if own != self.from_fleet.own {
            self.from_fleet.refusals.clear();
            self.from_fleet.own = own.clone();
        }
        let choosing = {
            let (config, own) = (self.config.clone(), own.clone());
            let in_force = self.own_in_force();
            let before = self.from_fleet.good.clone();
            let (offered, known) = (offered.clone(), self.from_fleet.refusals.clone());
            // The host's own files are others than those beside which it was put into force.
            let is_other = |own: &Sources| own.clone().with(&before) != self.sources;
            let is_doubtful = self.failed.is_some() || own.as_ref().is_some_and(is_other);
            move || {
                let beside = |own: Sources, is_doubtful| {
                    let chosen = choose(&before, is_doubtful, &offered, &known, &|whole| {
                        let checked = config.again(&own.clone().with(whole));
                        checked.map(drop).map_err(|why| why.to_string())
                    });
                    chosen.map(|choice| (choice, own))
                };
                match own.map(|own| beside(own, is_doubtful)) {
                    Some(Ok(chosen)) => Ok(chosen),
                    _ => beside(in_force, false),
                }
            }
        };
        self.choosing = Choosing(Some(Begun {
            offered: offered.clone(),
            own,
            began,
            is_again: false,
            may_wait: !self.waiting.is_over(),
            task: task::spawn_blocking(choosing),
        }));
    }

    /// Puts those that fit into force at once: a rule that goes from one object to another is always in one of them.
    fn put_objects(
        &mut self,
        own: &Own,
        offered: &Fragments,
        choice: Choice,
    ) -> anyhow::Result<Tried> {
        let before = self.from_fleet.good.clone();
        if choice.is_open() {
            self.heard.offers.mark_changed();
        }
        let mut refused = offered.unusable.clone();
        refused.extend(choice.refused());
        self.from_fleet.refusals = choice.refusals;
        let mut good = choice.good;
        if good.files != before.files
            && let Err(error) = self.try_beside(own, &good)
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
                let tried = self.try_beside(own, whole);
                tried
                    .map(|()| is_put = true)
                    .map_err(|why| format!("{why:#}"))
            });
            if !is_put && halves.good.files != before.files {
                // Nothing but what is gone has changed.
                self.try_beside(own, &halves.good)?;
            }
            for name in halves.left {
                let why = for_status(&name, &format!("{error:#}"));
                refused.insert(name, format!("it is not tried by itself: {why}"));
            }
            good = halves.good;
            for (file, why) in halves.refused {
                let why = for_status(&file.name, &why);
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
}
