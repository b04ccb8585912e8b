//! Both directions of a flow through an editor whose steps change, refuse, encrypt, and have wait.
//!
//! For any input: nothing panics; what is held does not depend on what a peer declares; steps that
//! change nothing leave every byte as it was; the same goes on however it is cut; and what goes on can be
//! read as far as what came could.

use self::steps::{Later, STEPS, Steps};
use super::ignore::Ignore;
use super::memory::most_held;
use super::script::{Compression, Run, Script, frame, lz4_segment, segment, startup};
use cql_edit::{Caller, Editor, Unreadable};
use std::sync::Arc;

mod steps;

/// More than an editor holds after some kilobytes of anything: what waits, answers, ids and texts.
const MAX_HELD_BYTES: usize = 4 << 20;

const READY: u8 = 2;
const QUERY: u8 = 7;
const PREPARE: u8 = 9;

/// The bytes that went on.
#[derive(Debug, Default, PartialEq)]
struct Went {
    /// To the client, and to the database.
    bytes: [Vec<u8>; 2],
    unreadable: Option<Unreadable>,
}

/// The bytes that are sent, in order, and whether by the client.
type Said = [(bool, Vec<u8>)];

/// Two directions through an editor.
pub fn edit(data: &[u8]) {
    let Some(script) = Script::new(data) else {
        return;
    };
    let steps = &STEPS[usize::from(data[0] / 3) % STEPS.len()];
    let (version, piece, compression) = (script.version, script.piece, script.compression);
    let opening = [
        (true, startup(version, compression)),
        (false, frame(version | 0x80, 0, 0, READY, &[])),
    ];
    let said: Vec<_> = opening
        .into_iter()
        .chain(script.map(|run| (run.is_request, framed(version, compression, &run))))
        .collect();

    let mut whole = Went::default();
    let held = most_held(|| whole = pass(steps, &said, usize::MAX));
    assert!(held <= MAX_HELD_BYTES, "{held} bytes");
    let cut = pass(steps, &said, piece);
    if steps.repeats {
        assert_eq!(cut, whole);
    }
    if !steps.changes {
        for (to_database, went) in [false, true].into_iter().zip(&whole.bytes) {
            let came = said
                .iter()
                .filter(|(is_request, _)| *is_request == to_database);
            let came: Vec<u8> = came.flat_map(|(_, bytes)| bytes.clone()).collect();
            // Frames that come in parts may go on in segments of their own.
            let [came, went] = match (version, compression) {
                (5, Compression::None) => [&came, went].map(|bytes| payloads(bytes)),
                _ => [came, went.clone()],
            };
            match whole.unreadable {
                Some(_) => assert!(came.starts_with(&went)),
                None => assert_eq!(came, went),
            }
        }
    }
    if whole.unreadable.is_none() {
        can_be_read(&whole, version, compression);
    }
}

/// A frame that is well formed around any body, or around a statement of any text; in v5 at times two of it, cut anywhere.
fn framed(version: u8, compression: Compression, run: &Run<'_>) -> Vec<u8> {
    let opcode = run.more & 0x1F;
    let body = match (run.is_request, opcode) {
        (true, QUERY | PREPARE) if run.choice & 0x40 != 0 => {
            let end = run.bytes.iter().position(|byte| *byte == 0);
            let (text, rest) = run.bytes.split_at(end.unwrap_or(run.bytes.len()));
            let length = (text.len() as u32).to_be_bytes();
            [&length, text, rest.get(1..).unwrap_or_default()].concat()
        }
        _ => run.bytes.to_vec(),
    };
    // Tracing, custom payload, warnings.
    let flags = run.choice & 0x0E;
    let direction = if run.is_request { 0 } else { 0x80 };
    let stream = i16::from(run.more >> 5);
    let is_stored = version < 5 && run.choice & 0x01 != 0 && body.len() <= 0xFF;
    let (flags, body) = match is_stored {
        true => (flags | 0x01, compression.stored(&body)),
        false => (flags, body),
    };
    let frame = frame(version | direction, flags, stream, opcode, &body);
    let around = |whole, payload: &[u8]| match (version, compression) {
        (5, Compression::Lz4) => lz4_segment(whole, 0, payload),
        (5, _) => segment(whole, payload),
        _ => payload.to_vec(),
    };
    // Two of it, in a segment that ends within the second one, whose rest comes in another.
    if version == 5 && compression == Compression::None && run.choice & 0x01 != 0 {
        let frames = [&frame[..], &frame].concat();
        let end = frame.len() + usize::from(run.more) % frame.len();
        return [around(false, &frames[..end]), around(false, &frames[end..])].concat();
    }
    around(true, &frame)
}

