//! [`Uses`]: the USEs of a flow, and which keyspace they leave it in.

use crate::caller::Caller;

/// The USEs of a flow, and its keyspace. While the answer to a USE is out, and after several were out at
/// once, nobody can tell the keyspace.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    out: usize,
    ambiguous: bool,
    /// The keyspace was ambiguous once.
    was_ambiguous: bool,
    before: Option<String>,
    /// The last one has gone out under this pipeline.
    is_of_pipeline: bool,
}

impl Uses {
    pub(crate) fn goes_out(&mut self, caller: &mut Caller, has_pipeline: bool) {
        self.ambiguous |= self.out > 0;
        self.out += 1;
        caller.keyspace_unclear = true;
        self.is_of_pipeline = has_pipeline;
        if let Some(keyspace) = caller.keyspace.take() {
            self.before = Some(keyspace);
        }
    }

    /// Notes that a USE may have gone out unseen.
    pub(crate) fn lose(&mut self) {
        self.was_ambiguous = true;
    }

    /// Whether the keyspace cannot be told any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.was_ambiguous
    }

    /// The answer to one is not there yet.
    pub(crate) fn is_out(&self) -> bool {
        self.out > 0
    }

    /// Notes the answer to a USE. `now`: the keyspace; None if the USE failed.
    pub(crate) fn comes_back(&mut self, now: Option<&str>, caller: &mut Caller) {
        self.out = self.out.saturating_sub(1);
        if self.out > 0 {
            return;
        }
        let before = self.before.take();
        // One that cannot be told may have been set to anything, and stays so.
        self.was_ambiguous |= self.ambiguous;
        caller.keyspace_unclear = self.was_ambiguous;
        caller.keyspace = match std::mem::take(&mut self.ambiguous) {
            true => None,
            false => now.map(str::to_owned).or(before),
        };
        if now.is_some() && caller.keyspace.is_some() && self.is_of_pipeline {
            caller.keyspace_before = false;
        }
    }
}
