//! Messages between an agent that runs and one that takes over.
//!
//! Messages are JSON objects; messages, fields and things to go on with that the other side does not know are passed over, so that
//! either side may be the newer one.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use proxy::{Inherited, SealedFlow};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::backends::Order;

/// The format of the messages. Another one is another protocol, and refused.
pub(super) const FORMAT: u32 = 1;

/// The kind of [`Message::Flow`].
pub(super) const FLOW: &str = "flow";

/// A message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// To the agent that runs: another one wants to take over.
    Hello {
        /// See [`FORMAT`].
        format: u32,
        /// Version of the agent that takes over.
        version: String,
        /// Process of the agent that takes over.
        pid: u32,
        /// The format of the flows that it takes. 0: it takes none.
        #[serde(default)]
        takes: u32,
    },
    /// To the other one: the terms. Descriptors: the lock on the pins, and each listener.
    Welcome(Welcome),
    /// To the other one, behind that: a mark that holds.
    Mark {
        /// The flows that it is for, as `mark` reads them.
        target: String,
        /// The action that they get.
        action: String,
        /// The seconds that are left of its time. None: until it is taken back.
        lasts_s: Option<u64>,
    },
    /// To the other one: it cannot be.
    Refused {
        /// The reason, and what to do.
        why: String,
    },
    /// To the agent that runs: everything is there, but for the connect hooks.
    Ready,
    /// To the other one: the connect hooks are its own to take.
    Go,
    /// To the agent that runs: new connections are the other one's.
    Taken,
    /// To the other one: the flows that are left. The first one says that nothing else is.
    Drains {
        /// Flows.
        flows: usize,
        /// Flows among them that are not handed over, by reason.
        #[serde(default)]
        stay: BTreeMap<String, usize>,
    },
    /// To the agent that runs: the other one cannot take over.
    Failed {
        /// The reason.
        why: String,
    },
    /// To the other one: go on with this, which is not of one flow.
    Inherit(#[serde(deserialize_with = "known")] Vec<Inherited>),
    /// To the other one: read this flow on. Descriptors: the client's connection, and the database's. The next flow comes when
    /// this one is answered.
    Flow(SealedFlow),
    /// To the agent that drains: the flow is the other one's.
    Took,
    /// To the agent that drains: the flow stays.
    Declined {
        /// The reason.
        why: String,
        /// Whether the reason may pass, so that the flow may be handed over later.
        #[serde(default)]
        for_now: bool,
    },
    /// To the agent that drains: end now, with the flows that are left.
    End,
    /// To the agent that runs: describe yourself.
    Ask,
    /// The answer.
    State(State),
    /// A message of this kind that cannot be understood: of another version, or damaged.
    #[serde(untagged)]
    Unknown(#[serde(deserialize_with = "kind")] String),
}

/// Reads the things to go on with that this version knows, and passes over the others.
fn known<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Inherited>, D::Error> {
    let all = Vec::<Value>::deserialize(from)?.into_iter();
    Ok(all
        .filter_map(|one| serde_json::from_value(one).ok())
        .collect())
}

/// The kind of a message, known or not.
fn kind<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let kind = match Value::deserialize(from)? {
        Value::String(kind) => Some(kind),
        Value::Object(message) => message.into_iter().next().map(|(kind, _)| kind),
        _ => None,
    };
    kind.ok_or_else(|| D::Error::custom("a message has a kind"))
}

/// The terms on which another agent takes over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The version of the agent that runs.
    pub version: String,
    /// Process id of that agent.
    pub pid: u32,
    /// The mark of its own sockets, which both have from now on.
    pub mark: u32,
    /// A process in each network namespace that it serves beside its own.
    pub namespaces: Vec<u32>,
    /// The cgroup that it is attached to.
    pub cgroup: PathBuf,
    /// The folder of its pins.
    pub pins: PathBuf,
    /// Listeners of that agent, in the order of their descriptors, which come behind the lock.
    pub listeners: Vec<Listener>,
    /// The number of marks that follow.
    pub marks: usize,
    /// Orders to backends.
    #[serde(default)]
    pub orders: Vec<(SocketAddr, Order)>,
}

/// A listener of control or admin sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Listener {
    /// The control socket.
    Control(PathBuf),
    /// The admin socket.
    Admin(PathBuf),
    /// `agent.admin`.
    Tcp(SocketAddr),
    /// `agent.metrics`.
    Metrics(SocketAddr),
}

/// An agent's description of itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    /// Version of that agent.
    pub version: String,
    /// Process id of that agent.
    pub pid: u32,
    /// Flows of that agent, by path.
    pub flows: BTreeMap<String, usize>,
    /// Flows among them that would not be handed over, by reason, as far as it can be known.
    #[serde(default)]
    pub stay: BTreeMap<String, usize>,
    /// The seconds for which it would drain.
    pub drain_s: u64,
    /// The process of the agent before that still drains, with its flows.
    pub before: Option<(u32, usize)>,
    /// Why the last agent that was to take over could not.
    pub failed: Option<String>,
}

/// An end of a connection between the two.
pub type Link = proxy::link::Link<Message>;

/// The socket beside a control socket at which an agent waits for others.
pub fn socket_of(control: &Path) -> PathBuf {
    let mut name = OsString::from(control);
    name.push(".upgrade");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each message with all of its fields, as format 1 has it. A line may be added, and a field that others pass over; whatever else
    /// changes here is another format: raise [`FORMAT`] with it.
    const MESSAGES: &str = include_str!("messages.jsonl");

    fn again(line: &str) -> String {
        let message: Message = serde_json::from_str(line).unwrap();
        assert!(!matches!(message, Message::Unknown(_)), "{line}");
        serde_json::to_string(&message).unwrap()
    }

    #[test]
    fn messages_are_those_of_their_format() {
        assert_eq!(FORMAT, 1);
        assert!(!MESSAGES.contains("null"), "each field is there");
        for line in MESSAGES.lines() {
            assert_eq!(again(line), line);
        }
    }

    #[test]
    fn unknown_messages_and_things_to_go_on_with_are_passed_over() {
        for (line, known) in [
            (r#"{"later":{"why":"x"}}"#, "later"),
            (r#""later""#, "later"),
            (r#"{"flow":{"format":1}}"#, FLOW),
        ] {
            let message: Message = serde_json::from_str(line).unwrap();
            assert!(matches!(message, Message::Unknown(kind) if kind == known));
        }
        for none in ["5", "{}", "[]", "null", "?"] {
            assert!(serde_json::from_str::<Message>(none).is_err(), "{none}");
        }
        let line = MESSAGES
            .lines()
            .find(|line| line.starts_with(r#"{"inherit""#));
        let line = line.unwrap();
        let newer = line.replace("[{\"Statement\"", "[\"New\",{\"Later\":{}},{\"Statement\"");
        assert_ne!(newer, line);
        assert_eq!(again(&newer), line);
        // A field that is not known.
        let newer = line.replace("\"debt\"", "\"later\":[1],\"debt\"");
        assert_ne!(newer, line);
        assert_eq!(again(&newer), line);
    }
}
