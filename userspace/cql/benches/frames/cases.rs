//! Flows past their handshake, and rounds of frames of 200 bytes on them.

use super::stats::Stats;
use cql::{FlowDecoder, Verdict};
use std::hint::black_box;

/// The length of every frame, its header included, before it is compressed.
pub const FRAME_BYTES: usize = 200;
/// Requests of a round; as many responses.
pub const OPERATIONS: usize = 32;
pub const FRAMES: u64 = 2 * OPERATIONS as u64;

const HEADER_BYTES: usize = 9;
const RESPONSE: u8 = 0x80;
const STARTUP: u8 = 0x01;
const READY: u8 = 0x02;
const QUERY: u8 = 0x07;
const RESULT: u8 = 0x08;
const PREPARE: u8 = 0x09;
const EXECUTE: u8 = 0x0A;

const ID: &[u8; 16] = b"0123456789abcdef";
const TEXT: &str = "SELECT \"C0\", \"C1\" FROM keyspace1.standard1 WHERE key = ?";
/// How long an operation takes, in ns.
const LATENCY_NS: u64 = 100_000;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Lz4,
    Snappy,
}

/// A case that is measured.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub version: u8,
    pub compression: Compression,
    pub is_query: bool,
    pub details: bool,
    /// All requests of a round in one chunk, and all responses; otherwise a chunk each.
    pub pipelined: bool,
}

const fn case(name: &'static str, version: u8, is_query: bool) -> Case {
    Case {
        name,
        version,
        compression: Compression::None,
        is_query,
        details: false,
        pipelined: false,
    }
}

impl Case {
    const fn details(self, name: &'static str) -> Self {
        Self {
            name,
            details: true,
            ..self
        }
    }

    const fn pipelined(self, name: &'static str) -> Self {
        Self {
            name,
            pipelined: true,
            ..self
        }
    }

    const fn compressed(self, name: &'static str, compression: Compression) -> Self {
        Self {
            name,
            compression,
            ..self
        }
    }
}

const EXECUTE_V4: Case = case("execute-v4", 4, false);
const EXECUTE_V5: Case = case("execute-v5", 5, false);
const QUERY_V4: Case = case("query-v4", 4, true);
const QUERY_V5: Case = case("query-v5", 5, true);

pub const CASES: [Case; 17] = [
    EXECUTE_V4,
    EXECUTE_V4.details("execute-v4-details"),
    EXECUTE_V4.pipelined("execute-v4-pipelined"),
    EXECUTE_V5,
    EXECUTE_V5.details("execute-v5-details"),
    EXECUTE_V5.pipelined("execute-v5-pipelined"),
    QUERY_V4,
    QUERY_V4.details("query-v4-details"),
    QUERY_V4.pipelined("query-v4-pipelined"),
    QUERY_V5,
    QUERY_V5.details("query-v5-details"),
    QUERY_V5.pipelined("query-v5-pipelined"),
    EXECUTE_V4.compressed("execute-v4-lz4", Compression::Lz4),
    EXECUTE_V4.compressed("execute-v4-snappy", Compression::Snappy),
    EXECUTE_V5.compressed("execute-v5-lz4", Compression::Lz4),
    QUERY_V4.compressed("query-v4-lz4", Compression::Lz4),
    QUERY_V5.compressed("query-v5-lz4", Compression::Lz4),
];

/// A flow, and what is fed to it again and again.
pub struct Flow<const DETAILS: bool> {
    decoder: FlowDecoder,
    stats: Stats<DETAILS>,
    requests: Vec<Vec<u8>>,
    responses: Vec<Vec<u8>>,
    now_ns: u64,
}

impl<const DETAILS: bool> Flow<DETAILS> {
    pub fn new(case: Case) -> Self {
        let requests = (0..OPERATIONS).map(|stream| case.request(stream));
        let responses = (0..OPERATIONS).map(|stream| case.response(stream));
        let (requests, responses) = match case.pipelined {
            true => (
                vec![requests.flatten().collect()],
                vec![responses.flatten().collect()],
            ),
            false => (requests.collect(), responses.collect()),
        };
        let mut flow = Self {
            decoder: FlowDecoder::new(Default::default()),
            stats: Stats::new(),
            requests,
            responses,
            now_ns: 0,
        };
        for (request, response) in case.handshake() {
            flow.pass(true, &request);
            flow.pass(false, &response);
        }
        flow.stats.forget();
        flow
    }

    /// Bytes and rows of all operations.
    pub fn sums(&self) -> (u64, u64) {
        self.stats.sums()
    }

    fn pass(&mut self, is_request: bool, chunk: &[u8]) {
        let verdict = match is_request {
            true => self.decoder.requests(self.now_ns, chunk, &mut self.stats),
            false => self.decoder.responses(self.now_ns, chunk, &mut self.stats),
        };
        assert_eq!(verdict, Verdict::Continue);
    }

