//! Every anomaly and every verdict, provoked.

use crate::support::kind::kind;
use crate::support::*;
use cassandra_protocol::compression::Compression;
use cql::{Anomaly, CloseReason, Undecodable, Verdict};

fn on_request(flow: &mut Flow, bytes: &[u8]) -> Verdict {
    flow.decoder.requests(0, bytes, &mut flow.recorder)
}

fn on_response(flow: &mut Flow, bytes: &[u8]) -> Verdict {
    flow.decoder.responses(0, bytes, &mut flow.recorder)
}

fn close(keep: usize, reason: CloseReason) -> Verdict {
    Verdict::Close { keep, reason }
}

#[test]
fn unknown_stream() {
    let mut flow = Flow::started(4);
    flow.response(7, RESULT, &[0, 0, 0, 1]);
    assert_eq!(flow.recorder.told, [Told::Anomaly(Anomaly::UnknownStream)]);
}

#[test]
fn events_are_fine() {
    let mut flow = Flow::started(4);
    flow.response(-1, EVENT, &string("SCHEMA_CHANGE"));
    assert_eq!(flow.recorder.told, []);
}

#[test]
fn duplicate_stream() {
    let mut flow = Flow::started(4);
    flow.request(7, QUERY, &query(4, "SELECT a FROM t", None));
    flow.request(7, QUERY, &query(4, "SELECT a FROM u", None));
    flow.response(7, RESULT, &[0, 0, 0, 1]);
    assert_eq!(flow.recorder.anomalies(), [Anomaly::DuplicateStream]);
    assert_eq!(
        flow.recorder.statements(),
        [""; 0],
        "whose it is, nobody knows"
    );
    assert_eq!(flow.decoder.in_flight(), 0);
    flow.response(7, RESULT, &[0, 0, 0, 1]);
    assert_eq!(flow.recorder.statements(), [""; 0]);
    flow.request(7, QUERY, &query(4, "SELECT a FROM v", None));
    flow.response(7, RESULT, &[0, 0, 0, 1]);
    assert_eq!(flow.recorder.anomalies(), [Anomaly::DuplicateStream]);
    assert_eq!(flow.recorder.statements(), ["select - v"]);
}

#[test]
fn unknown_opcode() {
    let mut flow = Flow::started(4);
    flow.request(1, 0x44, b"?");
    flow.response(1, QUERY, b"?");
    let expected = [Anomaly::UnknownOpcode, Anomaly::UnknownOpcode];
    assert_eq!(flow.recorder.anomalies(), expected);
    assert_eq!(flow.recorder.statements(), ["unknown - -"]);
}

#[test]
fn malformed_bodies() {
    let with_flag = |flags, body: &[u8]| {
        let mut flow = Flow::started(5);
        flow.requests(&segment(true, &frame(5, flags, 1, QUERY, body)));
        flow.recorder.anomalies()
    };
    let requests: [(u8, Vec<u8>); 9] = [
        (QUERY, vec![]),
        (QUERY, vec![0, 0, 0, 9, b'S']),
        (QUERY, vec![255, 255, 255, 255]),
        (QUERY, long_string("SELECT a FROM t")),
        (
            QUERY,
            [
                &long_string("SELECT a FROM t")[..],
                &[0, 1, 0, 0, 0, 0x80, 0, 9],
            ]
            .concat(),
        ),
        (PREPARE, long_string("SELECT a FROM t")),
        (EXECUTE, vec![0, 16, 1]),
        (BATCH, vec![0, 0, 1, 0, 0, 0, 0, 99]),
        (BATCH, vec![0, 0, 1, 7]),
    ];
    for (opcode, body) in requests {
        let mut flow = Flow::started(5);
        flow.request(1, opcode, &body);
        assert_eq!(
            flow.recorder.anomalies(),
            [Anomaly::MalformedBody],
            "{opcode} {body:?}"
        );
    }
    assert_eq!(
        with_flag(4, &[0, 1]),
        [Anomaly::MalformedBody],
        "a custom payload"
    );
    for (opcode, flags, body) in [
        (RESULT, 0, &[0, 0][..]),
        (ERROR, 0, &[0]),
        (RESULT, 0, &[0, 0, 0, 3, 0, 9]),
        (RESULT, 0, &[0, 0, 0, 4, 0, 9]),
        (RESULT, 2, &[0; 15]),
        (RESULT, 8, &[0, 1, 0, 9]),
    ] {
        let mut flow = Flow::started(4);
        flow.request(1, OPTIONS, &[]);
        flow.responses(&frame(0x84, flags, 1, opcode, body));
        assert_eq!(
            flow.recorder.anomalies(),
            [Anomaly::MalformedBody],
            "{opcode} {body:?}"
        );
        assert_eq!(flow.recorder.statements(), ["options - -"], "still paired");
    }
}

