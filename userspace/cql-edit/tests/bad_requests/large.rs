//! Frames and statements that are large, or say so.

use super::*;

#[test]
fn a_frame_of_256_mib_is_not_held() {
    const MOST_BYTES: usize = 1 << 20;
    let kind = KINDS[3];
    let piece = vec![b'x'; 1 << 20];
    for step in STEPS {
        let mut flow = step.flow(kind);
        for (direction, opcode) in [(0x80, RESULT), (0, OPTIONS), (0, QUERY)] {
            let mut header = frame(kind.version | direction, 0, 1, opcode, &[]);
            header[5..].copy_from_slice(&(256_i32 << 20).to_be_bytes());
            let mut passed = 0;
            let held = most_held(|| {
                let pieces = std::iter::repeat_n(&piece[..], 256);
                for chunk in [&header[..]].into_iter().chain(pieces) {
                    let edited = match direction {
                        0 => flow.editor.requests(0, chunk, &mut flow.noted),
                        _ => flow.editor.responses(chunk, &mut flow.noted),
                    };
                    assert_eq!(edited.unreadable, None);
                    passed += edited.instead.as_ref().map_or(chunk.len(), Vec::len);
                }
            });
            let of = format!("{} {opcode}", step.shows(kind));
            assert!(held < MOST_BYTES, "{of}: {held}");
            // What a step has to see, and is too large, is refused if it is strict.
            let is_refused = opcode == QUERY && step.2;
            let expected = if is_refused {
                0
            } else {
                header.len() + (256 << 20)
            };
            assert_eq!(passed, expected, "{of}");
            assert_eq!(flow.editor.answers().is_some(), is_refused, "{of}");
        }
        what_is_behind_passes(&mut flow);
    }
}

/// Through all of them, text by text and bound.
#[test]
fn statements_of_10_mb_pass_or_are_refused_and_are_held_a_few_times() {
    const LARGE_BYTES: usize = 10 << 20;
    /// The most bytes that a request takes: as it was sent, as it is read, as each of two steps
    /// has changed it, as it goes on; a buffer that grows is there twice.
    const MOST_BYTES: usize = 8 * LARGE_BYTES;
    const INVALID: i32 = 0x2200;
    let value = "x".repeat(LARGE_BYTES);
    let text = format!("INSERT INTO ks.t (k, v) VALUES (1, '{value}')");
    for kind in [KINDS[3], KINDS[5], KINDS[7]] {
        let version = kind.version;
        let query = frame(version, 0, 1, QUERY, &ask(version, &text));
        let prepare_large = frame(version, 0, 2, PREPARE, &prepare(version, &text, None));
        let bound = cassandra_protocol::types::value::Value::Some(value.clone().into_bytes());
        let bound = parameters(version, &[bound], None, None);
        let execute = frame(version, 0, 4, EXECUTE, &execute_with(version, b"id", bound));
        for step in STEPS {
            let mut flow = step.flow(kind);
            let of = step.shows(kind);
            let mut one = |bare: &[u8]| {
                let sent = kind.wrap(&[bare.to_vec()]);
                let mut passed = Vec::new();
                let held = most_held(|| {
                    for chunk in sent.chunks(64 << 10) {
                        let edited = flow.editor.requests(0, chunk, &mut flow.noted);
                        assert_eq!(edited.unreadable, None);
                        passed.extend(edited.instead.unwrap_or_else(|| chunk.to_vec()));
                    }
                });
                // What goes on is the test's own.
                assert!(held < MOST_BYTES + 2 * LARGE_BYTES, "{of}: {held}");
                let told = flow.editor.answers().map(|told| kind.read(&told));
                match told {
                    None => assert_eq!(kind.read(&passed).len(), 1, "{of}"),
                    Some(_) => assert_eq!(passed, [0_u8; 0], "{of}"),
                }
                told.map(|told| match told[0][4] {
                    ERROR => i32::from_be_bytes(told[0][9..13].try_into().unwrap()),
                    _ => 0,
                })
            };
            // What does not follow so long a text refuses it where it has to know what is in it.
            let needs_all = match step {
                Step("protect", ..) => true,
                Step("rewrite", settings, _) => settings.contains("tables"),
                _ => false,
            };
            let by_text = match step.0 {
                "null" => Some(0),
                _ => needs_all.then_some(INVALID),
            };
            assert_eq!(one(&query), by_text, "{of}: QUERY");
            let by_text = by_text.filter(|_| step.0 != "null");
            assert_eq!(one(&prepare_large), by_text, "{of}: PREPARE");
            if step.1.contains("max_ttl") {
                let longer = format!("{text} USING TTL 999999999");
                let longer = frame(version, 0, 5, QUERY, &ask(version, &longer));
                assert_eq!(one(&longer), Some(INVALID), "{of}");
            }
            let small = "UPDATE yard.t SET w = ? WHERE k = 1";
            assert_eq!(
                one(&frame(
                    version,
                    0,
                    3,
                    PREPARE,
                    &prepare(version, small, None)
                )),
                None
            );
            let answer = kind.sent(0x80, 3, RESULT, &prepared(b"id"));
            flow.editor.responses(&answer, &mut flow.noted);
            let mut one = |bare: &[u8]| becomes(&mut flow, bare);
            let became = one(&execute);
            match step.0 {
                "null" => assert_eq!(became, Became::Answered),
                _ => assert!(
                    matches!(became, Became::AsItWas | Became::Changed(_)),
                    "{of}: EXECUTE"
                ),
            }
            what_is_behind_passes(&mut flow);
        }
    }
}
