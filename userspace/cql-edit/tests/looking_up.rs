//! Statements that were prepared where nobody looked: the database is asked for them, and its client never hears of that.

use std::sync::Arc;

use crate::support::edit::*;
use crate::support::values::{execute_with, parameters};
use crate::support::*;
use cql::{Database, PreparedAt, PreparedStatements};
use cql_edit::{Caller, Editor, LookedUp, MAX_LOOKUPS, Transform};
use md5::{Digest, Md5};
use proptest::prelude::*;

const LOOKUP: &str = "transform = \"lookup\"";
const GUARD: &str = "transform = \"guard\"\ntables = [\"shop\"]\nrefuse = [\"no_where\"]";
const TEXT: &str = "SELECT v FROM shop.orders WHERE id = ?";
const MINUTE_NS: u64 = 60_000_000_000;
const UNPREPARED: i32 = 0x2500;
const FIRST: i16 = i16::MIN;

fn id(text: &str) -> Vec<u8> {
    Md5::digest(text)[..].to_vec()
}

struct Flow {
    edits: Edits,
    store: Arc<PreparedStatements>,
    prepared: PreparedAt,
    now_ns: u64,
}

impl Flow {
    fn new(kind: Kind, steps: &[&str]) -> Self {
        let mut flow = Self::begun(kind, steps);
        for (asks, bytes) in kind.handshake() {
            match asks {
                true => flow.edits.requests(&bytes),
                false => flow.edits.responses(&bytes),
            };
        }
        flow
    }

    fn begun(kind: Kind, steps: &[&str]) -> Self {
        let pipeline: Vec<Arc<dyn Transform>> = steps.iter().map(|s| step(s)).collect();
        let store = Arc::<PreparedStatements>::default();
        let prepared = store.at(Database::default());
        let editor = Editor::new(pipeline.into(), Caller::default());
        let edits = Edits {
            kind,
            editor: editor.telling(prepared.clone()),
            noted: Noted::default(),
        };
        Self {
            edits,
            store,
            prepared,
            now_ns: 0,
        }
    }

    /// Streams, opcodes and bodies that the database gets.
    fn client_sends(&mut self, stream: i16, opcode: u8, body: &[u8]) -> Vec<Got> {
        let sent = self.edits.kind.sent(0, stream, opcode, body);
        let Edits { editor, noted, .. } = &mut self.edits;
        let edited = editor.requests(self.now_ns, &sent, noted);
        assert_eq!(edited.unreadable, None);
        self.gets(&edited.instead.unwrap_or(sent))
    }

    /// Frames that the client gets.
    fn database_sends(&mut self, stream: i16, opcode: u8, body: &[u8]) -> Vec<Got> {
        let sent = self.edits.kind.sent(0x80, stream, opcode, body);
        let passed = self.edits.responses(&sent);
        self.gets(&passed)
    }

    fn gets(&self, bytes: &[u8]) -> Vec<Got> {
        let frames = self.edits.kind.read(bytes);
        let got = |frame: &Vec<u8>| Got {
            stream: i16::from_be_bytes([frame[2], frame[3]]),
            opcode: frame[4],
            body: frame[9..].to_vec(),
        };
        frames.iter().map(got).collect()
    }

    fn executes(&mut self, stream: i16, id: &[u8]) -> Vec<Got> {
        let version = self.edits.kind.version;
        let body = execute_with(version, id, parameters(version, &[], None, None));
        self.client_sends(stream, EXECUTE, &body)
    }

    /// EXECUTE passes behind so many questions.
    fn asks(&mut self, id: &[u8], questions: usize) {
        let got = self.executes(7, id);
        assert_eq!(got.len(), questions + 1, "{got:?}");
        let last = got.last().unwrap();
        assert_eq!((last.stream, last.opcode), (7, EXECUTE));
    }

