//! The completions of the requests and responses that a flow has parked, on their way to the flow's
//! task.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use cql_edit::{CompletionSink, Resolution};
use flow::Flow;
use parking_lot::Mutex;

/// The completions of one flow. **Invariant**: each ticket leaves one letter that completes it, and
/// a step says at most once before that it is due ([`Resolution::Due`]). So there are at most twice
/// [`MAX_SUSPENDED`](cql_edit::MAX_SUSPENDED) letters, and those that came too late.
#[derive(Debug)]
pub(super) struct Letters {
    /// The flow whose task is woken. A ticket that somebody keeps does not keep the flow alive.
    flow: Weak<Flow>,
    /// Whether there are letters. The task looks at it whenever it runs, so it costs one load.
    full: AtomicBool,
    /// Whether the flow's [`Inbox`] is still there.
    is_read: AtomicBool,
    letters: Mutex<Vec<Letter>>,
}

/// The flow's end, from which its task reads the letters. Once it is dropped nobody reads them,
/// even while others still have the flow.
pub(super) struct Inbox(Arc<Letters>);

/// The completion of the request or response that is parked under this number.
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

    /// Returns the end to which completions are written.
    pub(super) fn letters(&self) -> Arc<Letters> {
        self.0.clone()
    }

    /// Takes all letters, the oldest first.
    pub(super) fn take(&self) -> Vec<Letter> {
        let Letters { full, letters, .. } = &*self.0;
        if !full.load(Relaxed) {
            return Vec::new();
        }
        let mut letters = letters.lock();
        full.store(false, Relaxed);
        std::mem::take(&mut letters)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.0.is_read.store(false, Relaxed);
    }
}

impl CompletionSink for Letters {
    fn put(&self, number: u64, resolution: Option<Resolution>) {
        let Some(flow) = self.flow.upgrade() else {
            return;
        };
        let mut letters = self.letters.lock();
        letters.push((number, resolution));
        self.full.store(true, Relaxed);
        drop(letters);
        flow.mailbox.wake();
    }

    fn is_read(&self) -> bool {
        self.is_read.load(Relaxed)
    }
}
