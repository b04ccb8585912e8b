//! The decoder's parts by themselves.

use std::hint::black_box;

use cql::parts::{Deframer, Desegmenter, Seen, Texts, headers};

use super::{
    Case, Tally,
    wire::{self, CHUNK_BYTES, EXECUTE, Id, MAX_SEGMENT_BYTES, QUERY},
};

/// Headers in a round: enough that the round itself costs nothing.
const HEADERS: usize = 1024;
/// A body larger than what is ever collected of one.
const LARGE_BYTES: usize = 1 << 20;
/// Texts in a round.
const TEXTS: u64 = 32;

pub(super) const ID: Id = *b"0123456789abcdef";
pub(super) const SELECT: &str =
    "SELECT \"C0\", \"C1\", \"C2\", \"C3\", \"C4\" FROM keyspace1.standard1 WHERE KEY = ?";
pub(super) const INSERT: &str = "INSERT INTO keyspace1.standard1 (key, \"C0\", \"C1\", \"C2\", \
                                 \"C3\", \"C4\") VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";

impl Tally {
    fn add(&mut self, seen: Option<Seen>) {
        match seen {
            Some(seen) => {
                self.elements += seen.elements;
                self.bytes += seen.bytes;
            }
            None => self.odd += 1,
        }
    }
}

pub(super) fn header() -> Case {
    const BODY_BYTES: u64 = 100;
    let opcodes = [EXECUTE, QUERY, wire::PREPARE, wire::BATCH];
    let one = |(stream, opcode): (i16, &u8)| {
        let mut frame = wire::frame(4, stream, *opcode, &[0; BODY_BYTES as usize]);
        frame.truncate(frame.len() - BODY_BYTES as usize);
        frame
    };
    let input: Vec<u8> = (0..)
        .zip(opcodes.iter().cycle())
        .take(HEADERS)
        .flat_map(one)
        .collect();
    let expected = Tally {
        elements: HEADERS as u64,
        bytes: HEADERS as u64 * BODY_BYTES,
        odd: 0,
    };
    Case::new(input.len(), expected, move || {
        let mut tally = Tally::default();
        tally.add(headers(black_box(&input)));
        tally
    })
}

pub(super) fn deframe_small() -> Case {
    let body = wire::execute(4, &ID);
    let frame = wire::frame(4, 1, EXECUTE, &body);
    let count = CHUNK_BYTES / frame.len();
    let input = frame.repeat(count);
    let expected = Tally {
        elements: count as u64,
        bytes: (count * body.len()) as u64,
        odd: 0,
    };
    deframe(vec![input], expected)
}

pub(super) fn deframe_large() -> Case {
    /// The bytes that the decoder looks at of a body that holds a text.
    const SHOWN_BYTES: u64 = 64 << 10;
    let frame = wire::frame(4, 1, QUERY, &vec![b'x'; LARGE_BYTES]);
    let expected = Tally {
        elements: 1,
        bytes: SHOWN_BYTES,
        odd: 0,
    };
    deframe(chunks(&frame), expected)
}

fn deframe(chunks: Vec<Vec<u8>>, expected: Tally) -> Case {
    let mut deframer = Deframer::default();
    Case::new(fed(&chunks), expected, move || {
        let mut tally = Tally::default();
        for chunk in &chunks {
            tally.add(deframer.feed(black_box(chunk)));
        }
        tally
    })
}

pub(super) fn segment_self_contained() -> Case {
    let frame = wire::frame(5, 1, EXECUTE, &wire::execute(5, &ID));
    let segment = wire::segment(true, &frame);
    let count = CHUNK_BYTES / segment.len();
    let expected = Tally {
        elements: count as u64,
        bytes: (count * frame.len()) as u64,
        odd: 0,
    };
    desegment(vec![segment.repeat(count)], expected)
}

pub(super) fn segment_multi() -> Case {
    let frame = wire::frame(5, 1, QUERY, &vec![b'x'; LARGE_BYTES]);
    let parts = frame.chunks(MAX_SEGMENT_BYTES);
    let expected = Tally {
        elements: parts.len() as u64,
        bytes: frame.len() as u64,
        odd: 0,
    };
    let segments: Vec<u8> = parts.flat_map(|part| wire::segment(false, part)).collect();
    desegment(chunks(&segments), expected)
}

fn desegment(chunks: Vec<Vec<u8>>, expected: Tally) -> Case {
    let mut desegmenter = Desegmenter::default();
    Case::new(fed(&chunks), expected, move || {
        let mut tally = Tally::default();
        for chunk in &chunks {
            tally.add(desegmenter.feed(black_box(chunk)));
        }
        tally
    })
}

pub(super) fn select() -> Case {
    text(SELECT)
}

pub(super) fn insert() -> Case {
    text(INSERT)
}

fn text(text: &'static str) -> Case {
    let mut texts = Texts::default();
    let expected = Tally {
        elements: TEXTS,
        bytes: TEXTS * "standard1".len() as u64,
        odd: 0,
    };
    Case::new(TEXTS as usize * text.len(), expected, move || {
        let mut tally = Tally::default();
        for _ in 0..TEXTS {
            let statement = texts.statement(black_box(text.as_bytes()));
            tally.elements += 1;
            tally.bytes += statement.table.as_ref().map_or(0, |t| t.len()) as u64;
        }
        tally
    })
}

/// Cuts bytes into chunks as the agent would read them.
fn chunks(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.chunks(CHUNK_BYTES).map(<[u8]>::to_vec).collect()
}

fn fed(chunks: &[Vec<u8>]) -> usize {
    chunks.iter().map(Vec::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cql::{Statement, StatementKind};

    #[test]
    fn texts_are_what_they_look_like() {
        for (text, kind) in [
            (SELECT, StatementKind::Select),
            (INSERT, StatementKind::Insert),
        ] {
            let expected = Statement {
                kind,
                keyspace: Some("keyspace1".into()),
                table: Some("standard1".into()),
            };
            assert_eq!(*Texts::default().statement(text.as_bytes()), expected);
        }
    }

    #[test]
    fn a_wrong_byte_is_odd() {
        let mut bad = wire::segment(true, b"payload");
        bad[8] ^= 1;
        let mut case = desegment(vec![bad], Tally::default());
        assert_eq!(case.work().odd, 1);
    }
}
