//! The completions of the requests and responses that a flow has suspended, on their way to the flow's
//! task.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use cql_edit::{CompletionSink, Resolution};
use flow::Flow;
use parking_lot::Mutex;

/// The completions of one flow. **Invariant**: each ticket leaves one completion that completes it, and
/// a step says at most once before that it is due ([`Resolution::Due`]). So there are at most twice
/// [`MAX_SUSPENDED`](cql_edit::MAX_SUSPENDED) completions, and those that came too late.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    /// The flow whose task is woken. A ticket that somebody keeps does not keep the flow alive.
    flow: Weak<Flow>,
    /// Whether there are completions. The task looks at it whenever it runs, so it costs one load.
    full: AtomicBool,
    /// Whether the flow's [`CompletionReader`] is still there.
    is_read: AtomicBool,
    completions: Mutex<Vec<Completion>>,
}

/// The flow's end, from which its task reads the completions. Once it is dropped nobody reads them,
/// even while others still have the flow.
pub(super) struct CompletionReader(Arc<CompletionQueue>);

/// The completion of the request or response that is suspended under this number.
#[derive(Debug)]
pub(super) struct Completion {
    pub number: u64,
    /// The decision. None: nobody will decide any more.
    pub resolution: Option<Resolution>,
}

impl CompletionReader {
    pub(super) fn of(flow: &Arc<Flow>) -> Self {
        Self(Arc::new(CompletionQueue {
            flow: Arc::downgrade(flow),
            full: AtomicBool::new(false),
            is_read: AtomicBool::new(true),
            completions: Mutex::default(),
        }))
    }

    /// Returns the end to which completions are written.
    pub(super) fn sink(&self) -> Arc<CompletionQueue> {
        self.0.clone()
    }

    /// Takes all completions, the oldest first.
    pub(super) fn take(&self) -> Vec<Completion> {
        let CompletionQueue {
            full, completions, ..
        } = &*self.0;
        if !full.load(Relaxed) {
            return Vec::new();
        }
        let mut completions = completions.lock();
        full.store(false, Relaxed);
        std::mem::take(&mut completions)
    }
}

impl Drop for CompletionReader {
    fn drop(&mut self) {
        self.0.is_read.store(false, Relaxed);
    }
}

impl CompletionSink for CompletionQueue {
    fn put(&self, number: u64, resolution: Option<Resolution>) {
        let Some(flow) = self.flow.upgrade() else {
            return;
        };
        let mut completions = self.completions.lock();
        completions.push(Completion { number, resolution });
        self.full.store(true, Relaxed);
        drop(completions);
        flow.commands.wake();
    }

    fn is_read(&self) -> bool {
        self.is_read.load(Relaxed)
    }
}
