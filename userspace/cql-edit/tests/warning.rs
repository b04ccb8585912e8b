//! Answers that carry a warning of `guard`, in every version and compression.

use cassandra_protocol::compression::Compression;
use cassandra_protocol::frame::Envelope;
use proptest::prelude::*;

use crate::support::edit::*;
use crate::support::values::*;
use crate::support::*;

const WARNS: &str = "transform = \"guard\"\nrefuse = [\"truncate\", \"writes\"]\nmode = \"warn\"";
const TRUNCATES: &str = "underpass: rule r would refuse this: TRUNCATE is not allowed";

const TRACING: u8 = 0x02;
const PAYLOAD: u8 = 0x04;
const WARNING: u8 = 0x08;

/// A response with what may stand before its body.
#[derive(Clone, Debug)]
struct Answer {
    opcode: u8,
    trace: Option<[u8; 16]>,
    warnings: Option<Vec<String>>,
    payload: bool,
    body: Vec<u8>,
}

impl Answer {
    fn plain(opcode: u8, body: &[u8]) -> Self {
        let (trace, warnings, payload) = (None, None, false);
        let body = body.to_vec();
        Self {
            opcode,
            trace,
            warnings,
            payload,
            body,
        }
    }

    /// The frame, with these warnings.
    fn frame(&self, version: u8, stream: i16, warnings: Option<&[String]>) -> Vec<u8> {
        let mut flags = 0;
        let mut body = Vec::new();
        if let Some(trace) = self.trace {
            flags |= TRACING;
            body.extend(trace);
        }
        if let Some(warnings) = warnings {
            flags |= WARNING;
            body.extend((warnings.len() as u16).to_be_bytes());
            body.extend(warnings.iter().flat_map(|warning| string(warning)));
        }
        if self.payload {
            flags |= PAYLOAD;
            body.extend([&[0, 1][..], &string("key"), &[0, 0, 0, 1, 7]].concat());
        }
        body.extend(&self.body);
        frame(version | 0x80, flags, stream, self.opcode, &body)
    }
}

prop_compose! {
    fn answers()(
        is_error in any::<bool>(),
        trace in any::<Option<[u8; 16]>>(),
        warnings in prop::option::of(prop::collection::vec("[a-zä]{0,40}", 0..4)),
        payload in any::<bool>(),
        text in "[ -~]{0,2000}",
    ) -> Answer {
        let (opcode, body) = match is_error {
            true => (ERROR, [&[0, 0, 0x22, 0][..], &string(&text)].concat()),
            false => (RESULT, [&[0, 0, 0, 3][..], &string(&text)].concat()),
        };
        Answer { opcode, trace, warnings, payload, body }
    }
}

/// Frames that the client gets of these, without compression.
fn gets(flow: &mut Edits, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let kind = flow.kind;
    let got = flow.responses(&kind.wrap(frames));
    kind.read(&got)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The answer is otherwise what it was, and so are those around it.
    #[test]
    fn a_warning_comes_before_those_that_the_answer_has(answer in answers(), beside in answers()) {
        for kind in KINDS.into_iter().filter(|kind| kind.version >= 4) {
            let version = kind.version;
            let mut flow = Edits::of(kind, WARNS);
            for (stream, text) in [(1, "SELECT * FROM shop.t"), (2, "TRUNCATE shop.t"), (3, "SELECT * FROM shop.u")] {
                let asked = kind.sent(0, stream, QUERY, &ask(version, text));
                prop_assert_eq!(kind.read(&flow.requests(&asked)), kind.read(&asked));
            }
            let own = |answer: &Answer, stream| answer.frame(version, stream, answer.warnings.as_deref());
            let got = gets(&mut flow, &[own(&beside, 1), own(&answer, 2), own(&beside, 3)]);
            let mut warnings = vec![TRUNCATES.to_owned()];
            warnings.extend(answer.warnings.iter().flatten().cloned());
            let expected = [own(&beside, 1), answer.frame(version, 2, Some(&warnings)), own(&beside, 3)];
            prop_assert_eq!(&got[..], &expected[..], "{:?}", kind);
            let read = Envelope::from_buffer(&got[1], Compression::None).unwrap().envelope;
            prop_assert_eq!(read.warnings, warnings);
            prop_assert_eq!((flow.noted.changed, flow.noted.warned), (1, vec![true]));
        }
    }
}

#[test]
fn what_is_prepared_is_warned_of_when_it_is_prepared_and_executed() {
    for kind in KINDS.into_iter().filter(|kind| kind.version >= 4) {
        let version = kind.version;
        let mut flow = Edits::of(kind, WARNS);
        let told = "underpass: rule r would refuse this: DELETE is not allowed";
        let mut warned = |opcode, body: &[u8], answer: &[u8]| {
            let asked = kind.sent(0, 5, opcode, body);
            assert_eq!(kind.read(&flow.requests(&asked)), kind.read(&asked));
            let answer = Answer::plain(RESULT, answer);
            let got = gets(&mut flow, &[answer.frame(version, 5, None)]);
            let with = answer.frame(version, 5, Some(&[told.to_owned()]));
            assert!(
                got == [with] || got == [answer.frame(version, 5, None)],
                "{got:?}"
            );
            got[0][1] & WARNING != 0
        };
        let text = prepare(version, "DELETE FROM shop.t WHERE k = ?", None);
        assert!(warned(PREPARE, &text, &prepared(b"write")));
        let execute = |id: &[u8]| execute_with(version, id, parameters(version, &[], None, None));
        let void = 1_i32.to_be_bytes();
        assert!(warned(EXECUTE, &execute(b"write"), &void));
        assert!(
            !warned(EXECUTE, &execute(b"somebody's"), &void),
            "nobody knows what it is"
        );
        let children = [Child::Text("SELECT 1"), Child::Id(b"write")];
        assert!(warned(BATCH, &batch(version, &children, None), &void));
    }
}

#[test]
fn who_cannot_be_warned_is_counted() {
    for kind in KINDS {
        let version = kind.version;
        let mut flow = Edits::of(kind, WARNS);
        let truncate = kind.sent(0, 1, QUERY, &ask(version, "TRUNCATE shop.t"));
        let void = kind.sent(0x80, 1, RESULT, &1_i32.to_be_bytes());
        if version == 3 {
            flow.requests(&truncate);
            assert_eq!(flow.responses(&void), void);
            assert_eq!(flow.noted.warned, [false]);
            continue;
        }
        // Two on one stream: nobody knows whose answer comes first.
        for _ in 0..2 {
            flow.requests(&truncate);
        }
        assert_eq!(flow.noted.warned, [true, false]);
        assert_eq!(flow.responses(&void), void);
    }
}
