//! The state of a flow: the decision about it, and the reasons why it is on its path.

use std::{borrow::Cow, sync::Arc};

use dataplane::{LegLeft, LegState, Near};
use policy::{Action, RuleName, Session, SessionKey, Shortcut};
use tls::Seen;

use super::Path;
use crate::About;

/// The decision about a flow, and the reasons for its path.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    /// The rule that decided; until then the rule that marked the flow.
    pub(super) rule: RuleName,
    /// The rule that marked the flow.
    pub(super) first: RuleName,
    /// The decided action. None while it depends on session facts that are not known yet.
    pub(super) action: Option<Action>,
    /// The applications whose sockets the rule lets into a sockmap. A mark does not change that.
    pub(super) opted_in: Shortcut,
    /// The session facts. Only where a session rule may match.
    pub(super) session: Option<Box<Session>>,
    /// The session facts that have to be known to decide the flow.
    pub(super) waits_for: Vec<SessionKey>,
    /// The reason why the flow is not decoded, though its rule says so.
    pub(super) undecodable: Option<&'static str>,
    /// The reason why the flow is relayed and not spliced.
    pub(super) relayed: Option<Cow<'static, str>>,
    /// The reason why the flow is not spliced by its sender's engine; empty where it is.
    pub(super) not_by_sender: &'static str,
    /// The TLS that is seen on the flow, where TLS ends in the agent.
    pub(super) tls: Option<Box<Seen>>,
    /// The pipeline that the flow passes.
    pub(super) pipeline: Option<Arc<About>>,
    /// The reason why the flow shares no connection, though its pipeline has it do so.
    pub(super) alone: Option<&'static str>,
    /// The state of the legs that were to skip TCP: the client's and the database's.
    pub(super) legs: [Option<LegNow>; 2],
    /// Whether the flow's rule has a sample, and the flow is not in it.
    pub(super) is_left: bool,
}

impl Standing {
    /// The state of a flow that is decoded unless its session says otherwise.
    pub(super) fn of(rule: RuleName) -> Self {
        Self {
            first: rule.clone(),
            rule,
            action: Some(Action::Enrich),
            opted_in: Shortcut::Neither,
            session: None,
            waits_for: Vec::new(),
            undecodable: None,
            relayed: None,
            not_by_sender: "",
            tls: None,
            pipeline: None,
            alone: None,
            legs: [None, None],
            is_left: false,
        }
    }

    /// Explains why the flow is on its path, and not on a faster one.
    pub(super) fn why(&self, path: Path, near: Near) -> String {
        let when = match near {
            Near::Client => "connect()",
            Near::Database => "its SYN",
        };
        match (path, self.action) {
            (Path::Splice, _) => {
                let left = self.left();
                let engine = match self.not_by_sender {
                    "" => "by engine sender".into(),
                    why => format!("by engine egress: {why}"),
                };
                format!("{left}decided in the agent; what is faster is decided at {when}; {engine}")
            }
            (Path::Relay, _) => {
                let undecodable = self
                    .undecodable
                    .map(|why| format!("not decodable: {why}; "));
                let relayed = self.relayed.as_deref().unwrap_or(UNDER_WAY);
                let left = self.left();
                let legs = self.told_legs();
                format!("{left}{}{relayed}{legs}", undecodable.unwrap_or_default())
            }
            (Path::Tap, Some(action)) => format!(
                "decided by copies of its handshake: rule {} says {}",
                self.rule,
                action.as_str()
            ),
            (Path::Tap, None) => {
                let keys: Vec<&str> = self.waits_for.iter().map(|key| key.key()).collect();
                format!(
                    "copies of its handshake are read; waits for: {}",
                    keys.join(", ")
                )
            }
            (Path::Enrich, None) if self.waits_for.is_empty() => "waits for: its handshake".into(),
            (Path::Enrich, None) => {
                let keys: Vec<&str> = self.waits_for.iter().map(|key| key.key()).collect();
                format!("waits for: {}", keys.join(", "))
            }
            (Path::Enrich, Some(action)) => {
                let tls = self.tls.as_deref().map(|tls| format!("; {tls}"));
                let tls = tls.unwrap_or_default();
                let through = self.pipeline.as_deref().map(through).unwrap_or_default();
                let alone = self
                    .alone
                    .map(|why| format!("; shares no connection: {why}"));
                let alone = alone.unwrap_or_default();
                let action = action.as_str();
                let legs = self.told_legs();
                format!(
                    "rule {} says {action}{through}{alone}{tls}{legs}",
                    self.rule
                )
            }
        }
    }

    /// Tells which legs skip TCP, and why others of a rule with `shortcut` do not.
    fn told_legs(&self) -> String {
        let told = |(side, leg): (&str, &Option<LegNow>)| {
            leg.as_ref().map(|leg| match leg {
                LegNow::Short(leg) => match leg.left() {
                    None => format!("; {side}'s leg skips TCP"),
                    Some(why) => format!("; {side}'s leg is long: {}", long_again(why)),
                },
                LegNow::Long(why) => format!("; {side}'s leg is long: {why}"),
            })
        };
        let legs = ["client", "database"].into_iter().zip(&self.legs);
        legs.filter_map(told).collect()
    }

    fn left(&self) -> String {
        match self.is_left {
            true => format!("not of the sample of rule {}; ", self.rule),
            false => String::new(),
        }
    }
}

fn through(pipeline: &About) -> String {
    let because = pipeline.because.map(|because| format!(", {because}"));
    let inline = pipeline.inline.as_ref().map(|why| format!("; {why}"));
    let (because, inline) = (because.unwrap_or_default(), inline.unwrap_or_default());
    format!("{because}{inline}; through {}", pipeline.names)
}

/// The state of a connection between an application and the agent, of a rule with `shortcut`.
#[derive(Clone, Debug)]
pub enum LegNow {
    /// The leg skips TCP, unless it has left since.
    Short(LegState),
    /// The leg does not skip TCP, for this reason.
    Long(Cow<'static, str>),
}

/// Explains why a leg has left the sockmap.
fn long_again(why: LegLeft) -> &'static str {
    match why {
        LegLeft::TakenBack => {
            "it was taken back, so that the kernel or another agent could carry the flow"
        }
        LegLeft::NoMemory => {
            "the memory cgroup of its application's socket had no room, where TCP waits"
        }
        LegLeft::Stalled => {
            "an application did not read on while bytes waited in TCP, of which FIONREAD does not tell it in a \
             sockmap"
        }
    }
}

/// The explanation for a flow that could be spliced.
const UNDER_WAY: &str = "bytes are under way in the agent";
