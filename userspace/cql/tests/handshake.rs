//! Tests of the handshake: the facts that it tells, and how far it lets bytes pass.

mod again;
mod peers;
mod refusals;

use crate::support::kind::KINDS;
use crate::support::*;
use cassandra_protocol::authenticators::SaslAuthenticatorProvider;
use cassandra_protocol::authenticators::StaticPasswordAuthenticatorProvider;
use cassandra_protocol::compression::Compression as NoCompression;
use cassandra_protocol::frame::{Envelope, Version};
use cql::{Compression, Fact, Handshake, ProtocolVersion, Refusal, Session, Unknowable};
use peers::{NO_STREAM, Peers};
use proptest::prelude::*;

const AUTH_CHALLENGE: u8 = 0x0E;
const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;
const REGISTER: u8 = 0x0B;

fn is(text: &str) -> Fact<Box<str>> {
    Fact::Is(text.into())
}

fn token(token: &[u8]) -> Vec<u8> {
    [&(token.len() as i32).to_be_bytes()[..], token].concat()
}

const OPTIONS_SENT: &[(&str, &str)] = &[
    ("DRIVER_NAME", "Driver"),
    ("DRIVER_VERSION", "1.2"),
    ("APPLICATION_NAME", "app"),
];

#[test]
fn a_whole_handshake_at_every_cut() {
    for kind in KINDS {
        let version = kind.version;
        for piece in [1, 2, 3, 5, 8, 13, 64, 10_000] {
            let mut peers = Peers::started_as(kind, piece, OPTIONS_SENT, AUTHENTICATE);
            assert_eq!(peers.session(), &Session::default(), "not let in yet");
            peers.client(1, AUTH_RESPONSE, &token(b"PLAIN"));
            peers.server(1, AUTH_CHALLENGE, &token(b"PLAIN-START"));
            peers.client(2, AUTH_RESPONSE, &token(b"\0alice\0secret"));
            assert_eq!(peers.told(), (0, 0));
            peers.server(2, AUTH_SUCCESS, &[255; 4]);
            assert_eq!(peers.told(), (0, 1));
            let expected = Session {
                user: is("alice"),
                keyspace: Fact::Open,
                driver: is("Driver"),
                driver_version: is("1.2"),
                application: is("app"),
                protocol: Fact::Is(match version {
                    3 => ProtocolVersion::V3,
                    4 => ProtocolVersion::V4,
                    _ => ProtocolVersion::V5,
                }),
                compression: Fact::Is(match kind.compression {
                    NoCompression::None => Compression::None,
                    NoCompression::Lz4 => Compression::Lz4,
                    NoCompression::Snappy => Compression::Snappy,
                }),
                tls: Fact::Is(false),
            };
            assert_eq!(peers.session(), &expected, "{kind:?}");
            peers.client(3, REGISTER, b"\0\0");
            peers.server(3, READY, b"");
            peers.query(4, "SELECT * FROM system.local");
            peers.server(4, RESULT, &[0, 0, 0, 2, 1, 2, 3]);
            assert_eq!(peers.told(), (0, 1), "{kind:?} in pieces of {piece}");
            peers.query(5, "USE \"Shop\"");
            peers.server(5, RESULT, &set_keyspace("Shop"));
            assert_eq!(peers.told(), (0, 2));
            assert_eq!(peers.session().keyspace, is("Shop"));
            assert!(peers.handshake.unknowable().is_empty());
            assert!(peers.all_passed());
        }
    }
}

