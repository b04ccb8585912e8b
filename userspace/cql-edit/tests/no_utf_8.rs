//! Requests that are no UTF-8, and the steps that put a request's question to others.

use std::sync::{Arc, Mutex};

use crate::support::edit::*;
use crate::support::*;
use cql::Opcode;
use cql_edit::{Caller, Outcome, Request, Statement, Transform, Unseen};

/// A text, what would be asked elsewhere, and in which keyspace.
type Learned = (Vec<u8>, Option<Vec<u8>>, Option<String>);

#[derive(Debug, Default)]
struct Learns(Mutex<Vec<Learned>>);

impl Learns {
    fn take(&self) -> Vec<Learned> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Transform for Learns {
    fn name(&self) -> &'static str {
        "learns"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode.has_statements()
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        let text = match request.statements().next() {
            Some(Statement::Text(text) | Statement::Prepared(text)) => text.to_vec(),
            None => panic!("no statement"),
        };
        let copied = request.copied().ok().and_then(|copied| copied.in_v4([]));
        let keyspace = request.sure_keyspace(caller).map(str::to_owned);
        let learned = (text, copied.map(|(_, body)| body), keyspace);
        self.0.lock().unwrap().push(learned);
        Outcome::Pass
    }
}

/// A flow in the keyspace `ks`.
fn flow(kind: Kind) -> (Edits, Arc<Learns>) {
    let learns = Arc::new(Learns::default());
    let mut flow = Edits::new(kind, vec![learns.clone()]);
    flow.requests(&kind.sent(0, 1, QUERY, &ask(kind.version, "USE ks")));
    flow.responses(&kind.sent(0x80, 1, RESULT, &set_keyspace("ks")));
    learns.take();
    (flow, learns)
}

/// Bodies of a text; `flags`: with what they announce.
fn bodies(text: &[u8], flags: &[u8]) -> [(u8, Vec<u8>); 2] {
    let text = [&(text.len() as u32).to_be_bytes()[..], text].concat();
    let query = [&text[..], &[0, 1], flags].concat();
    let batch = [&[0, 0, 1, 0], &text[..], &[0, 0, 0, 1], flags].concat();
    [(QUERY, query), (BATCH, batch)]
}

const TEXTS: [&[u8]; 4] = [
    b"INSERT INTO t (k, v) VALUES (1, 'a\xFFb')",
    b"INSERT INTO t (k, \xC3\x28, v) VALUES (1, 2, 3)",
    b"UPDATE \"\xED\xA0\x80\" SET v = 1 WHERE k = 1",
    b"\xFF\xFE",
];

#[test]
fn a_text_goes_elsewhere_as_it_is() {
    for kind in KINDS {
        let (mut flow, learns) = flow(kind);
        let none = if kind.version == 5 { &[0; 4][..] } else { &[0] };
        let ks = Some("ks".to_owned());
        for text in TEXTS {
            let elsewhere = bodies(text, &[0]);
            for ((opcode, body), (_, elsewhere)) in bodies(text, none).iter().zip(elsewhere) {
                let sent = kind.sent(0, 2, *opcode, body);
                assert_eq!(flow.requests(&sent), sent, "{kind:?} {opcode}");
                flow.frees(2);
                let expected = (text.to_vec(), Some(elsewhere), ks.clone());
                assert_eq!(learns.take(), [expected], "{kind:?} {opcode}");
            }
            let mut body = [&(text.len() as u32).to_be_bytes()[..], text].concat();
            body.extend(none.iter().filter(|_| kind.version == 5));
            let sent = kind.sent(0, 2, PREPARE, &body);
            assert_eq!(flow.requests(&sent), sent, "{kind:?}");
            flow.frees(2);
            let expected = (text.to_vec(), None, ks.clone());
            assert_eq!(learns.take(), [expected], "{kind:?}");
        }
        assert_eq!(flow.noted, Noted::default());
    }
}

/// A keyspace that is no text is not learned from: somebody who believed that none is named would take the
/// table for one in the connection's keyspace.
#[test]
fn what_names_a_keyspace_that_is_no_text_is_not_learned_from() {
    const TEXT: &[u8] = b"INSERT INTO t (k) VALUES (1)";
    const NAMED: [u8; 8] = [0, 0, 0, 0x80, 0, 2, 0xFF, 0xFE];
    let prepare = [
        &(TEXT.len() as u32).to_be_bytes()[..],
        TEXT,
        &[0, 0, 0, 1, 0, 2, 0xFF, 0xFE],
    ];
    let execute = [
        &short_bytes(b"id")[..],
        &short_bytes(b"of"),
        &[0, 1],
        &NAMED,
    ];
    let others = [(PREPARE, prepare.concat()), (EXECUTE, execute.concat())];
    for kind in KINDS.into_iter().filter(|kind| kind.version == 5) {
        for (opcode, body) in bodies(TEXT, &NAMED).iter().chain(&others) {
            let (mut flow, learns) = flow(kind);
            let sent = kind.sent(0, 2, *opcode, body);
            assert_eq!(flow.requests(&sent), sent, "{kind:?} {opcode}");
            assert_eq!(learns.take(), [], "{kind:?} {opcode}");
            assert_eq!(flow.noted.unseen, [(Unseen::Malformed, false)]);
            // Where it has to hold, it does not pass.
            let mut strict = Edits::of(kind, "transform = \"guard\"\ntables = [\"ks.t\"]");
            assert_eq!(strict.requests(&sent), b"", "{kind:?} {opcode}");
            let told = kind.read(&strict.editor.answers().unwrap());
            assert_eq!(told[0][9..13], 0x2200_i32.to_be_bytes());
        }
    }
}
