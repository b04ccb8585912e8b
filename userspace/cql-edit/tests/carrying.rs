//! Requests that are handed over to another connection: each is answered by that, or goes on by its own,
//! and never both. And the opening of a flow, for those who begin such a connection.

use std::sync::{Arc, Mutex};

use crate::support::edit::*;
use crate::support::*;
use cql::Opcode;
use cql_edit::{
    Caller, Carrier, Editor, Incoming, Opening, Outcome, Relayed, Request, Resolution, Response,
    Ticket, Transform,
};

/// Carries everything, and remembers what it has seen of flows.
#[derive(Debug, Default)]
struct Carries {
    taken: Mutex<Vec<(Ticket, Vec<u8>, u64)>>,
    openings: Mutex<Vec<Option<Arc<Opening>>>>,
    callers: Mutex<Vec<Caller>>,
}

impl Carrier for Carries {
    fn carry(&self, ticket: Ticket, frame: &[u8], number: u64) {
        let mut taken = self.taken.lock().unwrap();
        taken.push((ticket, frame.to_vec(), number));
    }
}

impl Carries {
    fn takes(&self) -> (Ticket, Vec<u8>, u64) {
        self.taken.lock().unwrap().remove(0)
    }

    fn opening(&self) -> Option<Arc<Opening>> {
        self.openings.lock().unwrap().last().unwrap().clone()
    }
}

#[derive(Debug)]
struct Step(Arc<Carries>);

impl Transform for Step {
    fn name(&self) -> &'static str {
        "carries"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode == Opcode::Query
    }

    fn wants_opening(&self) -> bool {
        true
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        let opening = request.opening().cloned();
        self.0.openings.lock().unwrap().push(opening);
        self.0.callers.lock().unwrap().push(caller.clone());
        let is_use = request.statements().any(
            |statement| matches!(statement, cql_edit::Statement::Text(text) if text.starts_with(b"USE")),
        );
        if !is_use {
            assert!(request.hand_over(self.0.clone(), 7));
        }
        Outcome::Pass
    }
}

/// Wants to see answers.
#[derive(Debug, Default, Clone)]
struct Sees(Arc<Mutex<Vec<bool>>>);

impl Transform for Sees {
    fn name(&self) -> &'static str {
        "sees"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode == Opcode::Query
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        request.await_response(1);
        Outcome::Pass
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, _: u64) -> bool {
        self.0.lock().unwrap().push(response.error().is_some());
        false
    }
}

struct Flow {
    kind: Kind,
    editor: Editor,
    noted: Noted,
    letters: Arc<Completions>,
    carries: Arc<Carries>,
    told: Vec<u8>,
    asked: Vec<u8>,
}

impl Flow {
    fn new(kind: Kind, before: Vec<Arc<dyn Transform>>) -> Self {
        let mut flow = Self::silent(kind, before);
        for (to_database, bytes) in kind.handshake() {
            flow.passes(to_database, &bytes);
        }
        (flow.told, flow.asked) = (Vec::new(), Vec::new());
        flow
    }

    fn silent(kind: Kind, mut steps: Vec<Arc<dyn Transform>>) -> Self {
        let (letters, carries) = (
            Arc::new(Completions::default()),
            Arc::new(Carries::default()),
        );
        steps.push(Arc::new(Step(carries.clone())));
        let editor = Editor::new(steps.into(), Caller::default()).told_by(letters.clone());
        Self {
            kind,
            editor: editor.remembering(),
            noted: Noted::default(),
            letters,
            carries,
            told: Vec::new(),
            asked: Vec::new(),
        }
    }

    fn passes(&mut self, to_database: bool, bytes: &[u8]) {
        let edited = match to_database {
            true => self.editor.requests(0, bytes, &mut self.noted),
            false => self.editor.responses(bytes, &mut self.noted),
        };
        assert_eq!(edited.unreadable, None);
        let passed = edited.instead.unwrap_or_else(|| bytes.to_vec());
        match to_database {
            true => self.asked.extend(passed),
            false => self.told.extend(passed),
        }
    }

