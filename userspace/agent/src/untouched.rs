//! The view in `/flows` of every flow that is left alone, whatever counts its bytes.

use dataplane::Untouched;
use flow::FlowId;
use serde::Serialize;

/// The id of such a flow: that of its socket, or the number under which reporters tell of it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum UntouchedId {
    /// Nobody reads the flow.
    Socket(String),
    /// Copies of the flow are read.
    Tapped(FlowId),
}

/// The first keys of such a view, in their order.
#[derive(Debug, Serialize)]
pub struct UntouchedView {
    id: UntouchedId,
    client: Option<String>,
    /// The client's process. None on another host; so are `process` and `uid`.
    pid: Option<u32>,
    process: Option<String>,
    uid: Option<u32>,
    orig_dst: String,
    action: &'static str,
    path: &'static str,
    why: String,
    rule: String,
    age_ms: u64,
    /// The kernel's number of the process's cgroup.
    #[serde(skip)]
    cgroup_id: Option<u64>,
}

impl UntouchedView {
    /// Makes the view of a flow. `why` explains `action` and `path`.
    pub fn new(
        flow: &Untouched,
        tapped: Option<FlowId>,
        action: &'static str,
        path: &'static str,
        why: String,
    ) -> Self {
        let socket = || UntouchedId::Socket(format!("socket-{}", flow.cookie));
        let process = Some(&flow.process).filter(|p| !p.is_elsewhere());
        Self {
            id: tapped.map_or_else(socket, UntouchedId::Tapped),
            client: flow.client.map(|client| client.to_string()),
            pid: process.map(|p| p.pid),
            process: process.map(|p| p.name.clone()),
            uid: process.map(|p| p.uid),
            orig_dst: flow.orig_dst.to_string(),
            action,
            path,
            why,
            rule: flow.rule.to_string(),
            age_ms: flow.age.as_millis() as u64,
            cgroup_id: process.map(|p| p.cgroup_id),
        }
    }

    /// Returns the client's process and the number of its cgroup. None on another host.
    pub fn process(&self) -> Option<(u32, u64)> {
        self.pid.zip(self.cgroup_id)
    }
}
