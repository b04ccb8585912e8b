//! Statements that were prepared where nobody looked: the database is asked for their texts.
//!
//! An EXECUTE, or a BATCH, has an id that nobody knows. Cassandra keeps the text of what is prepared in
//! `system.prepared_statements`, each node those of its own. So the question goes to the same node, on the flow's own
//! connection, with the client's own rights; in front of the request, which does not wait for it. Its stream is one that no client
//! uses, and its answer goes no further than here.
//!
//! What a database says is believed if the id is the MD5 of it (`QueryProcessor.computeId`: of keyspace and text, or of
//! the text alone).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use md5::{Digest, Md5};

use crate::page::Page;
use crate::request::{Request, Statement};
use crate::response::Response;
use crate::talk::Talk;
use crate::transform::Log;
use cql::MAX_PREPARED_ID_BYTES;
use cql::PreparedStatements;
use cql::wire::compress;
use cql::wire::{HEADER_BYTES, Header};
use cql::{Opcode, StreamId};

/// Questions of a flow that are out at a time. Drivers have some dozens of statements, and each is asked for once.
pub const MAX_LOOKUPS: usize = 8;

/// Statements of a BATCH that are looked at: drivers mostly have the same one in all of it, and the next batch has the rest.
const MAX_IDS: usize = 64;

/// Ids that a flow remembers to have asked for, with [`MAX_PREPARED_ID_BYTES`] each at most; beyond it the oldest is forgotten,
/// and may be asked for again.
const MAX_ASKED: usize = 256;

/// Ids that a flow remembers that everybody knows; beyond it, it starts over.
const MAX_KNOWN: usize = 256;

/// What was not there, or was said by nobody, is asked for again after this long, in ns.
const AGAIN_NS: u64 = 60_000_000_000;

/// After a question that has failed, a flow asks none for this long, in ns: a database without that table, or a
/// client that may not read it, gets one now and then.
const REST_NS: u64 = 60_000_000_000;

/// The longest answer that is read, in bytes, compressed or not: a text longer than that is seldom prepared.
const MAX_ANSWER_BYTES: usize = 256 << 10;

/// The streams of questions: from here up. Those below 0 are the server's to begin on (`native_protocol_v5.spec`
/// §2.4.1.3), so no driver uses them; Cassandra begins on -1 alone, and answers on any.
const FIRST_STREAM: i16 = i16::MIN;

/// What became of a question, or of a wish to ask one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookedUp {
    /// The text is known now.
    Found,
    /// The database does not have it, either.
    NotFound,
    /// It has answered by an error, or by what cannot be read.
    Failed,
    /// It has answered by a text that does not make this id.
    Mismatch,
    /// As many questions are out as may; it is asked when the id comes again.
    Busy,
}

cql::labelled!(LookedUp {
    Found => "found",
    NotFound => "not_found",
    Failed => "failed",
    Mismatch => "mismatch",
    Busy => "busy",
});

/// One flow's.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    /// Who is told of texts beside the steps.
    pub(crate) prepared: Option<Arc<PreparedStatements>>,
    out: HashMap<StreamId, Box<[u8]>>,
    /// And when; the oldest in front.
    asked: VecDeque<(Box<[u8]>, u64)>,
    known: HashSet<Box<[u8]>>,
    /// A question has failed since the flow last rested.
    failed: bool,
    rests_until_ns: u64,
    /// The database wants a log-in first.
    locked: bool,
}

impl Lookups {
    /// Whether an answer on this stream is to a question.
    pub(crate) fn is_out(&self, stream: StreamId) -> bool {
        self.out.contains_key(&stream)
    }

    /// A response that may end or begin a log-in passes.
    pub(crate) fn sees(&mut self, opcode: Option<Opcode>) {
        match opcode {
            Some(Opcode::Authenticate) => self.locked = true,
            Some(Opcode::AuthSuccess) => self.locked = false,
            _ => {}
        }
    }

    /// No question is out.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_empty()
    }

    fn free_stream(&self) -> Option<StreamId> {
        let mut streams = (FIRST_STREAM..).take(MAX_LOOKUPS).map(StreamId);
        streams.find(|stream| !self.is_out(*stream))
    }

    /// Whether this id may be asked for now.
    fn may_ask(&mut self, id: &[u8], now_ns: u64) -> bool {
        if std::mem::take(&mut self.failed) {
            self.rests_until_ns = now_ns.saturating_add(REST_NS);
        }
        let late = |at: u64| now_ns.saturating_sub(at) >= AGAIN_NS;
        while self.asked.front().is_some_and(|(_, at)| late(*at)) {
            self.asked.pop_front();
        }
        now_ns >= self.rests_until_ns
            && id.len() <= MAX_PREPARED_ID_BYTES
            && self.asked.iter().all(|(asked, _)| **asked != *id)
    }

    fn goes_out(&mut self, stream: StreamId, id: &[u8], now_ns: u64) {
        if self.asked.len() >= MAX_ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((id.into(), now_ns));
        self.out.insert(stream, id.into());
    }

    fn is_known(&mut self, id: &[u8]) {
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        if id.len() <= MAX_PREPARED_ID_BYTES {
            self.known.insert(id.into());
        }
    }
}

impl Talk {
    /// Some step wants statements looked up.
    fn looks_up(&self) -> bool {
        self.pipeline.iter().any(|step| step.looks_up())
    }

    /// A client's request on a stream that is for questions: whose the answer is could not be told.
    pub(crate) fn is_for_lookups(&self, stream: StreamId) -> bool {
        let begins = i32::from(FIRST_STREAM);
        let number = i32::from(stream.0) - begins;
        number < MAX_LOOKUPS as i32 && (self.looks_up() || !self.lookups.is_idle())
    }