    fn told(&mut self, stream: i16, opcode: u8, body: &[u8], what: LookedUp) {
        assert_eq!(self.database_sends(stream, opcode, body), []);
        assert_eq!(self.edits.noted.looked_up.pop(), Some(what));
        assert_eq!(self.edits.noted.looked_up, []);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Got {
    stream: i16,
    opcode: u8,
    body: Vec<u8>,
}

/// Rows of `logged_keyspace` and `query_string`.
fn rows(rows: &[(Option<&str>, &str)]) -> Vec<u8> {
    let mut body = [2_i32, 1, 2].map(i32::to_be_bytes).concat();
    for name in ["system", "prepared_statements"] {
        body.extend(string(name));
    }
    for name in ["logged_keyspace", "query_string"] {
        body.extend(string(name));
        body.extend([0, 0x0D]);
    }
    body.extend((rows.len() as i32).to_be_bytes());
    for (keyspace, text) in rows {
        match keyspace {
            Some(keyspace) => body.extend(long_string(keyspace)),
            None => body.extend([255; 4]),
        }
        body.extend(long_string(text));
    }
    body
}

#[test]
fn a_text_is_asked_for_once_and_nothing_waits_for_it() {
    for kind in KINDS {
        let mut flow = Flow::new(kind, &[LOOKUP]);
        let id = id(TEXT);
        let got = flow.executes(7, &id);
        let [question, execute] = &got[..] else {
            panic!("{kind:?}: {got:?}")
        };
        assert_eq!((question.stream, question.opcode), (FIRST, QUERY));
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!(
            "SELECT logged_keyspace, query_string FROM system.prepared_statements WHERE prepared_id = 0x{hex}"
        );
        assert_eq!(question.body, query(kind.version, &text, None));
        assert_eq!((execute.stream, execute.opcode), (7, EXECUTE));
        // Its own answer first.
        assert_eq!(flow.database_sends(7, RESULT, &[0, 0, 0, 1]).len(), 1);
        flow.asks(&id, 0);
        assert!(!flow.prepared.knows(&id) && !flow.edits.editor.can_leave());
        flow.told(FIRST, RESULT, &rows(&[(None, TEXT)]), LookedUp::Found);
        assert!(flow.prepared.knows(&id) && flow.edits.editor.can_leave());
        flow.now_ns = 2 * MINUTE_NS;
        flow.asks(&id, 0);
    }
}

#[test]
fn what_is_known_now_has_a_name() {
    let mut flow = Flow::new(KINDS[3], &[LOOKUP]);
    let text = "INSERT INTO orders (id) VALUES (?)";
    let id = id(&format!("shop{text}"));
    flow.asks(&id, 1);
    flow.told(
        FIRST,
        RESULT,
        &rows(&[(Some("shop"), text)]),
        LookedUp::Found,
    );
    let mut decoding = crate::support::Flow {
        decoder: cql::FlowDecoder::new(flow.prepared.clone()),
        recorder: Recorder::default(),
        version: 4,
    };
    decoding.requests(&startup(4, &[]));
    decoding.responses(&frame(0x84, 0, 0, READY, &[]));
    decoding.recorder.told.clear();
    assert_eq!(decoding.ask(EXECUTE, &execute(&id)), "insert shop orders");
    assert_eq!(decoding.recorder.anomalies(), []);
}

#[test]
fn a_guard_lets_pass_or_refuses_by_the_text() {
    let cases = [
        (Some("shop"), "SELECT v FROM orders WHERE id = ?", true),
        (Some("shop"), "SELECT v FROM orders", false),
        (Some("other"), "SELECT v FROM orders WHERE id = ?", false),
        (None, TEXT, true),
    ];
    for (keyspace, text, passes) in cases {
        // Where it stands does not matter.
        for steps in [[LOOKUP, GUARD], [GUARD, LOOKUP]] {
            let mut flow = Flow::new(KINDS[3], &steps);
            let id = id(&format!("{}{text}", keyspace.unwrap_or_default()));
            // Nothing is let pass before it is known.
            let got = flow.executes(7, &id);
            assert_eq!((got.len(), got[0].opcode), (1, QUERY));
            let told = flow.edits.editor.answers().unwrap();
            let told = flow.gets(&told);
            assert_eq!(told[0].body[..4], UNPREPARED.to_be_bytes());
            flow.told(FIRST, RESULT, &rows(&[(keyspace, text)]), LookedUp::Found);
            assert_eq!(flow.executes(7, &id).len(), usize::from(passes), "{text}");
            assert_eq!(flow.edits.editor.has_answers(), !passes);
        }
    }
}

#[test]
fn what_is_not_there_is_asked_for_again_later() {
    let mut flow = Flow::new(KINDS[6], &[LOOKUP]);
    let (one, two) = (id("one"), id("two"));
    flow.asks(&one, 1);
    flow.told(FIRST, RESULT, &rows(&[]), LookedUp::NotFound);
    flow.now_ns = MINUTE_NS - 1;
    flow.asks(&one, 0);
    flow.asks(&two, 1);
    flow.told(FIRST, RESULT, &rows(&[]), LookedUp::NotFound);
    flow.now_ns = MINUTE_NS;
    flow.asks(&one, 1);
    flow.asks(&two, 0);
    // Whatever the answer, nobody is asked anything for a while.
    let unauthorized = [&0x2100_i32.to_be_bytes()[..], &string("no")].concat();
    flow.told(FIRST, ERROR, &unauthorized, LookedUp::Failed);
    flow.asks(&id("three"), 0);
    flow.now_ns = 2 * MINUTE_NS;
    flow.asks(&id("three"), 1);
    assert_eq!(flow.store.len(), 0);
}

#[test]
fn what_does_not_make_the_id_is_not_believed() {
    let mut flow = Flow::new(KINDS[3], &[LOOKUP, GUARD]);
    let answers = [
        (
            rows(&[(None, "SELECT v FROM shop.orders WHERE id = 1")]),
            LookedUp::Mismatch,
        ),
        (
            rows(&[(Some("shop"), TEXT), (None, TEXT)]),
            LookedUp::Failed,
        ),
        (rows(&[(None, TEXT)])[..90].to_vec(), LookedUp::Failed),
        (prepared(b"id"), LookedUp::Failed),
        (rows(&[(None, &"x".repeat(256 << 10))]), LookedUp::Failed),
    ];
    for (answer, what) in answers {
        let got = flow.executes(7, &id(TEXT));
        assert_eq!(got.len(), 1, "{what:?}");
        flow.edits.editor.answers().unwrap();
        flow.told(FIRST, RESULT, &answer, what);
        flow.now_ns += MINUTE_NS;
        // It is noticed with the next one.
        flow.executes(7, &id(TEXT));
        flow.edits.editor.answers().unwrap();
        flow.now_ns += MINUTE_NS;
    }
    assert_eq!(flow.store.len(), 0);
    // A keyspace that the id does not depend on is none.
    flow.executes(7, &id("SELECT v FROM orders WHERE id = ?"));
    flow.edits.editor.answers().unwrap();
    let lies = rows(&[(Some("shop"), "SELECT v FROM orders WHERE id = ?")]);
    flow.told(FIRST, RESULT, &lies, LookedUp::Found);
    let got = flow.executes(7, &id("SELECT v FROM orders WHERE id = ?"));
    assert_eq!(got, []);
}

#[test]
fn an_answer_that_would_become_too_long_is_not_read() {
    let text = "x".repeat(1 << 20);
    for kind in KINDS.into_iter().filter(|kind| kind.version < 5) {
        let mut flow = Flow::new(kind, &[LOOKUP]);
        flow.asks(&id(&text), 1);
        flow.told(FIRST, RESULT, &rows(&[(None, &text)]), LookedUp::Failed);
        assert_eq!(flow.store.len(), 0);
    }
}

#[test]
fn so_many_are_out_at_a_time() {
    let mut flow = Flow::new(KINDS[3], &[LOOKUP]);
    let ids: Vec<_> = (0..20).map(|n| id(&n.to_string())).collect();
    let children: Vec<_> = ids.iter().map(|id| Child::Id(id)).collect();
    let body = batch(4, &children, None);
    let got = flow.client_sends(7, BATCH, &body);
    assert_eq!(got.len(), MAX_LOOKUPS + 1);
    let streams: Vec<i16> = got.iter().map(|got| got.stream).collect();
    assert_eq!(streams[..3], [FIRST, FIRST + 1, FIRST + 2]);
    assert_eq!(
        std::mem::take(&mut flow.edits.noted.looked_up),
        [LookedUp::Busy]
    );
    flow.told(FIRST + 3, RESULT, &rows(&[]), LookedUp::NotFound);
    let got = flow.client_sends(7, BATCH, &body);
    assert_eq!((got.len(), got[0].stream), (2, FIRST + 3));
}

#[test]
fn their_streams_are_nobody_elses() {
    let mut flow = Flow::new(KINDS[3], &[LOOKUP]);
    for stream in [FIRST, FIRST + MAX_LOOKUPS as i16 - 1] {
        assert_eq!(flow.client_sends(stream, OPTIONS, &[]), []);
        let told = flow.edits.editor.answers().unwrap();
        let told = flow.gets(&told);
        assert_eq!((told[0].stream, told[0].opcode), (stream, ERROR));
    }
    assert_eq!(flow.client_sends(-1, OPTIONS, &[]).len(), 1);
    // An answer that nobody has asked for is none of ours.
    assert_eq!(flow.database_sends(FIRST, RESULT, &[0, 0, 0, 1]).len(), 1);
    let mut other = Flow::new(KINDS[3], &[GUARD]);
    assert_eq!(other.client_sends(FIRST, OPTIONS, &[]).len(), 1);
}

#[test]
fn nobody_is_asked_before_the_client_has_logged_in() {
    const AUTH_SUCCESS: u8 = 0x10;
    let mut flow = Flow::begun(KINDS[3], &[LOOKUP]);
    flow.client_sends(0, STARTUP, &startup(4, &[])[9..]);
    let class = string("org.apache.cassandra.auth.PasswordAuthenticator");
    flow.database_sends(0, AUTHENTICATE, &class);
    flow.asks(&id(TEXT), 0);
    flow.database_sends(0, AUTH_SUCCESS, &[255; 4]);
    flow.asks(&id(TEXT), 1);
}

proptest! {
    #[test]
    fn no_byte_of_an_answer_reaches_the_client(
        noise: Vec<u8>,
        cuts in proptest::collection::vec(1_usize..40, 1..20),
        kind in 0..KINDS.len(),
        is_error: bool,
    ) {
        let kind = KINDS[kind];
        let mut flow = Flow::new(kind, &[LOOKUP]);
        flow.executes(7, &id(TEXT));
        let opcode = if is_error { ERROR } else { RESULT };
        let void = [0, 0, 0, 1];
        let bytes = [
            kind.sent(0x80, 5, RESULT, &void),
            kind.sent(0x80, FIRST, opcode, &noise),
            kind.sent(0x80, 6, RESULT, &void),
        ]
        .concat();
        let mut told = Vec::new();
        let mut rest = &bytes[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            told.extend(flow.edits.responses(piece));
            rest = behind;
        }
        let streams: Vec<i16> = flow.gets(&told).iter().map(|got| got.stream).collect();
        prop_assert_eq!(streams, [5, 6]);
        prop_assert_eq!(&flow.edits.noted.looked_up, &[LookedUp::Failed]);
    }
}