    fn asks(&mut self, stream: i16, text: &str) {
        let body = ask(self.kind.version, text);
        let sent = self.kind.sent(0, stream, QUERY, &body);
        self.passes(true, &sent);
    }

    fn runs(&mut self) {
        let letters = std::mem::take(&mut *self.letters.0.lock().unwrap());
        for (number, resolution) in letters {
            self.editor.resolve(0, number, resolution, &mut self.noted);
        }
        self.asked.extend(self.editor.late().unwrap_or_default());
        self.told.extend(self.editor.answers().unwrap_or_default());
    }

    /// An answer as the database sends it on another connection: without segments.
    fn answer(&self, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
        let kind = self.kind;
        let bare = frame(kind.version | 0x80, 0, stream, opcode, body);
        match kind.version {
            5 => bare,
            _ => kind.wrap(&[bare]),
        }
    }
}

const TEXT: &str = "SELECT v FROM ks.t WHERE k = 'something, something, something'";
const VOID: [u8; 4] = 1_i32.to_be_bytes();

#[test]
fn an_answer_of_another_connection_is_its_own() {
    for kind in KINDS {
        let sees = Sees::default();
        for before in [
            Vec::new(),
            vec![Arc::new(sees.clone()) as Arc<dyn Transform>],
        ] {
            let mut flow = Flow::new(kind, before);
            flow.asks(3, TEXT);
            flow.runs();
            assert!(flow.asked.is_empty() && flow.told.is_empty(), "{kind:?}");
            let (ticket, taken, number) = flow.carries.takes();
            assert_eq!(number, 7);
            // As it was sent, but for segments.
            let sent = kind.read(&kind.sent(0, 3, QUERY, &ask(kind.version, TEXT)));
            match kind.version {
                5 => assert_eq!(taken, sent[0]),
                _ => assert_eq!(kind.read(&taken), sent),
            }
            let answer = flow.answer(3, RESULT, &VOID);
            let held = Arc::new(());
            let relayed = Relayed::new(answer.clone(), Some(held.clone()));
            ticket.resolve(Resolution::Relayed(relayed));
            flow.runs();
            assert_eq!(Arc::strong_count(&held), 2, "it goes on");
            assert_eq!(flow.editor.answers(), None);
            assert_eq!(Arc::strong_count(&held), 1, "it has gone on");
            let expected =
                kind.read(
                    &flow
                        .kind
                        .wrap(&[frame(kind.version | 0x80, 0, 3, RESULT, &VOID)]),
                );
            assert_eq!(kind.read(&flow.told), expected, "{kind:?}");
            assert!(flow.asked.is_empty() && flow.editor.suspended() == 0);
        }
        assert_eq!(*sees.0.lock().unwrap(), [false]);
    }
}

#[test]
fn what_a_step_has_changed_is_carried_so() {
    for kind in KINDS {
        let mut flow = Flow::new(
            kind,
            vec![step("transform = \"consistency\"\nexactly = \"ALL\"")],
        );
        flow.asks(3, TEXT);
        let (_ticket, taken, _) = flow.carries.takes();
        let mut expected = kind.read(&kind.sent(0, 3, QUERY, &ask(kind.version, TEXT)));
        let at = 9 + 4 + TEXT.len() + 1;
        expected[0][at] = 5;
        let bytes = match kind.version {
            5 => kind.around(&taken),
            _ => taken,
        };
        assert_eq!(kind.read(&bytes), expected, "{kind:?}");
    }
}

#[test]
fn what_nobody_got_goes_on_and_what_is_lost_ends_the_flow() {
    for kind in KINDS {
        let mut flow = Flow::new(kind, Vec::new());
        flow.asks(3, TEXT);
        let (ticket, ..) = flow.carries.takes();
        ticket.resolve(Resolution::Pass);
        flow.runs();
        let sent = kind.read(&kind.sent(0, 3, QUERY, &ask(kind.version, TEXT)));
        assert_eq!(kind.read(&flow.asked), sent, "{kind:?}");
        assert!(!flow.editor.is_lost());
        // Dropped, said so, or answered by words that are not for it: the same.
        for resolution in [
            None,
            Some(Resolution::Lost),
            Some(Resolution::Answer(vec![])),
        ] {
            let mut flow = Flow::new(kind, Vec::new());
            flow.asks(3, TEXT);
            let (ticket, ..) = flow.carries.takes();
            match resolution {
                None => drop(ticket),
                Some(resolution) => ticket.resolve(resolution),
            }
            flow.runs();
            assert!(flow.editor.is_lost() && flow.asked.is_empty());
        }
    }
}

