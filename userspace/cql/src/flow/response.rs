//! The meaning of frames from the database: requests answered, and changes that the answers make.

use crate::extensions::{MAX_SUPPORTED_BYTES, offered};
use crate::fact::Fact;
use crate::flow::details::DETAIL_PREFIX_BYTES;
use crate::flow::event::{Anomaly, Completed, ErrorCode, Sink, asks_for_details};
use crate::flow::lane::{Meaning, foreign_version};
use crate::flow::pending::Answers;
use crate::flow::prepared::Learnt;
use crate::flow::state::{Answering, Flow, Stop};
use crate::text::lex::MAX_NAME_BYTES;
use crate::text::statement::StatementKind;
use crate::told::{Holds, MAX_PREPARED_ID_BYTES};
use crate::verdict::{CloseReason, Undecodable};
use crate::wire::compression::Compression;
use crate::wire::header::{Flags, Header, Opcode, ProtocolVersion};
use crate::wire::prelude::behind_prelude;

/// How much of a RESULT or ERROR is collected: a kind and an id or a name of at most
/// [`MAX_PREPARED_ID_BYTES`] or [`MAX_NAME_BYTES`].
pub(crate) const PREFIX_BYTES: usize = 512;
const _: () =
    assert!(PREFIX_BYTES >= 6 + MAX_PREPARED_ID_BYTES && PREFIX_BYTES >= 6 + MAX_NAME_BYTES);

/// How much of a RESULT or ERROR is collected that has a tracing id, warnings or a custom payload in front,
/// which can be of any length. Cassandra's warnings take a few hundred bytes each.
const PRELUDE_PREFIX_BYTES: usize = 64 << 10;

/// How much of a RESULT is collected for its details: the description of two hundred columns, and the number of rows
/// behind it.
pub(crate) const ROWS_PREFIX_BYTES: usize = 8176;

/// How much of a body [`Responses`] wants to see.
#[inline]
pub(crate) fn wanted_bytes(header: &Header) -> usize {
    match header.opcode {
        Some(Opcode::Result | Opcode::Error) if header.flags.any(Flags::PRELUDE) => {
            PRELUDE_PREFIX_BYTES
        }
        Some(Opcode::Result | Opcode::Error) => PREFIX_BYTES,
        Some(Opcode::Supported) => MAX_SUPPORTED_BYTES,
        _ => 0,
    }
}

/// From the database to the client.
pub(crate) enum Responses {}

impl Meaning for Responses {
    const DIRECTION_BIT: u8 = crate::wire::header::RESPONSE_BIT;

    fn wanted(header: &Header) -> usize {
        wanted_bytes(header)
    }

    fn wanted_in_detail(header: &Header) -> usize {
        match header.opcode {
            _ if header.flags.any(Flags::PRELUDE) => DETAIL_PREFIX_BYTES,
            Some(Opcode::Result) => ROWS_PREFIX_BYTES,
            _ => wanted_bytes(header),
        }
    }

    fn version(flow: &mut Flow, version: u8, in_first_frame: bool) -> Result<(), Stop> {
        if flow.accepted && flow.version != Some(version) {
            return Err(Stop::Close(CloseReason::VersionChanged));
        }
        match ProtocolVersion::from_byte(version) {
            Some(_) => Ok(()),
            None => Err(foreign_version(version, in_first_frame)),
        }
    }

