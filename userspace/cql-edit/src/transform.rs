//! What a transform is, and what it may do.

use std::fmt;
use std::net::SocketAddr;

use crate::lookups::LookedUp;
use crate::parking::{Letter, Resolution, Waited};
use crate::request::{Note, Request};
use crate::response::Response;
use cql::Consistency;
use cql::{Opcode, StreamId};

/// One step of a pipeline, shared by all flows of its rule.
pub trait Transform: fmt::Debug + Send + Sync {
    /// As in the configuration, and as a metric's label.
    fn name(&self) -> &'static str;

    /// Whether it is to be shown such requests. What nobody is shown goes on unread.
    fn wants(&self, opcode: Opcode) -> bool;

    /// Whether a request that cannot be read, or is too large to be, is better refused than let pass.
    fn is_strict(&self) -> bool {
        false
    }

    /// Looks at a request, and may change it.
    fn request(&self, request: &mut Request<'_>, caller: &Caller, now_ns: u64) -> Outcome;

    /// Looks at a response, and may change it, that it has asked for with this number
    /// ([`Request::await_response`]). True: it has.
    fn response(&self, response: &mut Response<'_>, caller: &Caller, number: u64) -> bool {
        let _ = (response, caller, number);
        false
    }

    /// A request of this flow that it has parked [is due](super::Ticket::is_due): what becomes of it, and of others.
    fn due(&self, flow: usize, number: u64) -> Vec<Letter> {
        let _ = (flow, number);
        Vec::new()
    }

    /// What becomes of a request or a response that it has parked when nobody will say so any more: the ticket was
    /// dropped, or the flow ends.
    fn given_up(&self) -> Resolution {
        Resolution::Pass
    }

    /// Whether a response that it has asked for, and that it cannot be shown, is better kept from the client,
    /// who gets an error, than let pass.
    fn must_see(&self) -> bool {
        false
    }

    /// Whether the database is to be asked for the texts of statements that were prepared where nobody looked. It is
    /// to want EXECUTE and BATCH.
    fn looks_up(&self) -> bool {
        false
    }

    /// Whether it wants to know which statement this id stands for, and does not.
    fn lacks(&self, id: &[u8]) -> bool {
        let _ = id;
        false
    }

    /// An id stands for this text, prepared in this keyspace: as if it had seen its PREPARE.
    fn learns(&self, id: &[u8], keyspace: Option<&str>, text: &[u8]) {
        let _ = (id, keyspace, text);
    }

    /// Whether a client may be told of an event.
    fn lets_pass(&self, event: &Response<'_>) -> bool {
        let _ = event;
        true
    }

    /// Changes an event that passes. True: it has.
    fn event(&self, event: &mut Response<'_>) -> bool {
        let _ = event;
        false
    }

    /// Whether it wants to know [how flows have begun](Request::opening): the names and passwords in it are kept for
    /// nobody else.
    fn wants_opening(&self) -> bool {
        false
    }

    /// Whether it is to be asked of events.
    fn wants_events(&self) -> bool {
        false
    }
}

/// Whose flow it is, as far as that is known.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The rule that the flow is under.
    pub rule: String,
    /// The client's address, without its port.
    pub client: String,
    /// What the client has dialled.
    pub dialled: Option<SocketAddr>,
    /// What whoever carries the flow knows it as: for steps of theirs, which know what that is.
    pub flow: Option<Note>,
    /// Which keyspace it is in, by the last USE that succeeded: as the client is told.
    pub keyspace: Option<String>,
    /// A USE is out, or more than can be told have been: which keyspace it is in, and whether in one, nobody knows.
    pub keyspace_unclear: bool,
    /// That USE may have passed before there was a pipeline, so that the name is the database's.
    pub keyspace_before: bool,
    /// Who has logged in, where that was by SASL PLAIN; as the database has accepted it.
    pub user: Option<String>,
    /// It has logged in, whoever it is and by whatever means.
    pub logged_in: bool,
    /// The name of its process, if that is on this host.
    pub process: Option<String>,
    /// Its cgroup, likewise.
    pub cgroup: Option<String>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It goes on as it was sent.
    Pass,
    /// It goes on with changes.
    Changed,
    /// It goes on, and nothing more is read of the flow for so many ns.
    Slow(u64),
    /// It would be refused if that were wanted; for this reason.
    WouldRefuse(&'static str),
    /// It does not go on, and the client gets an empty result.
    Answer,
    /// It does not go on, and the client is told.
    Refuse(Refused),
}

/// Why a request does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// As a metric's label.
    pub reason: &'static str,
    /// What the client is told.
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
    /// One of two has a write, by its consistency and within the time that there was.
    WriteTimeout(String, Consistency),
    /// The client has to PREPARE again; the id that it sent.
    Unprepared(Vec<u8>),
}

impl Error {
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

/// Who is told what transforms did.
pub trait Log {
    /// It has changed a request, or a response.
    fn changed(&mut self, transform: &'static str);
    /// It has refused one, which will be answered on its stream.
    fn refused(&mut self, stream: StreamId, transform: &'static str, reason: &'static str);
    /// It has the client get an error in place of a response: the database has done what was asked.
    fn withheld(&mut self, transform: &'static str, reason: &'static str) {
        let _ = (transform, reason);
    }
    /// It has answered one in place of the database.
    fn answered(&mut self, transform: &'static str);
    /// It would have, and only says so.
    fn would_refuse(&mut self, transform: &'static str, reason: &'static str);
    /// It has slowed a flow down by so many ns.
    fn slowed(&mut self, transform: &'static str, ns: u64);
    /// A request could not be shown to the pipeline; and went on, or was refused.
    fn unseen(&mut self, stream: StreamId, why: Unseen, refused: bool);
    /// This became of a request or a response that a transform had wait, or wanted to.
    fn waited(&mut self, transform: &'static str, what: Waited) {
        let _ = (transform, what);
    }
    /// This became of a question for the text of a statement that was prepared where nobody looked.
    fn looked_up(&mut self, what: LookedUp) {
        let _ = what;
    }
    /// A response could not be shown, and its client got an error instead.
    fn unshown(&mut self, why: Unseen) {
        let _ = why;
    }
}

/// Why a request could not be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// More than [`MAX_SEEN_BYTES`](super::MAX_SEEN_BYTES).
    TooLarge,
    /// All flows together hold back as much as they may.
    NoRoom,
    /// Its body is not what was negotiated, or declares to be too large.
    Compression,
    /// Its body is not what its header says.
    Malformed,
}

cql::labelled!(Unseen {
    TooLarge => "too_large",
    NoRoom => "no_room",
    Compression => "compression",
    Malformed => "malformed",
});
