//! [`Details`]: what a request and its response carry beside the statement, for a
//! [`Sink`](crate::Sink) that asks.
//!
//! What is known of requests that wait stands beside the table of them and not in it, so that it
//! costs nothing where nobody asks.

use crate::flow::answered::{Answered, answered};
use crate::flow::by_stream::{ByStream, KEPT_CAPACITY};
use crate::flow::fingerprints::Fingerprints;
use crate::flow::parameters::{Parameters, parameters};
use crate::flow::values::{BoundValue, values};
use crate::hash::BuildSpread;
use crate::session::{Claims, plain_user};
use crate::text::analysis::Fingerprint;
use crate::trace::context::{NoTraceContext, Said, TraceContext};
use crate::trace::state::NoTraceState;
use crate::wire::cursor::Cursor;
use crate::wire::header::{Flags, Header, Opcode, StreamId};
use std::collections::HashMap;
use std::sync::Arc;

/// How much of a body is collected for it: a few hundred values, or warnings, in front of what stands behind them.
pub(crate) const DETAIL_PREFIX_BYTES: usize = 64 << 10;

/// How much of an AUTH_RESPONSE: a user and a password.
pub(crate) const LOG_IN_BYTES: usize = 1 << 10;

/// The longest text of a statement that is given out.
pub const MAX_TEXT_BYTES: usize = 8 << 10;

/// The bytes that are kept of one flow's requests while these wait for their responses, in all: 256 for each of [as many as are
/// tracked](crate::MAX_IN_FLIGHT). What is beyond is told without its text, values, fingerprint, trace state, or without itself.
pub const MAX_DETAIL_BYTES: usize = 8 << 20;

/// Details of a request and its response beside the statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The request's details.
    pub asked: Asked,
    /// The response's details.
    pub answered: Answered,
    /// The trace context of a QUERY, PREPARE, EXECUTE or BATCH whose custom payload has a
    /// `traceparent`. Read only for [a sink that wants it](crate::FlowDecoder::wants_contexts).
    pub context: Option<Result<TraceContext, NoTraceContext>>,
    /// The trace state of a request whose context is [sampled](TraceContext::is_sampled), if it has a
    /// `tracestate` with entries; at most [`MAX_TRACE_STATE_BYTES`](crate::MAX_TRACE_STATE_BYTES).
    pub trace_state: Option<Result<Box<str>, NoTraceState>>,
}

/// Details of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Bytes of its body, as sent.
    pub body_bytes: u32,
    /// The request asks the database to trace it.
    pub tracing: bool,
    /// Parameters of a QUERY, EXECUTE or BATCH that could be read.
    pub parameters: Option<Parameters>,
    /// The fingerprint of a QUERY, PREPARE, EXECUTE or BATCH whose texts are all known and understood.
    /// A statement that was prepared while nobody asked for details has none.
    pub fingerprint: Option<Arc<Fingerprint>>,
    /// The words of the request. Kept only for a sink that wants some of them: see [`Words`].
    pub words: Option<Box<Words>>,
    /// The identity in a STARTUP or an AUTH_RESPONSE, whether or not the database
    /// [accepts](Answered::accepts) it.
    pub says: Option<Box<Says>>,
}

/// The client's own words, with what nobody is shown who has not asked for it. In a place of their own, because hardly
/// anybody asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// The text of a QUERY or PREPARE, with the values in it. Kept only for [a sink that wants
    /// texts](crate::FlowDecoder::wants_texts), and at most [`MAX_TEXT_BYTES`] of it.
    pub text: Option<Box<str>>,
    /// The values that are bound to a QUERY, EXECUTE or BATCH. Kept only for [a sink that wants
    /// values](crate::FlowDecoder::wants_values), and at most [`MAX_KEPT_VALUES`](crate::MAX_KEPT_VALUES) of them.
    pub values: Option<Box<[BoundValue]>>,
    /// The request itself. Kept only for [a sink that wants it](crate::FlowDecoder::wants_whole), and of one flow no more
    /// than [`MAX_DETAIL_BYTES`].
    pub whole: Option<Arc<WholeRequest>>,
}

/// A QUERY, PREPARE, EXECUTE or BATCH as it was sent, without its compression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeRequest {
    /// The header, with the length of the body as it was sent.
    pub header: Header,
    /// The body, to its end.
    pub body: Box<[u8]>,
}

impl Asked {
    /// The [text](Words::text).
    pub fn text(&self) -> Option<&str> {
        self.words.as_deref()?.text.as_deref()
    }

    /// The [bound values](Words::values).
    pub fn values(&self) -> Option<&[BoundValue]> {
        self.words.as_deref()?.values.as_deref()
    }

    /// The [request itself](Words::whole).
    pub fn whole(&self) -> Option<&Arc<WholeRequest>> {
        self.words.as_deref()?.whole.as_ref()
    }
}