/// A direction without its segments, which have no compression: the frame in front of them, and what is in each.
fn payloads(bytes: &[u8]) -> Vec<u8> {
    /// Length and flag, and a checksum.
    const HEADER: usize = 6;
    const CHECKSUM: usize = 4;
    let length = bytes.get(5..9).map_or(0, |length| {
        length
            .iter()
            .fold(0, |all, byte| all << 8 | usize::from(*byte))
    });
    let (opening, mut rest) = bytes.split_at(bytes.len().min(9 + length));
    let mut plain = opening.to_vec();
    while let [a, b, c, ..] = rest {
        let length = usize::from(*a) | usize::from(*b) << 8 | usize::from(*c & 1) << 16;
        let end = rest.len().min(HEADER + length);
        plain.extend(rest.get(HEADER..end).unwrap_or_default());
        rest = rest.get(end + CHECKSUM..).unwrap_or_default();
    }
    plain
}

/// Through an editor, in pieces of at most so many bytes. Behind each run it is looked for what waited.
fn pass(steps: &Steps, said: &Said, piece: usize) -> Went {
    let later = Arc::new(Later::default());
    let caller = Caller {
        rule: "r".into(),
        client: "192.0.2.1".into(),
        dialled: Some(([10, 0, 0, 1], 9042).into()),
        ..Caller::default()
    };
    let mut editor = Editor::new((steps.make)(&later), caller).told_by(later.clone());
    let mut went = Went::default();
    for (now_ns, (is_request, bytes)) in (0..).map(|turn| turn * 1_000_000).zip(said) {
        editor.set_time(1_700_000_000_000_000);
        for chunk in bytes.chunks(piece) {
            let edited = match is_request {
                true => editor.requests(now_ns, chunk, &mut Ignore),
                false => editor.responses(chunk, &mut Ignore),
            };
            let goes = edited.instead.as_deref().unwrap_or(chunk);
            went.bytes[usize::from(*is_request)].extend_from_slice(goes);
            went.unreadable = went.unreadable.or(edited.unreadable);
            if editor.is_denied() {
                return went;
            }
        }
        for (number, resolution) in later.said() {
            editor.resolve(now_ns, number, resolution, &mut Ignore);
        }
        let mut later_ns = now_ns;
        while editor.has_more() {
            later_ns += editor.pause_ns(later_ns);
            went.bytes[1].extend(editor.go_on(later_ns, &mut Ignore));
        }
        went.bytes[1].extend(editor.late().unwrap_or_default());
        went.bytes[0].extend(editor.answers().unwrap_or_default());
    }
    for to_database in [true, false] {
        editor.give_up(0, to_database, &mut Ignore);
        went.bytes[usize::from(to_database)].extend(editor.end(to_database));
    }
    assert_eq!(editor.suspended(), 0);
    editor.abandon(&mut Ignore);
    went
}

/// By an editor that changes nothing, which would say otherwise. Which request is answered by what is
/// not known any more, so each direction is read by itself.
fn can_be_read(went: &Went, version: u8, compression: Compression) {
    for (to_database, bytes) in [false, true].into_iter().zip(&went.bytes) {
        let mut editor = Editor::new(Arc::from([]), Caller::default());
        if !to_database {
            let startup = startup(version, compression);
            assert_eq!(editor.requests(0, &startup, &mut Ignore).unreadable, None);
        }
        let opening = startup(version, compression).len();
        let (opening, rest) = bytes.split_at(if to_database { opening } else { bytes.len() });
        let read = match to_database {
            false => editor.responses(opening, &mut Ignore),
            true => {
                let ready = frame(version | 0x80, 0, 0, READY, &[]);
                let asked = editor.requests(0, opening, &mut Ignore);
                assert_eq!(asked.unreadable, None);
                assert_eq!(editor.responses(&ready, &mut Ignore).unreadable, None);
                editor.requests(0, rest, &mut Ignore)
            }
        };
        assert_eq!(read.unreadable, None, "to the database: {to_database}");
    }
}
