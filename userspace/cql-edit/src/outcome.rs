//! [`Outcome`]: what a step says of a request; [`Error`]: what a client is told.

use cql::Consistency;

/// A step's decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request goes on as it was sent.
    Pass,
    /// The request goes on with changes.
    Changed,
    /// The request goes on, and nothing more is read of the flow for so many ns.
    Slow(u64),
    /// The request goes on. It would be refused, for this reason, if refusing were switched on.
    WouldRefuse(&'static str),
    /// The request goes on, and the client is told with the answer why it should not.
    Warn {
        /// The reason, as a metric's label.
        reason: &'static str,
        /// Whether the client can be told: not before v4, nor where nobody knows which answer is the request's.
        is_told: bool,
    },
    /// The request does not go on, and the client gets an empty result.
    Answer,
    /// The request does not go on, and the client gets an error.
    Refuse(Refused),
}

/// Why a request does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The reason, as a metric's label.
    pub reason: &'static str,
    /// The error that the client gets, without the rule's name. It has no value of a statement in it.
    pub error: Error,
}

/// An ERROR's body (`native_protocol_v5.spec` §9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The request is not understood, or not in this version.
    Protocol(String),
    /// Try again, later or elsewhere.
    Overloaded(String),
    /// The client may not.
    Unauthorized(String),
    /// The request makes no sense here.
    Invalid(String),
    /// A write timeout: one of two replicas has the write, by its consistency and within the time that there was.
    WriteTimeout(String, Consistency),
    /// The client has to PREPARE again; the id that it sent.
    Unprepared(Vec<u8>),
}

impl Error {
    /// The error as its client gets it, by the rule that the flow is under: the steps say what is wrong, and the
    /// editor by which rule.
    pub(crate) fn by(self, rule: &str) -> Self {
        let told = |message: String| match rule {
            "" => message,
            _ => format!("underpass: refused by rule {rule}: {message}"),
        };
        match self {
            Self::Protocol(message) => Self::Protocol(told(message)),
            Self::Overloaded(message) => Self::Overloaded(told(message)),
            Self::Unauthorized(message) => Self::Unauthorized(told(message)),
            Self::Invalid(message) => Self::Invalid(told(message)),
            Self::WriteTimeout(message, at) => Self::WriteTimeout(told(message), at),
            // Drivers prepare again, and nobody reads it.
            Self::Unprepared(id) => Self::Unprepared(id),
        }
    }

    /// Code, message and what follows it.
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut timeout = Vec::new();
        let (code, message, behind) = match self {
            Self::Protocol(message) => (0x000A_u32, message.as_str(), None),
            Self::Overloaded(message) => (0x1001, message.as_str(), None),
            Self::WriteTimeout(message, consistency) => {
                // Received, and required.
                timeout.extend(consistency.0.to_be_bytes());
                timeout.extend([1_u32, 2].map(u32::to_be_bytes).concat());
                put_short_bytes(&mut timeout, b"SIMPLE");
                (0x1100, message.as_str(), None)
            }
            Self::Unauthorized(message) => (0x2100, message.as_str(), None),
            Self::Invalid(message) => (0x2200, message.as_str(), None),
            Self::Unprepared(id) => (0x2500, "the statement has to be prepared again", Some(id)),
        };
        let mut body = Vec::from(code.to_be_bytes());
        put_short_bytes(&mut body, message.as_bytes());
        if let Some(id) = behind {
            put_short_bytes(&mut body, id);
        }
        body.extend(timeout);
        body
    }
}

/// `[string]` and `[short bytes]`; what is too long is cut.
fn put_short_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = bytes.get(..usize::from(u16::MAX)).unwrap_or(bytes);
    to.extend((bytes.len() as u16).to_be_bytes());
    to.extend_from_slice(bytes);
}