/// An identity as the client claims it; at most [`MAX_FACT_BYTES`](crate::MAX_FACT_BYTES).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// In its STARTUP.
    Startup(Box<Introduction>),
    /// The user, by SASL PLAIN.
    User(Box<str>),
    /// A user whose name cannot be read: the log-in is by another mechanism, or compressed.
    UnknownUser,
}

impl Says {
    fn bytes(&self) -> usize {
        let of = |fact: &Option<Box<str>>| fact.as_ref().map_or(0, |fact| fact.len());
        match self {
            Self::Startup(said) => {
                size_of::<Introduction>()
                    + of(&said.application)
                    + of(&said.driver)
                    + of(&said.driver_version)
            }
            Self::User(user) => user.len(),
            Self::UnknownUser => 0,
        }
    }
}

/// The client's description of itself in a STARTUP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    /// APPLICATION_NAME.
    pub application: Option<Box<str>>,
    /// DRIVER_NAME.
    pub driver: Option<Box<str>>,
    /// DRIVER_VERSION.
    pub driver_version: Option<Box<str>>,
}

/// The details of one flow's requests that wait, and of the one whose response is passing.
#[derive(Debug, Default)]
pub(crate) struct Detailing {
    waiting: ByStream<Asked>,
    /// Trace contexts, by stream. Few flows have any, and the others need no room for them.
    contexts: HashMap<i16, Said, BuildSpread>,
    pub(crate) passing: Details,
    pub(crate) fingerprints: Fingerprints,
    pub(crate) wants_texts: bool,
    pub(crate) wants_contexts: bool,
    pub(crate) wants_values: bool,
    pub(crate) wants_whole: bool,
    /// Bytes that `waiting` and `contexts` lead to; at most [`MAX_DETAIL_BYTES`].
    bytes: usize,
}

/// The bytes that may still be kept.
struct Room(usize);

impl Room {
    fn of(bytes: usize) -> Self {
        Self(MAX_DETAIL_BYTES.saturating_sub(bytes))
    }

    /// Whether there is room for so many, which are taken then.
    fn takes(&mut self, bytes: usize) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

impl Detailing {
    /// A request's header passed. It is among those that wait, whose number is bounded.
    pub(crate) fn asks(&mut self, header: &Header) {
        let asked = Asked {
            body_bytes: header.length,
            tracing: header.flags.any(Flags::TRACING),
            ..Asked::default()
        };
        let before = self.waiting.insert(header.stream, asked);
        self.bytes -= before.as_ref().map_or(0, kept_bytes);
        self.forget_context(header.stream);
    }

    /// A request's body passes, or the beginning of it.
    pub(crate) fn asks_with(&mut self, header: &Header, prefix: &[u8]) {
        let mut room = Room::of(self.bytes);
        if let Some(asked) = self.waiting.get_mut(header.stream) {
            room.0 += kept_bytes(asked) - fingerprint_bytes(asked);
            asked.words = None;
            asked.parameters = parameters(header, prefix);
            let said = says(header, prefix).filter(|said| room.takes(said.bytes()));
            asked.says = said.map(Box::new);
            if self.wants_texts | self.wants_values | self.wants_whole {
                let text = self.wants_texts.then(|| text(header, prefix)).flatten();
                let values = self.wants_values.then(|| values(header, prefix)).flatten();
                asked.words = Some(Box::new(Words {
                    text: text.filter(|text| room.takes(text.len())).map(Into::into),
                    values: values.filter(|values| room.takes(value_bytes(values))),
                    whole: self
                        .wants_whole
                        .then(|| whole(header, prefix, &mut room))
                        .flatten(),
                }));
            }
            if self.wants_contexts
                && let Some(said) =
                    context(header, prefix).filter(|said| room.takes(state_bytes(said)))
            {
                let before = self.contexts.insert(header.stream.0, said);
                room.0 += before.as_ref().map_or(0, state_bytes);
            }
            self.bytes = MAX_DETAIL_BYTES - room.0;
        }
    }

    /// The parameters of a request may stand elsewhere than was thought.
    #[cold]
    pub(crate) fn forget_parameters(&mut self, stream: StreamId) {
        if let Some(asked) = self.waiting.get_mut(stream) {
            asked.parameters = None;
        }
    }

    /// A request's fingerprint becomes known.
    pub(crate) fn asks_for(&mut self, stream: StreamId, fingerprint: Option<Arc<Fingerprint>>) {
        let mut room = Room::of(self.bytes);
        if let Some(asked) = self.waiting.get_mut(stream) {
            room.0 += fingerprint_bytes(asked);
            asked.fingerprint = fingerprint.filter(|known| room.takes(known.text().len()));
            self.bytes = MAX_DETAIL_BYTES - room.0;
        }
    }

