//! Tapped flows, for whoever lists flows: the number under which reporters tell of each, and what is known of it.

use std::{collections::HashMap, sync::Arc};

use dataplane::SockCookie;
use flow::{Flow, FlowId, Flows};
use parking_lot::Mutex;

/// Flows that are read at once, at most: as many as the kernel observes.
pub(super) const MAX_FLOWS: usize = 65_536;

/// A tapped flow, as lists of flows show it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The number under which the flow's reporters tell of it.
    pub id: FlowId,
    /// The flow. None: nothing of it has been read.
    pub flow: Option<Arc<Flow>>,
    /// Whether the flow's session decides which rule it meets, or has decided.
    pub is_asked: bool,
    /// The reason why the flow is not read any more, as metrics name it.
    pub stopped: Option<&'static str>,
}

/// All tapped flows, by cookie. No more than the kernel observes, and a few that have just ended.
#[derive(Clone, Debug, Default)]
pub(super) struct ListedFlows(Arc<Mutex<HashMap<SockCookie, Listed>>>);

impl ListedFlows {
    /// Returns the flow's number. A flow that is listed before anything of it is read has one from then on.
    pub(super) fn number(&self, cookie: SockCookie, flows: &Flows) -> u64 {
        self.list(cookie, flows).id.number()
    }

    /// Returns the flow as it is listed, from now on if it was not.
    pub(super) fn list(&self, cookie: SockCookie, flows: &Flows) -> Listed {
        let mut listed = self.0.lock();
        let entry = listed.entry(cookie).or_insert_with(|| Listed {
            id: FlowId::new(flows.take_number()),
            flow: None,
            is_asked: false,
            stopped: None,
        });
        entry.clone()
    }

    /// Enters a flow that is read from now on.
    pub(super) fn enter(&self, cookie: SockCookie, flow: &Arc<Flow>, is_asked: bool) {
        let listed = Listed {
            id: flow.id,
            flow: Some(flow.clone()),
            is_asked,
            stopped: None,
        };
        self.0.lock().insert(cookie, listed);
    }

    /// Notes why a flow is not read any more.
    pub(super) fn stop(&self, cookie: SockCookie, why: &'static str) {
        if let Some(listed) = self.0.lock().get_mut(&cookie) {
            listed.stopped = Some(why);
        }
    }

    /// Returns the flows of which this holds.
    pub(super) fn filter(&self, holds: impl Fn(SockCookie) -> bool) -> Vec<SockCookie> {
        let listed = self.0.lock();
        let cookies = listed.keys().copied();
        cookies.filter(|cookie| holds(*cookie)).collect()
    }

    /// Removes a flow that has ended.
    pub(super) fn remove(&self, cookie: SockCookie) {
        self.0.lock().remove(&cookie);
    }

    /// Returns a flow that is listed.
    pub(super) fn get(&self, cookie: SockCookie) -> Option<Listed> {
        self.0.lock().get(&cookie).cloned()
    }
}