#[test]
fn unknown_prepared_id() {
    let mut flow = Flow::started(4);
    assert_eq!(flow.ask(EXECUTE, &execute(b"never seen")), "execute - -");
    let children = [
        Child::Id(b"a"),
        Child::Id(b"b"),
        Child::Text("UPDATE k.t SET a = 1"),
    ];
    assert_eq!(flow.ask(BATCH, &batch(4, &children, None)), "batch k t");
    let once_each = [Anomaly::UnknownPreparedId, Anomaly::UnknownPreparedId];
    assert_eq!(flow.recorder.anomalies(), once_each);
}

#[test]
fn compressed_body() {
    let mut flow = Flow::started(4);
    flow.use_keyspace("ks");
    flow.recorder.told.clear();
    for (stream, opcode) in [(1, QUERY), (2, EXECUTE), (3, BATCH), (4, PREPARE)] {
        flow.requests(&frame(4, 1, stream, opcode, b"compressed"));
        let answer = if stream == 4 { ERROR } else { RESULT };
        flow.responses(&frame(0x84, 1, stream, answer, b"compressed"));
    }
    assert_eq!(flow.recorder.anomalies(), [Anomaly::CompressedBody; 8]);
    let kinds = ["query - -", "execute - -", "batch - -", "prepare - -"];
    assert_eq!(flow.recorder.statements(), kinds);
    let last = flow.recorder.told.last().unwrap();
    assert!(matches!(
        last,
        Told::Completed(4, _, Some(cql::ErrorCode::Unreadable), ..)
    ));
    assert_eq!(
        flow.decoder.keyspace(),
        None,
        "one of them may have been a USE"
    );
}

#[test]
fn a_compressed_body_that_is_none() {
    for algorithm in [Compression::Lz4, Compression::Snappy] {
        let kind = kind(4, algorithm);
        let mut flow = Flow::of(kind);
        let text = query(4, "SELECT a FROM k.t", None);
        flow.requests(&kind.sent(0, 1, QUERY, &text));
        flow.requests(&frame(4, 1, 2, QUERY, &text));
        let mut cut = algorithm.encode(&text).unwrap();
        cut.truncate(cut.len() - 3);
        flow.requests(&frame(4, 1, 3, QUERY, &cut));
        for stream in 1..4 {
            flow.responses(&kind.sent(0x80, stream, RESULT, &[0, 0, 0, 1]));
        }
        assert_eq!(flow.recorder.anomalies(), [Anomaly::CompressedBody; 2]);
        let expected = ["select k t", "query - -", "query - -"];
        assert_eq!(flow.recorder.statements(), expected);
        // And back in order.
        flow.requests(&kind.sent(0, 1, QUERY, &query(4, "USE ks", None)));
        flow.responses(&kind.sent(0x80, 1, RESULT, &set_keyspace("ks")));
        assert_eq!(flow.decoder.keyspace(), Some("ks"));
    }
}