    fn header(
        flow: &mut Flow,
        header: &Header,
        _in_first_frame: bool,
        _now_ns: u64,
        sink: &mut impl Sink,
    ) -> Result<(), Stop> {
        // Before a STARTUP is accepted, a server that does not speak the client's version says so
        // in an ERROR of its own (`native_protocol_v5.spec` §2.3.1, §2.4.1.1).
        let other_version = flow
            .version
            .is_some_and(|version| version != header.version);
        if other_version && header.opcode != Some(Opcode::Error) {
            return Err(Stop::Close(CloseReason::VersionChanged));
        }
        if header.opcode.is_none() {
            sink.anomaly(Anomaly::UnknownOpcode);
        }
        let answers = match header.opcode {
            Some(Opcode::Event) => Answers::Nobody,
            _ => flow.pending.answer(header.stream),
        };
        let request = match answers {
            Answers::This(request) => Some(request),
            Answers::Unpaired => {
                sink.unpaired(header.stream);
                None
            }
            Answers::Nobody => {
                if header.stream.0 >= 0 && !flow.joined {
                    sink.anomaly(Anomaly::UnknownStream);
                }
                None
            }
        };
        let error = (header.opcode == Some(Opcode::Error)).then_some(ErrorCode::Unreadable);
        if asks_for_details(sink) && request.is_some() {
            flow.detailing().answers(header);
        }
        flow.answering = request.map(|request| Answering { request, error });
        Ok(())
    }

    fn body(flow: &mut Flow, header: &Header, prefix: &[u8], sink: &mut impl Sink) {
        if flow.extensions.unknown && header.opcode != Some(Opcode::Supported) {
            flow.keyspace = None;
            return sink.anomaly(Anomaly::UnknownExtension);
        }
        if asks_for_details(sink) && flow.answering.is_some() {
            flow.detailing().answers_with(header, prefix);
        }
        let opcode = match header.opcode {
            Some(opcode @ (Opcode::Result | Opcode::Error)) => opcode,
            Some(Opcode::Supported) => return offers(flow, header, prefix),
            _ => return,
        };
        let Some(answering) = &mut flow.answering else {
            if opcode == Opcode::Result {
                unasked_result(flow, header, prefix);
            }
            return;
        };
        if header.is_compressed() {
            sink.anomaly(Anomaly::CompressedBody);
            forget_keyspace_if_unsure(flow, opcode);
            return;
        }
        let read = match opcode {
            Opcode::Error => {
                let code = error_code(header, prefix).map(|code| answering.error = Some(code));
                flow.preparing.take(header.stream);
                code
            }
            _ => result(flow, header, prefix, sink),
        };
        if read.is_none() {
            sink.anomaly(match prefix.len() < header.length as usize {
                true => Anomaly::BodyTooLong,
                false => Anomaly::MalformedBody,
            });
            forget_keyspace_if_unsure(flow, opcode);
        }
    }

    fn end(
        flow: &mut Flow,
        header: &Header,
        now_ns: u64,
        sink: &mut impl Sink,
    ) -> Result<(), Stop> {
        let accepts = matches!(header.opcode, Some(Opcode::Ready | Opcode::Authenticate));
        let Some(Answering { request, error }) = flow.answering.take() else {
            // Before a STARTUP is accepted, nothing else is answered so.
            return match accepts && flow.startups > 0 && !flow.accepted {
                true => accepted(flow, header),
                false => Ok(()),
            };
        };
        let completed = Completed {
            statement: &request.statement,
            latency_ns: now_ns.saturating_sub(request.started_ns),
            error,
            request_bytes: request.request_bytes.into(),
            response_bytes: header.frame_bytes().into(),
            stream: header.stream,
        };
        match asks_for_details(sink) {
            true => sink.detailed(&completed, &flow.detailing().passing),
            false => sink.completed(&completed),
        }
        if request.statement.kind != StatementKind::Startup || flow.accepted {
            return Ok(());
        }
        match accepts {
            true => accepted(flow, header),
            false => {
                flow.startups = flow.startups.saturating_sub(1);
                Ok(())
            }
        }
    }
}

/// A STARTUP is accepted.
fn accepted(flow: &mut Flow, header: &Header) -> Result<(), Stop> {
    flow.accepted = true;
    flow.version = Some(header.version);
    flow.segmented = header.version >= 5;
    match &flow.compression {
        Fact::Is(Compression::None | Compression::Lz4) => Ok(()),
        _ if !flow.segmented => Ok(()),
        _ => Err(Stop::Undecodable(Undecodable::SegmentCompression)),
    }
}