    /// A response's header passed.
    pub(crate) fn answers(&mut self, header: &Header) {
        let asked = self.forget(header.stream);
        let said = self.forget_context(header.stream);
        let accepts = matches!(
            header.opcode,
            Some(Opcode::Ready | Opcode::Authenticate | Opcode::AuthSuccess)
        );
        let has_warnings = header.flags.any(Flags::WARNING);
        let answered = Answered {
            body_bytes: header.length,
            warnings: (!has_warnings).then_some(0),
            accepts,
            ..Answered::default()
        };
        self.passing = Details {
            asked,
            answered,
            context: said.as_ref().map(|said| said.context),
            trace_state: said.and_then(|said| said.state),
        };
    }

    /// A response's body passes, or the beginning of it.
    pub(crate) fn answers_with(&mut self, header: &Header, prefix: &[u8]) {
        if !header.is_compressed() {
            // What was read before it ran out holds.
            _ = answered(header, prefix, &mut self.passing.answered);
        }
    }

    /// Takes the details of a request on `stream` that gets no answer.
    pub(crate) fn unanswered(&mut self, stream: StreamId) -> Details {
        let said = self.forget_context(stream);
        Details {
            asked: self.forget(stream),
            context: said.as_ref().map(|said| said.context),
            trace_state: said.and_then(|said| said.state),
            ..Details::default()
        }
    }

    fn forget_context(&mut self, stream: StreamId) -> Option<Said> {
        if self.contexts.is_empty() {
            return None;
        }
        let context = self.contexts.remove(&stream.0);
        self.bytes -= context.as_ref().map_or(0, state_bytes);
        if self.contexts.is_empty() && self.contexts.capacity() > 2 * KEPT_CAPACITY {
            self.contexts.shrink_to(KEPT_CAPACITY);
        }
        context
    }

    fn forget(&mut self, stream: StreamId) -> Asked {
        let asked = self.waiting.remove(stream);
        self.bytes -= asked.as_ref().map_or(0, kept_bytes);
        asked.unwrap_or_default()
    }
}

/// The bytes that are kept of a request beside its place in the table.
fn kept_bytes(asked: &Asked) -> usize {
    let said = asked.says.as_ref().map_or(0, |said| said.bytes());
    let whole = asked.whole().map_or(0, |whole| whole.body.len());
    let text = asked.text().map_or(0, str::len);
    said + whole + text + asked.values().map_or(0, value_bytes) + fingerprint_bytes(asked)
}

fn fingerprint_bytes(asked: &Asked) -> usize {
    let known = asked.fingerprint.as_ref();
    known.map_or(0, |known| known.text().len())
}

fn value_bytes(values: &[BoundValue]) -> usize {
    let each = values.iter().map(|value| match value {
        BoundValue::Bytes(bytes, _) => bytes.len(),
        BoundValue::Null | BoundValue::Unset => 0,
    });
    size_of_val(values) + each.sum::<usize>()
}

fn state_bytes(said: &Said) -> usize {
    let state = said.state.as_ref();
    state.map_or(0, |state| state.as_ref().map_or(0, |state| state.len()))
}

/// A request with statements, if all of it is there and there is room for it.
fn whole(header: &Header, prefix: &[u8], room: &mut Room) -> Option<Arc<WholeRequest>> {
    let is_whole = prefix.len() >= header.length as usize && !header.is_compressed();
    let is_kept = is_whole && header.opcode?.has_statements() && room.takes(prefix.len());
    is_kept.then(|| {
        Arc::new(WholeRequest {
            header: *header,
            body: prefix.into(),
        })
    })
}

/// A statement's text that is whole.
fn text<'b>(header: &Header, prefix: &'b [u8]) -> Option<&'b str> {
    if header.is_compressed() || !matches!(header.opcode?, Opcode::Query | Opcode::Prepare) {
        return None;
    }
    let mut body = Cursor::new(prefix);
    if header.flags.any(Flags::CUSTOM_PAYLOAD) {
        body.skip_bytes_map()?;
    }
    let declared = body.long_string_len()?;
    let text = body.take(declared)?;
    std::str::from_utf8(text)
        .ok()
        .filter(|text| text.len() <= MAX_TEXT_BYTES)
}

/// Reads the client's trace context. v3 has no custom payload.
fn context(header: &Header, prefix: &[u8]) -> Option<Said> {
    let has_payload = header.version >= 4 && header.flags.any(Flags::CUSTOM_PAYLOAD);
    match has_payload && !header.is_compressed() {
        true => Said::of_payload(Cursor::new(prefix)),
        false => None,
    }
}

/// Reads the client's identity from a body.
fn says(header: &Header, prefix: &[u8]) -> Option<Says> {
    match header.opcode? {
        Opcode::AuthResponse if header.is_compressed() => Some(Says::UnknownUser),
        _ if header.is_compressed() => None,
        Opcode::Startup => {
            let claims = Claims::read(prefix);
            Some(Says::Startup(Box::new(Introduction {
                application: claims.application.and_then(Result::ok),
                driver: claims.driver.and_then(Result::ok),
                driver_version: claims.driver_version.and_then(Result::ok),
            })))
        }
        Opcode::AuthResponse => Some(plain_user(prefix).map_or(Says::UnknownUser, Says::User)),
        _ => None,
    }
}