/// A body that becomes 256 MiB is not expanded further than it is read.
#[test]
fn a_compressed_body_that_becomes_too_much() {
    let kind = kind(4, Compression::Lz4);
    let mut flow = Flow::of(kind);
    let text = format!("SELECT {} FROM k.t", "a, ".repeat(1_000_000));
    flow.requests(&kind.sent(0, 1, QUERY, &query(4, &text, None)));
    flow.responses(&kind.sent(0x80, 1, RESULT, &[0, 0, 0, 1]));
    assert_eq!(flow.recorder.statements(), ["select - -"]);
    assert_eq!(flow.recorder.anomalies(), [Anomaly::BodyTooLong]);
    flow.recorder.told.clear();
    let mut bomb = (256_u32 << 20).to_be_bytes().to_vec();
    bomb.extend([0x1F, 0, 1, 0]);
    bomb.extend(vec![0xFF; 1 << 20]);
    flow.requests(&frame(4, 1, 1, QUERY, &bomb));
    bomb[0] = 0x7F;
    flow.requests(&frame(4, 1, 2, QUERY, &bomb));
    let causes = [Anomaly::BodyTooLong, Anomaly::CompressedBody];
    assert_eq!(flow.recorder.anomalies(), causes);
}

#[test]
fn close_for_segment_compression() {
    let kind = kind(5, Compression::Lz4);
    let text = query(5, &format!("SELECT a FROM k.t {}", " ".repeat(500)), None);
    let good = kind.sent(0, 1, QUERY, &text);
    let mut bad = good.clone();
    // It is said to become one byte more.
    bad[2] ^= 2;
    let crc = cassandra_protocol::crc::crc24(&bad[..5]) as u32;
    bad[5..8].copy_from_slice(&crc.to_le_bytes()[..3]);
    let bytes = [&good[..], &bad].concat();
    let expected = close(good.len(), CloseReason::SegmentCompression);
    assert_eq!(on_request(&mut Flow::of(kind), &bytes), expected);
    let mut flow = Flow::of(kind);
    let (a, b) = bytes.split_at(good.len() + 1);
    assert_eq!(on_request(&mut flow, a), Verdict::Continue);
    let expected = close(0, CloseReason::SegmentCompression);
    assert_eq!(on_request(&mut flow, b), expected);
    assert_eq!(flow.decoder.in_flight(), 1);
}

#[test]
fn body_too_long() {
    let long = format!("SELECT {} FROM t", "a, ".repeat(50_000));
    let late_keyspace = format!("SELECT a FROM t WHERE a = '{}'", "x".repeat(100_000));
    for (text, expected) in [(long, "select - -"), (late_keyspace, "select - t")] {
        let mut flow = Flow::started(5);
        flow.use_keyspace("ks");
        flow.recorder.told.clear();
        let request = frame(5, 0, 1, QUERY, &query(5, &text, Some("other")));
        for part in request.chunks(100_000) {
            flow.requests(&segment(false, part));
        }
        flow.response(1, RESULT, &[0, 0, 0, 1]);
        assert_eq!(flow.recorder.anomalies(), [Anomaly::BodyTooLong]);
        assert_eq!(flow.recorder.statements(), [expected]);
    }
}

#[test]
fn truncated_frame() {
    let request = frame(4, 0, 1, QUERY, &query(4, "SELECT a FROM t", None));
    for len in 0..=request.len() {
        let mut flow = Flow::started(4);
        flow.requests(&request[..len]);
        flow.decoder.requests_end(&mut flow.recorder);
        flow.decoder.responses_end(&mut flow.recorder);
        let cut = len != 0 && len != request.len();
        assert_eq!(flow.recorder.anomalies().len(), usize::from(cut), "{len}");
    }
    let mut flow = Flow::started(5);
    flow.responses(&segment(true, &[])[..3]);
    flow.decoder.responses_end(&mut flow.recorder);
    assert_eq!(flow.recorder.anomalies(), [Anomaly::TruncatedFrame]);
}

#[test]
fn prepared_evicted() {
    let mut flow = Flow::started(4);
    let store = std::sync::Arc::new(cql::PreparedStatements::with_capacity(1));
    flow.decoder = cql::FlowDecoder::new(store.at(cql::Database::default()));
    flow.prepare(b"1", "SELECT a FROM t");
    assert_eq!(flow.recorder.anomalies(), []);
    flow.prepare(b"2", "SELECT a FROM u");
    assert_eq!(flow.recorder.anomalies(), [Anomaly::PreparedEvicted]);
}

