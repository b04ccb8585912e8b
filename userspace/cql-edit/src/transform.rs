//! [`Transform`]: one step of a pipeline.

use std::fmt;
use std::sync::Arc;

use crate::caller::Caller;
use crate::outcome::Outcome;
use crate::request::Request;
use crate::response::Response;
use crate::suspended::{Completion, Resolution};
use cql::Opcode;
use limits::Limit;

/// The steps that a rule's flows go through, in this order.
pub type Pipeline = Arc<[Arc<dyn Transform>]>;

/// How much of what passes has to be copied for a step that only reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Copies {
    /// Requests, and the beginnings of responses.
    Requests,
    /// Responses, too.
    Answers,
}

/// The fate of a request whose response cannot be told from others on its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpaired {
    /// The step is not shown it, nor the response.
    Unseen,
    /// The step is shown it, and decides without the response. Nothing can make it wait.
    Judged,
    /// The request does not go on, and its client gets an error.
    Refused,
}

/// Tokens of a bucket that a process has, or has given out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Tokens of the bucket. Below 0: they are given back.
    pub tokens: f64,
    /// Tokens that were lent when the bucket was empty.
    pub debt: f64,
}

/// A step of a pipeline, shared by all flows of its rule.
pub trait Transform: fmt::Debug + Send + Sync {
    /// The step's name, in the configuration and as a metric's label.
    fn name(&self) -> &'static str;

    /// Whether it is to be shown such requests. What nobody is shown goes on unread.
    fn wants(&self, opcode: Opcode) -> bool;

    /// The copies that do for the step, if it only reads. None: the step may change, answer, delay or refuse something, and
    /// needs the bytes themselves.
    fn copies(&self) -> Option<Copies> {
        None
    }

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

    /// A request of this flow that the step has suspended [is due](crate::Ticket::fall_due): what becomes of it, and of others.
    fn due(&self, flow: usize, number: u64) -> Vec<Completion> {
        let _ = (flow, number);
        Vec::new()
    }

    /// The decision on a suspended request or response when nobody will decide any more: its ticket was
    /// dropped, or the flow ends.
    fn given_up(&self) -> Resolution {
        Resolution::Pass
    }

    /// Whether a response that it has asked for, and that it cannot be shown, is better kept from the client,
    /// who gets an error, than let pass.
    fn must_see(&self) -> bool {
        false
    }

    /// The fate of a request that comes while others are out on its stream, so that nobody can tell which response
    /// is its own. One that this step [must see](Self::must_see) the responses of is refused in any case.
    fn unpaired(&self) -> Unpaired {
        match self.is_strict() || self.must_see() {
            true => Unpaired::Refused,
            false => Unpaired::Unseen,
        }
    }

    /// A response that it has asked for with this number will not be shown, because it cannot be told from others on
    /// its stream. True: it is to be told again with each response that comes there, as any of them may be the one.
    fn response_unpaired(&self, number: u64) -> bool {
        let _ = number;
        false
    }

    /// Whether the database is to be asked for the texts of statements that were prepared where nobody looked. It is
    /// to want EXECUTE and BATCH.
    fn looks_up(&self) -> bool {
        false
    }

    /// Whether it puts something into the custom payload of requests.
    fn adds_payload(&self) -> bool {
        false
    }

    /// Whether it puts this key into the custom payload of requests: a server that sends payloads back is not to
    /// show it to the client.
    fn has_added(&self, key: &[u8]) -> bool {
        let _ = key;
        false
    }

    /// Whether it may change the texts of statements.
    fn changes_texts(&self) -> bool {
        false
    }

    /// Whether it wants to know which statement this id stands for at the caller's database, and does not.
    fn lacks(&self, id: &[u8], caller: &Caller) -> bool {
        let _ = (id, caller);
        false
    }

    /// An id stands for this text, prepared in this keyspace, which [make it](crate::prepared_in): as if it had seen its
    /// PREPARE. `caller`: whose database has told the text.
    fn learns(&self, id: &[u8], keyspace: Option<&str>, text: &[u8], caller: &Caller) {
        let _ = (id, keyspace, text, caller);
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

    /// The tokens that another process which goes on counting does not have, by key: those that were given out and did not come
    /// back, and half of the others, which this one keeps for what it still has to do.
    fn spent(&self, now_ns: u64) -> Vec<(Box<str>, Spent)> {
        let _ = now_ns;
        Vec::new()
    }

    /// The tokens that were kept and not needed. None are kept from now on.
    fn unspent(&self, now_ns: u64) -> Vec<(Box<str>, f64)> {
        let _ = now_ns;
        Vec::new()
    }

    /// So many tokens are not there: the process before has them, or has given them out.
    fn spend(&self, key: &str, spent: Spent, now_ns: u64) {
        let _ = (key, spent, now_ns);
    }

    /// Whether it wants to know [how flows have begun](Request::opening): the names and passwords in it are kept for
    /// nobody else.
    fn wants_opening(&self) -> bool {
        false
    }

    /// The limit that it holds requests to, if the hosts of a fleet share that.
    fn limit(&self) -> Option<&Arc<Limit>> {
        None
    }

    /// Whether it is to be asked of events.
    fn wants_events(&self) -> bool {
        false
    }
}
