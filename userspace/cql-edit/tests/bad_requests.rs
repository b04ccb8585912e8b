//! Bad requests through each transform: each goes on or is answered on its stream, never both and never neither; what
//! comes behind it passes; and what is held does not depend on what a client declares.

#[cfg(test)]
#[path = "protecting/database.rs"]
#[allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of it"
)]
mod database;
#[cfg(test)]
#[path = "../../fuzz/src/memory.rs"]
mod memory;
#[cfg(test)]
#[allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of it"
)]
mod support;

#[cfg(test)]
#[path = "bad_requests"]
mod tests {
    mod large;

    use std::collections::HashMap;
    use std::sync::Arc;

    use super::database::TestVault;
    use super::memory::most_held;
    use super::support::edit::*;
    use super::support::values::{NOW_US, execute_with, parameters};
    use super::support::*;
    use cassandra_protocol::compression::Compression;
    use cql_edit::protect::{Columns, Failures, Protect};
    use cql_edit::transforms::NAMES;
    use cql_edit::{Transform, Unreadable, Unseen};

    /// A transform, its settings, and whether what it cannot be shown does not pass.
    struct Step(&'static str, &'static str, bool);

    const STEPS: [Step; 14] = [
        Step("consistency", "at_least = \"QUORUM\"", true),
        Step(
            "consistency",
            "at_least = \"QUORUM\"\nkinds = [\"reads\", \"writes\"]",
            true,
        ),
        Step("guard", "refuse = [\"ddl\"]\nmax_batch = 9", true),
        Step("guard", "refuse = [\"ddl\"]\nmode = \"shadow\"", false),
        Step("lookup", "", false),
        Step("null", "", false),
        Step("paging", "at_most = 9", true),
        Step("protect", "", true),
        Step("rewrite", "addresses = \"dialled\"", false),
        Step("rewrite", "tables = { \"ks.t\" = \"ks.u\" }", true),
        Step(
            "rewrite",
            "max_ttl = \"1h\"\ntimestamps = { max_ahead = \"1s\" }",
            true,
        ),
        Step("tag", "service = \"s\"\ncomment = true", false),
        Step(
            "throttle",
            "rate = 1000\nburst = 1000000\nper = \"table\"\nmode = \"overloaded\"",
            false,
        ),
        Step("tracing", "one_in = 2", false),
    ];

    impl Step {
        fn build(&self) -> Arc<dyn Transform> {
            let Self(name, settings, _) = self;
            if *name != "protect" {
                return step(&format!("transform = \"{name}\"\n{settings}"));
            }
            let columns = HashMap::from([("ks.t".to_owned(), vec!["v".to_owned()])]);
            let failures = Failures {
                unencrypted_passes: false,
                keyless_passes: false,
            };
            let columns = Columns::new(&columns).unwrap();
            Arc::new(Protect::new(columns, failures, TestVault::new()))
        }

        fn flow(&self, kind: Kind) -> Edits {
            let mut flow = Edits::new(kind, vec![self.build()]);
            flow.editor.set_time(NOW_US);
            flow
        }

        fn shows(&self, kind: Kind) -> String {
            format!("{kind:?} {} {:?}", self.0, self.1)
        }
    }

    /// The end of a request.
    #[derive(Debug, PartialEq, Eq)]
    enum Became {
        AsItWas,
        Changed(Vec<u8>),
        Answered,
        Error(i32),
    }