#[test]
fn too_many_in_flight() {
    let mut flow = Flow::started(4);
    for stream in 0..=i16::MAX {
        flow.request(stream, OPTIONS, &[]);
    }
    assert_eq!(flow.decoder.in_flight(), cql::MAX_IN_FLIGHT);
    assert_eq!(flow.recorder.told, []);
    flow.request(-5, OPTIONS, &[]);
    assert_eq!(flow.recorder.anomalies(), [Anomaly::TooManyInFlight]);
}

#[test]
fn every_id_is_answered_as_what_was_asked_there() {
    for version in [3, 4, 5] {
        let mut flow = Flow::started(version);
        for stream in 0..=i16::MAX {
            let text = format!("SELECT v FROM ks.t{stream}");
            flow.request(stream, QUERY, &query(version, &text, None));
        }
        for stream in (0..=i16::MAX).rev() {
            flow.response(stream, RESULT, &1_i32.to_be_bytes());
        }
        assert_eq!(flow.decoder.in_flight(), 0);
        assert_eq!(flow.recorder.anomalies(), []);
        let expected = (0..=i16::MAX).rev().map(|n| format!("select ks t{n}"));
        assert_eq!(
            flow.recorder.statements(),
            expected.collect::<Vec<_>>(),
            "v{version}"
        );
    }
}

/// v5 was a beta version before Cassandra 4, and had no segments. Later servers ignore the flag.
#[test]
fn v5_with_the_beta_flag_is_read_where_it_has_segments() {
    let ask = |flags, text: &str| {
        let mut asks = frame(5, 0, 1, QUERY, &query(5, text, None));
        asks[1] = flags;
        asks
    };
    let started = |flags| {
        let mut flow = Flow::new(5);
        let mut starts = startup(5, &[]);
        starts[1] = flags;
        assert_eq!(on_request(&mut flow, &starts), Verdict::Continue);
        let ready = frame(0x85, 0, 0, READY, &[]);
        assert_eq!(on_response(&mut flow, &ready), Verdict::Continue);
        flow
    };
    let bare = ask(0x10, "SELECT v FROM ks.t");
    for piece in [1, 3, bare.len()] {
        let mut flow = started(0x10);
        let seen = bare.chunks(piece).map(|bytes| on_request(&mut flow, bytes));
        let verdicts: Vec<Verdict> = seen.collect();
        let told = verdicts.iter().find(|seen| **seen != Verdict::Continue);
        assert_eq!(
            told,
            Some(&Verdict::Undecodable(Undecodable::Version)),
            "{piece}"
        );
    }
    let mut flow = started(0x10);
    assert_eq!(
        on_request(&mut flow, &segment(true, &bare)),
        Verdict::Continue
    );
    let void = frame(0x85, 0, 1, RESULT, &1_i32.to_be_bytes());
    assert_eq!(
        on_response(&mut flow, &segment(true, &void)),
        Verdict::Continue
    );
    assert_eq!(flow.recorder.statements()[1..], ["select ks t"]);
    // Once there was one, there are segments; and without the flag there are.
    let broken = close(0, CloseReason::SegmentCrc);
    assert_eq!(on_request(&mut flow, &bare), broken);
    assert_eq!(on_request(&mut started(0), &bare), broken);
}

