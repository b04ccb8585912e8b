//! The meaning of frames from the client: versions asked for, statements sent, streams taken.

use crate::extensions::Extensions;
use crate::fact::Fact;
use crate::flow::details::{DETAIL_PREFIX_BYTES, LOG_IN_BYTES};
use crate::flow::event::{Anomaly, Sink, asks_for_details};
use crate::flow::lane::{Meaning, foreign_version};
use crate::flow::parameters::{batch_keyspace, prepare_keyspace, query_keyspace};
use crate::flow::pending::{InFlight, NotPending};
use crate::flow::prepared::Recent;
use crate::flow::state::{Flow, Stop};
use crate::text::analysis::Fingerprint;
use crate::text::lex::{MAX_NAME_BYTES, Name};
use crate::text::parse::parse;
use crate::text::statement::{Statement, StatementKind, StatementRef};
use crate::verdict::{CloseReason, Undecodable};
use crate::wire::compression::Compression;
use crate::wire::cursor::Cursor;
use crate::wire::header::{Flags, Header, Opcode, ProtocolVersion, StreamId};
use std::sync::Arc;

/// How much of a body is collected where a text may stand in it: as much of a statement as is ever
/// read, and room for a custom payload before it or a batch's other children behind it.
const TEXT_PREFIX_BYTES: usize = 64 << 10;

/// How much of an EXECUTE is collected: its id of at most
/// [`MAX_PREPARED_ID_BYTES`](crate::told::MAX_PREPARED_ID_BYTES) stands in front.
pub(crate) const ID_PREFIX_BYTES: usize = 512;

/// How many children of a batch are looked at for one with a known table. Mostly it is the first;
/// a batch of nothing but unknown ids must not keep asking the shared store for each.
const MAX_CHILDREN_LOOKED_AT: u16 = 64;

/// How much of a body [`Requests`] wants to see.
pub(crate) fn wanted_bytes(header: &Header) -> usize {
    match header.opcode {
        Some(Opcode::Execute) if !header.flags.any(Flags::CUSTOM_PAYLOAD) => ID_PREFIX_BYTES,
        Some(
            Opcode::Query | Opcode::Prepare | Opcode::Execute | Opcode::Batch | Opcode::Startup,
        ) => TEXT_PREFIX_BYTES,
        _ => 0,
    }
}

/// From the client to the database.
pub(crate) enum Requests {}

impl Meaning for Requests {
    const DIRECTION_BIT: u8 = 0;

    fn wanted(header: &Header) -> usize {
        wanted_bytes(header)
    }

    fn wanted_in_detail(header: &Header) -> usize {
        match header.opcode {
            Some(Opcode::Execute) => DETAIL_PREFIX_BYTES,
            Some(Opcode::AuthResponse) => LOG_IN_BYTES,
            _ => wanted_bytes(header),
        }
    }

    fn version(flow: &mut Flow, version: u8, in_first_frame: bool) -> Result<(), Stop> {
        if flow.accepted && flow.version != Some(version) {
            return Err(Stop::Close(CloseReason::VersionChanged));
        }
        // Until a STARTUP is accepted, the client may try one version after the other.
        match ProtocolVersion::from_byte(version) {
            Some(_) => Ok(()),
            None => Err(foreign_version(version, in_first_frame)),
        }
    }

    fn header(
        flow: &mut Flow,
        header: &Header,
        in_first_frame: bool,
        now_ns: u64,
        sink: &mut impl Sink,
    ) -> Result<(), Stop> {
        let plausible = header.opcode.is_some() && !header.flags.any(Flags::RESERVED);
        if in_first_frame && !plausible {
            return Err(Stop::Undecodable(Undecodable::NotCql));
        }
        if !flow.accepted {
            flow.may_be_beta = header.version == 5 && header.flags.any(Flags::BETA);
        }
        flow.version = Some(header.version);
        if header.opcode.is_none() {
            sink.anomaly(Anomaly::UnknownOpcode);
        }
        if header.opcode == Some(Opcode::Startup) {
            flow.startups = flow.startups.saturating_add(1);
        }
        let kind = kind_by_opcode(header.opcode);
        let request = InFlight {
            statement: flow.statements.bare(kind),
            started_ns: now_ns,
            request_bytes: header.frame_bytes(),
            prepares: None,
        };
        let inserted = flow.pending.insert(header.stream, request);
        if let Err((why, request)) = inserted {
            unpaired(flow, header, (why, request), now_ns, sink);
        }
        if asks_for_details(sink) {
            flow.detailing().asks(header);
        }
        Ok(())
    }

