//! EXECUTEs that wait go on as one BATCH, and each stream has one answer, over every version and compression.

mod steps;

use std::sync::{Arc, Mutex};

use crate::support::edit::*;
use crate::support::*;
use cassandra_protocol::compression::Compression;
use cassandra_protocol::frame::message_batch::BatchType;
use cassandra_protocol::frame::{Envelope, message_request::RequestBody};
use cql::Opcode;
use cql_edit::{
    Caller, Completion, Editor, Error, Outcome, Refused, Request, Resolution, Ticket, Transform,
};

/// Merges every three EXECUTEs; two once they are due.
#[derive(Debug, Default)]
pub struct Merges(Mutex<Vec<Ticket>>);

impl Merges {
    fn merged(tickets: &mut Vec<Ticket>) -> Completion {
        let mut tickets = std::mem::take(tickets).into_iter();
        let first = tickets.next().unwrap();
        first.leads(tickets.collect())
    }
}

impl Transform for Merges {
    fn name(&self) -> &'static str {
        "merges"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Execute | Opcode::Query)
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        let mut tickets = self.0.lock().unwrap();
        if request.opcode() == Opcode::Execute {
            assert!(request.mergeable().is_ok());
            tickets.push(request.suspend().unwrap());
            if tickets.len() == 2 {
                tickets[0].fall_due();
            }
            if tickets.len() < 3 {
                return Outcome::Pass;
            }
        }
        if !tickets.is_empty() {
            request.first(Self::merged(&mut tickets));
        }
        Outcome::Pass
    }

    fn due(&self, _: usize, number: u64) -> Vec<Completion> {
        let mut tickets = self.0.lock().unwrap();
        match tickets
            .first()
            .is_some_and(|first| first.number() == number)
        {
            true => vec![Self::merged(&mut tickets)],
            false => Vec::new(),
        }
    }
}

/// A step behind.
#[derive(Debug)]
pub struct RefusesBatches;

impl Transform for RefusesBatches {
    fn name(&self) -> &'static str {
        "refuses"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode == Opcode::Batch
    }

    fn request(&self, _: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        Outcome::Refuse(Refused {
            reason: "batch",
            error: Error::Overloaded("no".to_owned()),
        })
    }
}

pub const EXECUTE: u8 = 0x0A;
pub const BATCH: u8 = 0x0D;
pub const ERROR: u8 = 0x00;

fn flow(kind: Kind, behind: Option<Arc<dyn Transform>>) -> (Edits, Arc<Completions>) {
    let mut pipeline: Vec<Arc<dyn Transform>> = vec![Arc::new(Merges::default())];
    pipeline.extend(behind);
    flow_of(kind, pipeline)
}

pub fn flow_of(kind: Kind, pipeline: Vec<Arc<dyn Transform>>) -> (Edits, Arc<Completions>) {
    let mut edits = Edits::new(kind, pipeline);
    let letters = Arc::new(Completions::default());
    let none: Vec<Arc<dyn Transform>> = Vec::new();
    let empty = Editor::new(none.into(), Caller::default());
    edits.editor = std::mem::replace(&mut edits.editor, empty).told_by(letters.clone());
    (edits, letters)
}

pub fn id(stream: i16) -> Vec<u8> {
    format!("statement {stream}").into_bytes()
}

