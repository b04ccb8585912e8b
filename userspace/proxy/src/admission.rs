//! The limit on the number of flows that the agent carries.
//!
//! At the limit, or when descriptors or memory run out before it, the connect hook is told: further
//! flows follow their rule's `fail` and never get here. The same is true of flows whose user or cgroup
//! holds as many as one may (`quotas.rs`).

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use dataplane::{Dataplane, Holder, InstallError, MAX_HELD, Quota};
use telemetry::Rarely;
use tokio::time;

use super::quotas::{Change, QuotaLimits, Quotas};

/// The fraction of the limit, 1 / `ROOM_DIVISOR`, that must be free before the hook is told that
/// there is room again. A single flow's end does not make it flap.
const ROOM_DIVISOR: usize = 20;

/// Flows that are served beyond the limit: no fewer than the ring of held SYNs has room for. Their
/// descriptors are set aside.
pub const STRAGGLERS: usize = 1_024;
const _: () = assert!(STRAGGLERS >= MAX_HELD, "the ring may hold more");

/// The pause after something has run out, unless a flow ends before. Other programs may have taken
/// it, and flows may go on for days.
const EXHAUSTED_FOR: Duration = Duration::from_secs(5);

/// The pause after accept(2) failed for want of descriptors or memory: time for a flow to end.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Lines about holders at their quota: whoever reaches one decides how often that is.
static HOLDERS: Rarely = Rarely::new();

/// Lines about system calls that fail for each connection, or a hundred times a second.
static NOT_ACCEPTED: Rarely = Rarely::failing();
static NOT_TOLD: Rarely = Rarely::failing();

/// The reason why a flow is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The agent carries as many flows as it can.
    Full,
    /// The flow's user or cgroup holds as many as one may.
    OverQuota(Quota),
}

/// The reason why the agent takes no further flows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closed {
    Full,
    Exhausted,
}

/// Counts flows in and out.
pub struct Admission {
    limit: usize,
    inside: AtomicUsize,
    /// The state that the hook was told last.
    closed: Mutex<Option<Closed>>,
    quotas: Mutex<Quotas>,
    dataplane: Arc<Mutex<Option<Dataplane>>>,
}

/// One flow's permit to be carried. Dropping it gives the permit back.
pub struct FlowPermit {
    admission: Arc<Admission>,
    /// The holder for whose quotas the flow counts.
    holder: Option<Holder>,
    /// Set when descriptors or memory were missing for this flow: its end leaves none to others.
    unserved: AtomicBool,
}

impl Admission {
    /// Admits at most `limit` flows, and of one holder what quotas allow.
    pub fn new(
        limit: usize,
        quotas: QuotaLimits,
        dataplane: Arc<Mutex<Option<Dataplane>>>,
    ) -> Self {
        Self {
            limit,
            inside: AtomicUsize::new(0),
            closed: Mutex::new(None),
            quotas: Mutex::new(Quotas::new(quotas)),
            dataplane,
        }
    }

    /// Admits one more flow, which counts for the quotas of this holder. At a limit the hook is told. Flows
    /// whose SYNs were under way by then are still served, up to [`STRAGGLERS`] more in all.
    pub fn enter(self: &Arc<Self>, holder: Option<Holder>) -> Result<FlowPermit, NotAdmitted> {
        if let Some(holder) = holder {
            self.count(holder).map_err(NotAdmitted::OverQuota)?;
        }
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        let permit = FlowPermit {
            admission: self.clone(),
            holder,
            unserved: AtomicBool::new(false),
        };
        if inside >= self.limit {
            self.close(Closed::Full);
        }
        match inside <= self.limit + STRAGGLERS {
            true => Ok(permit),
            false => Err(NotAdmitted::Full),
        }
    }

    /// Returns how many flows have to end so that the hook is told that there is room again, where it was told
    /// that there is none.
    pub(super) fn excess(&self) -> usize {
        let closed = *self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.limit / ROOM_DIVISOR + 1;
        match closed {
            Some(Closed::Full) => (self.inside.load(SeqCst) + room).saturating_sub(self.limit),
            _ => 0,
        }
    }

