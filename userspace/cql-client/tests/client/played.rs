//! Openings and answers, byte by byte.

use std::time::Duration;

use cassandra_protocol::frame::{Opcode, Version};
use cql::Compression;
use cql_client::{
    ByName as _, Conversation, Hello, NoAnswer, Opening, Request, auth_response, startup,
};

use super::peer::{COMPRESSIONS, VERSIONS, answer, ints, response, rows, short, soon};

const VARCHAR: [u8; 2] = [0, 0x0D];

fn hello<'h>(
    version: Version,
    compression: Compression,
    startup: &'h [u8],
    auth_response: Option<&'h [u8]>,
) -> Hello<'h> {
    Hello {
        version,
        compression,
        startup,
        auth_response,
        keyspace: Some("a\"b"),
    }
}

/// Version 5 has no Snappy.
fn combinations() -> impl Iterator<Item = (Version, Compression)> {
    let all = VERSIONS
        .into_iter()
        .flat_map(|v| COMPRESSIONS.map(|c| (v, c)));
    all.filter(|pair| *pair != (Version::V5, Compression::Snappy))
}

/// Has an answer come in pieces.
fn receive(conversation: &mut Conversation, bytes: &[u8], piece: usize) -> cql_client::Answer {
    let mut pieces = bytes.chunks(piece).peekable();
    while let Some(piece) = pieces.next() {
        if let Some(answer) = conversation.receive(piece).unwrap() {
            assert!(pieces.peek().is_none());
            return answer;
        }
    }
    panic!("there is no answer");
}

#[test]
fn a_connection_opens_with_a_log_in_and_a_keyspace_whatever_the_version() {
    for (version, compression) in combinations() {
        for piece in [1, 5, 1000] {
            let begins = startup(compression);
            let token = auth_response("u", "pw");
            let hello = hello(version, compression, &begins, Some(&token));
            let (mut opening, mut conversation) = Opening::begin(&hello, soon());
            let sent = conversation.take_output();
            assert_eq!(**sent, **Request::Startup(&begins).frame(version, 0));
            // In version 5 the answer to STARTUP is the last that is no segment.
            let wants = response(
                version,
                Compression::None,
                Opcode::Authenticate,
                &short(b"x"),
            );
            let came = receive(&mut conversation, &wants, piece);
            assert!(!opening.answered(came, &mut conversation, soon()).unwrap());
            let sent = conversation.take_output();
            assert!(sent.windows(4).any(|w| w == b"u\0pw"), "not compressed");
            let let_in = answer(version, compression, Opcode::AuthSuccess, &ints(&[-1]));
            let came = receive(&mut conversation, &let_in, piece);
            assert!(!opening.answered(came, &mut conversation, soon()).unwrap());
            let sent = conversation.take_output();
            assert!(sent.windows(10).any(|w| w == b"USE \"a\"\"b\""));
            let body = [ints(&[3]), short(b"a\"b")].concat();
            let set = answer(version, compression, Opcode::Result, &body);
            let came = receive(&mut conversation, &set, piece);
            assert!(opening.answered(came, &mut conversation, soon()).unwrap());
        }
    }
}

/// The failure that ends an opening at its first answer.
fn ends(version: Version, said: &[u8], auth_response: Option<&[u8]>) -> String {
    let begins = startup(Compression::None);
    let hello = hello(version, Compression::None, &begins, auth_response);
    let (mut opening, mut conversation) = Opening::begin(&hello, soon());
    let failure = match conversation.receive(said) {
        Ok(came) => opening
            .answered(came.unwrap(), &mut conversation, soon())
            .unwrap_err(),
        Err(failure) => failure,
    };
    failure.to_string()
}

#[test]
fn why_a_database_does_not_let_it_in_is_told() {
    let says = |opcode, body: &[u8]| response(Version::V4, Compression::None, opcode, body);
    let wrong = [ints(&[0x0100]), short(b"bad password")].concat();
    for (said, why) in [
        (
            says(Opcode::Authenticate, &short(b"x")),
            "it wants a log-in",
        ),
        (says(Opcode::Error, &wrong), "bad password"),
        (
            says(Opcode::Error, &[0; 3]),
            "it answers by what cannot be read",
        ),
        (says(Opcode::Result, &ints(&[1])), "unexpected opcode 0x08"),
        (
            response(Version::V3, Compression::None, Opcode::Ready, &[]),
            "it does not speak version 4 of CQL's protocol",
        ),
        (
            b"HTTP/1.1 400".to_vec(),
            "it does not speak version 4 of CQL's protocol",
        ),
    ] {
        assert_eq!(ends(Version::V4, &said, None), why);
    }
    let mut other = says(Opcode::Ready, &[]);
    other[3] = 9;
    assert_eq!(
        ends(Version::V4, &other, None),
        "it says something else than it was asked"
    );
}

#[test]
fn rows_are_read_by_name() {
    for (version, compression) in combinations() {
        let mut conversation = open(version, compression);
        conversation.ask(&Request::Query("SELECT c FROM ks.t"), soon());
        let body = rows(&VARCHAR, &[b"x", b"y"]);
        let came = receive(
            &mut conversation,
            &answer(version, compression, Opcode::Result, &body),
            7,
        );
        let rows = came.rows().unwrap();
        assert_eq!(rows.len(), 2);
        let read = rows.read(|row| row.r_by_name::<String>("c").ok()).unwrap();
        assert_eq!(read, ["x", "y"]);
        assert!(rows.read(|row| row.r_by_name::<String>("d").ok()).is_err());
        assert!(rows.read(|row| row.r_by_name::<i32>("c").ok()).is_err());
    }
}

/// A conversation behind its opening.
pub(super) fn open(version: Version, compression: Compression) -> Conversation {
    let begins = startup(compression);
    let hello = Hello {
        keyspace: None,
        ..hello(version, compression, &begins, None)
    };
    let (mut opening, mut conversation) = Opening::begin(&hello, soon());
    let ready = response(version, Compression::None, Opcode::Ready, &[]);
    let came = conversation.receive(&ready).unwrap().unwrap();
    assert!(opening.answered(came, &mut conversation, soon()).unwrap());
    conversation.take_up_to(1 << 20);
    conversation
}

#[test]
fn what_nobody_asked_for_ends_it() {
    let mut conversation = open(Version::V4, Compression::None);
    assert_eq!(conversation.deadline(), None);
    let said = response(Version::V4, Compression::None, Opcode::Result, &ints(&[1]));
    let failure = conversation.receive(&said).unwrap_err();
    assert!(matches!(failure, NoAnswer::NotAsked));
}

#[test]
fn what_is_late_is_told_at_the_deadline() {
    let mut conversation = open(Version::V4, Compression::None);
    let until = soon();
    conversation.ask(&Request::Options, until);
    conversation.tick(until - Duration::from_nanos(1)).unwrap();
    assert!(matches!(conversation.tick(until), Err(NoAnswer::Late)));
}