#[test]
fn what_cassandra_protocol_says_is_read() {
    let authenticator =
        StaticPasswordAuthenticatorProvider::new("alice", "secret").create_authenticator();
    for (version, number) in [(Version::V3, 3), (Version::V4, 4)] {
        let mut peers = Peers::new(number, 7);
        let startup = Envelope::new_req_startup(Some("snappy".into()), version);
        peers.client_bytes(&startup.encode_with(NoCompression::None).unwrap());
        peers.server(NO_STREAM, AUTHENTICATE, b"\0\x01x");
        let response = Envelope::new_req_auth_response(authenticator.initial_response(), version);
        peers.client_bytes(&response.encode_with(NoCompression::None).unwrap());
        peers.server(NO_STREAM, AUTH_SUCCESS, &[255; 4]);
        assert_eq!(peers.session().user, is("alice"));
        assert_eq!(peers.session().compression, Fact::Is(Compression::Snappy));
        assert!(peers.all_passed());
    }
}

#[test]
fn nobody_has_to_log_in() {
    let peers = Peers::started(4, 3, &[], READY);
    assert_eq!(peers.session().user, Fact::Absent);
    assert_eq!(peers.session().driver, Fact::Absent);
    assert_eq!(peers.told(), (0, 1));
}

#[test]
fn a_startup_that_is_refused_tells_nothing() {
    let mut peers = Peers::new(5, 4);
    peers.client_bytes(&startup(5, &[("DRIVER_NAME", "first")]));
    // In a version of the server's own.
    peers.server_bytes(&frame(0x84, 0, 0, ERROR, b"\0\0\0\x0a\0\0"));
    assert_eq!(peers.session(), &Session::default());
    peers.version = 4;
    peers.client_bytes(&startup(4, &[("DRIVER_NAME", "second")]));
    peers.server(NO_STREAM, READY, b"");
    assert_eq!(peers.session().driver, is("second"));
    assert_eq!(peers.session().protocol, Fact::Is(ProtocolVersion::V4));
    assert!(peers.all_passed());
}

#[test]
fn a_log_in_that_fails_can_be_tried_again() {
    let mut peers = Peers::started(4, 5, &[], AUTHENTICATE);
    peers.client(1, AUTH_RESPONSE, &token(b"\0mallory\0guess"));
    peers.server(1, ERROR, b"\0\0\x01\0\0\0");
    assert_eq!(peers.session().user, Fact::Open);
    peers.client(2, AUTH_RESPONSE, &token(b"\0alice\0secret"));
    peers.server(2, AUTH_SUCCESS, &[255; 4]);
    assert_eq!(peers.session().user, is("alice"));
}

#[test]
fn the_token_that_counts_is_the_one_that_was_accepted() {
    let mut peers = Peers::started(4, 5, &[], AUTHENTICATE);
    peers.client(1, AUTH_RESPONSE, &token(b"\0mallory\0guess"));
    let passed = peers.requests.passed.len();
    peers.client(2, AUTH_RESPONSE, &token(b"\0alice\0wrong"));
    assert_eq!(peers.requests.passed.len(), passed, "it waits for its turn");
    peers.server(1, AUTH_SUCCESS, &[255; 4]);
    assert_eq!(peers.session().user, is("mallory"));
    assert!(peers.all_passed());
    assert_eq!(peers.session().user, is("mallory"));
}

/// The keyspace that this first request tells, and why there is none.
fn keyspace(version: u8, opcode: u8, body: &[u8]) -> (Fact<Box<str>>, Vec<Unknowable>) {
    let mut peers = Peers::started(version, 11, &[], READY);
    peers.client(1, opcode, body);
    let handshake = &peers.handshake;
    (
        handshake.session().keyspace.clone(),
        handshake.unknowable().to_vec(),
    )
}