    /// All frames once; how many operations were counted.
    pub fn round(&mut self) -> u64 {
        let Self {
            decoder,
            stats,
            requests,
            responses,
            now_ns,
        } = self;
        let mut goes_on = true;
        for chunk in requests.iter() {
            let verdict = decoder.requests(*now_ns, black_box(chunk), stats);
            goes_on &= verdict == Verdict::Continue;
        }
        *now_ns += LATENCY_NS;
        for chunk in responses.iter() {
            let verdict = decoder.responses(*now_ns, black_box(chunk), stats);
            goes_on &= verdict == Verdict::Continue;
        }
        assert!(goes_on);
        std::mem::take(&mut stats.counted)
    }
}

impl Case {
    /// Frames are as long as they are said to be.
    pub fn is_plain(self) -> bool {
        self.compression == Compression::None
    }

    fn handshake(self) -> [(Vec<u8>, Vec<u8>); 2] {
        let options: &[&str] = match self.compression {
            Compression::None => &["CQL_VERSION", "3.0.0"],
            Compression::Lz4 => &["COMPRESSION", "lz4"],
            Compression::Snappy => &["COMPRESSION", "snappy"],
        };
        let mut startup = vec![0, 1];
        startup.extend(options.iter().flat_map(|text| short_bytes(text.as_bytes())));
        let mut prepare = long_string(TEXT);
        if self.version >= 5 {
            prepare.extend([0; 4]); // no flags
        }
        let prepared = [&[0, 0, 0, 4][..], &short_bytes(ID)].concat();
        [
            (
                frame(self.version, 0, STARTUP, &startup),
                frame(self.version | RESPONSE, 0, READY, &[]),
            ),
            (
                self.sent(frame(self.version, 0, PREPARE, &prepare)),
                self.sent(frame(self.version | RESPONSE, 0, RESULT, &prepared)),
            ),
        ]
    }

    /// A QUERY or EXECUTE with one value, which fills it up.
    fn request(self, stream: usize) -> Vec<u8> {
        let mut body = match self.is_query {
            true => long_string(TEXT),
            false => short_bytes(ID),
        };
        if self.version >= 5 && !self.is_query {
            body.extend(short_bytes(ID)); // of the result's metadata
        }
        body.extend([0, 0x0A]); // LOCAL_ONE
        body.extend(match self.version {
            5.. => &[0, 0, 0, 0x01][..],
            _ => &[0x01],
        });
        body.extend([0, 1]);
        fill(&mut body, stream);
        let opcode = if self.is_query { QUERY } else { EXECUTE };
        self.sent(frame(self.version, stream, opcode, &body))
    }

    /// Rows without metadata, as drivers ask for after a PREPARE: one of one column.
    fn response(self, stream: usize) -> Vec<u8> {
        let mut body = vec![0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 1];
        fill(&mut body, stream);
        self.sent(frame(self.version | RESPONSE, stream, RESULT, &body))
    }

    /// A frame as a peer sends it.
    fn sent(self, frame: Vec<u8>) -> Vec<u8> {
        if self.version >= 5 {
            return segment(self.compression, &frame);
        }
        let (header, body) = frame.split_at(HEADER_BYTES);
        let small = match self.compression {
            Compression::None => return frame,
            Compression::Lz4 => {
                let block = lz4_flex::block::compress(body);
                [&(body.len() as u32).to_be_bytes()[..], &block].concat()
            }
            Compression::Snappy => {
                let small = snap::raw::Encoder::new().compress_vec(body);
                small.unwrap_or_default()
            }
        };
        let mut sent = header.to_vec();
        sent.truncate(HEADER_BYTES - 4);
        if let Some(flags) = sent.get_mut(1) {
            *flags |= 1;
        }
        sent.extend((small.len() as u32).to_be_bytes());
        sent.extend(small);
        sent
    }
}

/// A value with which a frame around `body` is as long as it has to be: half of it noise.
fn fill(body: &mut Vec<u8>, seed: usize) {
    let length = FRAME_BYTES - HEADER_BYTES - body.len() - 4;
    body.extend((length as u32).to_be_bytes());
    let mut noise = seed as u32;
    body.extend((0..length).map(|at| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if at % 16 < 8 { (noise >> 24) as u8 } else { 0 }
    }));
}

fn frame(first: u8, stream: usize, opcode: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![first, 0];
    frame.extend((stream as u16).to_be_bytes());
    frame.push(opcode);
    frame.extend((body.len() as u32).to_be_bytes());
    frame.extend(body);
    frame
}

fn segment(compression: Compression, payload: &[u8]) -> Vec<u8> {
    use cassandra_protocol::frame::frame_encoder::{
        FrameEncoder, Lz4FrameEncoder, UncompressedFrameEncoder,
    };
    let encode = |encoder: &mut dyn FrameEncoder| {
        encoder.add_envelope(payload.to_vec());
        encoder.finalize_self_contained().to_vec()
    };
    match compression {
        Compression::None => encode(&mut UncompressedFrameEncoder::default()),
        _ => encode(&mut Lz4FrameEncoder::default()),
    }
}

fn short_bytes(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

fn long_string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}
