//! The step without a socket and without a thread: whoever has made it carries commands to a Redis, and replies back.

use std::{mem, sync::Arc};

use cql_edit::Transform;
use policy::RuleName;
use prometheus::Registry;
use tokio::sync::mpsc;

use super::{
    Cache, CacheMetrics, CacheSettings,
    dialogue::Dialogue,
    store::{Job, Shared, Store},
};

/// Generations are told from each other by their numbers alone: one step has the Redis for itself.
const NONCE: u64 = 0;

/// The way between a step and its Redis.
pub struct ByHand {
    dialogue: Dialogue,
    jobs: mpsc::UnboundedReceiver<Job>,
}

impl CacheSettings {
    /// Makes the step of a rule, and the way between it and a Redis, which nobody logs in at.
    ///
    /// # Errors
    /// Names the bad setting, and what it should be.
    pub fn by_hand(self, rule: &RuleName) -> Result<(Arc<dyn Transform>, ByHand), String> {
        let settings = self.checked()?;
        let metrics = CacheMetrics::register(&Registry::new()).map_err(|e| e.to_string())?;
        let counters = metrics.of(rule.as_str());
        let shared = Arc::new(Shared::new(rule, &settings, counters));
        let (store, jobs) = Store::of(shared.clone());
        let mut dialogue = Dialogue::new(shared, NONCE, 0);
        dialogue.begins();
        let step = Cache {
            settings,
            store: Arc::new(store).into(),
        };
        Ok((Arc::new(step), ByHand { dialogue, jobs }))
    }
}

impl ByHand {
    /// Takes the commands that Redis is to be given now.
    pub fn take_commands(&mut self) -> Vec<u8> {
        while self.dialogue.may_send()
            && let Ok(job) = self.jobs.try_recv()
        {
            self.dialogue.asks(job);
        }
        self.dialogue.tells();
        mem::take(&mut self.dialogue.output)
    }

    /// Gives the step bytes of Redis's replies, however they are cut.
    ///
    /// # Errors
    /// The cause for which the connection has to end ([`Self::lose`]).
    pub fn give_replies(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        self.dialogue.input.extend_from_slice(bytes);
        let taken = self.dialogue.take_replies();
        taken.map_err(|cause| cause.as_str())
    }

    /// Loses the connection, and begins another.
    pub fn lose(&mut self) {
        let Dialogue {
            shared,
            generations,
            ..
        } = &self.dialogue;
        let next = Dialogue::new(shared.clone(), NONCE, *generations);
        mem::replace(&mut self.dialogue, next).ends();
        self.dialogue.begins();
    }
}
