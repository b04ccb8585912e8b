//! One direction of a flow: requests that nobody answers, and answers to requests that nobody sent.
//! The substitute for the other direction is in the cost: it takes an entry out of the table of
//! waiting requests, or puts one in.

use std::{hint::black_box, ops::Range};

use cql::{Anomaly, Completed, FlowDecoder, Sink, StatementKind, Verdict};

use super::{
    case::{Case, Tally},
    parts::{ID, INSERT, SELECT},
    wire::{self, BATCH, ERROR, EXECUTE, PREPARE, QUERY, READY, RESPONSE, RESULT},
};

/// Requests in a chunk: as a driver's connection under load has them.
const FRAMES: i16 = 32;
const STREAMS: Range<i16> = 0..FRAMES;
/// Statements in a batch.
const CHILDREN: u16 = 4;

/// Only counts.
#[derive(Default)]
struct Counting(Tally);

impl Sink for Counting {
    fn completed(&mut self, completed: &Completed<'_>) {
        self.0.elements += 1;
        self.0.bytes += completed.response_bytes;
    }

    fn anomaly(&mut self, _: Anomaly) {
        self.0.odd += 1;
    }
}

/// A flow whose handshake has passed, and that has prepared [`INSERT`] as [`ID`] and further
/// texts as the ids with them.
pub(super) fn started(
    version: u8,
    sink: &mut impl Sink,
    more: &[(wire::Id, String)],
) -> FlowDecoder {
    let mut decoder = FlowDecoder::new(Default::default());
    let wrap = |frame: Vec<u8>| match version {
        5.. => wire::segment(true, &frame),
        _ => frame,
    };
    let mut pass = |request: &[u8], response: &[u8]| {
        // A verdict here makes every later call give one, which tallies hold.
        let _ = decoder.requests(0, request, sink);
        let _ = decoder.responses(0, response, sink);
    };
    pass(
        &wire::startup(version),
        &wire::frame(version | RESPONSE, 0, READY, &[]),
    );
    let insert = [(ID, INSERT.to_owned())];
    for (id, text) in insert.iter().chain(more) {
        let request = wire::frame(version, 0, PREPARE, &wire::prepare(version, text));
        let response = wire::frame(version | RESPONSE, 0, RESULT, &wire::prepared(id));
        pass(&wrap(request), &wrap(response));
    }
    decoder
}

pub(super) fn query() -> Case {
    requests(QUERY, &wire::query(SELECT))
}

pub(super) fn execute() -> Case {
    requests(EXECUTE, &wire::execute(4, &ID))
}

pub(super) fn batch() -> Case {
    requests(BATCH, &wire::batch(&ID, CHILDREN))
}

fn requests(opcode: u8, body: &[u8]) -> Case {
    let chunk: Vec<u8> = STREAMS
        .flat_map(|stream| wire::frame(4, stream, opcode, body))
        .collect();
    let mut decoder = started(4, &mut Counting::default(), &[]);
    let expected = Tally {
        elements: FRAMES as u64,
        bytes: 0,
        odd: 0,
    };
    Case::new(chunk.len(), expected, move || {
        let mut sink = Counting::default();
        let verdict = decoder.requests(0, black_box(&chunk), &mut sink);
        sink.0.odd += u64::from(verdict != Verdict::Continue);
        sink.0.elements += decoder.forget_requests(STREAMS);
        sink.0
    })
}

pub(super) fn rows() -> Case {
    responses(RESULT, &wire::rows(1))
}

pub(super) fn void() -> Case {
    responses(RESULT, &wire::void())
}

pub(super) fn error() -> Case {
    responses(ERROR, &wire::error())
}

fn responses(opcode: u8, body: &[u8]) -> Case {
    let chunk: Vec<u8> = STREAMS
        .flat_map(|stream| wire::frame(4 | RESPONSE, stream, opcode, body))
        .collect();
    let mut decoder = started(4, &mut Counting::default(), &[]);
    let expected = Tally {
        elements: FRAMES as u64,
        bytes: chunk.len() as u64,
        odd: 0,
    };
    Case::new(chunk.len(), expected, move || {
        let mut sink = Counting::default();
        let put = decoder.expect_responses(StatementKind::Execute, 0, STREAMS);
        let verdict = decoder.responses(1, black_box(&chunk), &mut sink);
        sink.0.odd += u64::from(put.is_err()) + u64::from(verdict != Verdict::Continue);
        sink.0
    })
}
