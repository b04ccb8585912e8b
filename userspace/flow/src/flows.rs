//! The registry of all flows, by their number.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{Flow, FlowId, FlowView, Newcomer};
use parking_lot::{Mutex, MutexGuard};

/// The registry of all flows. Bounded by the agent's admission.
#[derive(Debug, Default)]
pub struct Flows {
    next: AtomicU64,
    live: Mutex<BTreeMap<FlowId, Arc<Flow>>>,
}

impl Flows {
    /// Enters a flow.
    pub fn enter(&self, newcomer: &Newcomer) -> Arc<Flow> {
        self.adopt(|number| {
            let mut flow = Flow::begin(
                number,
                newcomer.client,
                newcomer.process.clone(),
                newcomer.orig_dst,
                newcomer.rule.clone(),
            );
            flow.netns = newcomer.netns.clone();
            flow
        })
    }

    /// Enters the flow that `begin` makes of the next number.
    pub fn adopt(&self, begin: impl FnOnce(u64) -> Flow) -> Arc<Flow> {
        let flow = Arc::new(begin(self.take_number()));
        self.lock().insert(flow.id, flow.clone());
        flow
    }

    /// Returns the next number, for a flow that does not come into the registry: nobody sends it commands.
    pub fn take_number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed) + 1
    }

    /// Removes a flow.
    pub fn leave(&self, id: FlowId) {
        self.lock().remove(&id);
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a flow is in the registry.
    pub fn has(&self, id: FlowId) -> bool {
        self.lock().contains_key(&id)
    }

    /// Returns a flow.
    pub fn get(&self, id: FlowId) -> Option<Arc<Flow>> {
        self.lock().get(&id).cloned()
    }

    /// Returns all flows, the oldest first.
    pub fn all(&self) -> Vec<Arc<Flow>> {
        self.lock().values().cloned().collect()
    }

    /// Returns the views of all flows, the oldest first.
    pub fn views(&self) -> Vec<FlowView> {
        self.all()
            .iter()
            .map(|flow| FlowView::from(flow.as_ref()))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<FlowId, Arc<Flow>>> {
        self.live.lock()
    }
}
