//! Databases that say anything: no panic comes out, nothing hangs, and each answer is read or refused.

use std::{net::IpAddr, sync::Once};

use cassandra_protocol::{
    frame::{Opcode, Version},
    types::{decimal::Decimal, map::Map, tuple::Tuple, udt::Udt},
};
use cql::Compression;
use cql_client::{AsRustType, ByName as _, Conversation, List, NoAnswer, Request, Row};
use proptest::prelude::*;

use super::{
    peer::{COMPRESSIONS, VERSIONS, answer, ints, response, rows, short, soon},
    played::open,
};

/// Panics within the fence are expected, and say nothing.
fn quiet() {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let file = info.location().map_or("", |location| location.file());
            if !file.contains("cassandra-protocol") && !file.contains("alloc") {
                hook(info);
            }
        }));
    });
}

fn any_of_each() -> impl Strategy<Value = (Version, Compression)> {
    (0..3_usize, 0..3_usize).prop_map(|(v, c)| match (VERSIONS[v], COMPRESSIONS[c]) {
        (Version::V5, Compression::Snappy) => (Version::V5, Compression::None),
        pair => pair,
    })
}

/// Reads an answer in every way there is, and cells as everything they could be.
fn read(conversation: &mut Conversation, said: &[u8], piece: usize, kind: u8) {
    conversation.ask(&Request::Options, soon());
    for piece in said.chunks(piece.max(1)) {
        match conversation.receive(piece) {
            Ok(None) => {}
            Err(_) => return,
            Ok(Some(answer)) => {
                match kind % 3 {
                    0 => drop(answer.supported()),
                    1 => drop(answer.prepared()),
                    _ => drop(answer.rows().map(|rows| drop(rows.read(cells)))),
                }
                return;
            }
        }
    }
}

fn cells(row: &Row) -> Option<()> {
    drop(row.by_name::<String>("c"));
    drop(row.by_name::<i32>("c"));
    drop(row.by_name::<i64>("c"));
    drop(row.by_name::<f64>("c"));
    drop(row.by_name::<IpAddr>("c"));
    drop(row.by_name::<Decimal>("c"));
    drop(row.by_name::<Map>("c"));
    drop(row.by_name::<Tuple>("c"));
    drop(row.by_name::<Udt>("c"));
    if let Ok(Some(list)) = row.by_name::<List>("c") {
        drop(AsRustType::<Vec<String>>::as_rust_type(&list));
        drop(AsRustType::<Vec<IpAddr>>::as_rust_type(&list));
    }
    Some(())
}