#[test]
fn undecodable_at_first_sight() {
    for (bytes, expected) in [
        (&[0x16, 3, 1, 2, 0][..], Undecodable::Tls),
        (&[1], Undecodable::Version),
        (&[2, 0, 0, 1, 0, 0, 0, 0], Undecodable::Version),
        (&[6], Undecodable::Version),
        (&[0x41], Undecodable::Version),
        (&[0x42], Undecodable::Version),
        (b"GET / HTTP/1.1\r\n", Undecodable::NotCql),
        (&[0x84, 0, 0, 0, 2, 0, 0, 0, 0], Undecodable::NotCql),
        // SOCKS4, to 10.0.0.1:80: the version and the opcode fit, the length does not.
        (&[4, 1, 0, 80, 10, 0x7F, 0, 0, 1, 0], Undecodable::NotCql),
        (&[4, 0, 0, 0, 0x99, 0, 0, 0, 0], Undecodable::NotCql),
        (&[4, 0xE0, 0, 0, STARTUP, 0, 0, 0, 0], Undecodable::NotCql),
    ] {
        let mut flow = Flow::new(4);
        assert_eq!(
            on_request(&mut flow, bytes),
            Verdict::Undecodable(expected),
            "{bytes:?}"
        );
        let again = on_response(&mut flow, b"anything");
        assert_eq!(again, Verdict::Undecodable(expected), "and stays so");
    }
    for (bytes, expected) in [
        (&[0x16][..], Undecodable::Tls),
        (&[0x82, 0, 0, 0, 0, 0, 0, 0], Undecodable::Version),
        (b"SSH-2.0", Undecodable::NotCql),
        (&[5, 0], Undecodable::NotCql),
    ] {
        let mut flow = Flow::new(4);
        flow.request(0, OPTIONS, &[]);
        assert_eq!(
            on_response(&mut flow, bytes),
            Verdict::Undecodable(expected),
            "{bytes:?}"
        );
    }
}

#[test]
fn segment_compression() {
    let undecodable = Verdict::Undecodable(Undecodable::SegmentCompression);
    for (version, name, expected) in [
        (4, "lz4", Verdict::Continue),
        (4, "snappy", Verdict::Continue),
        (4, "zstd", Verdict::Continue),
        (5, "none", Verdict::Continue),
        (5, "LZ4", Verdict::Continue),
        (5, "snappy", undecodable),
        (5, "zstd", undecodable),
    ] {
        for answer in [READY, AUTHENTICATE] {
            let mut flow = Flow::new(version);
            flow.requests(&startup(version, &[("COMPRESSION", name)]));
            let verdict = on_response(&mut flow, &frame(version | 0x80, 0, 0, answer, &[]));
            assert_eq!(verdict, expected, "v{version} {name}");
            assert_eq!(flow.recorder.statements(), ["startup - -"]);
        }
    }
    let mut flow = Flow::new(5);
    flow.requests(&frame(5, 0, 0, STARTUP, &[0, 9]));
    assert_eq!(flow.recorder.anomalies(), [Anomaly::MalformedBody]);
    let verdict = on_response(&mut flow, &frame(0x85, 0, 0, READY, &[]));
    assert_eq!(verdict, undecodable, "nobody knows what was agreed on");
}

#[test]
fn close_for_length() {
    let good = frame(4, 0, 1, OPTIONS, &[]);
    for length in [-1, -10, i32::MIN, (256 << 20) + 1] {
        let mut bad = frame(4, 0, 2, QUERY, &[]);
        bad[5..].copy_from_slice(&i32::to_be_bytes(length));
        let both = [&good[..], &bad].concat();
        let expected = close(good.len(), CloseReason::Length);
        assert_eq!(on_request(&mut Flow::started(4), &both), expected);

        let mut flow = Flow::started(4);
        flow.requests(&both[..good.len() + 4]);
        let verdict = on_request(&mut flow, &both[good.len() + 4..]);
        assert_eq!(verdict, close(0, CloseReason::Length));
        assert_eq!(
            on_response(&mut flow, &good),
            close(0, CloseReason::Length),
            "stays so"
        );
    }
}

#[test]
fn close_for_direction() {
    let good = frame(4, 0, 1, OPTIONS, &[]);
    let bytes = [&good[..], &[0x84]].concat();
    let expected = close(good.len(), CloseReason::Direction);
    assert_eq!(on_request(&mut Flow::started(4), &bytes), expected);
    let expected = close(0, CloseReason::Direction);
    assert_eq!(on_response(&mut Flow::started(4), &[4]), expected);
    let within = segment(true, &frame(0x85, 0, 1, OPTIONS, &[]));
    assert_eq!(on_request(&mut Flow::started(5), &within), expected);
}