    fn body(flow: &mut Flow, header: &Header, prefix: &[u8], sink: &mut impl Sink) {
        if flow.extensions.unknown && header.opcode != Some(Opcode::Startup) {
            return beyond_reading(flow, header, sink);
        }
        if asks_for_details(sink) {
            let metadata_id = header.metadata_id || flow.extensions.metadata_id;
            let is_clear = metadata_id || !flow.has_unseen_startup;
            let header = Header {
                metadata_id,
                ..*header
            };
            flow.detailing().asks_with(&header, prefix);
            if header.opcode == Some(Opcode::Execute) && !is_clear {
                flow.detailing().forget_parameters(header.stream);
            }
        }
        let reading = Reading {
            flow,
            header,
            prefix,
            sink,
        };
        match header.opcode {
            // One that is not the first is refused.
            Some(Opcode::Startup) if !reading.flow.accepted && reading.flow.startups == 1 => {
                reading.startup();
            }
            Some(Opcode::Query | Opcode::Prepare | Opcode::Execute | Opcode::Batch) => {
                reading.statement();
            }
            _ => {}
        }
    }

    #[inline]
    fn end(flow: &mut Flow, _: &Header, now_ns: u64, sink: &mut impl Sink) -> Result<(), Stop> {
        if let Some((stream, request)) = flow.unpaired.take() {
            tell_unpaired(flow, stream, &request, now_ns, sink);
        }
        Ok(())
    }
}

/// Handles the body of a request that may have a layout which is not known.
#[cold]
#[inline(never)]
fn beyond_reading(flow: &mut Flow, header: &Header, sink: &mut impl Sink) {
    sink.anomaly(Anomaly::UnknownExtension);
    if asks_for_details(sink) {
        flow.detailing().asks_with(header, &[]);
    }
}

/// Handles a request whose response cannot be told from others: it is told of as one without response, once it has
/// passed, and so is the other one on its stream, now.
#[cold]
#[inline(never)]
fn unpaired(
    flow: &mut Flow,
    header: &Header,
    (why, request): (NotPending, InFlight),
    now_ns: u64,
    sink: &mut impl Sink,
) {
    flow.unpaired = Some((header.stream, request));
    sink.anomaly(match why {
        NotPending::Full => Anomaly::TooManyInFlight,
        NotPending::Duplicate(_) => Anomaly::DuplicateStream,
    });
    if let NotPending::Duplicate(Some(other)) = why {
        tell_unpaired(flow, header.stream, &other, now_ns, sink);
    }
}

/// Tells a sink that asks for details of a request that is not paired with a response.
#[cold]
#[inline(never)]
fn tell_unpaired<S: Sink>(
    flow: &mut Flow,
    stream: StreamId,
    request: &InFlight,
    now_ns: u64,
    sink: &mut S,
) {
    if asks_for_details(sink) {
        let details = flow.detailing().unanswered(stream);
        sink.unanswered(&request.without_response(stream, now_ns), &details);
    }
}

/// The kind of a request before its body is read, or without it.
fn kind_by_opcode(opcode: Option<Opcode>) -> StatementKind {
    match opcode {
        Some(Opcode::Query) => StatementKind::Query,
        Some(Opcode::Prepare) => StatementKind::Prepare,
        Some(Opcode::Execute) => StatementKind::Execute,
        Some(Opcode::Batch) => StatementKind::Batch,
        Some(Opcode::Startup) => StatementKind::Startup,
        Some(Opcode::Options) => StatementKind::Options,
        Some(Opcode::Register) => StatementKind::Register,
        Some(Opcode::AuthResponse) => StatementKind::AuthResponse,
        _ => StatementKind::Unknown,
    }
}

/// Reads the statement of a QUERY, PREPARE, EXECUTE or BATCH that is not compressed (any more), by the
/// beginning of its body. `None`: it could not be read.
pub(crate) fn read_statement(
    flow: &mut Flow,
    header: &Header,
    prefix: &[u8],
    sink: &mut impl Sink,
) -> Option<Found> {
    Reading {
        flow,
        header,
        prefix,
        sink,
    }
    .find()
}

/// The statement that was found in a body.
#[derive(Default)]
pub(crate) struct Found {
    /// `None`: nothing beyond what the opcode tells.
    pub(crate) statement: Option<Arc<Statement>>,
    pub(crate) prepares: Option<StatementKind>,
    /// The fingerprint of an EXECUTE, for a sink that asks for details.
    fingerprint: Option<Arc<Fingerprint>>,
    /// The request may name a keyspace for the statement's table, and nobody can say which.
    pub(crate) may_name_keyspace: bool,
}

impl Found {
    fn new(statement: Arc<Statement>) -> Self {
        Self {
            statement: Some(statement),
            ..Self::default()
        }
    }

    fn named(statement: Arc<Statement>, may_name_keyspace: bool) -> Self {
        Self {
            may_name_keyspace,
            ..Self::new(statement)
        }
    }
}