/// A body that an answer could have.
fn valid() -> Vec<(Opcode, Vec<u8>)> {
    let name = |text: &str| short(text.as_bytes());
    let list = [&ints(&[1, 3])[..], b"abc"].concat();
    let prepared = [
        ints(&[4]),
        name("id"),
        ints(&[1, 1, 1]),
        vec![0, 0],
        name("ks"),
        name("t"),
        name("c"),
        vec![0, 0x22, 0, 0x0D],
        ints(&[4, 0]),
    ];
    let supported = [
        vec![0, 1],
        name("COMPRESSION"),
        vec![0, 2],
        name("lz4"),
        name("snappy"),
    ];
    vec![
        (Opcode::Result, rows(&[0, 0x0D], &[b"text", b""])),
        (
            Opcode::Result,
            rows(&[0, 0x10], &[&[127, 0, 0, 1], &[1; 16]]),
        ),
        (Opcode::Result, rows(&[0, 0x22, 0, 0x0D], &[&list])),
        (
            Opcode::Result,
            rows(&[0, 0x21, 0, 9, 0, 9], &[&ints(&[1, 4, 1, 4, 1])]),
        ),
        (
            Opcode::Result,
            rows(&[0, 0x31, 0, 2, 0, 9, 0, 9], &[&ints(&[4, 1, 4, 1])]),
        ),
        (Opcode::Result, rows(&[0, 6], &[&[0, 0, 0, 1, 5]])),
        (Opcode::Result, prepared.concat()),
        (Opcode::Supported, supported.concat()),
        (
            Opcode::Error,
            [
                ints(&[0x1300]),
                name("failure"),
                vec![0, 1],
                ints(&[1, 1, 1]),
            ]
            .concat(),
        ),
        (
            Opcode::Authenticate,
            name("org.apache.cassandra.auth.PasswordAuthenticator"),
        ),
        (Opcode::Event, name("STATUS_CHANGE")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn noise_is_refused(
        (version, compression) in any_of_each(),
        said in prop::collection::vec(any::<u8>(), 0..400),
        piece in 1..64_usize,
        kind: u8,
    ) {
        quiet();
        read(&mut open(version, compression), &said, piece, kind);
        read(&mut Conversation::new(version, compression, 1 << 16), &said, piece, kind);
    }

    /// Right frames, around bodies that are noise.
    #[test]
    fn noise_in_frames_is_refused(
        (version, compression) in any_of_each(),
        opcode in 0..0x11_u8,
        body in prop::collection::vec(any::<u8>(), 0..200),
        kind: u8,
    ) {
        quiet();
        let Ok(opcode) = Opcode::try_from(opcode) else { return Ok(()) };
        let said = answer(version, compression, opcode, &body);
        read(&mut open(version, compression), &said, 1 << 20, kind);
    }

    /// What a database says, with some bytes changed, and cut off somewhere.
    #[test]
    fn answers_that_were_tampered_with_are_read_or_refused(
        (version, compression) in any_of_each(),
        which: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut: Option<prop::sample::Index>,
        kind: u8,
    ) {
        quiet();
        let mut all = valid();
        let (opcode, mut body) = all.swap_remove(which.index(all.len()));
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Some(cut) = cut {
            body.truncate(cut.index(body.len()));
        }
        let said = answer(version, compression, opcode, &body);
        read(&mut open(version, compression), &said, 1 << 20, kind);
    }

    /// The same in the frame's own header.
    #[test]
    fn headers_that_were_tampered_with_are_read_or_refused(
        which: prop::sample::Index,
        (at, byte) in (0..9_usize, any::<u8>()),
        kind: u8,
    ) {
        quiet();
        let all = valid();
        let (opcode, body) = &all[which.index(all.len())];
        let mut said = response(Version::V4, Compression::None, *opcode, body);
        said[at] = byte;
        read(&mut open(Version::V4, Compression::None), &said, 1 << 20, kind);
    }
}

#[test]
fn lengths_below_zero_end_it_at_once() {
    for length in [-1_i32, -9, -10, i32::MIN] {
        let mut conversation = open(Version::V4, Compression::None);
        conversation.ask(&Request::Options, soon());
        let head = [&[0x84, 0, 0, 0, 6][..], &length.to_be_bytes()].concat();
        let failure = conversation.receive(&head).unwrap_err();
        assert!(matches!(failure, NoAnswer::NotCql(_)), "{failure}");
    }
}

#[test]
fn an_answer_that_is_too_long_ends_it_at_its_header() {
    let mut conversation = open(Version::V4, Compression::None);
    conversation.ask(&Request::Options, soon());
    let head = [&[0x84, 0, 0, 0, 6][..], &(2_i32 << 20).to_be_bytes()].concat();
    let failure = conversation.receive(&head).unwrap_err();
    assert!(matches!(failure, NoAnswer::TooLong), "{failure}");
}

/// The crate would panic on it.
#[test]
fn an_id_of_a_trace_that_is_not_there_cannot_be_read() {
    let mut conversation = open(Version::V4, Compression::None);
    conversation.ask(&Request::Options, soon());
    let failure = conversation
        .receive(&[0x84, 2, 0, 0, 6, 0, 0, 0, 2, 0, 0])
        .unwrap_err();
    assert!(matches!(failure, NoAnswer::Unreadable), "{failure}");
}
