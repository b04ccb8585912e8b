//! How many flows the agent carries at most. At the limit the connect hook is told, so that
//! further flows follow their rule's `fail` and never get here.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use dataplane::Dataplane;

/// The hook is told that there is room again when this part of the limit is free, so that a
/// single flow's end does not make it flap.
const ROOM_DIVISOR: usize = 20;

/// As many as the ring of held SYNs has room for. Their descriptors are set aside.
pub const STRAGGLERS: usize = 1_024;

/// Counts flows in and out.
pub struct Admission {
    limit: usize,
    inside: AtomicUsize,
    full: Mutex<bool>,
    dataplane: Arc<Mutex<Option<Dataplane>>>,
}

/// A flow's place; given back when it is dropped.
pub struct Place(Arc<Admission>);

impl Admission {
    /// At most `limit` flows.
    pub fn new(limit: usize, dataplane: Arc<Mutex<Option<Dataplane>>>) -> Self {
        Self {
            limit,
            inside: AtomicUsize::new(0),
            full: Mutex::new(false),
            dataplane,
        }
    }

    /// A place for one more flow. At the limit the hook is told; those whose SYNs were under
    /// way by then are served all the same, up to [`STRAGGLERS`] more; then None.
    pub fn enter(self: &Arc<Self>) -> Option<Place> {
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        let place = Place(self.clone());
        if inside >= self.limit {
            self.tell(true);
        }
        (inside <= self.limit + STRAGGLERS).then_some(place)
    }

    /// Something else has run out: no further flow until one has ended.
    pub fn close_for_now(&self) {
        self.tell(true);
    }

    fn tell(&self, full: bool) {
        let mut told = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        if *told == full {
            return;
        }
        let mut dataplane = self
            .dataplane
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(dataplane) = dataplane.as_mut() else {
            return;
        };
        match dataplane.set_full(full) {
            Ok(()) if full => tracing::warn!(
                limit = self.limit,
                "as many flows as `max_flows` allows: further ones follow their rule's `fail`"
            ),
            Ok(()) => tracing::info!("there is room for flows again"),
            Err(error) => tracing::error!(%error, "cannot tell the connect hook"),
        }
        *told = full;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let admission = &self.0;
        let inside = admission.inside.fetch_sub(1, SeqCst) - 1;
        if inside + admission.limit / ROOM_DIVISOR < admission.limit {
            admission.tell(false);
        }
    }
}
