//! Flows on the shortcut, as `/flows` shows them.

use dataplane::{policy::Action, shortcut::OnShortcut};
use serde::Serialize;

use super::{Shared, with};

/// A flow as `/flows` gives it, beside those that the agent carries.
#[derive(Debug, Serialize)]
pub struct ShortcutView {
    id: String,
    client: Option<String>,
    pid: u32,
    process: String,
    uid: u32,
    orig_dst: String,
    action: &'static str,
    path: &'static str,
    why: String,
    rule: String,
    age_ms: u64,
    /// What has taken the shortcut; nobody counts what takes TCP.
    bytes_to_database: Option<u64>,
    bytes_to_client: Option<u64>,
}

impl ShortcutView {
    fn new(
        OnShortcut {
            flow,
            taken,
            is_on_tcp,
        }: OnShortcut,
    ) -> Self {
        let rule = &flow.rule;
        let (path, why) = match (taken, is_on_tcp) {
            (Some(_), false) => (
                "shortcut",
                format!("decided at connect(): rule {rule} wants the shortcut"),
            ),
            (Some(_), true) => (
                "shortcut",
                format!(
                    "rule {rule} wants the shortcut; its last message took TCP: bulk, or a reader that is behind"
                ),
            ),
            (None, _) => (
                "untouched",
                format!(
                    "rule {rule} wants the shortcut, which only one end can take: the database was not started \
                     beneath the agent's cgroup, or has not accepted yet"
                ),
            ),
        };
        Self {
            id: format!("socket-{}", flow.cookie),
            client: flow.client.map(|client| client.to_string()),
            pid: flow.process.pid,
            process: flow.process.name.clone(),
            uid: flow.process.uid,
            orig_dst: flow.orig_dst.to_string(),
            action: Action::Bypass.as_str(),
            path,
            why,
            rule: rule.to_string(),
            age_ms: flow.age.as_millis() as u64,
            bytes_to_database: taken.map(|[up, _]| up),
            bytes_to_client: taken.map(|[_, down]| down),
        }
    }
}

/// All of this moment; none if they cannot be read, which is logged.
pub fn flows(dataplane: &Shared) -> Vec<OnShortcut> {
    let read = with(dataplane, |dataplane| dataplane.shortcuts());
    let read = read.unwrap_or_else(|| Ok(Vec::new()));
    read.unwrap_or_else(|error| {
        tracing::error!("cannot read which flows are on the shortcut: {error}");
        Vec::new()
    })
}

/// The same, as `/flows` gives them.
pub fn views(dataplane: &Shared) -> Vec<ShortcutView> {
    flows(dataplane)
        .into_iter()
        .map(ShortcutView::new)
        .collect()
}