#[test]
fn the_first_request_for_data_tells_the_keyspace() {
    use Fact::{Absent, Open, Unknowable as Unread};
    for version in [3, 4, 5] {
        for (text, expected) in [
            ("SELECT a FROM Shop.t", is("shop")),
            ("INSERT INTO \"Shop\".t (a) VALUES (1)", is("Shop")),
            ("CREATE KEYSPACE shop WITH x = 1", is("shop")),
            ("SELECT a FROM t", Absent),
            ("CREATE ROLE bob", Absent),
            ("SELECT a FROM system_auth.roles", Open),
            ("INSERT INTO systems.t (a) VALUES (1)", is("systems")),
            ("DESCRIBE TABLES", Open),
        ] {
            let of = |opcode, body: &[u8]| keyspace(version, opcode, body);
            let told = (expected, vec![]);
            assert_eq!(of(QUERY, &query(version, text, None)), told, "{text}");
            assert_eq!(of(PREPARE, &prepare(version, text, None)), told, "{text}");
        }
        let batched = batch(version, &[Child::Text("UPDATE shop.t SET a = 1")], None);
        assert_eq!(keyspace(version, BATCH, &batched), (is("shop"), vec![]));
        let unknown = (Unread, vec![Unknowable::UnknownPreparedId]);
        assert_eq!(keyspace(version, EXECUTE, &execute(b"id")), unknown);
        let unreadable = (Unread, vec![Unknowable::Unreadable]);
        assert_eq!(keyspace(version, QUERY, b"\0"), unreadable);
        let nonsense = query(version, "frobnicate", None);
        assert_eq!(keyspace(version, QUERY, &nonsense), unreadable);
    }
    let named = query(5, "SELECT a FROM t", Some("shop"));
    assert_eq!(keyspace(5, QUERY, &named), (is("shop"), vec![]));
    let named = prepare(5, "SELECT a FROM t", Some("shop"));
    assert_eq!(keyspace(5, PREPARE, &named), (is("shop"), vec![]));
}

#[test]
fn what_another_flow_prepared_is_known() {
    let prepared = cql::PreparedAt::default();
    let mut preparing = Flow {
        decoder: cql::FlowDecoder::new(prepared.clone()),
        ..Flow::new(4)
    };
    preparing.requests(&startup(4, &[]));
    preparing.responses(&frame(0x84, 0, 0, READY, &[]));
    preparing.prepare(b"data", "SELECT a FROM shop.t");
    preparing.prepare(b"own", "SELECT a FROM system.local");
    preparing.prepare(b"use", "USE shop");
    let mut peers = Peers::new(4, 9);
    peers.handshake = Handshake::new(prepared);
    peers.client_bytes(&startup(4, &[]));
    peers.server(NO_STREAM, READY, b"");
    peers.client(1, EXECUTE, &execute(b"own"));
    assert_eq!(peers.session().keyspace, Fact::Open);
    peers.client(2, EXECUTE, &execute(b"use"));
    peers.server(2, ERROR, b"\0\0\x22\0\0\0");
    peers.client(3, EXECUTE, &execute(b"data"));
    assert_eq!(peers.session().keyspace, is("shop"));
    assert!(peers.all_passed());
}

#[test]
fn a_use_is_answered_by_what_sets_a_keyspace() {
    for version in [4, 5] {
        let mut peers = Peers::started(version, 6, &[], READY);
        peers.query(1, "SELECT * FROM system.local");
        peers.query(1, "USE system");
        peers.query(2, "SELECT * FROM local");
        let waiting = peers.requests.passed.len();
        // Of the first request on that stream.
        peers.server(1, RESULT, &[0, 0, 0, 2]);
        assert_eq!(peers.requests.passed.len(), waiting);
        peers.server(1, RESULT, &set_keyspace("system"));
        assert!(peers.all_passed(), "`local` is the system's now");
        assert_eq!(peers.session().keyspace, Fact::Open);
        peers.query(3, "USE shop");
        peers.server(3, RESULT, b"\0\0");
        assert_eq!(peers.session().keyspace, Fact::Unknowable);
        assert_eq!(peers.handshake.unknowable(), [Unknowable::Unreadable]);
        peers.query(4, "SELECT a FROM shop.t");
        assert_eq!(
            peers.session().keyspace,
            Fact::Unknowable,
            "nothing is taken back"
        );
    }
}