    /// Asks for what is executed and not known to all who want to know it.
    pub(crate) fn look_up(&mut self, request: &Request<'_>, now_ns: u64, log: &mut dyn Log) {
        if !self.terms.accepted || self.lookups.locked || !self.looks_up() {
            return;
        }
        let ids = request
            .statements()
            .filter_map(|statement| match statement {
                Statement::Prepared(id) => Some(id),
                Statement::Text(_) => None,
            });
        for id in ids.take(MAX_IDS) {
            if self.lookups.known.contains(id) {
                continue;
            }
            let prepared = self.lookups.prepared.as_ref();
            let is_known = prepared.is_none_or(|prepared| prepared.knows(id))
                && !self.pipeline.iter().any(|step| step.lacks(id));
            if is_known {
                self.lookups.is_known(id);
            } else if self.lookups.may_ask(id, now_ns) {
                let Some(stream) = self.lookups.free_stream() else {
                    return log.looked_up(LookedUp::Busy);
                };
                self.lookups.goes_out(stream, id, now_ns);
                let question = question(self.terms.version, stream, id);
                self.late.extend_from_slice(&question);
            }
        }
    }

    /// Whether a question's answer is kept back until it is whole; otherwise it is dropped.
    pub(crate) fn reads_answer(&mut self, header: &Header, log: &mut dyn Log) -> bool {
        let reads = header.length as usize <= MAX_ANSWER_BYTES;
        if !reads {
            self.is_unanswered(header, log);
        }
        reads
    }

    /// A question's answer is there, and cannot be read.
    pub(crate) fn is_unanswered(&mut self, header: &Header, log: &mut dyn Log) {
        self.lookups.out.remove(&header.stream);
        self.lookups.failed = true;
        log.looked_up(LookedUp::Failed);
    }

    /// A question's answer is there.
    pub(crate) fn is_looked_up(&mut self, header: &Header, body: &[u8], log: &mut dyn Log) {
        let Some(id) = self.lookups.out.remove(&header.stream) else {
            return;
        };
        let plain = match header.is_compressed() {
            true => compress::expand_to(self.terms.compression, body, MAX_ANSWER_BYTES),
            false => Some(body.into()),
        };
        let response = Response::new(*header, plain.unwrap_or_default());
        let what = match Answer::of(&response, &id) {
            Answer::Is { keyspace, text } => {
                for step in self.pipeline.iter() {
                    step.learns(&id, keyspace, text);
                }
                if let Some(prepared) = &self.lookups.prepared {
                    prepared.learn(&id, keyspace, text);
                }
                LookedUp::Found
            }
            Answer::Nothing => LookedUp::NotFound,
            Answer::Another => LookedUp::Mismatch,
            Answer::Unreadable => LookedUp::Failed,
        };
        self.lookups.failed |= what == LookedUp::Failed;
        log.looked_up(what);
    }
}

/// A QUERY at ONE, without parameters (`native_protocol_v5.spec` §4.1.4); of a table that only this node has.
fn question(version: u8, stream: StreamId, id: &[u8]) -> Vec<u8> {
    const QUERY: u8 = 7;
    const ONE: [u8; 2] = [0, 1];
    let mut text = String::from(
        "SELECT logged_keyspace, query_string FROM system.prepared_statements WHERE prepared_id = 0x",
    );
    text.extend(id.iter().map(|byte| format!("{byte:02x}")));
    let flags: &[u8] = match version {
        5.. => &[0; 4],
        _ => &[0],
    };
    let length = (text.len() as u32).to_be_bytes();
    let body = [&length[..], text.as_bytes(), &ONE, flags].concat();
    let mut frame = Vec::with_capacity(HEADER_BYTES + body.len());
    frame.extend([version, 0]);
    frame.extend(stream.0.to_be_bytes());
    frame.push(QUERY);
    frame.extend((body.len() as u32).to_be_bytes());
    frame.extend(body);
    frame
}

#[derive(Debug, PartialEq, Eq)]
enum Answer<'b> {
    /// `keyspace`: the one that the text was prepared in, where the id depends on it.
    Is {
        keyspace: Option<&'b str>,
        text: &'b [u8],
    },
    Nothing,
    Another,
    Unreadable,
}

impl<'b> Answer<'b> {
    fn of(response: &'b Response<'_>, id: &[u8]) -> Self {
        if response.opcode() != Some(Opcode::Result) {
            return Self::Unreadable;
        }
        let Some(page) = response.proper().and_then(Page::read) else {
            return Self::Unreadable;
        };
        match (page.columns, &page.rows[..]) {
            (2, []) => Self::Nothing,
            (2, [row]) => match row[..] {
                [keyspace, Some(text)] => Self::told(keyspace, text, id),
                _ => Self::Unreadable,
            },
            _ => Self::Unreadable,
        }
    }

    fn told(keyspace: Option<&'b [u8]>, text: &'b [u8], id: &[u8]) -> Self {
        let makes = |pieces: &[&[u8]]| {
            let mut digest = Md5::new();
            pieces.iter().for_each(|piece| digest.update(piece));
            digest.finalize()[..] == *id
        };
        let Ok(name) = keyspace.map(std::str::from_utf8).transpose() else {
            return Self::Unreadable;
        };
        match name {
            Some(name) if makes(&[name.as_bytes(), text]) => Self::Is {
                keyspace: Some(name).filter(|name| !name.is_empty()),
                text,
            },
            // It does not depend on a keyspace, so none is believed.
            _ if makes(&[text]) => Self::Is {
                keyspace: None,
                text,
            },
            _ => Self::Another,
        }
    }
}
