//! Frames that an editor lets pass, keeps back and refuses.

use std::sync::Arc;

use crate::support::edit::*;
use crate::support::*;
use cassandra_protocol::compression::Compression;
use cassandra_protocol::frame::Envelope;
use cassandra_protocol::frame::frame_encoder::{FrameEncoder, Lz4FrameEncoder};
use cassandra_protocol::frame::message_request::RequestBody;
use cql_edit::{Caller, Edited, Editor, MAX_SEEN_BYTES, Room, Transform, Unreadable, Unseen};
use proptest::prelude::*;

#[test]
fn what_nobody_changes_passes_byte_for_byte_however_it_is_cut() {
    for kind in KINDS {
        let mut bytes = Vec::new();
        for n in 0..3 {
            bytes.extend(kind.sent(0, n, QUERY, &ask(kind.version, &table(n as usize))));
            bytes.extend(kind.sent(0, n + 9, OPTIONS, &[]));
        }
        for size in [1, 2, 3, 7, 8, 9, 10, 64, bytes.len()] {
            let mut flow = Edits::new(kind, vec![Arc::new(Refuses(b"ks.forbidden", true))]);
            let passed: Vec<u8> = bytes.chunks(size).flat_map(|c| flow.requests(c)).collect();
            assert_eq!(passed, bytes, "{kind:?}, {size} bytes at a time");
            assert_eq!(flow.noted, Noted::default());
        }
        let mut flow = Edits::new(kind, vec![Arc::new(Refuses(b"ks.forbidden", true))]);
        let edited = flow.editor.requests(0, &bytes, &mut flow.noted);
        assert_eq!(edited, Edited::default(), "{kind:?}: nothing is copied");
    }
}

#[test]
fn what_is_refused_does_not_pass_and_is_answered_between_two_responses() {
    for kind in KINDS {
        let good = |n: i16| kind.sent(0, n, QUERY, &ask(kind.version, &table(n as usize)));
        let bad = kind.sent(
            0,
            2,
            QUERY,
            &ask(kind.version, "SELECT * FROM ks.forbidden"),
        );
        let bytes = [good(1), bad, good(3)].concat();
        let response = kind.sent(0x80, 1, RESULT, &[0, 0, 0, 1]);
        for size in [1, 5, 9, 100, bytes.len()] {
            let mut flow = Edits::new(kind, vec![Arc::new(Refuses(b"ks.forbidden", false))]);
            let mut passed = Vec::new();
            for chunk in bytes.chunks(size) {
                passed.extend(flow.requests(chunk));
            }
            assert_eq!(kind.read(&passed), kind.read(&[good(1), good(3)].concat()));
            assert_eq!(flow.noted.refused, 1);
            // At once, when no response is passing.
            let said = flow.editor.answers().unwrap();
            let [error] = &kind.read(&said)[..] else {
                panic!("one error")
            };
            assert_eq!(error[..5], [kind.version | 0x80, 0, 0, 2, ERROR]);
            assert_eq!(error[9..13], 0x2200_i32.to_be_bytes());
            assert_eq!(flow.editor.answers(), None);
            assert_eq!(flow.responses(&response), response);
        }
        // While one is passing, behind it.
        let mut flow = Edits::new(kind, vec![Arc::new(Refuses(b"ks.forbidden", false))]);
        let (begun, rest) = response.split_at(response.len() - 1);
        let mut told = flow.responses(begun);
        flow.requests(&bytes);
        told.extend(flow.editor.answers().unwrap_or_default());
        told.extend(flow.responses(rest));
        told.extend(flow.editor.answers().unwrap_or_default());
        let streams: Vec<u8> = kind.read(&told).iter().map(|frame| frame[3]).collect();
        let mut sorted = streams.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [1, 2], "{kind:?}: {streams:?}");
    }
}