/// A SUPPORTED: what counts is what a STARTUP can ask for.
#[cold]
#[inline(never)]
fn offers(flow: &mut Flow, header: &Header, body: &[u8]) {
    if !flow.accepted {
        flow.offered = offered(header, body);
    }
}

/// A RESULT that is paired with no request: the flow is in the keyspace that it names all the same.
#[cold]
#[inline(never)]
fn unasked_result(flow: &mut Flow, header: &Header, prefix: &[u8]) {
    let keyspace = match header.is_compressed() {
        true => None,
        false => set_keyspace(header, prefix),
    };
    match keyspace {
        Some(None) => {}
        Some(Some(keyspace)) if keyspace.len() <= MAX_NAME_BYTES => {
            flow.keyspace = Some(keyspace.into());
        }
        // No keyspace is better than the wrong one.
        Some(Some(_)) | None => flow.keyspace = None,
    }
}

/// §4.2.1: an `[int]` in front.
fn error_code(header: &Header, body: &[u8]) -> Option<ErrorCode> {
    behind_prelude(header, body)?.int().map(ErrorCode::Code)
}

const SET_KEYSPACE: i32 = 3;

/// The keyspace of a RESULT of that kind, by the beginning of its body, which is not compressed;
/// `Some(None)` of one of another kind.
pub(crate) fn set_keyspace<'b>(header: &Header, body: &'b [u8]) -> Option<Option<&'b str>> {
    let mut body = behind_prelude(header, body)?;
    match body.int()? {
        SET_KEYSPACE => body.string().map(Some),
        _ => Some(None),
    }
}

/// §4.2.5: an `[int]` kind. Two of them change what the flow knows.
fn result(flow: &mut Flow, header: &Header, body: &[u8], sink: &mut impl Sink) -> Option<()> {
    const PREPARED: i32 = 4;
    let mut body = behind_prelude(header, body)?;
    match body.int()? {
        SET_KEYSPACE => {
            let keyspace = body
                .string()
                .filter(|keyspace| keyspace.len() <= MAX_NAME_BYTES)?;
            if flow.keyspace.as_deref() != Some(keyspace) {
                flow.keyspace = Some(keyspace.into());
            }
        }
        PREPARED => {
            let id = body.short_bytes()?;
            let request = flow.answering.as_ref().map(|answering| &answering.request);
            if let Some(request) = request
                && let Some(kind) = request.prepares
            {
                let statement = flow.statements.get(request.statement.as_kind(kind));
                let fingerprint = match asks_for_details(sink) {
                    true => flow.detailing().passing.asked.fingerprint.clone(),
                    false => None,
                };
                let waits = flow.preparing.take(header.stream);
                if let Some(waits) = &waits {
                    flow.preparing.note(waits);
                }
                // Anybody may have invented an id that does not follow from the text.
                let is_proven = waits.as_ref().is_some_and(|waits| waits.proof.holds(id));
                let learnt = Learnt {
                    holds: match is_proven {
                        true => Holds::Everywhere,
                        false => Holds::There,
                    },
                    statement: &statement,
                    fingerprint,
                    text: waits.and_then(|waits| waits.text),
                };
                if flow.prepared.insert(id, learnt) {
                    sink.anomaly(Anomaly::PreparedEvicted);
                }
            }
        }
        _ => {}
    }
    Some(())
}

/// A RESULT that could not be read may have been a change of the keyspace, unless its request was
/// of a kind that changes none. No keyspace is better than the wrong one.
fn forget_keyspace_if_unsure(flow: &mut Flow, opcode: Opcode) {
    use StatementKind as Kind;
    let kind = flow
        .answering
        .as_ref()
        .map(|answering| answering.request.statement.kind);
    let may_change = matches!(
        kind,
        Some(Kind::Use | Kind::Query | Kind::Execute | Kind::Unknown)
    );
    if opcode == Opcode::Result && may_change {
        flow.keyspace = None;
    }
}
