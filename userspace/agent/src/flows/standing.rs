//! What was decided of a flow, and why it is where it is.

use std::borrow::Cow;

use dataplane::{
    Near,
    policy::{Action, RuleName, Session, SessionKey},
};

use super::Path;
use crate::tls::Seen;

/// What was decided of a flow, and why.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    /// The rule that decided; the one that marked it until then.
    pub(super) rule: RuleName,
    /// None while it depends on what is not known yet.
    pub(super) action: Option<Action>,
    /// Only where a session rule may hold.
    pub(super) session: Option<Box<Session>>,
    /// What of its session has to be known to decide it.
    pub(super) waits_for: Vec<SessionKey>,
    /// Why it is not decoded, though its rule says so.
    pub(super) undecodable: Option<&'static str>,
    /// Why it is relayed and not spliced.
    pub(super) relayed: Option<Cow<'static, str>>,
    /// Where TLS ends in the agent.
    pub(super) tls: Option<Box<Seen>>,
}

impl Standing {
    /// Of a flow that is decoded unless its session says otherwise.
    pub(super) fn of(rule: RuleName) -> Self {
        Self {
            rule,
            action: Some(Action::Enrich),
            session: None,
            waits_for: Vec::new(),
            undecodable: None,
            relayed: None,
            tls: None,
        }
    }

    /// Why the flow is on its path, and not on a faster one.
    pub(super) fn why(&self, path: Path, near: Near) -> String {
        let when = match near {
            Near::Client => "connect()",
            Near::Database => "its SYN",
        };
        match (path, self.action) {
            (Path::Splice, _) => {
                format!("decided in the agent; what is faster is decided at {when}")
            }
            (Path::Relay, _) => {
                let undecodable = self
                    .undecodable
                    .map(|why| format!("not decodable: {why}; "));
                let relayed = self.relayed.as_deref().unwrap_or(UNDER_WAY);
                format!("{}{relayed}", undecodable.unwrap_or_default())
            }
            (Path::Enrich, None) if self.waits_for.is_empty() => "waits for: its handshake".into(),
            (Path::Enrich, None) => {
                let keys: Vec<&str> = self.waits_for.iter().map(|key| key.key()).collect();
                format!("waits for: {}", keys.join(", "))
            }
            (Path::Enrich, Some(action)) => {
                let tls = self.tls.as_deref().map(|tls| format!("; {tls}"));
                let tls = tls.unwrap_or_default();
                format!("rule {} says {}{tls}", self.rule, action.as_str())
            }
        }
    }
}

/// Of a flow that could be spliced.
const UNDER_WAY: &str = "bytes are under way in the agent";