#[test]
fn what_cannot_be_seen_passes_or_is_refused() {
    let large = {
        let mut body = long_string(&"x".repeat(MAX_SEEN_BYTES));
        body.extend([0, 1, 0]);
        frame(4, 0, 3, QUERY, &body)
    };
    let bomb = frame(4, 1, 3, QUERY, &[0x7F, 0xFF, 0xFF, 0xFF, 1, 2, 3]);
    let malformed = frame(4, 0, 3, QUERY, &[0, 0, 1, 0, b'x']);
    let behind = frame(4, 0, 4, OPTIONS, &[]);
    for (sent, why) in [
        (large, Unseen::TooLarge),
        (bomb, Unseen::Compression),
        (malformed, Unseen::Malformed),
    ] {
        let sent = [sent, behind.clone()].concat();
        for strict in [false, true] {
            let kind = kind(4, Compression::Lz4);
            let mut flow = Edits::new(kind, vec![Arc::new(Refuses(b"nothing", strict))]);
            let passed: Vec<u8> = sent
                .chunks(64 << 10)
                .flat_map(|c| flow.requests(c))
                .collect();
            assert_eq!(flow.noted.unseen, [(why, strict)]);
            assert_eq!(flow.editor.answers().is_some(), strict);
            let expected = if strict { &behind } else { &sent };
            assert!(&passed == expected, "{why:?} {strict}");
        }
    }
}

#[test]
fn a_frame_larger_than_a_segment_is_seen_and_passes() {
    let text = format!("SELECT v FROM ks.t WHERE k = '{}'", "x".repeat(300_000));
    for compression in [Compression::None, Compression::Lz4] {
        let kind = kind(5, compression);
        let whole = frame(5, 0, 7, QUERY, &ask(5, &text));
        let mut sent = Vec::new();
        for part in whole.chunks((1 << 17) - 1) {
            sent.extend(match compression {
                Compression::Lz4 => Lz4FrameEncoder::default()
                    .finalize_non_self_contained(part)
                    .1
                    .to_vec(),
                _ => segment(false, part),
            });
        }
        for (pipeline, changes) in [
            (
                step("transform = \"paging\"\nat_most = 9\nwithout_size = \"set\""),
                true,
            ),
            (
                Arc::new(Refuses(b"nothing", true)) as Arc<dyn Transform>,
                false,
            ),
        ] {
            let mut flow = Edits::new(kind, vec![pipeline]);
            let passed: Vec<u8> = sent.chunks(5000).flat_map(|c| flow.requests(c)).collect();
            let [got] = &kind.read(&passed)[..] else {
                panic!("one frame")
            };
            assert_eq!(flow.noted.changed, usize::from(changes));
            assert_eq!(got == &whole, !changes);
            let envelope = Envelope::from_buffer(got, Compression::None)
                .unwrap()
                .envelope;
            let RequestBody::Query(got) = envelope.request_body().unwrap() else {
                panic!("no query")
            };
            assert_eq!(got.query, text);
        }
    }
}

/// A peer may end a segment anywhere if it does not call it self-contained, though none of the drivers puts whole frames before the
/// part of one. Behind it the flow goes on, or has ended.
#[test]
fn segments_may_end_within_any_frame() {
    for compression in [Compression::None, Compression::Lz4] {
        let kind = kind(5, compression);
        let around = |part: &[u8]| match compression {
            Compression::Lz4 => Lz4FrameEncoder::default()
                .finalize_non_self_contained(part)
                .1
                .to_vec(),
            _ => segment(false, part),
        };
        let query = |stream, text: &str| frame(5, 0, stream, QUERY, &ask(5, text));
        let [first, refused, last] = [
            query(1, "SELECT * FROM ks.t1"),
            query(2, "SELECT * FROM ks.forbidden"),
            query(3, "SELECT * FROM ks.t3"),
        ];
        let frames = [&first[..], &refused, &last].concat();
        let pages = "transform = \"paging\"\nat_most = 9\nwithout_size = \"set\"";
        let steps = || -> [Arc<dyn Transform>; 2] {
            [step(pages), Arc::new(Refuses(b"ks.forbidden", true))]
        };
        for (step, is_refused) in [false, true].into_iter().enumerate() {
            for cut in 1..frames.len() {
                let [begun, rest] = [&frames[..cut], &frames[cut..]].map(around);
                let mut flow = Edits::new(kind, vec![steps()[step].clone()]);
                let mut passed = flow.requests(&begun);
                passed.extend(flow.requests(&rest));
                let streams: Vec<u8> = kind.read(&passed).iter().map(|frame| frame[3]).collect();
                let expected: &[u8] = if is_refused { &[1, 3] } else { &[1, 2, 3] };
                assert_eq!(streams, expected, "{compression:?}, cut at {cut}");

                let mut flow = Edits::new(kind, vec![steps()[step].clone()]);
                let mut passed = flow.requests(&begun);
                flow.editor.give_up(0, true, &mut flow.noted);
                passed.extend(flow.editor.end(true));
                let mut reads = Edits::new(kind, Vec::new());
                let read = reads.editor.requests(0, &passed, &mut reads.noted);
                assert_eq!(read.unreadable, None, "{compression:?}, ended at {cut}");
            }
        }
    }
}

