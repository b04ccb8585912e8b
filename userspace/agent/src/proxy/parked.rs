//! What others say of the requests and responses that a flow has parked, on its way to the flow's task.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use cql_edit::{Mailbox, Resolution};

use crate::flows::Flow;

/// One flow's. **Invariant**: each ticket leaves one letter that says what becomes of it, and a step says at most once
/// before that it is due ([`Resolution::Due`]); so there are no more of them than twice
/// [`MAX_PARKED`](cql_edit::MAX_PARKED), and those that came too late.
#[derive(Debug)]
pub(super) struct Letters {
    /// Its task is woken. It does not outlive the flow for a ticket that somebody keeps.
    flow: Weak<Flow>,
    /// Looked at whenever the task runs, so it costs one load.
    full: AtomicBool,
    /// Its [`Inbox`] is there.
    is_read: AtomicBool,
    letters: Mutex<Vec<Letter>>,
}

/// Where its flow reads them. With this gone nobody does, also while others still have the flow.
pub(super) struct Inbox(Arc<Letters>);

/// Of what is parked under this number.
pub(super) type Letter = (u64, Option<Resolution>);

impl Inbox {
    pub(super) fn of(flow: &Arc<Flow>) -> Self {
        Self(Arc::new(Letters {
            flow: Arc::downgrade(flow),
            full: AtomicBool::new(false),
            is_read: AtomicBool::new(true),
            letters: Mutex::default(),
        }))
    }

    /// For who writes to it.
    pub(super) fn letters(&self) -> Arc<Letters> {
        self.0.clone()
    }

    /// All of them, the oldest first.
    pub(super) fn take(&self) -> Vec<Letter> {
        let Letters { full, letters, .. } = &*self.0;
        if !full.load(Relaxed) {
            return Vec::new();
        }
        let mut letters = letters.lock().unwrap_or_else(PoisonError::into_inner);
        full.store(false, Relaxed);
        std::mem::take(&mut letters)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.0.is_read.store(false, Relaxed);
    }
}

impl Mailbox for Letters {
    fn put(&self, number: u64, resolution: Option<Resolution>) {
        let Some(flow) = self.flow.upgrade() else {
            return;
        };
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.push((number, resolution));
        self.full.store(true, Relaxed);
        drop(letters);
        flow.mailbox.wake();
    }

    fn is_read(&self) -> bool {
        self.is_read.load(Relaxed)
    }
}
