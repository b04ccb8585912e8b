//! The front of a frame: its CQL v4 header, and of streams that are edited on their way as much of a message as names
//! a keyspace. Behind it are the stream's bytes.
//!
//! Clients and server of such streams call the keyspace by names of different lengths, and somebody between them puts
//! one in place of the other, in requests and in answers. Each end knows what of the other's arrives, so that an edit
//! that is missing, or one too many, is wrong as any byte is.

use super::stream::Direction;

/// Name by which clients of edited streams call the keyspace.
pub const CLIENTS_KEYSPACE: &str = "shop";
/// Name by which the server of edited streams calls the keyspace.
pub const SERVERS_KEYSPACE: &str = "shop_of_2026";

/// Bytes of a frame's header (native_protocol_v4.spec, section 2).
const HEADER: u64 = 9;
const REQUEST: u8 = 0x04;
const RESPONSE: u8 = 0x84;
pub(super) const QUERY: u8 = 0x07;
pub(super) const RESULT: u8 = 0x08;
const EVENT: u8 = 0x0C;
/// Stream id of events (-1).
const OF_EVENTS: u16 = 0xFFFF;
/// Streams of requests that are read: all but the hello's, 0, which nobody answers.
const STREAMS: u64 = 0x7FFF;

/// Messages of a direction's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// A QUERY, or a RESULT, whose body means nothing.
    Bare(Direction),
    /// A QUERY of a table of the keyspace; the stream's bytes are its one value.
    Query,
    /// Rows of that table: the answer to the query of the same number. The stream's bytes are the one value.
    Rows,
    /// An event that tells of that table, and belongs to no request. The stream's bytes are behind it.
    Event,
}

/// The front of each frame of a direction.
#[derive(Debug, Clone)]
pub(super) struct Front {
    message: Message,
    version: u8,
    opcode: u8,
    /// The body, up to the length of the stream's bytes or to these.
    begins: Vec<u8>,
}

impl Front {
    /// Makes the front by which the client writes and reads, or the server.
    pub(super) fn new(message: Message, is_clients: bool) -> Self {
        let keyspace = match is_clients {
            true => CLIENTS_KEYSPACE,
            false => SERVERS_KEYSPACE,
        };
        let (version, opcode, begins) = match message {
            Message::Bare(Direction::Up) => (REQUEST, QUERY, Vec::new()),
            Message::Bare(Direction::Down) => (RESPONSE, RESULT, Vec::new()),
            Message::Query => (REQUEST, QUERY, query(keyspace)),
            Message::Rows => (RESPONSE, RESULT, rows(keyspace)),
            Message::Event => (RESPONSE, EVENT, event(keyspace)),
        };
        Self {
            message,
            version,
            opcode,
            begins,
        }
    }

    /// Length of the front, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let length = if self.has_length() { 4 } else { 0 };
        HEADER + self.begins.len() as u64 + length
    }

    /// Stream id of a frame, where it does not depend on chance.
    pub(super) fn stream_id(&self, number: u64) -> Option<u16> {
        match self.message {
            Message::Bare(_) => None,
            Message::Query | Message::Rows => Some(1 + (number % STREAMS) as u16),
            Message::Event => Some(OF_EVENTS),
        }
    }

    /// Puts the front of a frame of `frame` bytes in all into `to`, in place of what was there.
    pub(super) fn write(&self, frame: u64, stream_id: u16, to: &mut Vec<u8>) {
        let length = |behind: u64| {
            let length = u32::try_from(frame.saturating_sub(behind)).unwrap_or(u32::MAX);
            length.to_be_bytes()
        };
        let [s0, s1] = stream_id.to_be_bytes();
        to.clear();
        to.extend([self.version, 0, s0, s1, self.opcode]);
        to.extend(length(HEADER));
        to.extend_from_slice(&self.begins);
        if self.has_length() {
            to.extend(length(self.bytes()));
        }
    }

    fn has_length(&self) -> bool {
        matches!(self.message, Message::Query | Message::Rows)
    }
}

/// A QUERY's body (section 4.1.4), up to its value's length.
fn query(keyspace: &str) -> Vec<u8> {
    const ONE: [u8; 2] = [0, 1];
    const VALUES: u8 = 1;
    const COUNT: [u8; 2] = [0, 1];
    let text = format!("SELECT v FROM {keyspace}.t WHERE k = ?");
    let mut body = (text.len() as u32).to_be_bytes().to_vec();
    body.extend(text.as_bytes());
    body.extend(ONE);
    body.push(VALUES);
    body.extend(COUNT);
    body
}

/// The body of a RESULT of one row (section 4.2.5.2), up to its value's length.
fn rows(keyspace: &str) -> Vec<u8> {
    const ROWS: u32 = 2;
    const ONE_TABLE: u32 = 1;
    const ONE: u32 = 1;
    const BLOB: [u8; 2] = [0, 3];
    let mut body: Vec<u8> = [ROWS, ONE_TABLE, ONE]
        .into_iter()
        .flat_map(u32::to_be_bytes)
        .collect();
    body.extend([keyspace, "t", "v"].into_iter().flat_map(string));
    body.extend(BLOB);
    body.extend(ONE.to_be_bytes());
    body
}

/// An EVENT's body (section 4.2.6).
fn event(keyspace: &str) -> Vec<u8> {
    let strings = ["SCHEMA_CHANGE", "UPDATED", "TABLE", keyspace, "t"];
    strings.into_iter().flat_map(string).collect()
}

fn string(text: &str) -> Vec<u8> {
    let mut encoded = (text.len() as u16).to_be_bytes().to_vec();
    encoded.extend(text.as_bytes());
    encoded
}