/// v5 was a beta version before Cassandra 4, and had no segments: it passes as it is. Later servers ignore the flag.
#[test]
fn v5_with_the_beta_flag_is_edited_where_it_has_segments() {
    let kind = kind(5, Compression::None);
    let [(_, mut starts), (_, ready)] = kind.handshake();
    starts[1] = 0x10;
    let mut refused = frame(5, 0, 2, QUERY, &ask(5, "SELECT * FROM ks.forbidden"));
    refused[1] = 0x10;
    for strict in [false, true] {
        for piece in [1, 5, 1000] {
            let started = || {
                let step: Arc<dyn Transform> = Arc::new(Refuses(b"ks.forbidden", strict));
                let editor = Editor::new(vec![step].into(), Caller::default());
                let mut flow = Edits {
                    kind,
                    editor,
                    noted: Noted::default(),
                };
                assert_eq!(flow.requests(&starts), starts);
                assert_eq!(flow.responses(&ready), ready);
                flow
            };
            let mut flow = started();
            let segment = segment(true, &refused);
            let passed = segment.chunks(piece).flat_map(|bytes| flow.requests(bytes));
            assert_eq!(passed.count(), 0);
            assert_eq!(flow.noted.refused, 1);

            let mut flow = started();
            let (mut passed, mut unreadable) = (Vec::new(), None);
            for bytes in refused.chunks(piece) {
                let edited = flow.editor.requests(0, bytes, &mut flow.noted);
                unreadable = unreadable.or(edited.unreadable);
                passed.extend(edited.instead.unwrap_or_else(|| bytes.to_vec()));
                if flow.editor.is_denied() {
                    break;
                }
            }
            assert_eq!(unreadable, Some(Unreadable::Version), "{piece}");
            assert_eq!(flow.editor.is_denied(), strict);
            let expected = if strict { &[][..] } else { &refused };
            assert_eq!(passed, expected, "{piece}");
        }
    }
}

#[test]
fn what_is_no_cql_is_told() {
    let cases: [(&[u8], Unreadable); 4] = [
        (&[0x16, 3, 1, 0, 200, 1, 0, 0, 196], Unreadable::Tls),
        (b"GET / HTTP/1.1\r\n", Unreadable::NotCql),
        (&[0x42, 0, 0, 0, 5, 0, 0, 0, 0], Unreadable::Version),
        (&[0x84, 0, 0, 0, 5, 0, 0, 0, 0], Unreadable::NotCql),
    ];
    for (bytes, why) in cases {
        for size in [1, 5, bytes.len()] {
            let mut editor = Editor::new(Vec::new().into(), Caller::default());
            let mut passed = Vec::new();
            let mut told = None;
            for chunk in bytes.chunks(size) {
                let edited = editor.requests(0, chunk, &mut Noted::default());
                passed.extend(edited.instead.unwrap_or_else(|| chunk.to_vec()));
                told = told.or(edited.unreadable);
            }
            assert_eq!(told, Some(why));
            assert_eq!(passed, bytes, "it passes all the same");
        }
    }
    // Its first byte is enough: who sends no more may wait for an answer.
    for (bytes, why) in cases {
        let mut editor = Editor::new(Vec::new().into(), Caller::default());
        let edited = editor.requests(0, &bytes[..1], &mut Noted::default());
        assert_eq!(edited.unreadable, Some(why));
        assert_eq!(edited.instead, None, "it passes");
    }
    // Once it was CQL, framing is lost: nothing passes from there on.
    let mut flow = Edits::of(
        kind(4, Compression::None),
        "transform = \"paging\"\nat_most = 9\nwithout_size = \"set\"",
    );
    let edited = flow
        .editor
        .requests(0, b"GET / HTTP/1.1\r\n", &mut flow.noted);
    assert_eq!(edited.unreadable, Some(Unreadable::Framing));
    assert_eq!(edited.instead.as_deref(), Some(&b""[..]));
}

#[test]
fn what_came_before_what_cannot_be_read_goes_on() {
    for kind in KINDS.into_iter().filter(|kind| kind.version < 5) {
        let mut flow = Edits::new(kind, vec![Arc::new(Refuses(b"nothing", true))]);
        let good = kind.sent(0, 7, QUERY, &ask(kind.version, &table(1)));
        let sent = [&good[..], b"GET / HTTP/1.1\r\n"].concat();
        let edited = flow.editor.requests(0, &sent, &mut flow.noted);
        assert_eq!(edited.unreadable, Some(Unreadable::Framing));
        assert_eq!(edited.instead, Some(good));
    }
}

