//! The state that a cluster's thread shares with flows, and the jobs that flows hand over to it.

use std::{fmt, sync::Arc, time::Instant};

use cql_edit::Copied;
use policy::RuleName;
use tls::Outward;

use super::{
    budget::Budget,
    exchange::Exchange,
    metrics::{Counters, Fate},
    out::Out,
    settings::Checked,
    telling::{Away, Told},
    texts::{Text, Texts},
};
use crate::{login::Login, register::Dials};

/// The most keyspaces in use at the same time; each has a connection of its own.
pub(super) const MAX_KEYSPACES: usize = 64;

/// The state that the cluster's thread shares with flows.
pub(super) struct Shared {
    pub(super) rule: RuleName,
    pub(super) settings: Checked,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<Arc<Outward>>,
    pub(super) counters: Counters,
    pub(super) texts: Texts,
    pub(super) out: Out,
    pub(super) told: Told,
    pub(super) away: Away,
    pub(super) dials: Dials,
    pub(super) budget: Arc<Budget>,
    /// The budget for texts whose PREPARE is not answered.
    pub(super) preparing: Arc<Budget>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shared = f.debug_struct("Shared");
        shared.field("rule", &self.rule).finish_non_exhaustive()
    }
}

/// A request to be asked of the mirror.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) copied: Copied,
    /// The request's prepared statements, in their order.
    pub(super) prepared: Vec<Arc<Text>>,
    pub(super) deadline: Instant,
    pub(super) exchange: Arc<Exchange>,
}

impl Job {
    /// Ends the job without an answer, for this reason.
    pub(super) fn fails(self, fate: Fate, shared: &Shared) {
        self.exchange.take_mirror_answer(Err(fate), shared);
    }
}