#[test]
fn one_that_ends_or_leaves_does_not_ask_again() {
    let kind = KINDS[3];
    for leaves in [false, true] {
        for passes in [false, true] {
            let mut flow = Flow::new(kind, Vec::new());
            flow.asks(3, TEXT);
            for to_database in [true, false] {
                flow.editor.give_up(0, to_database, &mut flow.noted);
            }
            assert!(!flow.editor.can_leave() && flow.editor.suspended() == 1);
            if leaves {
                let none: Vec<Arc<dyn Transform>> = Vec::new();
                flow.editor.becomes(none.into(), Caller::default());
            }
            let (ticket, ..) = flow.carries.takes();
            let answer = flow.answer(3, RESULT, &VOID);
            ticket.resolve(match passes {
                true => Resolution::Pass,
                false => Resolution::Relayed(Relayed::new(answer.clone(), None)),
            });
            flow.runs();
            assert_eq!(flow.asked.is_empty(), !passes);
            assert_eq!(flow.told.is_empty(), passes);
            assert!(flow.editor.can_leave());
        }
    }
}

fn token(user: &str) -> Vec<u8> {
    let token = format!("\0{user}\0secret");
    [&(token.len() as u32).to_be_bytes()[..], token.as_bytes()].concat()
}

const AUTH_CHALLENGE: u8 = 0x0E;
const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;

/// After an AUTHENTICATE: these of the client and of the database, in turns; what is known then. `compresses`: tokens are
/// compressed as everything else is.
fn logs_in(kind: Kind, compresses: bool, says: &[(i16, u8, Vec<u8>)]) -> Option<Arc<Opening>> {
    let mut flow = Flow::silent(kind, Vec::new());
    let [(_, startup), _] = kind.handshake();
    flow.passes(true, &startup);
    let wants = frame(
        kind.version | 0x80,
        0,
        0,
        AUTHENTICATE,
        &string("PasswordAuthenticator"),
    );
    flow.passes(false, &wants);
    for (stream, opcode, body) in says {
        let to_database = *opcode == AUTH_RESPONSE;
        let direction = if to_database { 0 } else { 0x80 };
        let sent = kind.wrap(&[frame(kind.version | direction, 0, *stream, *opcode, body)]);
        let sent = match (to_database && !compresses, kind.version) {
            (true, 3 | 4) => frame(kind.version, 0, *stream, *opcode, body),
            _ => sent,
        };
        flow.passes(to_database, &sent);
    }
    flow.asks(9, TEXT);
    let opening = flow.carries.opening();
    // Later log-ins count, too.
    let again = match kind.version {
        5 => kind.around(&frame(5, 0, 4, AUTH_RESPONSE, &token("c"))),
        version => frame(version, 0, 4, AUTH_RESPONSE, &token("c")),
    };
    flow.passes(true, &again);
    flow.asks(10, TEXT);
    assert_eq!(flow.carries.opening(), None, "{kind:?}");
    opening
}