fn strict() -> Edits {
    let kind = kind(5, Compression::None);
    let pipeline = vec![Arc::new(Refuses(b"nothing", true)) as Arc<dyn Transform>];
    Edits {
        kind,
        editor: Editor::new(pipeline.into(), Caller::default()),
        noted: Noted::default(),
    }
}

#[test]
fn nothing_passes_behind_a_startup_that_is_not_answered() {
    let startup = startup(5, &[]);
    let behind = frame(5, 0, 1, QUERY, &ask(5, &table(1)));
    for len in [1, 8, 9, behind.len()] {
        for whole in [true, false] {
            let mut flow = strict();
            let behind = &behind[..len];
            let mut passed = Vec::new();
            let mut why = None;
            let both = [&startup, behind].concat();
            let chunks = match whole {
                true => vec![&both[..]],
                false => vec![&startup[..], behind],
            };
            for chunk in chunks {
                let edited = flow.editor.requests(0, chunk, &mut flow.noted);
                passed.extend(edited.instead.unwrap_or_else(|| chunk.to_vec()));
                why = why.or(edited.unreadable);
            }
            assert_eq!(why, Some(Unreadable::Early), "{len}");
            assert!(flow.editor.is_denied());
            assert_eq!(passed, startup);
            let ready = frame(0x85, 0, 0, READY, &[]);
            let edited = flow.editor.responses(&ready, &mut flow.noted);
            assert_eq!(edited.instead, Some(Vec::new()));
        }
    }
    // Whoever waits may begin anew.
    let mut flow = strict();
    flow.requests(&startup);
    flow.responses(&frame(0x85, 0, 0, 0x00, &[0; 6]));
    flow.requests(&startup);
    flow.responses(&frame(0x85, 0, 0, READY, &[]));
    let sent = flow.kind.sent(0, 1, QUERY, &ask(5, &table(1)));
    assert_eq!(flow.requests(&sent), sent);
}

/// The body of the one frame in these bytes, which is compressed, and shorter for it.
fn shrunk(kind: Kind, passed: &[u8]) -> Vec<u8> {
    assert_eq!(passed[1] & 1, 1, "{kind:?}: it says so");
    let [plain] = &kind.read(passed)[..] else {
        panic!("one frame")
    };
    assert!(passed.len() < plain.len(), "{kind:?}");
    plain[9..].to_vec()
}

#[test]
fn what_has_changed_is_compressed_as_it_was_sent() {
    let compressed = |kind: &Kind| kind.version < 5 && kind.compression != Compression::None;
    let filler = "to be compressed, ".repeat(20);
    for kind in KINDS.into_iter().filter(compressed) {
        let mut flow = Edits::of(kind, "transform = \"consistency\"\nexactly = \"TWO\"");
        let text = format!("SELECT v FROM ks.t WHERE k = '{filler}'");
        let mut body = ask(kind.version, &text);
        let passed = flow.requests(&kind.sent(0, 7, QUERY, &body));
        let level = 4 + text.len()..4 + text.len() + 2;
        body[level].copy_from_slice(&[0, 2]);
        assert_eq!(shrunk(kind, &passed), body);

        let renames = "transform = \"rewrite\"\nkeyspaces = { shop = \"shop_v2\" }";
        let mut flow = Edits::of(kind, renames);
        flow.requests(&kind.sent(0, 7, QUERY, &ask(kind.version, "SELECT v FROM shop.t")));
        // A row of one column, a text.
        let rows = |keyspace| {
            let names = [keyspace, "t", "v"].map(string).concat();
            let value = [&[0, 0x0D, 0, 0, 0, 1][..], &long_string(&filler)].concat();
            [&[0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1][..], &names, &value].concat()
        };
        let told = flow.responses(&kind.sent(0x80, 7, RESULT, &rows("shop_v2")));
        assert_eq!(shrunk(kind, &told), rows("shop"));
    }
}