/// v5 was a beta version before Cassandra 4, and had no segments. Later servers ignore the flag.
#[test]
fn v5_with_the_beta_flag_is_known_where_it_has_segments() {
    for piece in [1, 7, 1000] {
        for in_segments in [true, false] {
            let mut peers = Peers::new(5, piece);
            let mut starts = startup(5, &[("DRIVER_NAME", "d")]);
            starts[1] = 0x10;
            peers.client_bytes(&starts);
            peers.server(0, READY, b"");
            peers.in_segments = in_segments;
            peers.query(1, "USE ks");
            peers.server(1, RESULT, &set_keyspace("ks"));
            let over = (!in_segments).then_some(Unknowable::Version);
            assert_eq!(peers.handshake.over(), over, "{piece}");
            assert_eq!(
                peers.session().keyspace == Fact::Is("ks".into()),
                in_segments
            );
        }
    }
}

#[test]
fn what_is_no_cql_ends_it_at_once() {
    for (bytes, why) in [
        (&b"\x16"[..], Unknowable::Tls),
        (b"GET /", Unknowable::NotCql),
        (b"\x84", Unknowable::NotCql),
        (b"\x06", Unknowable::Version),
        (b"\x41", Unknowable::Version),
        (b"\x04\0\0\0\x08\0\0\0\0", Unknowable::NotCql),
        (b"\x04\0\0\0\x01\xFF\xFF\xFF\xFF", Unknowable::NotCql),
    ] {
        let mut peers = Peers::new(4, 1);
        peers.client_bytes(bytes);
        assert_eq!(peers.handshake.over(), Some(why), "{bytes:?}");
        assert_eq!(peers.session().tls, Fact::Is(why == Unknowable::Tls));
        assert_eq!(peers.told(), (1, 0));
        assert_eq!(peers.handshake.refusal("no"), Refusal::Silence);
        peers.client_bytes(b"anything");
        peers.server_bytes(b"at all");
        assert!(peers.all_passed());
    }
    let mut peers = Peers::new(4, 1);
    peers.server_bytes(b"220");
    assert_eq!(peers.handshake.over(), Some(Unknowable::NotCql));
}

#[test]
fn what_is_compressed_in_no_way_that_was_agreed_on_is_not_guessed() {
    // Segments are never Snappy's.
    let compressing = [("COMPRESSION", "snappy"), ("DRIVER_NAME", "d")];
    for answer in [READY, AUTHENTICATE] {
        let peers = Peers::started(5, 2, &compressing, answer);
        assert_eq!(peers.handshake.over(), Some(Unknowable::SegmentCompression));
        assert_eq!(peers.session().driver, is("d"), "that much was said before");
        assert_eq!(peers.session().compression, Fact::Is(Compression::Snappy));
        assert!(matches!(peers.handshake.refusal("no"), Refusal::Now(_)));
    }
    // Bodies that are not what their flag says, and a flag that nobody has agreed on.
    for options in [&[("COMPRESSION", "lz4")][..], &[]] {
        let mut peers = Peers::started(4, 2, options, AUTHENTICATE);
        peers.client_bytes(&frame(4, 1, 1, AUTH_RESPONSE, &token(b"\0alice\0x")));
        peers.server(1, AUTH_SUCCESS, &[255; 4]);
        assert_eq!(peers.session().user, Fact::Unknowable);
        peers.client_bytes(&frame(4, 1, 1, QUERY, b"compressed"));
        assert_eq!(peers.session().keyspace, Fact::Unknowable);
        assert_eq!(peers.handshake.unknowable(), [Unknowable::CompressedBody]);
    }
}