#[test]
fn a_log_in_of_one_round_can_be_repeated_and_no_other() {
    for (kind, compresses) in KINDS
        .iter()
        .flat_map(|kind| [(*kind, false), (*kind, true)])
    {
        let (one, two) = (token("a"), token("b"));
        let says = |stream, token: &Vec<u8>| (stream, AUTH_RESPONSE, token.clone());
        let yes = |stream| (stream, AUTH_SUCCESS, vec![0xFF; 4]);
        let no = |stream| (stream, ERROR, [&[0, 0, 1, 0][..], &string("no")].concat());
        let asks = |stream| (stream, AUTH_CHALLENGE, vec![0xFF; 4]);
        let found = |says: &[_]| {
            let opening = logs_in(kind, compresses, says)?;
            assert_eq!(opening.version, kind.version);
            Some(opening.token.as_ref().unwrap().to_vec())
        };
        assert_eq!(
            found(&[says(1, &one), yes(1)]),
            Some(one.clone()),
            "{kind:?}"
        );
        let second = [says(1, &one), no(1), says(1, &two), yes(1)];
        assert_eq!(found(&second), Some(two.clone()));
        for others in [
            vec![],
            vec![says(1, &one)],
            vec![says(1, &one), no(1)],
            vec![says(1, &one), yes(2)],
            vec![says(1, &one), says(2, &two), yes(1)],
            vec![says(1, &one), says(2, &two), yes(2)],
            vec![says(1, &one), asks(1), says(1, &two), yes(1)],
            vec![says(1, &vec![0, 0, 0, 3, b'x', b'y', b'z']), yes(1)],
        ] {
            assert_eq!(found(&others), None, "{kind:?} {others:?}");
        }
    }
}

#[test]
fn how_a_flow_has_begun_is_for_those_who_want_it() {
    let kind = KINDS[3];
    let flow = &mut Flow::new(kind, Vec::new());
    flow.asks(1, TEXT);
    let opening = flow.carries.opening().unwrap();
    let [(_, startup), _] = kind.handshake();
    assert_eq!((&*opening.startup, &opening.token), (&startup[9..], &None));
    assert!(!format!("{opening:?}").contains("CQL_VERSION"));
    // A pipeline in which nobody does, and then one in which somebody does: it is forgotten.
    let steps = |carries: &Arc<Carries>| -> Vec<Arc<dyn Transform>> {
        vec![Arc::new(Step(carries.clone()))]
    };
    let wanted = steps(&flow.carries);
    flow.editor
        .becomes(vec![step("transform = \"null\"")].into(), Caller::default());
    flow.editor.becomes(wanted.into(), Caller::default());
    flow.asks(2, TEXT);
    assert_eq!(flow.carries.opening(), None);
}

#[test]
fn while_a_use_is_out_nobody_knows_the_keyspace() {
    let kind = KINDS[3];
    let mut flow = Flow::new(kind, Vec::new());
    let mut streams = 9..;
    let mut known = |flow: &mut Flow| {
        flow.asks(streams.next().unwrap(), TEXT);
        let callers = flow.carries.callers.lock().unwrap();
        let Caller {
            keyspace,
            keyspace_unclear,
            ..
        } = callers.last().unwrap().clone();
        (keyspace, keyspace_unclear)
    };
    let set = |name: &str| [&3_i32.to_be_bytes()[..], &string(name)].concat();
    assert_eq!(known(&mut flow), (None, false));
    flow.asks(1, "USE one");
    assert_eq!(known(&mut flow), (None, true));
    let answer = flow.kind.sent(0x80, 1, RESULT, &set("one"));
    flow.passes(false, &answer);
    assert_eq!(known(&mut flow), (Some("one".into()), false));
    // Two at once: which came last nobody can tell, now or later.
    flow.asks(1, "USE one");
    flow.asks(2, "USE two");
    for (stream, name) in [(2, "two"), (1, "one")] {
        let answer = flow.kind.sent(0x80, stream, RESULT, &set(name));
        flow.passes(false, &answer);
    }
    assert!(known(&mut flow).1);
    flow.asks(1, "USE one");
    let answer = flow.kind.sent(0x80, 1, RESULT, &set("one"));
    flow.passes(false, &answer);
    assert!(known(&mut flow).1);
}

#[test]
fn incoming_bytes_of_any_kind_are_no_panic() {
    // Deterministic noise, cut anywhere.
    let mut state = 1_u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for version in [3, 4, 5] {
        for _ in 0..200 {
            let mut incoming = Incoming::new(version);
            if version == 5 {
                incoming.accept(cql::Compression::Lz4);
            }
            let mut bytes: Vec<u8> = (0..100).map(|_| noise()).collect();
            bytes[0] = version | 0x80;
            for piece in bytes.chunks(7) {
                if incoming.comes(piece).is_err() {
                    break;
                }
                while let Ok(Some(_)) = incoming.next(64) {}
            }
        }
    }
}