#[test]
fn another_version_is_read_as_it_was_agreed_on_in_the_end() {
    let step = step("transform = \"consistency\"\nexactly = \"TWO\"");
    let mut flow = Edits {
        kind: kind(4, Compression::Snappy),
        editor: Editor::new(vec![step].into(), Caller::default()),
        noted: Noted::default(),
    };
    let first = startup(5, &[("COMPRESSION", "lz4")]);
    assert_eq!(flow.requests(&first), first);
    // As of a server that does not know v5.
    let why = string("Invalid or unsupported protocol version (5)");
    let refused = frame(0x84, 0, 0, ERROR, &[&[0, 0, 0, 0x0A][..], &why].concat());
    assert_eq!(flow.responses(&refused), refused);
    for (is_request, bytes) in flow.kind.handshake() {
        let passed = match is_request {
            true => flow.requests(&bytes),
            false => flow.responses(&bytes),
        };
        assert_eq!(passed, bytes);
    }
    let text = table(1).repeat(9);
    let passed = flow.requests(&flow.kind.sent(0, 7, QUERY, &ask(4, &text)));
    let expected = [&long_string(&text)[..], &[0, 2, 0]].concat();
    assert_eq!(shrunk(flow.kind, &passed), expected);
    assert_eq!(flow.noted.changed, 1);
}

#[test]
fn what_came_early_is_remembered_until_the_rule_is_decided() {
    for (strict, denied) in [(true, true), (false, false)] {
        let mut editor = Editor::new(Vec::new().into(), Caller::default());
        let mut noted = Noted::default();
        for bytes in [startup(5, &[]), b"\x05".to_vec()] {
            assert_eq!(editor.requests(0, &bytes, &mut noted).unreadable, None);
        }
        let pipeline = vec![Arc::new(Refuses(b"nothing", strict)) as Arc<dyn Transform>];
        editor.becomes(pipeline.into(), Caller::default());
        assert_eq!(editor.is_denied(), denied);
        assert_eq!(editor.unreadable().is_some(), denied);
    }
}

#[test]
fn compression_is_read_as_the_database_reads_it() {
    let options: [&[(&str, &str)]; 3] = [
        &[("compression", "LZ4")],
        &[("COMPRESSION", "snappy"), ("COMPRESSION", "lz4")],
        &[("COMPRESSION", "lz4"), ("Compression", "LZ4")],
    ];
    let lz4 = kind(4, Compression::Lz4);
    for options in options {
        let mut flow = strict();
        flow.requests(&startup(4, options));
        flow.responses(&frame(0x84, 0, 0, READY, &[]));
        // The database refuses another one, whatever it asks for.
        flow.requests(&startup(4, &[("COMPRESSION", "snappy")]));
        flow.responses(&frame(0x84, 0, 0, 0x00, &[0; 6]));
        let sent = lz4.sent(0, 1, QUERY, &ask(4, "SELECT nothing FROM t"));
        assert_eq!(flow.requests(&sent), b"");
        assert_eq!((flow.noted.refused, flow.noted.unseen), (1, vec![]));
    }
    // Which of two Cassandra takes depends on the order of its hash map.
    let mut flow = strict();
    flow.requests(&startup(
        4,
        &[("COMPRESSION", "snappy"), ("Compression", "lz4")],
    ));
    flow.responses(&frame(0x84, 0, 0, READY, &[]));
    let sent = lz4.sent(0, 1, QUERY, &ask(4, "SELECT nothing FROM t"));
    assert_eq!(flow.requests(&sent), b"");
    assert_eq!(flow.noted.unseen, [(Unseen::Compression, true)]);
    // Behind a custom payload, in which other options seem to be.
    let body = &startup(4, &[("COMPRESSION", "lz4")])[9..];
    let payload = b"\0\x01\0\x0bCOMPRESSION\0\0\0\x06snappy";
    let mut flow = strict();
    flow.requests(&frame(4, 4, 0, 1, &[payload, body].concat()));
    flow.responses(&frame(0x84, 0, 0, READY, &[]));
    let sent = lz4.sent(0, 1, QUERY, &ask(4, "SELECT nothing FROM t"));
    assert_eq!(flow.requests(&sent), b"");
    assert_eq!(flow.noted.refused, 1);
    // A huge one is none.
    let mut flow = strict();
    let huge = frame(4, 0, 0, 1, &vec![0; 2 << 20]);
    let edited = flow.editor.requests(0, &huge, &mut flow.noted);
    assert_eq!(edited.unreadable, Some(Unreadable::NotCql));
}