pub fn short(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

pub fn execute(kind: Kind, stream: i16) -> Vec<u8> {
    let mut body = short(&id(stream));
    if kind.version == 5 {
        body.extend(short(b"metadata"));
    }
    body.extend([0, 6]);
    body.extend(match kind.version {
        5 => &[0, 0, 0, 1][..],
        _ => &[1],
    });
    body.extend([0, 1, 0, 0, 0, 2, b'v', stream as u8]);
    kind.sent(0, stream, EXECUTE, &body)
}

/// Streams, opcodes and bodies.
pub fn read(kind: Kind, bytes: &[u8]) -> Vec<(i16, u8, Vec<u8>)> {
    let frames = kind.read(bytes).into_iter();
    let read = frames.map(|frame| {
        let stream = i16::from_be_bytes([frame[2], frame[3]]);
        let compression = match frame[1] & 1 {
            0 => Compression::None,
            _ => kind.compression,
        };
        let envelope = Envelope::from_buffer(&frame, compression).unwrap();
        (stream, frame[4], envelope.envelope.body)
    });
    let mut read: Vec<_> = read.collect();
    read.sort();
    read
}

pub fn sent(kind: Kind, edits: &mut Edits, streams: &[i16]) -> Vec<u8> {
    let all: Vec<Vec<u8>> = streams.iter().map(|s| execute(kind, *s)).collect();
    edits.requests(&all.concat())
}

pub fn answers(edits: &mut Edits, bytes: &[u8]) -> Vec<u8> {
    let mut got = edits.responses(bytes);
    got.extend(edits.editor.answers().unwrap_or_default());
    got
}

#[test]
fn a_batch_is_what_a_library_reads_and_its_answer_is_everybodys() {
    for kind in KINDS {
        let (mut edits, letters) = flow(kind, None);
        let passed = sent(kind, &mut edits, &[7, 8, 9]);
        let frames = kind.read(&passed);
        let [frame] = &frames[..] else {
            panic!("{kind:?}: {} frames", frames.len())
        };
        let compression = match frame[1] & 1 {
            0 => Compression::None,
            _ => kind.compression,
        };
        let envelope = Envelope::from_buffer(frame, compression).unwrap().envelope;
        assert_eq!(envelope.stream_id, 7);
        let RequestBody::Batch(batch) = envelope.request_body().unwrap() else {
            panic!("{kind:?}: no BATCH")
        };
        assert_eq!(batch.queries.len(), 3);
        // What nobody sent as one is not logged as one.
        assert_eq!(batch.batch_type, BatchType::Unlogged, "{kind:?}");
        let result = kind.sent(0x80, 7, 0x08, &1_u32.to_be_bytes());
        let told = answers(&mut edits, &result);
        let void = |stream| (stream, 0x08, 1_u32.to_be_bytes().to_vec());
        assert_eq!(read(kind, &told), [void(7), void(8), void(9)], "{kind:?}");
        assert!(edits.editor.can_leave() && edits.editor.suspended() == 0);
        // That it was due came too late.
        let due = std::mem::take(&mut *letters.0.lock().unwrap());
        assert_eq!(due, [(0, Some(Resolution::Due))]);
        for (number, what) in due {
            edits.editor.resolve(0, number, what, &mut edits.noted);
        }
        assert_eq!(edits.editor.late(), None);
    }
}

#[test]
fn what_is_due_goes_on_and_nothing_overtakes_it() {
    for kind in KINDS {
        let (mut edits, letters) = flow(kind, None);
        assert!(sent(kind, &mut edits, &[7, 8]).is_empty());
        for (number, what) in std::mem::take(&mut *letters.0.lock().unwrap()) {
            edits.editor.resolve(0, number, what, &mut edits.noted);
        }
        let late = edits.editor.late().unwrap();
        let found = read(kind, &late);
        assert!(matches!(&found[..], [(7, BATCH, _)]), "{kind:?}");

        let (mut edits, _) = flow(kind, None);
        let query = kind.sent(0, 9, QUERY, &ask(kind.version, &table(1)));
        let all = [execute(kind, 7), execute(kind, 8), query.clone(), query];
        let passed = edits.requests(&all.concat());
        let order: Vec<u8> = kind.read(&passed).iter().map(|frame| frame[4]).collect();
        assert_eq!(order, [BATCH, QUERY, QUERY], "{kind:?}");
    }
}

#[test]
fn each_prepares_its_own_again() {
    for kind in KINDS {
        let (mut edits, _) = flow(kind, None);
        sent(kind, &mut edits, &[7, 8, 9]);
        let body = [&0x2500_u32.to_be_bytes()[..], &short(b"no"), &short(&id(8))].concat();
        let told = answers(&mut edits, &kind.sent(0x80, 7, ERROR, &body));
        let found = read(kind, &told);
        assert_eq!(found.len(), 3);
        for (stream, opcode, body) in found {
            assert_eq!(opcode, ERROR);
            assert!(body.ends_with(&short(&id(stream))), "{kind:?}");
        }
    }
}

#[test]
fn what_a_step_behind_refuses_is_refused_to_all() {
    for kind in KINDS {
        let (mut edits, _) = flow(kind, Some(Arc::new(RefusesBatches)));
        assert!(sent(kind, &mut edits, &[7, 8, 9]).is_empty());
        let told = edits.editor.answers().unwrap();
        let found = read(kind, &told);
        let streams: Vec<(i16, u8)> = found.iter().map(|(s, opcode, _)| (*s, *opcode)).collect();
        assert_eq!(streams, [(7, ERROR), (8, ERROR), (9, ERROR)], "{kind:?}");
    }
}

#[test]
fn an_answer_that_cannot_be_read_leaves_nobody_waiting() {
    for kind in KINDS {
        if kind.compression == Compression::None || kind.version == 5 {
            continue;
        }
        let (mut edits, _) = flow(kind, None);
        sent(kind, &mut edits, &[7, 8, 9]);
        let mut garbage = vec![0x80 | kind.version, 1, 0, 7, 0x08, 0, 0, 0, 4];
        garbage.extend([0xFF; 4]);
        let told = answers(&mut edits, &garbage);
        let rest = told.strip_prefix(&garbage[..]).unwrap();
        let streams: Vec<(i16, u8)> = read(kind, rest).iter().map(|f| (f.0, f.1)).collect();
        assert_eq!(streams, [(8, ERROR), (9, ERROR)], "{kind:?}");
    }
}

#[test]
fn a_long_answer_is_not_told_to_all() {
    for kind in KINDS {
        let (mut edits, _) = flow(kind, None);
        sent(kind, &mut edits, &[7, 8, 9]);
        let body = [&[0; 4][..], &short(&[b'x'; 60_000])].concat();
        let told = answers(&mut edits, &kind.sent(0x80, 7, ERROR, &body));
        let found = read(kind, &told);
        let lengths: Vec<bool> = found.iter().map(|f| f.2.len() > 60_000).collect();
        assert_eq!(lengths, [true, false, false], "{kind:?}");
        assert!(found.iter().all(|(_, opcode, _)| *opcode == ERROR));
    }
}

#[test]
fn a_client_that_ends_has_asked_for_each() {
    for kind in KINDS {
        let (mut edits, _) = flow(kind, None);
        sent(kind, &mut edits, &[7, 8]);
        edits.editor.give_up(0, true, &mut edits.noted);
        let late = edits.editor.late().unwrap();
        let expected = [execute(kind, 7), execute(kind, 8)];
        let expected = kind.read(&expected.concat());
        assert_eq!(kind.read(&late), expected, "{kind:?}");
    }
}
