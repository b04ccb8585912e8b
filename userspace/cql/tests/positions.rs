//! Flows that are not decoded for a while: where they are is known however they were cut, and they
//! are decoded from the next frame on.

use crate::support::kind::kind;
use crate::support::*;
use cassandra_protocol::compression::Compression;
use cql::{
    Anomaly, FlowDecoder, FramePosition, Framing, MAX_READ_BODY_BYTES, NoPosition, Undecodable,
    Unread, Verdict,
};
use proptest::prelude::*;
use proptest::sample::Index;

/// Exchanges, one after the other.
#[derive(Debug)]
struct Exchanges {
    version: u8,
    /// The request and the response of each, in segments where there are any.
    bytes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// In one segment, or, where it is too long, in several.
fn wrap(version: u8, frame: Vec<u8>) -> Vec<u8> {
    match frame.len() {
        _ if version < 5 => frame,
        0..0x2_0000 => segment(true, &frame),
        _ => frame
            .chunks(0x1_FFFF)
            .flat_map(|part| segment(false, part))
            .collect(),
    }
}

fn exchanges() -> impl Strategy<Value = Exchanges> {
    let size =
        || prop_oneof![6 => 0..100_usize, 1 => 1000..70_000_usize, 1 => 131_000..400_000_usize];
    (3..6_u8, prop::collection::vec((size(), size()), 1..12)).prop_map(|(version, sizes)| {
        let exchange = |(n, (asked, answered)): (usize, (usize, usize))| {
            let text = format!("SELECT a FROM ks.t{n} {}", " ".repeat(asked));
            let request = frame(version, 0, n as i16, QUERY, &query(version, &text, None));
            let rows = [&[0, 0, 0, 2][..], &vec![n as u8; answered]].concat();
            let response = frame(version | 0x80, 0, n as i16, RESULT, &rows);
            (wrap(version, request), wrap(version, response))
        };
        Exchanges {
            version,
            bytes: sizes.into_iter().enumerate().map(exchange).collect(),
        }
    })
}

impl Exchanges {
    /// Every message, and whether it is a request.
    fn messages(&self) -> impl Iterator<Item = (bool, &[u8])> {
        self.bytes
            .iter()
            .flat_map(|(request, response)| [(true, &request[..]), (false, &response[..])])
    }

    fn len(&self) -> usize {
        self.messages().map(|(_, bytes)| bytes.len()).sum()
    }