#[test]
fn under_an_extension_that_is_not_known_no_body_is_read() {
    const SUPPORTED: u8 = 6;
    let new = "SCYLLA_OF_TOMORROW";
    for piece in [1, 7, 4096] {
        for (offered, is_read) in [
            (None, false),
            (Some(&["COMPRESSION", new][..]), false),
            (Some(&["COMPRESSION"][..]), true),
        ] {
            let mut peers = Peers::new(4, piece);
            if let Some(offered) = offered {
                let mut body = (offered.len() as u16).to_be_bytes().to_vec();
                for key in offered {
                    body.extend([string(key), vec![0, 1], string("v")].concat());
                }
                peers.client(3, OPTIONS, &[]);
                peers.server(3, SUPPORTED, &body);
            }
            peers.client_bytes(&startup(4, &[("DRIVER_NAME", "d"), (new, "")]));
            peers.server(0, AUTHENTICATE, b"\0\x01x");
            peers.client(1, 0x0F, &token(b"\0ann\0secret"));
            peers.server(1, 0x10, &[255; 4]);
            assert_eq!(peers.session().driver, is("d"), "STARTUP itself is read");
            peers.query(2, "SELECT a FROM ks.t");
            let facts = (&peers.session().user, &peers.session().keyspace);
            let why = peers.handshake.unknowable();
            match is_read {
                true => assert_eq!((facts, why), ((&is("ann"), &is("ks")), &[][..])),
                false => assert_eq!(
                    (facts, why),
                    (
                        (&Fact::Unknowable, &Fact::Unknowable),
                        &[Unknowable::Extension][..]
                    )
                ),
            }
            assert!(peers.all_passed());
        }
    }
}

#[test]
fn hostile_values_are_bounded_and_do_not_hold() {
    let long = "x".repeat(300);
    let peers = Peers::started(4, 100, &[("DRIVER_NAME", &long)], READY);
    assert_eq!(peers.session().driver, Fact::Unknowable);
    assert_eq!(peers.handshake.unknowable(), [Unknowable::TooLong]);

    let mut peers = Peers::started(4, 1000, &[], AUTHENTICATE);
    peers.client(1, AUTH_RESPONSE, &token(&[b'x'; 100_000]));
    peers.server(1, AUTH_SUCCESS, &[255; 4]);
    assert_eq!(peers.session().user, Fact::Unknowable);
    assert_eq!(peers.handshake.unknowable(), [Unknowable::TooLong]);
    assert!(peers.all_passed());

    // More options than there are bytes.
    let mut peers = Peers::new(4, 7);
    peers.client_bytes(&frame(
        4,
        0,
        0,
        STARTUP,
        b"\xFF\xFF\0\x0bDRIVER_NAME\0\x01d",
    ));
    peers.server(NO_STREAM, READY, b"");
    assert_eq!(peers.session().driver, Fact::Unknowable);
    assert_eq!(peers.session().compression, Fact::Unknowable);
    assert_eq!(peers.handshake.unknowable(), [Unknowable::Unreadable]);
}

#[test]
fn in_segments_what_had_to_be_waited_for_ends_it() {
    let two = |first: Vec<u8>, second: Vec<u8>| segment(true, &[first, second].concat());
    let data = || frame(5, 0, 2, QUERY, &query(5, "SELECT a FROM shop.t", None));
    for (answer, first) in [
        (
            AUTHENTICATE,
            frame(5, 0, 1, AUTH_RESPONSE, &token(b"\0a\0b")),
        ),
        (READY, frame(5, 0, 1, QUERY, &query(5, "USE shop", None))),
    ] {
        let mut peers = Peers::started(5, 1000, &[], answer);
        peers.client_bytes(&two(first, data()));
        assert_eq!(peers.handshake.over(), Some(Unknowable::Pipelined));
        let is_before = answer == AUTHENTICATE;
        assert_eq!(peers.handshake.ended_before_login(), is_before);
    }
    let mut peers = Peers::started(5, 1000, &[], AUTHENTICATE);
    peers.client_bytes(&segment(true, &data()));
    assert_eq!(peers.handshake.over(), Some(Unknowable::Early));
    assert!(peers.handshake.ended_before_login());
    // A frame whose head is in one segment and whose text in the next.
    let mut peers = Peers::started(5, 1000, &[], READY);
    peers.client_bytes(&segment(false, &data()[..20]));
    assert_eq!(peers.handshake.over(), Some(Unknowable::Split));
    assert!(!peers.handshake.ended_before_login());
    let mut peers = Peers::started(5, 1000, &[], READY);
    let mut bad = segment(true, &data());
    *bad.last_mut().unwrap() ^= 1;
    peers.client_bytes(&bad);
    assert_eq!(peers.handshake.over(), Some(Unknowable::Framing));
}