#[test]
fn close_for_version() {
    let expected = close(0, CloseReason::VersionChanged);
    for version in [3, 5, 9] {
        assert_eq!(on_request(&mut Flow::started(4), &[version]), expected);
        assert_eq!(
            on_response(&mut Flow::started(4), &[version | 0x80]),
            expected
        );
    }
    let mut flow = Flow::new(4);
    flow.request(0, OPTIONS, &[]);
    let verdict = on_response(&mut flow, &frame(0x83, 0, 0, 6, &[]));
    assert_eq!(
        verdict, expected,
        "only an ERROR may come in another version"
    );
}

#[test]
fn negotiation_may_change_the_version() {
    let mut flow = Flow::new(5);
    flow.requests(&startup(5, &[]));
    let refusal = [&0x0A_i32.to_be_bytes()[..], &string("try v4")].concat();
    flow.responses(&frame(0x84, 0, 0, ERROR, &refusal));
    flow.requests(&startup(4, &[]));
    flow.responses(&frame(0x84, 0, 0, READY, &[]));
    assert_eq!(flow.decoder.version(), Some(cql::ProtocolVersion::V4));
    flow.version = 4;
    assert_eq!(
        flow.ask(QUERY, &query(4, "SELECT a FROM t", None)),
        "select - t"
    );
    assert_eq!(flow.recorder.anomalies(), []);
}

/// The database takes the first STARTUP, and refuses the others. One that is refused leaves room for the next.
#[test]
fn of_several_startups_that_is_read_which_the_database_takes() {
    const LZ4: &[(&str, &str)] = &[("COMPRESSION", "lz4")];
    let refusal = [&0x0A_i32.to_be_bytes()[..], &string("no")].concat();
    for refuses_first in [false, true] {
        let mut flow = Flow::new(5);
        let [first, second] = match refuses_first {
            false => [&[][..], LZ4],
            true => [LZ4, &[]],
        };
        flow.requests(&startup(5, first));
        match refuses_first {
            false => {
                flow.requests(&startup(5, second));
                flow.responses(&frame(0x85, 0, 0, READY, &[]));
            }
            true => {
                flow.responses(&frame(0x85, 0, 0, ERROR, &refusal));
                flow.requests(&startup(5, second));
                flow.responses(&frame(0x85, 0, 0, READY, &[]));
            }
        }
        // In segments that are not compressed.
        if !refuses_first {
            flow.response(0, ERROR, &refusal);
        }
        flow.request(3, STARTUP, &startup(5, LZ4)[9..]);
        flow.response(3, ERROR, &refusal);
        let select = query(5, "SELECT a FROM t", None);
        assert_eq!(flow.ask(QUERY, &select), "select - t", "{refuses_first}");
    }
}

#[test]
fn close_for_segment_crc() {
    let good = segment(true, &frame(5, 0, 1, OPTIONS, &[]));
    for at in [0, 4, 8, good.len() - 1] {
        let mut bytes = [&good[..], &good].concat();
        bytes[good.len() + at] ^= 1;
        let verdict = on_request(&mut Flow::started(5), &bytes);
        assert_eq!(verdict, close(good.len(), CloseReason::SegmentCrc));
        // Cut anywhere within the bad one, nothing of the second chunk is to be forwarded,
        // and nothing of the bad segment was interpreted.
        for cut in 1..=at {
            let (a, b) = bytes.split_at(good.len() + cut);
            let mut flow = Flow::started(5);
            if on_request(&mut flow, a) == Verdict::Continue {
                assert_eq!(on_request(&mut flow, b), close(0, CloseReason::SegmentCrc));
            }
            assert_eq!(flow.decoder.in_flight(), 1);
        }
    }
}

#[test]
fn close_for_segment_length() {
    let request = frame(5, 0, 1, QUERY, &query(5, "SELECT a FROM t", None));
    let (head, tail) = request.split_at(20);
    let expected = close(0, CloseReason::SegmentLength);
    assert_eq!(
        on_request(&mut Flow::started(5), &segment(true, head)),
        expected
    );
    let mut flow = Flow::started(5);
    flow.requests(&segment(false, head));
    assert_eq!(on_request(&mut flow, &segment(true, tail)), expected);
}