/// A request whose body is being read. `None` from its methods: the prefix ended too early.
struct Reading<'r, S> {
    flow: &'r mut Flow,
    header: &'r Header,
    prefix: &'r [u8],
    sink: &'r mut S,
}

impl<'r, S: Sink> Reading<'r, S> {
    /// `native_protocol_v5.spec` §4.1.1: a `[string map]` of options.
    fn startup(mut self) {
        if self.header.is_compressed() {
            self.sink.anomaly(Anomaly::CompressedBody);
            self.flow.extensions = Extensions::UNKNOWN;
            return;
        }
        let options = self.body().map_or(&[][..], |body| body.rest());
        let asked = Compression::asked_for(options);
        if asked.is_none() {
            self.ran_out();
        }
        self.flow.compression = asked.unwrap_or(Fact::Absent);
        let offered = self.flow.offered.as_ref();
        self.flow.extensions = Extensions::asked_for(options, offered);
    }

    /// QUERY, PREPARE, EXECUTE or BATCH: notes the statement with the waiting request.
    fn statement(mut self) {
        if self.header.opcode == Some(Opcode::Prepare) {
            // One on this stream before may not have been answered.
            self.flow.preparing.take(self.header.stream);
        }
        if self.header.is_compressed() {
            self.sink.anomaly(Anomaly::CompressedBody);
            return;
        }
        let Some(mut found) = self.find() else {
            return self.ran_out();
        };
        if asks_for_details(self.sink) {
            let fingerprint = match self.header.opcode {
                Some(Opcode::Execute) => found.fingerprint.take(),
                _ => self.fingerprint(),
            };
            let stream = self.header.stream;
            self.flow.detailing().asks_for(stream, fingerprint);
        }
        if let Some(statement) = found.statement
            && let Some(request) = self.flow.passing(self.header.stream)
        {
            request.statement = statement;
            request.prepares = found.prepares;
        }
    }