#[test]
fn a_large_frame_in_many_segments_passes() {
    let mut peers = Peers::started(5, 50_000, &[], READY);
    peers.query(1, "SELECT * FROM system.local");
    let rows = frame(0x85, 0, 1, RESULT, &[2; 300_000]);
    for part in rows.chunks(131_071) {
        peers.server_bytes(&segment(false, part));
    }
    assert!(peers.all_passed());
    let text = format!(
        "SELECT * FROM system.local WHERE a = '{}'",
        "x".repeat(200_000)
    );
    let large = frame(5, 0, 1, QUERY, &query(5, &text, None));
    for part in large.chunks(131_071) {
        peers.client_bytes(&segment(false, part));
    }
    assert!(peers.all_passed());
    peers.query(2, "SELECT a FROM shop.t");
    assert_eq!(peers.session().keyspace, is("shop"));
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![3 => 0_u8..0x11, 2 => Just(QUERY), 1 => any::<u8>()];
    let body = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        Just(startup(4, OPTIONS_SENT)[9..].to_vec()),
        Just(query(4, "USE shop", None)),
        Just(query(4, "SELECT a FROM system.t", None)),
        Just(query(4, "SELECT a FROM other.t", None)),
        Just(set_keyspace("shop")),
        Just(token(b"\0a\0b")),
    ];
    let version = proptest::sample::select(vec![3_u8, 4, 5, 0x83, 0x84, 0x85]);
    let one = (version, any::<u8>(), 0_i16..3, opcode, body, 0_u8..8);
    one.prop_map(|(version, flags, stream, opcode, body, shape)| {
        let frame = frame(version, flags & 0x07, stream, opcode, &body);
        match shape {
            0 => body,
            1 => segment(true, &frame),
            2 => segment(false, &frame[..frame.len() / 2]),
            _ => frame,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// The handshake survives any bytes: no panic, every step moves on, the bytes that pass are those
    /// that were sent, and no fact but the user is taken back, or depends on where the bytes were cut.
    #[test]
    fn survives_anything(
        said in proptest::collection::vec((any::<bool>(), bytes()), 0..12),
        accepted: bool,
        watches: bool,
        piece in 1_usize..30,
    ) {
        let ends = [piece, usize::MAX].map(|piece| {
            let mut peers = Peers::new(4, piece);
            if accepted {
                peers = Peers::started(4, piece, OPTIONS_SENT, READY);
            }
            if accepted && watches {
                peers.handshake.watch();
            }
            let mut before = peers.session().clone();
            for (from_client, bytes) in &said {
                if *from_client {
                    peers.client_bytes(bytes);
                } else {
                    peers.server_bytes(bytes);
                }
                let now = peers.session().clone();
                prop_assert!(before.keyspace == Fact::Open || before.keyspace == now.keyspace);
                prop_assert!(before.tls == Fact::Open || before.tls == now.tls);
                before = now;
                prop_assert!(peers.requests.sent.starts_with(&peers.requests.passed));
                prop_assert!(peers.responses.sent.starts_with(&peers.responses.passed));
            }
            Ok((before, peers.handshake.over()))
        });
        let [pieces, whole] = ends;
        prop_assert_eq!(pieces?, whole?);
    }
}