    /// The part of the conversation in a range of its bytes, cut at `cuts` too.
    fn pieces(&self, from: usize, to: usize, cuts: &[usize]) -> Vec<(bool, &[u8])> {
        let mut edges = vec![from, to];
        edges.extend(cuts.iter().filter(|cut| (from..to).contains(*cut)));
        edges.sort_unstable();
        let mut begins = 0;
        let mut pieces = Vec::new();
        for (is_request, bytes) in self.messages() {
            for edge in edges.windows(2) {
                let within = |at: usize| at.clamp(begins, begins + bytes.len()) - begins;
                let piece = &bytes[within(edge[0])..within(edge[1])];
                if !piece.is_empty() {
                    pieces.push((is_request, piece));
                }
            }
            begins += bytes.len();
        }
        pieces
    }
}

fn feed(flow: &mut Flow, pieces: &[(bool, &[u8])]) {
    for (is_request, bytes) in pieces {
        match is_request {
            true => flow.requests(bytes),
            false => flow.responses(bytes),
        }
    }
}

fn walk(unread: &mut Unread, pieces: &[(bool, &[u8])]) {
    for (is_request, bytes) in pieces {
        match is_request {
            true => unread.requests.walk(bytes),
            false => unread.responses.walk(bytes),
        }
    }
}

fn at(index: &Index, len: usize) -> usize {
    index.index(len + 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn a_position_is_the_same_however_bytes_are_cut_and_whoever_keeps_it(
        conversation in exchanges(),
        end: Index,
        cuts in prop::collection::vec(any::<Index>(), 0..40),
    ) {
        let len = conversation.len();
        let end = at(&end, len);
        let cuts: Vec<usize> = cuts.iter().map(|cut| at(cut, len)).collect();
        let mut decoded = Flow::started(conversation.version);
        let began = decoded.decoder.unread().unwrap();
        feed(&mut decoded, &conversation.pieces(0, end, &cuts));
        let mut whole = began;
        walk(&mut whole, &conversation.pieces(0, end, &[]));
        let mut cut = began;
        walk(&mut cut, &conversation.pieces(0, end, &cuts));
        prop_assert!(whole.requests.is_known() && whole.responses.is_known());
        prop_assert_eq!(cut, whole);
        prop_assert_eq!(decoded.decoder.unread(), Ok(whole));
    }

    #[test]
    fn what_begins_after_a_pause_is_decoded_and_nothing_else(
        conversation in exchanges(),
        (one, other) in any::<(Index, Index)>(),
        cuts in prop::collection::vec(any::<Index>(), 0..20),
    ) {
        let len = conversation.len();
        let (one, other) = (at(&one, len), at(&other, len));
        let (stop, start) = (one.min(other), one.max(other));
        let cuts: Vec<usize> = cuts.iter().map(|cut| at(cut, len)).collect();
        let mut before = Flow::started(conversation.version);
        feed(&mut before, &conversation.pieces(0, stop, &cuts));
        let mut unread = before.decoder.unread().unwrap();
        walk(&mut unread, &conversation.pieces(stop, start, &cuts));
        let mut after = Flow::new(conversation.version);
        after.decoder = FlowDecoder::join(Default::default(), unread);
        // Stopped again before a byte came, it is where it was.
        prop_assert_eq!(after.decoder.unread(), Ok(unread));
        feed(&mut after, &conversation.pieces(start, len, &cuts));
        after.decoder.requests_end(&mut after.recorder);
        after.decoder.responses_end(&mut after.recorder);

        let mut begins = 0;
        let mut expected = (Vec::new(), Vec::new());
        for (n, (request, response)) in conversation.bytes.iter().enumerate() {
            let ends = begins + request.len() + response.len();
            let statement = format!("select ks t{n}");
            if ends <= stop {
                expected.0.push(statement);
            } else if begins >= start {
                expected.1.push(statement);
            }
            begins = ends;
        }
        prop_assert_eq!(before.recorder.statements(), expected.0);
        prop_assert_eq!(after.recorder.statements(), expected.1);
        prop_assert_eq!(after.recorder.anomalies(), []);
    }

    #[test]
    fn garbage_is_no_position_and_harms_nobody(
        version in 3..6_u8,
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20),
    ) {
        let mut unread = Flow::started(version).decoder.unread().unwrap();
        for chunk in &chunks {
            unread.requests.walk(chunk);
        }
        let bytes = chunks.concat();
        let mut whole = Flow::started(version).decoder.unread().unwrap();
        whole.requests.walk(&bytes);
        prop_assert_eq!(whole, unread);
        let mut decoder = FlowDecoder::join(Default::default(), unread);
        let mut recorder = Recorder::default();
        for chunk in &chunks {
            let verdict = decoder.requests(0, chunk, &mut recorder);
            // Once a frame was read, framing that is lost closes a flow as ever.
            let lost = Verdict::Undecodable(Undecodable::Lost);
            let read = decoder.in_flight() > 0;
            prop_assert!(read || verdict == Verdict::Continue || verdict == lost, "{:?}", verdict);
        }
    }
}

#[test]
fn two_long_frames_in_a_row_are_told_apart() {
    let long = |n: i16| {
        let text = format!("SELECT a FROM ks.t{n} {}", " ".repeat(300_000));
        wrap(5, frame(5, 0, n, QUERY, &query(5, &text, None)))
    };
    let (first, second) = (long(1), long(2));
    let mut unread = Flow::started(5).decoder.unread().unwrap();
    let (seen, rest) = first.split_at(200_000);
    unread.requests.walk(seen);
    assert!(unread.requests.frame_left > 0 && unread.requests.left > 0);
    let mut flow = Flow::new(5);
    flow.decoder = FlowDecoder::join(Default::default(), unread);
    flow.requests(rest);
    flow.requests(&second);
    flow.response(1, RESULT, &1_i32.to_be_bytes());
    flow.response(2, RESULT, &1_i32.to_be_bytes());
    assert_eq!(flow.recorder.statements(), ["select ks t2"]);
    assert_eq!(flow.recorder.anomalies(), []);
}

#[test]
fn what_cannot_be_cut_is_lost_for_good() {
    let started = |version| Flow::started(version).decoder.unread().unwrap().responses;
    let good = frame(0x84, 0, 1, RESULT, &[]);
    let too_long = [0x84, 0, 0, 1, RESULT, 0x7F, 0, 0, 0];
    let longest = [0x84, 0, 0, 1, RESULT, 0xFF, 0xFF, 0xFF, 0xFF];
    let other_direction = frame(4, 0, 1, RESULT, &[]);
    let other_version = frame(0x83, 0, 1, RESULT, &[]);
    for bad in [&too_long[..], &longest, &other_direction, &other_version] {
        for cut in 0..=bad.len() {
            let mut position = started(4);
            position.walk(&bad[..cut]);
            position.walk(&bad[cut..]);
            assert_eq!(position, FramePosition::UNKNOWN, "{bad:?}");
            position.walk(&good);
            assert_eq!(position, FramePosition::UNKNOWN, "{bad:?}");
        }
    }
    // v5: bits that are not padded with zeros; a whole frame's segment in the middle of a long
    // one; more of that than there is; one that begins with less than a header; two in one.
    let begins = [&frame(0x85, 0, 1, RESULT, &vec![0; 200_000])[..0x1_FFFF]].concat();
    let begins = segment(false, &begins);
    let whole = segment(true, &frame(0x85, 0, 1, RESULT, &[]));
    let two = [
        frame(0x85, 0, 1, RESULT, &[]),
        frame(0x85, 0, 1, RESULT, &[]),
    ]
    .concat();
    for bad in [
        vec![0, 0, 0xFC, 0, 0, 0],
        [&begins[..], &whole].concat(),
        [&begins[..], &segment(false, &vec![0; 100_000])].concat(),
        segment(false, &[0x85; 8]),
        segment(false, &two),
    ] {
        let mut position = started(5);
        position.walk(&bad);
        assert_eq!(position, FramePosition::UNKNOWN);
    }
    let mut position = started(5);
    position.walk(&begins);
    assert_eq!((position.framing, position.left), (Framing::Segments, 0));
    assert_eq!(position.frame_left as usize, 200_009 - 0x1_FFFF);
}

#[test]
fn a_wrong_position_is_given_up_without_harm() {
    for version in [4, 5] {
        let mut unread = Flow::started(version).decoder.unread().unwrap();
        // As if somebody had missed a byte.
        unread.requests.left = 1;
        let mut decoder = FlowDecoder::join(Default::default(), unread);
        let mut recorder = Recorder::default();
        let request = frame(
            version,
            0,
            1,
            QUERY,
            &query(version, "SELECT a FROM t", None),
        );
        let verdict = decoder.requests(0, &wrap(version, request), &mut recorder);
        assert_eq!(verdict, Verdict::Undecodable(Undecodable::Lost));
        assert_eq!(
            decoder.unread(),
            Err(NoPosition::Undecodable(Undecodable::Lost))
        );
        assert_eq!(recorder.told, []);
    }
}

#[test]
fn where_there_is_no_position_the_reason_is_told() {
    let unread = |flow: &Flow| flow.decoder.unread().unwrap_err();
    let mut flow = Flow::new(4);
    assert_eq!(unread(&flow), NoPosition::Handshake);
    flow.requests(&startup(4, &[]));
    assert_eq!(unread(&flow), NoPosition::Handshake);
    // Compressed segments.
    let mut flow = Flow::new(5);
    flow.requests(&startup(5, &[("COMPRESSION", "lz4")]));
    let ready = frame(0x85, 0, 0, READY, &[]);
    flow.decoder.responses(0, &ready, &mut flow.recorder);
    assert_eq!(unread(&flow), NoPosition::Compressed);
    assert_eq!(
        NoPosition::Compressed.as_str(),
        "nobody knows where in a frame it is: its segments are compressed"
    );
    // In a way that the protocol does not have.
    let mut flow = Flow::new(5);
    flow.requests(&startup(5, &[("COMPRESSION", "snappy")]));
    flow.decoder.responses(0, &ready, &mut flow.recorder);
    let why = NoPosition::Undecodable(Undecodable::SegmentCompression);
    assert_eq!(unread(&flow), why);
    let mut flow = Flow::new(4);
    flow.decoder.requests(0, &[0x16], &mut flow.recorder);
    assert_eq!(unread(&flow), NoPosition::Undecodable(Undecodable::Tls));
}

/// How bodies are compressed the decoder has seen, or it recognises by the first one.
#[test]
fn compressed_bodies_are_read_whoever_has_seen_how() {
    for algorithm in [Compression::Lz4, Compression::Snappy] {
        let kind = kind(4, algorithm);
        let unread = Flow::of(kind).decoder.unread().unwrap();
        let carried = Unread::at(unread.requests, unread.responses).unwrap();
        for from in [unread, carried] {
            let mut flow = Flow::new(4);
            flow.decoder = FlowDecoder::join(Default::default(), from);
            let text = query(4, "SELECT a FROM k.t", None);
            flow.requests(&kind.sent(0, 1, QUERY, &text));
            assert_eq!(flow.recorder.anomalies(), []);
            flow.response(1, RESULT, &[0, 0, 0, 1]);
            assert_eq!(flow.recorder.statements(), ["select k t"]);
            let again = flow.decoder.unread().unwrap();
            assert_eq!(again, from, "a guess is told to nobody");
        }
        // What is neither stays what it is.
        let mut flow = Flow::new(4);
        flow.decoder = FlowDecoder::join(Default::default(), carried);
        flow.requests(&frame(4, 1, 1, QUERY, b"\x05nothing that is compressed"));
        assert_eq!(flow.recorder.anomalies(), [Anomaly::CompressedBody]);
    }
}

/// A position in the middle of compressed segments is known to the decoder alone.
#[test]
fn behind_a_gap_in_compressed_segments_the_other_direction_is_read_on() {
    let kind = kind(5, Compression::Lz4);
    let ask = |stream, table: &str| {
        let text = format!("SELECT a FROM ks.{table}");
        kind.sent(0, stream, QUERY, &query(5, &text, None))
    };
    let answer = |stream| kind.sent(0x80, stream, RESULT, &1_i32.to_be_bytes());
    let misses = |flow: Flow, in_requests| Flow {
        decoder: flow
            .decoder
            .join_lz4_behind_gap(Default::default(), in_requests),
        ..flow
    };
    let (asked, answered) = (ask(2, "after"), answer(2));
    for cut in 0..asked.len() {
        let mut flow = Flow::of(kind);
        flow.requests(&ask(1, "before"));
        flow.requests(&asked[..cut]);
        let mut flow = misses(flow, false);
        flow.requests(&asked[cut..]);
        flow.responses(&answer(1));
        flow.responses(&answered);
        assert_eq!(flow.recorder.statements(), ["select ks after"], "{cut}");
        assert_eq!(flow.recorder.anomalies(), []);
    }
    for cut in 0..answered.len() {
        let mut flow = Flow::of(kind);
        flow.requests(&ask(1, "before"));
        flow.responses(&answered[..cut]);
        let mut flow = misses(flow, true);
        flow.responses(&answered[cut..]);
        flow.responses(&answer(1));
        flow.requests(&asked);
        flow.responses(&answered);
        assert_eq!(flow.recorder.statements(), ["select ks after"], "{cut}");
        assert_eq!(flow.recorder.anomalies(), []);
    }
}

#[test]
fn responses_to_what_was_asked_before_are_no_anomaly() {
    let mut flow = Flow::started(4);
    flow.request(7, QUERY, &query(4, "SELECT a FROM ks.before", None));
    let unread = flow.decoder.unread().unwrap();
    let mut flow = Flow::new(4);
    flow.decoder = FlowDecoder::join(Default::default(), unread);
    flow.request(8, QUERY, &query(4, "SELECT a FROM ks.after", None));
    flow.response(7, RESULT, &[0, 0, 0, 1]);
    flow.response(8, RESULT, &[0, 0, 0, 1]);
    assert_eq!(flow.recorder.statements(), ["select ks after"]);
    assert_eq!(flow.recorder.anomalies(), [] as [Anomaly; 0]);
    assert_eq!(flow.decoder.keyspace(), None);
}

/// Feeds a response of which only the beginning is there, and the rest by its length.
fn skipping(version: u8, beginning: usize) -> (Flow, Option<Verdict>) {
    let mut flow = Flow::started(version);
    flow.request(1, QUERY, &query(version, "SELECT a FROM t", None));
    let body = [&[0, 0, 0, 1][..], &vec![7; 200_000]].concat();
    let response = frame(version | 0x80, 0, 1, RESULT, &body);
    flow.responses(&response[..beginning]);
    let rest = response.len() - beginning;
    let skipped = flow.decoder.skip_responses(0, rest, &mut flow.recorder);
    (flow, skipped)
}

#[test]
fn the_rest_of_a_long_body_may_be_skipped() {
    let read = 9 + MAX_READ_BODY_BYTES;
    let (mut flow, skipped) = skipping(4, read);
    assert_eq!(skipped, Some(Verdict::Continue));
    let told = Told::Completed(
        1,
        "select - t".to_owned(),
        None,
        9 + 15 + 4 + 3,
        9 + 4 + 200_000,
    );
    assert_eq!(flow.recorder.told, [told]);
    // The next frame follows, and more than a body cannot be skipped.
    assert_eq!(
        flow.ask(QUERY, &query(4, "SELECT a FROM u", None)),
        "select - u"
    );
    let skipped = flow.decoder.skip_responses(0, 1, &mut flow.recorder);
    assert_eq!(skipped, None);
    assert_eq!(
        flow.ask(QUERY, &query(4, "SELECT a FROM v", None)),
        "select - v"
    );
}

#[test]
fn what_has_to_be_read_is_not_skipped() {
    let (flow, skipped) = skipping(4, 100);
    assert_eq!((skipped, flow.recorder.told.len()), (None, 0));
    let mut flow = Flow::started(5);
    assert_eq!(flow.decoder.skip_responses(0, 1, &mut flow.recorder), None);
}

#[test]
fn a_flow_in_segments_that_was_joined_can_be_left_again() {
    let places = |version: u8| FramePosition {
        framing: Framing::Segments,
        first: version,
        ..FramePosition::UNKNOWN
    };
    let unread = Unread::at(places(5), places(0x85)).unwrap();
    let decoder = FlowDecoder::join(Default::default(), unread);
    let left = decoder.unread().unwrap();
    assert_eq!((left.requests, left.responses), (places(5), places(0x85)));
}

/// OPTIONS, REGISTER, STARTUP and a log-in come at any time: each is paired with its own answer, and changes nothing that
/// a flow is in.
#[test]
fn what_belongs_to_a_handshake_is_told_apart_in_a_flow_that_was_joined() {
    const REGISTER: u8 = 0x0B;
    const AUTH_RESPONSE: u8 = 0x0F;
    for version in [4, 5] {
        let flow = Flow::started(version);
        let unread = flow.decoder.unread().unwrap();
        let mut flow = Flow::new(version);
        flow.decoder = FlowDecoder::join(Default::default(), unread);
        flow.use_keyspace("shop");
        let lz4 = startup(version, &[("COMPRESSION", "lz4")]);
        let all = [
            (STARTUP, &lz4[9..], ERROR, "startup"),
            (OPTIONS, &[], 0x06, "options"),
            (REGISTER, &[0, 0], READY, "register"),
            (AUTH_RESPONSE, &[0; 4], 0x10, "auth_response"),
        ];
        // Pipelined among requests, and answered in another order.
        flow.request(0, QUERY, &query(version, "SELECT a FROM t", None));
        for (stream, (opcode, body, ..)) in (1..5_i16).zip(all) {
            flow.request(stream, opcode, body);
        }
        flow.recorder.told.clear();
        for (stream, (.., answer, _)) in (1..5_i16).zip(all).rev() {
            flow.response(stream, answer, &[0; 6]);
        }
        flow.response(0, RESULT, &1_i32.to_be_bytes());
        let kinds = all.iter().rev().map(|(.., kind)| format!("{kind} - -"));
        let expected: Vec<String> = kinds.chain(["select shop t".to_owned()]).collect();
        assert_eq!(flow.recorder.statements(), expected);
        assert_eq!(flow.decoder.keyspace(), Some("shop"));
        assert_eq!(flow.recorder.anomalies(), []);
    }
}

#[test]
fn a_flow_is_at_rest_when_all_that_was_asked_is_answered() {
    let is_at_rest = |flow: &Flow| flow.decoder.at_rest().unwrap().is_some();
    for version in [3, 4, 5] {
        let text = query(version, "SELECT a FROM t", None);
        let mut flow = Flow::started(version);
        assert!(is_at_rest(&flow));
        // Two at a time on one stream cannot be told apart.
        for streams in [vec![1], vec![1, 2], vec![1, 1], vec![1, 1, 2]] {
            for stream in &streams {
                flow.request(*stream, QUERY, &text);
            }
            for stream in &streams {
                assert!(!is_at_rest(&flow), "{streams:?}");
                flow.response(*stream, RESULT, &[0, 0, 0, 1]);
            }
            assert!(is_at_rest(&flow), "{streams:?}");
        }
    }
}

/// A frame that is no request of the flow is treated as if one decoder had read it all.
#[test]
fn who_goes_on_with_a_flow_at_rest_doubts_its_position_no_more() {
    for version in [3, 4, 5] {
        let text = query(version, "SELECT a FROM t", None);
        let odd = [
            frame(version, 0xE0, 1, QUERY, &text),
            frame(version, 0, 1, 0x7F, &text),
            frame(if version == 4 { 3 } else { 4 }, 0, 1, QUERY, &text),
            frame(version | 0x80, 0, 1, QUERY, &text),
            frame(0x16, 0, 1, QUERY, &text),
        ];
        for bytes in odd {
            let mut before = Flow::started(version);
            let unread = before.decoder.at_rest().unwrap().unwrap();
            let mut after = Flow::new(version);
            after.decoder = FlowDecoder::go_on(Default::default(), unread);
            before.ask(QUERY, &text);
            let bytes = wrap(version, bytes);
            let [before, after] = [before, after].map(|mut flow| {
                let verdict = flow.decoder.requests(0, &bytes, &mut flow.recorder);
                (verdict, flow.recorder.anomalies())
            });
            assert_eq!(after, before, "version {version}, {:?}", &bytes[..2]);
        }
    }
}