#[test]
fn flows_share_the_room_for_what_they_hold_back() {
    let kind = kind(4, Compression::None);
    let frame_of = |len: usize| {
        let text = format!("SELECT v FROM ks.t WHERE k = '{}'", "x".repeat(len));
        frame(4, 0, 7, QUERY, &ask(4, &text))
    };
    let (large, small) = (frame_of(100_000), frame_of(10_000));
    let room = Room::new(150_000);
    let editor = |strict| {
        let pipeline = vec![Arc::new(Refuses(b"nothing", strict)) as Arc<dyn Transform>];
        let mut flow = Edits::new(kind, pipeline);
        flow.editor = flow.editor.within(&room);
        flow
    };
    let [mut one, mut two, mut three] = [editor(true), editor(true), editor(false)];
    let (begun, rest) = large.split_at(50_000);
    assert_eq!(one.requests(begun), b"");
    // Cut within its header, or behind it.
    for at in [5, 9, 70_000] {
        let (begun, rest) = large.split_at(at);
        assert_eq!(two.requests(begun), b"");
        assert_eq!(two.requests(rest), b"");
        let answer = two.editor.answers().unwrap();
        assert_eq!(answer[9..13], 0x1001_u32.to_be_bytes());
        let passed = [three.requests(begun), three.requests(rest)].concat();
        assert_eq!(passed, large);
        three.frees(7);
    }
    assert_eq!(two.noted.unseen, [(Unseen::NoRoom, true); 3]);
    assert_eq!(three.noted.unseen, [(Unseen::NoRoom, false); 3]);
    // What is small, or whole, needs none.
    assert_eq!(two.requests(&large), large);
    two.frees(7);
    let (small_begun, small_rest) = small.split_at(100);
    assert_eq!(two.requests(small_begun), b"");
    assert_eq!(two.requests(small_rest), small);
    // It comes back.
    assert_eq!(one.requests(rest), large);
    two.frees(7);
    assert_eq!(two.requests(begun), b"");
    drop(two);
    one.frees(7);
    assert_eq!(one.requests(begun), b"");
    assert_eq!(one.requests(rest), large);
}

#[test]
fn what_was_held_back_passes_at_the_end() {
    for kind in KINDS {
        let mut flow = Edits::new(kind, vec![Arc::new(Refuses(b"nothing", true))]);
        let sent = kind.sent(0, 7, QUERY, &ask(kind.version, &table(1)));
        let cut = &sent[..sent.len() - 1];
        let mut passed = flow.requests(cut);
        passed.extend(flow.editor.end(true));
        assert_eq!(passed, cut, "{kind:?}");
    }
}

/// Bytes that begin like CQL, and are then anything.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<Vec<u8>>(),
        (
            0u8..8,
            any::<u8>(),
            any::<i16>(),
            0u8..17,
            proptest::collection::vec(any::<u8>(), 0..60)
        )
            .prop_map(|(version, flags, stream, opcode, body)| frame(
                version, flags, stream, opcode, &body
            )),
        Just(frame(4, 0, 1, QUERY, &ask(4, "SELECT v FROM ks.t"))),
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn anything_goes_on_the_same_however_it_is_cut(bytes in noise(), size in 1usize..40, index in 0..KINDS.len()) {
        let pipeline = || vec![
            Arc::new(Refuses(b"forbidden", true)) as Arc<dyn Transform>,
            step("transform = \"consistency\"\nexactly = \"ONE\""),
            step("transform = \"tag\""),
        ];
        let run = |size: usize| {
            let mut flow = Edits::new(KINDS[index], pipeline());
            let mut passed = Vec::new();
            let mut why = None;
            for chunk in bytes.chunks(size.max(1)) {
                let edited = flow.editor.requests(0, chunk, &mut flow.noted);
                passed.extend(edited.instead.unwrap_or_else(|| chunk.to_vec()));
                why = why.or(edited.unreadable);
            }
            (passed, why, flow.editor.answers(), flow.noted)
        };
        prop_assert_eq!(run(size), run(bytes.len()));
    }

    #[test]
    fn responses_that_are_anything_pass_until_framing_is_lost(bytes: Vec<u8>, size in 1usize..40) {
        let mut editor = Editor::new(Arc::new([]), Caller::default());
        let mut passed = Vec::new();
        let mut why = None;
        for chunk in bytes.chunks(size) {
            let edited = editor.responses(chunk, &mut Noted::default());
            passed.extend(edited.instead.unwrap_or_else(|| chunk.to_vec()));
            why = why.or(edited.unreadable);
        }
        passed.extend(editor.end(false));
        prop_assert!(bytes.starts_with(&passed));
        if why != Some(Unreadable::Framing) {
            prop_assert_eq!(passed, bytes);
        }
    }
}
