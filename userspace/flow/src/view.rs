//! The view of a flow, as `/flows` gives it.

use std::{sync::atomic::Ordering::Relaxed, time::SystemTime};

use policy::{Action, Compression, Protocol, Session};
use serde::Serialize;
use tls::Seen;

use super::flow::{ADOPTED, Flow, FlowId, Path, UNDECIDED};

/// A flow as `/flows` and `underpass flows --json` give it.
#[derive(Debug, Serialize)]
pub struct FlowView {
    id: FlowId,
    client: String,
    /// The client's process. None if the client is on another host; so are `process` and `uid`.
    pid: Option<u32>,
    process: Option<String>,
    uid: Option<u32>,
    /// The kernel's number of the process's cgroup.
    #[serde(skip)]
    cgroup_id: Option<u64>,
    orig_dst: String,
    /// Name or number of another network namespace than the agent's.
    netns: Option<String>,
    backend: Option<String>,
    action: &'static str,
    path: &'static str,
    why: String,
    rule: String,
    session: Option<Box<SessionView>>,
    /// The TLS that is seen on the flow. None where TLS does not end in the agent.
    tls: Option<Box<Seen>>,
    age_ms: u64,
    opened_unix_ms: u64,
    bytes_to_database: u64,
    bytes_to_client: u64,
}

/// The facts of a flow's session. A field is absent if there is no such fact, or it is among the unknown ones.
#[derive(Debug, Serialize)]
pub struct SessionView {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keyspace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<bool>,
    /// The facts that are not known, or not yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown: Vec<&'static str>,
}

impl From<&Session> for SessionView {
    fn from(session: &Session) -> Self {
        // The peer chooses these names: a control character could forge terminal output.
        let text = |text: &String| text.replace(char::is_control, "?");
        Self {
            user: session.user.value().map(text),
            keyspace: session.keyspace.value().map(text),
            driver: session.driver.value().map(text),
            driver_version: session.driver_version.value().map(text),
            application: session.application.value().map(text),
            protocol: session.protocol.value().map(|v: &Protocol| v.as_str()),
            compression: session
                .compression
                .value()
                .map(|c: &Compression| c.as_str()),
            tls: session.tls.value().copied(),
            unknown: session.unknown().iter().map(|key| key.key()).collect(),
        }
    }
}

impl FlowView {
    /// Returns the client's process and the number of its cgroup. None on another host.
    pub fn process(&self) -> Option<(u32, u64)> {
        self.pid.zip(self.cgroup_id)
    }

    /// Whether the flow's bytes are decoded now.
    pub fn is_read(&self) -> bool {
        self.path == Path::Enrich.as_str()
    }
}

impl From<&Flow> for FlowView {
    fn from(flow: &Flow) -> Self {
        let standing = flow.standing().clone();
        let process = Some(&flow.process).filter(|p| !p.is_elsewhere());
        let since_epoch = flow.opened_at.duration_since(SystemTime::UNIX_EPOCH);
        Self {
            id: flow.id,
            client: flow.client.to_string(),
            pid: process.map(|p| p.pid),
            process: process.map(|p| p.name.clone()),
            uid: process.map(|p| p.uid),
            cgroup_id: process.map(|p| p.cgroup_id),
            orig_dst: flow.orig_dst.to_string(),
            netns: flow.netns.as_ref().map(|netns| netns.to_string()),
            backend: flow.backend().map(|at| at.to_string()),
            action: standing.action.map_or(UNDECIDED, Action::as_str),
            path: flow.path().as_str(),
            why: match flow.is_adopted {
                true => format!("{}; {ADOPTED}", standing.why(flow.path(), flow.near())),
                false => standing.why(flow.path(), flow.near()),
            },
            rule: standing.rule.to_string(),
            session: standing.session.as_deref().map(|s| Box::new(s.into())),
            tls: standing.tls,
            age_ms: flow.opened.elapsed().as_millis() as u64,
            opened_unix_ms: since_epoch.unwrap_or_default().as_millis() as u64,
            bytes_to_database: flow.to_database.load(Relaxed),
            bytes_to_client: flow.to_client.load(Relaxed),
        }
    }
}
