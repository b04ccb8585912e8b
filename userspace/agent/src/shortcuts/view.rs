//! Flows on the shortcut, as `/flows` shows them.

use dataplane::{Cause, shortcut::OnShortcut};
use policy::Action;
use serde::Serialize;

use super::{Shared, with};
use crate::untouched::UntouchedView;

/// A flow as `/flows` gives it, beside those that the agent carries.
#[derive(Debug, Serialize)]
pub struct ShortcutView {
    #[serde(flatten)]
    flow: UntouchedView,
    /// Bytes that have taken the shortcut; nobody counts those over TCP.
    bytes_to_database: Option<u64>,
    bytes_to_client: Option<u64>,
}

impl ShortcutView {
    /// Returns the client's process and the number of its cgroup. None on another host.
    pub fn process(&self) -> Option<(u32, u64)> {
        self.flow.process()
    }

    fn new(
        OnShortcut {
            flow,
            taken,
            refusal,
            is_on_tcp,
            has_left,
        }: OnShortcut,
    ) -> Self {
        let rule = &flow.rule;
        let (path, why) = match (taken, refusal) {
            _ if has_left => (
                "untouched",
                format!(
                    "rule {rule} wants the shortcut; it has left the shortcut for good: an application did not read on while \
                     bytes waited in TCP, of which FIONREAD does not tell it there"
                ),
            ),
            (Some(_), _) if !is_on_tcp => (
                "shortcut",
                format!("decided at connect(): rule {rule} wants the shortcut"),
            ),
            (Some(_), _) => (
                "shortcut",
                format!(
                    "rule {rule} wants the shortcut; its last message took TCP: bulk, or a reader that is behind"
                ),
            ),
            (None, Some(cause)) => (
                "untouched",
                format!("rule {rule} wants the shortcut: {}", told(cause)),
            ),
            (None, None) => (
                "untouched",
                format!(
                    "rule {rule} wants the shortcut, which only one end can take: the database was not started \
                     beneath the agent's cgroup, has not accepted yet, or has closed its end"
                ),
            ),
        };
        Self {
            flow: UntouchedView::new(&flow, None, Action::Bypass.as_str(), path, why),
            bytes_to_database: taken.map(|[up, _]| up),
            bytes_to_client: taken.map(|[_, down]| down),
        }
    }
}

/// Explains a cause: the name that metrics have for it, and its meaning for one flow.
fn told(cause: Cause) -> String {
    let means = match cause {
        Cause::ShortcutOff => {
            "it is not available, or was not when this began; `underpass doctor` tries it"
        }
        Cause::ShortcutRemote => {
            "it does not go over the loopback device: its database is on another host, or in another namespace"
        }
        Cause::ShortcutRefused => {
            "the kernel does not take one of its sockets: kTLS, MPTCP, another program's sockmap"
        }
        Cause::ShortcutsFull => "as many flows were on it as can be",
        Cause::ForeignNetns => "its client is not in the agent's network namespace",
        _ => "underpass_safer_path_total counts such flows",
    };
    format!("{}, {means}", cause.as_str())
}

/// Returns the flows that are on the shortcut now; none if they cannot be read, which is logged.
pub fn flows(dataplane: &Shared) -> Vec<OnShortcut> {
    let read = with(dataplane, |dataplane| dataplane.shortcuts());
    let read = read.unwrap_or_else(|| Ok(Vec::new()));
    read.unwrap_or_else(|error| {
        tracing::error!("cannot read which flows are on the shortcut: {error}");
        Vec::new()
    })
}

/// Returns the flows on the shortcut, as `/flows` gives them.
pub fn views(dataplane: &Shared) -> Vec<ShortcutView> {
    flows(dataplane)
        .into_iter()
        .map(ShortcutView::new)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::{OrigDst, Process, SockCookie, Untouched};
    use policy::RuleName;
    use std::time::Duration;

    fn shown(taken: Option<[u64; 2]>, refusal: Option<Cause>) -> String {
        let flow = Untouched {
            cookie: SockCookie::new(7),
            client: None,
            orig_dst: OrigDst::new(([127, 0, 0, 1], 9042).into()),
            process: Process {
                pid: 12,
                uid: 1000,
                gid: 1000,
                name: "app".to_owned(),
                cgroup_id: 5,
                holder: None,
            },
            is_tapped: false,
            is_undecided: false,
            was_running: false,
            is_left_out: false,
            is_held_out: false,
            rule: RuleName::new("near"),
            age: Duration::from_millis(1500),
        };
        let on = OnShortcut {
            flow,
            taken,
            refusal,
            is_on_tcp: false,
            has_left: false,
        };
        serde_json::to_string(&ShortcutView::new(on)).unwrap()
    }

    #[test]
    fn one_is_shown_with_what_has_taken_the_shortcut() {
        let who = concat!(
            r#"{"id":"socket-7","client":null,"pid":12,"process":"app","uid":1000,"#,
            r#""orig_dst":"127.0.0.1:9042","action":"bypass","#,
        );
        let both = concat!(
            r#""path":"shortcut","why":"decided at connect(): rule near wants the shortcut","#,
            r#""rule":"near","age_ms":1500,"bytes_to_database":30,"bytes_to_client":40}"#,
        );
        assert_eq!(shown(Some([30, 40]), None), format!("{who}{both}"));
        let alone = shown(None, None);
        let begins = r#""path":"untouched","why":"rule near wants the shortcut, which"#;
        assert!(alone.starts_with(&format!("{who}{begins}")), "{alone}");
        let ends =
            r#""rule":"near","age_ms":1500,"bytes_to_database":null,"bytes_to_client":null}"#;
        assert!(alone.ends_with(ends), "{alone}");
        for (cause, means) in [
            (Cause::ShortcutRemote, "shortcut_remote, it does not go"),
            (Cause::ShortcutOff, "shortcut_off, it is not"),
            (Cause::ShortcutsFull, "shortcuts_full, as many"),
            (Cause::ShortcutRefused, "shortcut_refused, the kernel"),
            (Cause::ForeignNetns, "foreign_netns, its client"),
        ] {
            let shown = shown(None, Some(cause));
            let begins = r#""path":"untouched","why":"rule near wants the shortcut: "#;
            let begins = format!("{who}{begins}{means}");
            assert!(shown.starts_with(&begins), "{shown}");
        }
    }
}
