//! [`Details`]: what a request and its response carry beside the statement, for a
//! [`Sink`](crate::Sink) that asks.
//!
//! What is known of requests that wait stands beside the table of them and not in it, so that it
//! costs nothing where nobody asks.

use crate::fact::Fact;
use crate::flow::fingerprints::Fingerprints;
use crate::hash::BuildSpread;
use crate::session::{Claims, plain_user};
use crate::text::analysis::Fingerprint;
use crate::trace::context::{NoTraceContext, Said, TraceContext};
use crate::trace::state::NoTraceState;
use crate::wire::cursor::Cursor;
use crate::wire::header::{Flags, Header, Opcode, StreamId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// How much of a body is collected for it: a few hundred values, or warnings, in front of what stands behind them.
pub(crate) const DETAIL_PREFIX_BYTES: usize = 64 << 10;

/// How much of an AUTH_RESPONSE: a user and a password.
pub(crate) const LOG_IN_BYTES: usize = 1 << 10;

/// The longest text of a statement that is given out.
pub const MAX_TEXT_BYTES: usize = 8 << 10;

/// How deep the type of a column may be nested in a result. Cassandra has no limit; people use
/// three.
const MAX_TYPE_DEPTH: u32 = 32;

/// A table that once held a burst keeps room for this many requests.
const KEPT_CAPACITY: usize = 2048;

/// A consistency level (`native_protocol_v5.spec` §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Consistency(
    /// The number as sent.
    pub u16,
);

impl Consistency {
    /// By its name in CQL, such as `LOCAL_QUORUM`, in capital letters or not.
    pub fn by_name(name: &str) -> Option<Self> {
        let known = (0x0000..=0x000A).map(Self);
        known
            .into_iter()
            .find(|level| level.as_str().eq_ignore_ascii_case(name))
    }

    /// SERIAL or LOCAL_SERIAL.
    pub const fn is_serial(self) -> bool {
        matches!(self.0, 0x0008 | 0x0009)
    }

    /// The name as a metric label, in snake case: one of a fixed set, `other` for what is unlisted.
    pub const fn as_str(self) -> &'static str {
        match self.0 {
            0x0000 => "any",
            0x0001 => "one",
            0x0002 => "two",
            0x0003 => "three",
            0x0004 => "quorum",
            0x0005 => "all",
            0x0006 => "local_quorum",
            0x0007 => "each_quorum",
            0x0008 => "serial",
            0x0009 => "local_serial",
            0x000A => "local_one",
            _ => "other",
        }
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

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
    /// The text of a QUERY or PREPARE, with the values in it. Kept only for [a sink that wants
    /// texts](crate::FlowDecoder::wants_texts), and at most [`MAX_TEXT_BYTES`] of it.
    pub text: Option<Box<str>>,
    /// The identity in a STARTUP or an AUTH_RESPONSE, whether or not the database
    /// [accepts](Answered::accepts) it.
    pub says: Option<Box<Says>>,
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

/// The parameters of a QUERY, EXECUTE or BATCH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The level asked for.
    pub consistency: Consistency,
    /// Serial consistency of a light-weight transaction; [`Fact::Open`] if it lies beyond what is read.
    pub serial_consistency: Fact<Consistency>,
    /// How many statements: 1 except of a BATCH.
    pub statements: u16,
    /// How many values are bound, to all of them.
    pub values: u32,
    /// Rows to a page; [`Fact::Open`] likewise.
    pub page_size: Fact<i32>,
    /// The request asks for a later page.
    pub paging_state: bool,
}

/// Details of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Bytes of its body, as sent.
    pub body_bytes: u32,
    /// The id of the database's trace, which holds for the request's session there.
    pub tracing_id: Option<[u8; 16]>,
    /// How many warnings; `None` if they could not be read.
    pub warnings: Option<u16>,
    /// Rows of a RESULT that holds some, or none of them; `None` of others, and of one that could
    /// not be read.
    pub rows: Option<u32>,
    /// There are more pages behind these rows.
    pub more_pages: bool,
    /// READY, AUTHENTICATE or AUTH_SUCCESS: what a client says of itself holds.
    pub accepts: bool,
}

/// The details of one flow's requests that wait, and of the one whose response is passing.
#[derive(Debug, Default)]
pub(crate) struct Detailing {
    waiting: HashMap<i16, Asked, BuildSpread>,
    /// Trace contexts, by stream. Few flows have any, and the others need no room for them.
    contexts: HashMap<i16, Said, BuildSpread>,
    pub(crate) passing: Details,
    pub(crate) fingerprints: Fingerprints,
    pub(crate) wants_texts: bool,
    pub(crate) wants_contexts: bool,
}

