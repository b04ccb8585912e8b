//! The limit on the number of flows that the agent carries.
//!
//! At the limit, or when descriptors or memory run out before it, the connect hook is told: further
//! flows follow their rule's `fail` and never get here.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use dataplane::Dataplane;
use tokio::time;

/// The fraction of the limit, 1 / `ROOM_DIVISOR`, that must be free before the hook is told that
/// there is room again. A single flow's end does not make it flap.
const ROOM_DIVISOR: usize = 20;

/// Flows that are served beyond the limit: as many as the ring of held SYNs has room for. Their
/// descriptors are set aside.
pub const STRAGGLERS: usize = 1_024;

/// The pause after something has run out, unless a flow ends before. Other programs may have taken
/// it, and flows may go on for days.
const EXHAUSTED_FOR: Duration = Duration::from_secs(5);

/// The pause after accept(2) failed for want of descriptors or memory: time for a flow to end.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

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
    dataplane: Arc<Mutex<Option<Dataplane>>>,
}

/// One flow's permit to be carried. Dropping it gives the permit back.
pub struct FlowPermit {
    admission: Arc<Admission>,
    /// Set when descriptors or memory were missing for this flow: its end leaves none to others.
    unserved: AtomicBool,
}

impl Admission {
    /// Admits at most `limit` flows.
    pub fn new(limit: usize, dataplane: Arc<Mutex<Option<Dataplane>>>) -> Self {
        Self {
            limit,
            inside: AtomicUsize::new(0),
            closed: Mutex::new(None),
            dataplane,
        }
    }

    /// Admits one more flow. At the limit the hook is told. Flows whose SYNs were under way by then
    /// are still served, up to [`STRAGGLERS`] more; after that the answer is None.
    pub fn enter(self: &Arc<Self>) -> Option<FlowPermit> {
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        let permit = FlowPermit {
            admission: self.clone(),
            unserved: AtomicBool::new(false),
        };
        if inside >= self.limit {
            self.close(Closed::Full);
        }
        (inside <= self.limit + STRAGGLERS).then_some(permit)
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
            tracing::error!(%error, "cannot accept");
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
        let mut dataplane = self
            .dataplane
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let told = dataplane.as_mut().map(|dataplane| dataplane.set_full(full));
        if let Some(Err(error)) = told {
            tracing::error!(%error, "cannot tell the connect hook");
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
        let inside = admission.inside.fetch_sub(1, SeqCst) - 1;
        let unserved = self.unserved.load(SeqCst);
        if !unserved && inside + admission.limit / ROOM_DIVISOR < admission.limit {
            admission.open(|_| true);
        }
    }
}
