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

use crate::page::Page;
use crate::response::Response;
use cql::MAX_PREPARED_ID_BYTES;
use cql::PreparedAt;
use cql::wire::HEADER_BYTES;
use cql::{Opcode, StreamId, prepared_in};

/// Questions of a flow that are out at a time. Drivers have some dozens of statements, and each is asked for once.
pub const MAX_LOOKUPS: usize = 8;

/// Statements of a BATCH that are looked at: drivers mostly have the same one in all of it, and the next batch has the rest.
pub(crate) const MAX_IDS: usize = 64;

/// Ids that a flow remembers to have asked for, with [`MAX_PREPARED_ID_BYTES`] each at most; beyond it the oldest is forgotten,
/// and may be asked for again.
const MAX_ASKED: usize = 256;

/// Ids that a flow remembers that everybody knows; beyond it, it starts over.
const MAX_KNOWN: usize = 256;

/// The time after which an id is asked for again that was not found, or about which nobody answered, in ns.
const AGAIN_NS: u64 = 60_000_000_000;

/// After a question that has failed, a flow asks none for this long, in ns: a database without that table, or a
/// client that may not read it, gets one now and then.
const REST_NS: u64 = 60_000_000_000;

/// The longest answer that is read, in bytes, compressed or not: a text longer than that is seldom prepared.
pub(crate) const MAX_ANSWER_BYTES: usize = 256 << 10;

/// The streams of questions: from here up. Those below 0 are the server's to begin on (`native_protocol_v5.spec`
/// §2.4.1.3), so no driver uses them; Cassandra begins on -1 alone, and answers on any.
pub(crate) const FIRST_STREAM: i16 = i16::MIN;

/// A flow's questions.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    /// The store that is told of texts beside the steps.
    pub(crate) prepared: Option<PreparedAt>,
    pub(crate) out: HashMap<StreamId, Box<[u8]>>,
    /// Ids that were asked for, and when; the oldest in front.
    asked: VecDeque<(Box<[u8]>, u64)>,
    pub(crate) known: HashSet<Box<[u8]>>,
    /// A question has failed since the flow last rested.
    pub(crate) failed: bool,
    rests_until_ns: u64,
    /// The database wants a log-in first.
    pub(crate) locked: bool,
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

    pub(crate) fn free_stream(&self) -> Option<StreamId> {
        let mut streams = (FIRST_STREAM..).take(MAX_LOOKUPS).map(StreamId);
        streams.find(|stream| !self.is_out(*stream))
    }

    /// Whether this id may be asked for now.
    pub(crate) fn may_ask(&mut self, id: &[u8], now_ns: u64) -> bool {
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

    pub(crate) fn goes_out(&mut self, stream: StreamId, id: &[u8], now_ns: u64) {
        if self.asked.len() >= MAX_ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((id.into(), now_ns));
        self.out.insert(stream, id.into());
    }

    pub(crate) fn remember_known(&mut self, id: &[u8]) {
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        if id.len() <= MAX_PREPARED_ID_BYTES {
            self.known.insert(id.into());
        }
    }
}

/// Returns the statement that asks a node for the text of what was prepared there: `logged_keyspace`, `query_string`.
pub fn question_text(id: &[u8]) -> String {
    let mut text = String::from(
        "SELECT logged_keyspace, query_string FROM system.prepared_statements WHERE prepared_id = 0x",
    );
    text.extend(id.iter().map(|byte| format!("{byte:02x}")));
    text
}

/// A QUERY at ONE, without parameters (`native_protocol_v5.spec` §4.1.4); of a table that only this node has.
pub(crate) fn question(version: u8, stream: StreamId, id: &[u8]) -> Vec<u8> {
    const QUERY: u8 = 7;
    const ONE: [u8; 2] = [0, 1];
    let text = question_text(id);
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
pub(crate) enum Answer<'b> {
    /// The database knows the text. `keyspace`: the one that it was prepared in, where the id depends on it.
    Is {
        keyspace: Option<&'b str>,
        text: &'b [u8],
    },
    Nothing,
    Another,
    Unreadable,
}

impl<'b> Answer<'b> {
    pub(crate) fn of(response: &'b Response<'_>, id: &[u8]) -> Self {
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
        let Ok(name) = keyspace.map(std::str::from_utf8).transpose() else {
            return Self::Unreadable;
        };
        match prepared_in(id, name, text) {
            Some(keyspace) => Self::Is { keyspace, text },
            None => Self::Another,
        }
    }
}