impl Detailing {
    /// A request's header passed. It is among those that wait, whose number is bounded.
    pub(crate) fn asks(&mut self, header: &Header) {
        let asked = Asked {
            body_bytes: header.length,
            tracing: header.flags.any(Flags::TRACING),
            ..Asked::default()
        };
        self.waiting.insert(header.stream.0, asked);
        self.forget_context(header.stream);
    }

    /// A request's body passes, or the beginning of it.
    pub(crate) fn asks_with(&mut self, header: &Header, prefix: &[u8]) {
        if let Some(asked) = self.waiting.get_mut(&header.stream.0) {
            asked.parameters = parameters(header, prefix);
            asked.says = says(header, prefix).map(Box::new);
            if self.wants_texts {
                asked.text = text(header, prefix).map(Into::into);
            }
            if self.wants_contexts
                && let Some(context) = context(header, prefix)
            {
                self.contexts.insert(header.stream.0, context);
            }
        }
    }

    /// The parameters of a request may stand elsewhere than was thought.
    #[cold]
    pub(crate) fn forget_parameters(&mut self, stream: StreamId) {
        if let Some(asked) = self.waiting.get_mut(&stream.0) {
            asked.parameters = None;
        }
    }

    /// A request's fingerprint becomes known.
    pub(crate) fn asks_for(&mut self, stream: StreamId, fingerprint: Option<Arc<Fingerprint>>) {
        if let Some(asked) = self.waiting.get_mut(&stream.0) {
            asked.fingerprint = fingerprint;
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
        if self.contexts.is_empty() && self.contexts.capacity() > 2 * KEPT_CAPACITY {
            self.contexts.shrink_to(KEPT_CAPACITY);
        }
        context
    }

    fn forget(&mut self, stream: StreamId) -> Asked {
        let asked = self.waiting.remove(&stream.0);
        if self.waiting.is_empty() && self.waiting.capacity() > 2 * KEPT_CAPACITY {
            self.waiting.shrink_to(KEPT_CAPACITY);
        }
        asked.unwrap_or_default()
    }
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

/// The parameters of a request; `None` if there are none, or none that can be read.
fn parameters(header: &Header, prefix: &[u8]) -> Option<Parameters> {
    if header.is_compressed() {
        return None;
    }
    let mut body = Cursor::new(prefix);
    if header.flags.any(Flags::CUSTOM_PAYLOAD) {
        body.skip_bytes_map()?;
    }
    match header.opcode? {
        Opcode::Query => body.skip_bytes()?,
        Opcode::Execute => {
            body.short_bytes()?;
            if header.metadata_id {
                body.short_bytes()?; // the id of the result's metadata
            }
        }
        Opcode::Batch => return batch(header, body),
        _ => return None,
    }
    one(header, body)
}

/// §4.1.4: behind the text or the id.
fn one(header: &Header, mut body: Cursor<'_>) -> Option<Parameters> {
    let consistency = Consistency(body.short()?);
    let given = Given(flags(header, &mut body)?);
    let values = match given.has(Given::VALUES) {
        true => body.short()?,
        false => 0,
    };
    let mut parameters = Parameters {
        consistency,
        serial_consistency: given.unread(Given::SERIAL),
        statements: 1,
        values: values.into(),
        page_size: given.unread(Given::PAGE_SIZE),
        paging_state: given.has(Given::PAGING_STATE),
    };
    _ = behind_values(body, given, values, &mut parameters);
    Some(parameters)
}

/// Reads the parameters that stand behind the values; `None` where the prefix ends.
fn behind_values(
    mut body: Cursor<'_>,
    given: Given,
    values: u16,
    parameters: &mut Parameters,
) -> Option<()> {
    for _ in 0..values {
        if given.has(Given::NAMES) {
            body.short_bytes()?;
        }
        body.skip_bytes()?;
    }
    if given.has(Given::PAGE_SIZE) {
        parameters.page_size = Fact::Is(body.int()?);
    }
    if given.has(Given::PAGING_STATE) {
        body.skip_bytes()?;
    }
    if given.has(Given::SERIAL) {
        parameters.serial_consistency = Fact::Is(Consistency(body.short()?));
    }
    Some(())
}

/// §4.1.7: the type, the children with their values, and what is given for all of them.
fn batch(header: &Header, mut body: Cursor<'_>) -> Option<Parameters> {
    let _type = body.byte()?;
    let statements = body.short()?;
    let mut values = 0_u32;
    for _ in 0..statements {
        match body.byte()? {
            0 => body.skip_bytes()?,
            1 => body.short_bytes().map(drop)?,
            _ => return None,
        }
        let bound = body.short()?;
        values = values.saturating_add(bound.into());
        for _ in 0..bound {
            body.skip_bytes()?;
        }
    }
    let consistency = Consistency(body.short()?);
    let given = Given(flags(header, &mut body)?);
    let serial_consistency = match given.has(Given::SERIAL) {
        true => Fact::Is(Consistency(body.short()?)),
        false => Fact::Absent,
    };
    Some(Parameters {
        consistency,
        serial_consistency,
        statements,
        values,
        page_size: Fact::Absent,
        paging_state: false,
    })
}

/// Reads the flags: one byte, and since v5 four.
fn flags(header: &Header, body: &mut Cursor<'_>) -> Option<u32> {
    match header.version {
        5.. => body.int().map(i32::cast_unsigned),
        _ => body.byte().map(u32::from),
    }
}

/// The flags, which say which parameters are there.
#[derive(Clone, Copy)]
struct Given(u32);

impl Given {
    const VALUES: u32 = 0x01;
    const PAGE_SIZE: u32 = 0x04;
    const PAGING_STATE: u32 = 0x08;
    const SERIAL: u32 = 0x10;
    const NAMES: u32 = 0x40;

    fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// A parameter that is there and not read yet, or that is not there.
    fn unread<T>(self, flag: u32) -> Fact<T> {
        match self.has(flag) {
            true => Fact::Open,
            false => Fact::Absent,
        }
    }
}

/// §4.2: what stands in front (tracing id, warnings, custom payload), and the rows.
fn answered(header: &Header, prefix: &[u8], answered: &mut Answered) -> Option<()> {
    let mut body = Cursor::new(prefix);
    if header.flags.any(Flags::TRACING) {
        answered.tracing_id = Some(body.take(16)?.try_into().ok()?);
    }
    if header.flags.any(Flags::WARNING) {
        let warnings = body.short()?;
        answered.warnings = Some(warnings);
        for _ in 0..warnings {
            body.short_bytes()?;
        }
    }
    if header.flags.any(Flags::CUSTOM_PAYLOAD) {
        body.skip_bytes_map()?;
    }
    if header.opcode == Some(Opcode::Result) {
        rows(&mut body, answered)?;
    }
    Some(())
}

/// §4.2.5.2: the description of the columns, and how many rows there are.
fn rows(body: &mut Cursor<'_>, answered: &mut Answered) -> Option<()> {
    const ROWS: i32 = 2;
    const GLOBAL_TABLE: i32 = 0x01;
    const MORE_PAGES: i32 = 0x02;
    const NO_METADATA: i32 = 0x04;
    const METADATA_CHANGED: i32 = 0x08;
    if body.int()? != ROWS {
        return Some(());
    }
    let flags = body.int()?;
    let columns = u32::try_from(body.int()?).ok()?;
    answered.more_pages = flags & MORE_PAGES != 0;
    if answered.more_pages {
        body.skip_bytes()?;
    }
    if flags & METADATA_CHANGED != 0 {
        body.short_bytes()?;
    }
    if flags & NO_METADATA == 0 {
        let global = flags & GLOBAL_TABLE != 0;
        if global {
            body.short_bytes()?;
            body.short_bytes()?;
        }
        for _ in 0..columns {
            if !global {
                body.short_bytes()?;
                body.short_bytes()?;
            }
            body.short_bytes()?;
            skip_type(body, MAX_TYPE_DEPTH)?;
        }
    }
    answered.rows = Some(u32::try_from(body.int()?).ok()?);
    Some(())
}

/// Steps over an `[option]` that names a type.
fn skip_type(body: &mut Cursor<'_>, depth: u32) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    match body.short()? {
        0x0000 => body.short_bytes().map(drop)?,    // a class
        0x0020 | 0x0022 => skip_type(body, depth)?, // list, set
        0x0021 => {
            skip_type(body, depth)?;
            skip_type(body, depth)?;
        }
        0x0030 => {
            body.short_bytes()?;
            body.short_bytes()?;
            for _ in 0..body.short()? {
                body.short_bytes()?;
                skip_type(body, depth)?;
            }
        }
        0x0031 => {
            for _ in 0..body.short()? {
                skip_type(body, depth)?;
            }
        }
        _ => {}
    }
    Some(())
}