    fn count(&self, holder: Holder) -> Result<(), Quota> {
        let mut quotas = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = quotas.enter(holder)?;
        if !changes.is_empty() {
            HOLDERS.say(|not_said_before| {
                tracing::warn!(
                    uid = holder.uid,
                    cgroup_id = holder.cgroup_id,
                    not_said_before,
                    "a user or a cgroup holds as many flows as its share of `max_flows` allows: further ones \
                     follow their rule's `fail`"
                );
            });
        }
        // Under the lock: the hook hears of changes in their order.
        self.tell_changes(&changes);
        Ok(())
    }

    fn discount(&self, holder: Holder) {
        let mut quotas = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = quotas.leave(holder);
        self.tell_changes(&changes);
    }

    fn tell_changes(&self, changes: &[Change]) {
        for (quota, full) in changes {
            self.tell_hook(|hook| hook.set_quota_full(*quota, *full));
        }
    }

    /// Closes the agent because descriptors or memory have run out: no further flow until one has
    /// ended, or [`EXHAUSTED_FOR`] has passed. Must run within a tokio runtime.
    pub fn close_exhausted(self: &Arc<Self>) {
        if self.close(Closed::Exhausted) {
            let admission = self.clone();
            tokio::spawn(async move {
                time::sleep(EXHAUSTED_FOR).await;
                admission.open(|why| why == Closed::Exhausted);
            });
        }
    }

    /// Handles a failed accept(2). Clients that wait to be accepted go on waiting.
    pub(super) fn accept_failed(self: &Arc<Self>, error: &io::Error) {
        if dataplane::is_exhaustion(error) {
            self.close_exhausted();
        } else {
            NOT_ACCEPTED.say(|not_said_before| {
                tracing::error!(%error, not_said_before, "cannot accept");
            });
        }
    }

    /// Closes admission for this reason. Returns whether it was open before.
    fn close(&self, why: Closed) -> bool {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let was_open = closed.is_none();
        if was_open {
            match why {
                Closed::Full => tracing::warn!(
                    limit = self.limit,
                    "as many flows as `max_flows` allows: further ones follow their rule's `fail`"
                ),
                Closed::Exhausted => tracing::warn!(
                    "out of descriptors or memory: further flows follow their rule's `fail` until \
                     one has ended, or for {} s",
                    EXHAUSTED_FOR.as_secs()
                ),
            }
            self.tell(true);
        }
        // Time alone does not make room where it is full.
        if was_open || why == Closed::Full {
            *closed = Some(why);
        }
        was_open
    }

    fn open(&self, may: impl FnOnce(Closed) -> bool) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if closed.is_some_and(may) {
            tracing::info!("there is room for flows again");
            self.tell(false);
            *closed = None;
        }
    }

    fn tell(&self, full: bool) {
        self.tell_hook(|hook| hook.set_full(full));
    }

    fn tell_hook(&self, tell: impl FnOnce(&mut Dataplane) -> Result<(), InstallError>) {
        let mut dataplane = self
            .dataplane
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(error)) = dataplane.as_mut().map(tell) {
            NOT_TOLD.say(|not_said_before| {
                tracing::error!(%error, not_said_before, "cannot tell the connect hook");
            });
        }
    }
}

impl FlowPermit {
    /// Marks the flow as unserved: there were no descriptors, or no memory, for it.
    pub fn mark_unserved(&self) {
        self.unserved.store(true, SeqCst);
        self.admission.close_exhausted();
    }
}

impl Drop for FlowPermit {
    fn drop(&mut self) {
        let admission = &self.admission;
        if let Some(holder) = self.holder {
            admission.discount(holder);
        }
        let inside = admission.inside.fetch_sub(1, SeqCst) - 1;
        let unserved = self.unserved.load(SeqCst);
        if !unserved && inside + admission.limit / ROOM_DIVISOR < admission.limit {
            admission.open(|_| true);
        }
    }
}