    /// Behind what a client may put in front.
    fn body(&self) -> Option<Cursor<'r>> {
        let mut body = Cursor::new(self.prefix);
        if self.header.flags.any(Flags::CUSTOM_PAYLOAD) {
            body.skip_bytes_map()?;
        }
        Some(body)
    }

    fn fingerprint(&mut self) -> Option<Arc<Fingerprint>> {
        let mut body = self.body()?;
        match self.header.opcode {
            Some(Opcode::Query | Opcode::Prepare) => {
                let text = self.text(&mut body)?;
                let fingerprints = &mut self.flow.detailing().fingerprints;
                fingerprints.of_text(text.read, text.declared)
            }
            _ => {
                self.flow.detailing();
                let Flow {
                    detailing,
                    prepared,
                    statements,
                    ..
                } = &mut *self.flow;
                let fingerprints = &mut detailing.as_mut()?.fingerprints;
                fingerprints.of_batch(body, prepared, statements)
            }
        }
    }

    fn find(&mut self) -> Option<Found> {
        let body = self.body()?;
        match self.header.opcode {
            Some(Opcode::Query) => self.query(body),
            Some(Opcode::Prepare) => self.prepare(body),
            Some(Opcode::Execute) => self.execute(body),
            _ => self.batch(body),
        }
    }

    /// §4.1.4: a `[long string]`, and the parameters.
    fn query(&mut self, mut body: Cursor<'r>) -> Option<Found> {
        let text = self.text(&mut body)?;
        let parsed = parse(text.read, text.declared);
        self.note_cut(parsed.cut);
        let header = self.header;
        let named = || query_keyspace(header, text.behind(body)?);
        let (statement, may_name) = self.complete(parsed.statement, named);
        Some(Found::named(statement, may_name))
    }

    /// §4.1.5: a `[long string]`; since v5 flags, and perhaps a keyspace.
    fn prepare(&mut self, mut body: Cursor<'r>) -> Option<Found> {
        let text = self.text(&mut body)?;
        let parsed = parse(text.read, text.declared);
        self.note_cut(parsed.cut);
        let header = self.header;
        let named = || prepare_keyspace(header, text.behind(body)?);
        let prepares = Some(parsed.statement.kind);
        if text.read.len() == text.declared {
            let Flow {
                keyspace,
                preparing,
                ..
            } = &mut *self.flow;
            let keyspace = match named() {
                Some(Some(named)) => Some(named).filter(|named| named.len() <= MAX_NAME_BYTES),
                Some(None) => keyspace.as_deref(),
                None => None,
            };
            preparing.asks(header.stream, text.read, keyspace);
        }
        let statement = StatementRef {
            kind: StatementKind::Prepare,
            ..parsed.statement
        };
        let (statement, may_name) = self.complete(statement, named);
        Some(Found {
            prepares,
            ..Found::named(statement, may_name)
        })
    }

    #[cold]
    fn note_unknown(&mut self, id: &[u8]) {
        self.sink.anomaly(Anomaly::UnknownPreparedId);
        self.sink.unknown_prepared(id);
    }

    /// §4.1.6: the id, as `[short bytes]`, in front.
    fn execute(&mut self, mut body: Cursor<'r>) -> Option<Found> {
        let id = body.short_bytes()?;
        let wants_fingerprint = asks_for_details(self.sink);
        let Some(known) = self.flow.prepared.get(id, &mut self.flow.statements) else {
            self.note_unknown(id);
            return Some(Found::default());
        };
        Some(Found {
            fingerprint: wants_fingerprint.then(|| known.fingerprint()).flatten(),
            ..Found::new(known.statement().clone())
        })
    }

    /// §4.1.7: the type, the number of children, the children, the parameters.
    fn batch(&mut self, mut body: Cursor<'r>) -> Option<Found> {
        let _type = body.byte()?;
        let children = body.short()?;
        let mut unknown_id = false;
        for index in 0..children.min(MAX_CHILDREN_LOOKED_AT) {
            match body.byte()? {
                0 => {
                    let text = self.text(&mut body)?;
                    let child = parse(text.read, text.declared).statement;
                    if child.table.is_some() {
                        let behind = children.saturating_sub(index + 1);
                        let header = self.header;
                        let named = || batch_keyspace(header, text.behind(body)?, behind);
                        let statement = StatementRef {
                            kind: StatementKind::Batch,
                            ..child
                        };
                        let (statement, may_name) = self.complete(statement, named);
                        return Some(Found::named(statement, may_name));
                    }
                    body = text.behind(body)?;
                }
                1 => {
                    let id = body.short_bytes()?;
                    let child = self.flow.prepared.get(id, &mut self.flow.statements);
                    let child = child.map(Recent::statement).cloned();
                    if let Some(child) = &child
                        && child.table.is_some()
                    {
                        let batch = child.as_kind(StatementKind::Batch);
                        let statement = self.flow.statements.get(batch);
                        return Some(Found::new(statement));
                    }
                    if child.is_none() && !unknown_id {
                        unknown_id = true;
                        self.note_unknown(id);
                    }
                }
                _ => {
                    self.sink.anomaly(Anomaly::MalformedBody);
                    return Some(Found::default());
                }
            }
            body.skip_values()?;
        }
        Some(Found::default())
    }

    /// A `[long string]`, as much of it as there is. One longer than the body is none.
    fn text(&self, body: &mut Cursor<'r>) -> Option<Text<'r>> {
        let declared = body.long_string_len()?;
        let there = body.rest().len();
        if there < declared && self.is_whole() {
            return None;
        }
        Some(Text {
            read: body.take(declared.min(there))?,
            declared,
        })
    }

    /// Gives a table that its text does not qualify a keyspace: the request's own, which `named`
    /// reads, or else the flow's. `named` gives `None` where it cannot be read; the keyspace is then unknown, and
    /// the second of what is returned says so.
    fn complete(
        &mut self,
        statement: StatementRef<'_>,
        named: impl FnOnce() -> Option<Option<&'r str>>,
    ) -> (Arc<Statement>, bool) {
        if statement.table.is_none() || statement.keyspace.is_some() {
            return (self.flow.statements.get(statement), false);
        }
        let named = named();
        if named.is_none() {
            self.ran_out();
        }
        let Flow {
            keyspace,
            statements,
            ..
        } = &mut *self.flow;
        let keyspace = match named {
            Some(Some(named)) => Some(named).filter(|named| named.len() <= MAX_NAME_BYTES),
            Some(None) => keyspace.as_deref(),
            None => None,
        };
        let statement = statements.get(StatementRef {
            keyspace: keyspace.map(Name::Exact),
            ..statement
        });
        (statement, named.is_none())
    }

    fn note_cut(&mut self, cut: bool) {
        if cut {
            self.sink.anomaly(Anomaly::BodyTooLong);
        }
    }

    fn is_whole(&self) -> bool {
        self.prefix.len() >= self.header.length as usize
    }

    /// The prefix ended before what was looked for.
    fn ran_out(&mut self) {
        self.sink.anomaly(match self.is_whole() {
            true => Anomaly::MalformedBody,
            false => Anomaly::BodyTooLong,
        });
    }
}

/// A `[long string]`, perhaps only its beginning.
struct Text<'r> {
    read: &'r [u8],
    declared: usize,
}

impl Text<'_> {
    /// `body`, which stands where reading ended, if that is the end of the text.
    fn behind<'b>(&self, body: Cursor<'b>) -> Option<Cursor<'b>> {
        (self.read.len() == self.declared).then_some(body)
    }
}