    /// `bare`: a frame that is not compressed.
    fn becomes(flow: &mut Edits, bare: &[u8]) -> Became {
        let kind = flow.kind;
        let sent = kind.wrap(&[bare.to_vec()]);
        let passed = flow.requests(&sent);
        let told = flow.editor.answers();
        if passed == sent {
            assert_eq!(told, None);
            return Became::AsItWas;
        }
        let passed = kind.read(&passed);
        let told = told.map(|told| kind.read(&told)).unwrap_or_default();
        match (&passed[..], &told[..]) {
            ([one], []) => {
                assert_eq!(one[2..5], bare[2..5], "stream and opcode");
                Became::Changed(one.clone())
            }
            ([], [answer]) => {
                assert_eq!(answer[2..4], bare[2..4], "its stream");
                match answer[4] {
                    ERROR => Became::Error(i32::from_be_bytes(answer[9..13].try_into().unwrap())),
                    opcode => {
                        assert_eq!(opcode, RESULT);
                        Became::Answered
                    }
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn what_is_behind_passes(flow: &mut Edits) {
        let options = frame(flow.kind.version, 0, 30_000, OPTIONS, &[]);
        assert_eq!(becomes(flow, &options), Became::AsItWas);
    }

    #[test]
    fn every_transform_is_tried() {
        for name in NAMES {
            assert!(STEPS.iter().any(|step| step.0 == *name), "{name}");
        }
        for step in STEPS {
            assert_eq!(step.build().is_strict(), step.2, "{} {:?}", step.0, step.1);
        }
    }

    /// Well-formed bodies of each kind, with all that may be in them.
    fn bodies(version: u8) -> [(u8, Vec<u8>); 4] {
        const TEXT: &str = "INSERT INTO ks.t (k, v) VALUES (?, ?) USING TTL 5";
        let keyspace = (version == 5).then_some("ks");
        let values = [
            cassandra_protocol::types::value::Value::Some(vec![1, 2, 3]),
            cassandra_protocol::types::value::Value::Null,
        ];
        let with_values = parameters(version, &values, Some(&["k", "v"]), Some(7));
        let children = [Child::Text(TEXT), Child::Id(b"id")];
        [
            (QUERY, [long_string(TEXT), with_values.clone()].concat()),
            (PREPARE, prepare(version, TEXT, keyspace)),
            (EXECUTE, execute_with(version, b"id", with_values)),
            (BATCH, batch(version, &children, keyspace)),
        ]
    }

    #[test]
    fn a_body_that_is_cut_short_passes_or_is_refused() {
        for kind in KINDS {
            for step in STEPS {
                let strict = step.2;
                for (opcode, whole) in bodies(kind.version) {
                    let mut flow = step.flow(kind);
                    let mut unseen = 0;
                    for (stream, end) in (0..).zip(1..whole.len()) {
                        flow.noted.unseen.clear();
                        let cut = frame(kind.version, 0, stream, opcode, &whole[..end]);
                        let became = becomes(&mut flow, &cut);
                        if flow.noted.unseen.is_empty() {
                            continue;
                        }
                        unseen += 1;
                        let of = format!("{} {opcode} {end}", step.shows(kind));
                        assert_eq!(flow.noted.unseen, [(Unseen::Malformed, strict)], "{of}");
                        let expected = match strict {
                            true => Became::Error(0x2200),
                            false => Became::AsItWas,
                        };
                        assert_eq!(became, expected, "{of}");
                    }
                    // Nearly all of them, of what the step wants to see.
                    let wants = step.build().wants(match opcode {
                        QUERY => cql::Opcode::Query,
                        PREPARE => cql::Opcode::Prepare,
                        EXECUTE => cql::Opcode::Execute,
                        _ => cql::Opcode::Batch,
                    });
                    assert_eq!(unseen > whole.len() / 2, wants, "{}", step.shows(kind));
                    what_is_behind_passes(&mut flow);
                }
            }
        }
    }

    /// Bodies that declare more than there is, and the flags of their frames.
    fn absurd(version: u8) -> Vec<(u8, u8, Vec<u8>)> {
        const PAYLOAD: u8 = 4;
        const LENGTHS: [i32; 5] = [i32::MAX, 1 << 28, -1, -2, i32::MIN];
        let flags = |flags: u32| match version {
            5 => flags.to_be_bytes().to_vec(),
            _ => flags.to_be_bytes()[3..].to_vec(),
        };
        let text = long_string("INSERT INTO ks.t (k, v) VALUES (?, ?)");
        let mut all = Vec::new();
        for length in LENGTHS.map(i32::to_be_bytes) {
            for opcode in [QUERY, PREPARE] {
                all.push((opcode, 0, [&length[..], b"SELECT"].concat()));
            }
            let value = [&text[..], &[0, 1], &flags(0x01), &[0, 1], &length, b"v"].concat();
            all.push((QUERY, 0, value));
            let page = [&text[..], &[0, 1], &flags(0x0C), &length, &length].concat();
            all.push((QUERY, 0, page));
            let child = [&[0, 0, 1, 0][..], &length, b"SELECT"].concat();
            all.push((BATCH, 0, child));
            let entry = [&[0, 1, 0, 1, b'k'][..], &length, &text].concat();
            all.push((QUERY, PAYLOAD, entry));
        }
        let values = [&text[..], &[0, 1], &flags(0x41), &[0xFF, 0xFF]].concat();
        all.push((QUERY, 0, values));
        let everything = [&text[..], &[0, 1], &flags(0xFFFF_FFFF)].concat();
        all.push((QUERY, 0, everything));
        all.push((BATCH, 0, vec![0, 0xFF, 0xFF]));
        all.push((BATCH, 0, [&[0xFF; 3][..], &[0; 64]].concat()));
        all.push((EXECUTE, 0, vec![0xFF, 0xFF, 1]));
        all.push((QUERY, PAYLOAD, [&[0xFF, 0xFF][..], &text].concat()));
        all
    }

    #[test]
    fn absurd_lengths_are_never_a_reason_to_hold_more() {
        const MOST_BYTES: usize = 1 << 20;
        for kind in KINDS {
            for step in STEPS {
                let mut flow = step.flow(kind);
                for (stream, (opcode, flags, body)) in (0..).zip(absurd(kind.version)) {
                    let bare = frame(kind.version, flags, stream, opcode, &body);
                    let held = most_held(|| {
                        becomes(&mut flow, &bare);
                    });
                    assert!(held < MOST_BYTES, "{}: {held}", step.shows(kind));
                }
                what_is_behind_passes(&mut flow);
            }
        }
    }

    /// A segment in which a bit has flipped ends the flow: nothing of it passes, nor of what is behind
    /// it.
    #[test]
    fn a_segment_whose_checksum_is_wrong_ends_the_flow() {
        for kind in KINDS.into_iter().filter(|kind| kind.version == 5) {
            let [before, behind] = [1, 3].map(|stream| kind.sent(0, stream, OPTIONS, &[]));
            let text = "INSERT INTO ks.t (k, v) VALUES (1, 2)";
            let whole = kind.sent(0, 2, QUERY, &ask(5, text));
            for step in STEPS {
                for at in 0..whole.len() {
                    let of = format!("{} {at}", step.shows(kind));
                    let mut bad = whole.clone();
                    bad[at] ^= 1 << (at % 8);
                    let mut flow = step.flow(kind);
                    assert_eq!(flow.requests(&before), before, "{of}");
                    let bad = [&bad[..], &behind].concat();
                    let edited = flow.editor.requests(0, &bad, &mut flow.noted);
                    assert_eq!(edited.unreadable, Some(Unreadable::Framing), "{of}");
                    assert_eq!(edited.instead, Some(Vec::new()), "{of}");
                    assert!(flow.editor.is_denied(), "{of}");
                }
            }
        }
    }

    /// 2 GiB, 256 MiB, 32 MiB, of which there are some bytes; and nothing.
    const SIZES: [i32; 4] = [i32::MAX, 256 << 20, 32 << 20, 0];

    /// The beginning of a compressed body: how many bytes it becomes.
    fn declared(algorithm: Compression, bytes: i32) -> Vec<u8> {
        if algorithm == Compression::Lz4 {
            return bytes.to_be_bytes().to_vec();
        }
        let (mut varint, mut left) = (Vec::new(), bytes);
        while left >= 0x80 {
            varint.push(left as u8 | 0x80);
            left >>= 7;
        }
        varint.push(left as u8);
        varint
    }

    #[test]
    fn what_would_become_too_much_is_not_made() {
        const MOST_BYTES: usize = 1 << 20;
        for algorithm in [Compression::Lz4, Compression::Snappy] {
            let kind = kind(4, algorithm);
            let declared = SIZES.map(|bytes| declared(algorithm, bytes));
            for step in STEPS {
                let strict = step.2;
                if !step.build().wants(cql::Opcode::Query) {
                    continue;
                }
                for declared in &declared {
                    let mut flow = step.flow(kind);
                    let bomb = frame(
                        4,
                        1,
                        3,
                        QUERY,
                        &[declared, &[0x1F, 0, 1, 0, 0xFF][..]].concat(),
                    );
                    let mut passed = Vec::new();
                    let held = most_held(|| passed = flow.requests(&bomb));
                    let of = format!("{} {declared:?}", step.shows(kind));
                    assert!(held < MOST_BYTES, "{of}: {held}");
                    assert_eq!(flow.noted.unseen, [(Unseen::Compression, strict)], "{of}");
                    assert_eq!(flow.editor.answers().is_some(), strict, "{of}");
                    assert_eq!(passed, if strict { &[][..] } else { &bomb }, "{of}");
                    what_is_behind_passes(&mut flow);
                }
            }
        }
    }

    /// Nor of a response that somebody waits for.
    #[test]
    fn what_an_answer_would_become_is_not_made() {
        const MOST_BYTES: usize = 1 << 20;
        let awaiting = |step: &Step| match (step.0, step.1) {
            ("protect", _) => Some("SELECT v FROM ks.t WHERE k = 1"),
            ("rewrite", of) if of.contains("tables") => Some("SELECT v FROM ks.t WHERE k = 1"),
            ("rewrite", of) if of.contains("addresses") => Some("SELECT * FROM system.local"),
            _ => None,
        };
        let mut tried = 0;
        for algorithm in [Compression::Lz4, Compression::Snappy] {
            let kind = kind(4, algorithm);
            let mut bodies = SIZES
                .map(|bytes| [&declared(algorithm, bytes)[..], &[0x1F, 0, 1, 0, 0xFF]].concat())
                .to_vec();
            if algorithm == Compression::Lz4 {
                // So many bytes could become as much.
                let more = declared(algorithm, (32 << 20) + 1);
                bodies.push([&more[..], &[0xFF; 160 << 10]].concat());
            }
            for step in STEPS {
                let Some(text) = awaiting(&step) else {
                    continue;
                };
                let withheld = step.0 == "protect";
                for body in &bodies {
                    tried += 1;
                    let of = format!("{} {:?}", step.shows(kind), &body[..5]);
                    let mut flow = step.flow(kind);
                    let passed = flow.requests(&kind.sent(0, 3, QUERY, &ask(4, text)));
                    assert_eq!(kind.read(&passed).len(), 1, "{of}");
                    let bomb = frame(0x84, 1, 3, RESULT, body);
                    let mut told = Vec::new();
                    let held = most_held(|| told = flow.responses(&bomb));
                    assert!(held < MOST_BYTES, "{of}: {held}");
                    let why = Unseen::Compression;
                    assert_eq!(flow.editor.answers(), None, "{of}");
                    if !withheld {
                        assert!(told == bomb, "{of}: it passes");
                        assert_eq!(flow.noted.unseen, [(why, false)], "{of}");
                        assert_eq!(flow.noted.unshown, [], "{of}");
                    } else {
                        let [error] = &kind.read(&told)[..] else {
                            panic!("{of}: in its place")
                        };
                        assert_eq!(error[..5], [0x84, 0, 0, 3, ERROR], "{of}");
                        assert_eq!(error[9..13], 0x2200_i32.to_be_bytes(), "{of}");
                        assert_eq!(flow.noted.unseen, [], "{of}");
                        assert_eq!(flow.noted.unshown, [why], "{of}");
                    }
                    // The next one is read.
                    let behind = frame(0x84, 0, 30_000, RESULT, &[0, 0, 0, 1]);
                    assert_eq!(flow.responses(&behind), behind, "{of}");
                }
            }
        }
        // Three steps, with five of LZ4 and four of Snappy.
        assert_eq!(tried, 3 * (5 + 4));
    }

    #[test]
    fn what_is_no_utf_8_is_no_panic_and_nothing_secret_passes() {
        const SECRET: &[u8] = b"S3CRET";
        let texts: [&[u8]; 6] = [
            b"INSERT INTO ks.t (k, v) VALUES (1, 'S3CRET\xFF')",
            b"INSERT INTO ks.t (k, \xC3\x28, v) VALUES (1, 2, 'S3CRET')",
            b"UPDATE ks.t SET v = 'S3CRET' WHERE k = '\xED\xA0\x80'",
            b"\xFF\xFEINSERT INTO ks.t (v) VALUES ('S3CRET')",
            b"INSERT INTO ks.t (k, v) VALUES (1, 'S3CRET') \xF8",
            b"INSERT INTO \"ks\".\"t\" (k, v) VALUES (1, $$S3CRET\xFF$$)",
        ];
        for kind in KINDS {
            for step in STEPS {
                let mut flow = step.flow(kind);
                for (n, text) in (0..).zip(texts) {
                    let text = [&(text.len() as u32).to_be_bytes()[..], text].concat();
                    let behind = if kind.version == 5 { &[0; 4][..] } else { &[0] };
                    let query = [&text[..], &[0, 1], behind].concat();
                    let of_prepare = if kind.version == 5 { behind } else { &[] };
                    let batch = [&[0, 0, 1, 0][..], &text, &[0, 0, 0, 1], behind].concat();
                    let mut bodies = vec![
                        (QUERY, query),
                        (PREPARE, [&text, of_prepare].concat()),
                        (BATCH, batch),
                    ];
                    if kind.version == 5 {
                        let keyspace = [&text[..], &[0, 1, 0, 0, 0, 0x80, 0, 2, 0xFF, 0xFE]];
                        bodies.push((QUERY, keyspace.concat()));
                    }
                    for (more, (opcode, body)) in (0..).zip(bodies) {
                        let sent = frame(kind.version, 0, n * 10 + more, opcode, &body);
                        let became = becomes(&mut flow, &sent);
                        let went = match &became {
                            Became::AsItWas => &sent[..],
                            Became::Changed(frame) => frame,
                            _ => &[],
                        };
                        let is_secret = went.windows(SECRET.len()).any(|w| w == SECRET);
                        let of = format!("{} {opcode} {n} {became:?}", step.shows(kind));
                        assert!(step.0 != "protect" || !is_secret, "{of}");
                    }
                }
                what_is_behind_passes(&mut flow);
            }
        }
    }

    #[test]
    fn what_nobody_has_seen_prepared_is_prepared_again_or_passes() {
        const UNPREPARED: i32 = 0x2500;
        for kind in KINDS {
            for step in STEPS {
                let has_to_know = match step {
                    Step("guard", settings, _) => !settings.contains("shadow"),
                    Step("consistency", settings, _) => settings.contains("kinds"),
                    Step("protect" | "rewrite", ..) => true,
                    _ => false,
                };
                let mut flow = step.flow(kind);
                for (n, id) in (0..).zip([&b"unknown"[..], b"", &[7; 60_000]]) {
                    let execute =
                        execute_with(kind.version, id, parameters(kind.version, &[], None, None));
                    let batch = batch(kind.version, &[Child::Id(id)], None);
                    for (opcode, body, stream) in [(EXECUTE, execute, n), (BATCH, batch, n + 10)] {
                        let sent = frame(kind.version, 0, stream, opcode, &body);
                        let became = becomes(&mut flow, &sent);
                        let of = format!("{} {opcode}", step.shows(kind));
                        // The servers' own tables are in no batch.
                        let has_to_know =
                            has_to_know && (opcode == EXECUTE || !step.1.contains("addresses"));
                        assert_eq!(
                            became == Became::Error(UNPREPARED),
                            has_to_know,
                            "{of}: {became:?}"
                        );
                        assert_eq!(became == Became::Answered, step.0 == "null", "{of}");
                    }
                }
                what_is_behind_passes(&mut flow);
            }
        }
    }
}
