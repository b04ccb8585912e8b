//! Names in rules: their addresses are put into force, and files wait until their new names are looked up.

use std::{mem, sync::Arc, time::Duration};

use names::Wanted as WantedNames;
use policy::{Name, Timestamp};
use tokio::time::Instant;

use super::Control;
use crate::config::{Config, Sources};

/// The least time between two policies because of names: each is compiled and written anew, and many names change at once.
const PUT_NAMES_AFTER_AT_LEAST: Duration = Duration::from_secs(1);

/// Files with new names wait for so long until these are looked up. What is in force stays in force meanwhile.
const WAIT_FOR_NAMES: Duration = Duration::from_secs(3);

/// Changes that wait because of names.
#[derive(Default)]
pub(super) struct Waiting {
    /// The end of the wait of files.
    until: Option<Instant>,
    /// The fleet's files wait. Those of the host are compared with what is in force each second.
    has_offer: bool,
    /// The time at which changed addresses are put into force.
    due: Option<Instant>,
    /// The time at which some were put into force last.
    put: Option<Instant>,
}

impl Waiting {
    /// The time at which to look at names again, although none has changed.
    pub(super) fn look_at(&self) -> Option<Instant> {
        [self.until, self.due].into_iter().flatten().min()
    }

    /// Notes that the fleet's files wait.
    pub(super) fn note_offer(&mut self) {
        self.has_offer = true;
    }

    /// Whether files have waited for as long as they may.
    pub(super) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

impl Control {
    /// Puts files into force that have waited for names, and then the policy again where names of its stand for other addresses than
    /// before.
    pub(super) fn look_at_names(&mut self) {
        self.heard.names.borrow_and_update();
        if self.waiting.until.is_some() {
            self.look_at_file();
            if mem::take(&mut self.waiting.has_offer) {
                self.look_at_offer();
            }
            if self.waiting.is_over() {
                self.waiting.until = None;
                self.follow_names();
            }
        }
        let next = self.waiting.put.map(|put| put + PUT_NAMES_AFTER_AT_LEAST);
        self.waiting.due = next.filter(|next| *next > Instant::now());
        if self.waiting.due.is_none() {
            self.put_addresses();
        }
    }

    /// Puts the policy into force again where names of its stand for other addresses than before. Connections that are there
    /// already keep what was decided of them.
    fn put_addresses(&mut self) {
        let policy = self.found(&self.config.policy, Timestamp::now());
        let is_in_force = {
            let old = self.told.policy.borrow();
            let mut pairs = old.rules.iter().zip(&policy.rules);
            pairs.all(|(old, new)| old.to == new.to)
        };
        if is_in_force {
            return;
        }
        self.waiting.put = Some(Instant::now());
        if let Err(error) = self.put(&self.config.policy.clone()) {
            // Putting it into force is tried again.
            self.stale = true;
            tracing::error!(
                "cannot follow a change of names, rules hold for the previous addresses: {error:#}"
            );
        }
    }

    /// Puts the fleet's policy into force, or has it wait for its names: objects once they are chosen, so that nobody's that is refused is a reason to
    /// wait, or not to.
    pub(super) fn look_at_offer(&mut self) {
        self.from_fleet.note_look();
        self.waiting.has_offer = false;
        if !self.has_objects() {
            let offered = self.heard.offers.borrow().clone();
            let own = Sources::read(&self.file);
            let sources = offered
                .zip(own.ok())
                .map(|(offered, own)| own.with(&offered));
            self.waiting.has_offer = sources.is_some_and(|sources| self.waits_for_names(&sources));
        }
        if !self.waiting.has_offer {
            self.look_at_fleet();
        }
    }

    /// Whether files have names for which nobody has answered yet, and may still wait for them. They are looked up then, beside those of
    /// the policy in force. **Invariant**: a rule is not replaced by one that holds for less only because nobody has been asked.
    pub(super) fn waits_for_names(&mut self, sources: &Sources) -> bool {
        // Putting them into force says what is wrong with them.
        let Ok(config) = self.config.again(sources) else {
            return false;
        };
        let (old, new) = (wanted_names(&self.config), wanted_names(&config));
        let unknown = self.unknown(&old, &new);
        if unknown.is_empty() {
            return false;
        }
        let now = Instant::now();
        if *self.waiting.until.get_or_insert(now + WAIT_FOR_NAMES) <= now {
            tell_unknown(&unknown);
            return false;
        }
        self.tell_names(both(old, new));
        true
    }

    /// Says which names of files are not looked up that come into force all the same.
    pub(super) fn tell_unknown_names(&self, sources: &Sources) {
        if let Ok(config) = self.config.again(sources) {
            let (old, new) = (wanted_names(&self.config), wanted_names(&config));
            tell_unknown(&self.unknown(&old, &new));
        }
    }

    fn unknown(&self, old: &WantedNames, new: &WantedNames) -> Vec<String> {
        let book = self.heard.names.borrow();
        let is_unknown = |name: &&Name| !old.names.contains(name) && !book.is_answered(name);
        let unknown = new.names.iter().filter(is_unknown);
        unknown.map(ToString::to_string).collect()
    }

    /// Ends the wait of files, which come into force now: others may wait for as long.
    pub(super) fn end_wait(&mut self) {
        if !self.waiting.has_offer {
            self.waiting.until = None;
        }
    }

    /// Has the names of the policy in force followed, and no others.
    pub(super) fn follow_names(&self) {
        self.tell_names(wanted_names(&self.config));
    }

    fn tell_names(&self, names: WantedNames) {
        self.told.names.send_if_modified(|wanted| {
            let is_new = **wanted != names;
            *wanted = Arc::new(names);
            is_new
        });
    }
}

fn tell_unknown(names: &[String]) {
    if !names.is_empty() {
        tracing::warn!(
            names = names.join(", "),
            "new names in rules are not looked up yet: the policy comes into force, and its rules do not hold for their addresses"
        );
    }
}

/// The names that a file's rules have.
pub fn wanted_names(config: &Config) -> WantedNames {
    let names = config.policy.destination_names().into_iter().cloned();
    WantedNames {
        names: names.collect(),
        clusters: config.clusters.clone(),
    }
}

/// The names of two policies. A cluster that both have is that of the first, which is in force.
fn both(first: WantedNames, second: WantedNames) -> WantedNames {
    let mut all = first;
    for name in second.names {
        if !all.names.contains(&name) {
            all.names.push(name);
        }
    }
    for cluster in second.clusters {
        if !all.clusters.iter().any(|one| one.name == cluster.name) {
            all.clusters.push(cluster);
        }
    }
    all
}
