//! Suspended requests and responses: each stream gets its own answer, in whatever order they come.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use crate::support::edit::*;
use crate::support::*;
use cql::Opcode;
use cql_edit::{
    Caller, Error, Log, MAX_SUSPENDED, MAX_SUSPENDED_BYTES, Outcome, Refused, Request, Resolution,
    Response, Room, Ticket, Transform, Unseen, Waited,
};
use proptest::prelude::*;

/// Has everything wait whose text, or awaited number, says so.
#[derive(Debug, Default)]
struct Parks {
    tickets: Mutex<HashMap<(bool, i16), Ticket>>,
    refuses: bool,
}

const PARK_REQUEST: &str = "ks.parkrequest";
const PARK_RESPONSE: &str = "ks.parkresponse";

#[derive(Debug, Clone)]
struct Step(Arc<Parks>);

impl Transform for Step {
    fn name(&self) -> &'static str {
        "parks"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode == Opcode::Query
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        let text = match request.statements().next() {
            Some(cql_edit::Statement::Text(text)) => String::from_utf8(text.to_vec()).unwrap(),
            _ => return Outcome::Pass,
        };
        let stream = request.stream().0;
        if text.contains(PARK_RESPONSE) {
            request.await_response(stream as u64);
        }
        if text.contains(PARK_REQUEST)
            && let Some(ticket) = request.suspend()
        {
            let tickets = &self.0.tickets;
            tickets.lock().unwrap().insert((true, stream), ticket);
        }
        Outcome::Pass
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        if let Some(ticket) = response.suspend() {
            let key = (false, number as i16);
            self.0.tickets.lock().unwrap().insert(key, ticket);
        }
        false
    }

    fn given_up(&self) -> Resolution {
        match self.0.refuses {
            true => Resolution::Refuse(refused()),
            false => Resolution::Pass,
        }
    }
}

fn refused() -> Refused {
    Refused {
        reason: "late",
        error: Error::Overloaded("late".into()),
    }
}

#[derive(Debug, Default)]
struct Counts {
    waited: Vec<Waited>,
    refused: usize,
}

impl Log for Counts {
    fn changed(&mut self, _: &'static str) {}
    fn refused(&mut self, _: cql::StreamId, _: &'static str, _: &'static str) {
        self.refused += 1;
    }
    fn answered(&mut self, _: &'static str) {}
    fn would_refuse(&mut self, _: &'static str, _: &'static str) {}
    fn slowed(&mut self, _: &'static str, _: u64) {}
    fn unseen(&mut self, _: cql::StreamId, _: Unseen, _: bool) {}
    fn waited(&mut self, transform: &'static str, what: Waited) {
        assert_eq!(transform, "parks");
        self.waited.push(what);
    }
}

struct Flow {
    edits: Edits,
    parks: Arc<Parks>,
    letters: Arc<Completions>,
    counts: Counts,
    /// Bytes that have reached the database, and the client.
    asked: Vec<u8>,
    told: Vec<u8>,
}

impl Flow {
    /// `behind`: a step behind the one that parks.
    fn new(kind: Kind, refuses: bool, behind: Option<&str>) -> Self {
        let parks = Arc::new(Parks {
            refuses,
            ..Parks::default()
        });
        let mut pipeline: Vec<Arc<dyn Transform>> = vec![Arc::new(Step(parks.clone()))];
        pipeline.extend(behind.map(step));
        let mut edits = Edits::new(kind, pipeline);
        let letters = Arc::new(Completions::default());
        let caller = Caller::default();
        let empty: Vec<Arc<dyn Transform>> = Vec::new();
        let editor = std::mem::replace(
            &mut edits.editor,
            cql_edit::Editor::new(empty.into(), caller),
        );
        edits.editor = editor.told_by(letters.clone());
        Self {
            edits,
            parks,
            letters,
            counts: Counts::default(),
            asked: Vec::new(),
            told: Vec::new(),
        }
    }

    fn client_sends(&mut self, bytes: &[u8]) {
        let passed = self.edits.requests(bytes);
        self.asked.extend(passed);
    }

    fn database_sends(&mut self, bytes: &[u8]) {
        let passed = self.edits.responses(bytes);
        self.told.extend(passed);
    }

    /// Does what the flow's task does when it runs.
    fn runs(&mut self) {
        let letters = std::mem::take(&mut *self.letters.0.lock().unwrap());
        for (number, resolution) in letters {
            self.edits
                .editor
                .resolve(0, number, resolution, &mut self.counts);
        }
        self.asked
            .extend(self.edits.editor.late().unwrap_or_default());
        self.told
            .extend(self.edits.editor.answers().unwrap_or_default());
    }

    fn ticket(&self, request: bool, stream: i16) -> Ticket {
        let mut tickets = self.parks.tickets.lock().unwrap();
        tickets.remove(&(request, stream)).unwrap()
    }

    fn asked(&self) -> Vec<Vec<u8>> {
        self.edits.kind.read(&self.asked)
    }

    fn told(&self) -> Vec<Vec<u8>> {
        self.edits.kind.read(&self.told)
    }
}

fn asks(kind: Kind, stream: i16, table: &str) -> Vec<u8> {
    let text = format!("SELECT v FROM {table} WHERE k = 'something, something, something'");
    kind.sent(0, stream, QUERY, &ask(kind.version, &text))
}

fn answer(kind: Kind, stream: i16) -> Vec<u8> {
    let body = [&[0, 0, 0, 3][..], &string(&format!("s{stream}"))].concat();
    kind.sent(0x80, stream, RESULT, &body)
}

/// A text that does not shrink much.
fn noise(stream: i16) -> String {
    let letter = |n: u32| char::from(b'a' + (n.wrapping_mul(2_654_435_761) >> 16) as u8 % 26);
    (0..300).map(|n| letter(n + stream as u32 * 300)).collect()
}

/// How long the frame there is, in v5 the segment.
fn piece_bytes(kind: Kind, bytes: &[u8]) -> Option<usize> {
    if kind.version < 5 {
        let length = bytes.get(5..9)?.try_into().unwrap();
        return Some(9 + u32::from_be_bytes(length) as usize);
    }
    let low = u32::from_le_bytes([*bytes.first()?, *bytes.get(1)?, *bytes.get(2)?, 0]);
    let head = match kind.compression {
        cassandra_protocol::compression::Compression::Lz4 => 8,
        _ => 6,
    };
    Some(head + (low & 0x1_FFFF) as usize + 4)
}

fn streams(frames: &[Vec<u8>]) -> Vec<i16> {
    let stream = |frame: &Vec<u8>| i16::from_be_bytes([frame[2], frame[3]]);
    frames.iter().map(stream).collect()
}

#[test]
fn what_waits_lets_others_pass_and_goes_on_as_it_was_sent() {
    for kind in KINDS {
        let mut flow = Flow::new(kind, false, None);
        flow.client_sends(&asks(kind, 1, PARK_REQUEST));
        flow.client_sends(&asks(kind, 2, "ks.other"));
        flow.runs();
        assert_eq!(streams(&flow.asked()), [2], "{kind:?}");
        assert_eq!(flow.edits.editor.suspended(), 1);
        flow.ticket(true, 1).resolve(Resolution::Pass);
        flow.runs();
        assert_eq!(streams(&flow.asked()), [2, 1], "{kind:?}");
        let sent = kind.read(&asks(kind, 1, PARK_REQUEST));
        assert_eq!(flow.asked()[1..], sent);
        assert_eq!(flow.counts.waited, [Waited::Passed]);
        assert_eq!(flow.edits.editor.suspended(), 0);
    }
}

#[test]
fn what_is_resolved_stands_between_two_frames() {
    for kind in KINDS {
        let mut flow = Flow::new(kind, false, None);
        flow.client_sends(&asks(kind, 1, PARK_REQUEST));
        // One that passes as it comes; in v5 its segments are cut off in the middle.
        let long = frame(
            kind.version,
            0,
            2,
            PREPARE,
            &prepare(kind.version, &"x".repeat(200_000), None),
        );
        let long = kind.wrap(&[long]);
        let (begun, rest) = long.split_at(long.len() * 2 / 3);
        flow.client_sends(begun);
        flow.ticket(true, 1).resolve(Resolution::Pass);
        flow.runs();
        flow.client_sends(rest);
        flow.runs();
        assert_eq!(streams(&flow.asked()), [2, 1], "{kind:?}");
    }
}

#[test]
fn it_can_be_answered_changed_and_refused() {
    for kind in KINDS {
        let mut flow = Flow::new(
            kind,
            false,
            Some("transform = \"consistency\"\nexactly = \"TWO\""),
        );
        for stream in 1..=3 {
            flow.client_sends(&asks(kind, stream, PARK_REQUEST));
        }
        let body = ask(kind.version, "SELECT v FROM ks.another");
        flow.ticket(true, 3).resolve(Resolution::Refuse(refused()));
        flow.ticket(true, 1)
            .resolve(Resolution::Instead(body.clone()));
        flow.ticket(true, 2)
            .resolve(Resolution::Answer(vec![0, 0, 0, 1]));
        flow.runs();
        let [asked] = &flow.asked()[..] else {
            panic!("{kind:?}: one request")
        };
        assert_eq!(asked[3], 1);
        // With what the step behind has made of it.
        let mut changed = body;
        let at = 4 + "SELECT v FROM ks.another".len();
        changed[at..at + 2].copy_from_slice(&[0, 2]);
        assert_eq!(asked[9..], changed, "{kind:?}");
        let told = flow.told();
        assert_eq!(streams(&told), [3, 2], "{kind:?}");
        assert_eq!((told[0][4], told[1][4]), (ERROR, RESULT));
        assert_eq!(told[1][9..], [0, 0, 0, 1]);
        let expected = [Waited::Refused, Waited::Changed, Waited::Answered];
        assert_eq!(flow.counts.waited, expected);
        assert_eq!(flow.counts.refused, 1);
    }
}

#[test]
fn a_response_waits_and_others_overtake_it() {
    for kind in KINDS {
        for given_up in [false, true] {
            let mut flow = Flow::new(kind, true, None);
            flow.client_sends(&asks(kind, 1, PARK_RESPONSE));
            flow.client_sends(&asks(kind, 2, "ks.other"));
            flow.database_sends(&answer(kind, 1));
            flow.database_sends(&answer(kind, 2));
            assert_eq!(streams(&flow.told()), [2], "{kind:?}");
            match given_up {
                true => drop(flow.ticket(false, 1)),
                false => flow.ticket(false, 1).resolve(Resolution::Pass),
            }
            flow.runs();
            let told = flow.told();
            assert_eq!(streams(&told), [2, 1], "{kind:?}");
            let expected = match given_up {
                true => Waited::GivenUp,
                false => Waited::Passed,
            };
            assert_eq!(flow.counts.waited, [expected]);
            match given_up {
                true => assert_eq!(told[1][4], ERROR),
                false => assert_eq!(told[1..], kind.read(&answer(kind, 1))),
            }
        }
    }
}

#[test]
fn what_a_flow_may_park_is_bounded() {
    let kind = KINDS[3];
    let mut flow = Flow::new(kind, false, None);
    for stream in 0..=MAX_SUSPENDED as i16 {
        flow.client_sends(&asks(kind, stream, PARK_REQUEST));
    }
    assert_eq!(flow.edits.editor.suspended(), MAX_SUSPENDED);
    assert_eq!(streams(&flow.asked()), [MAX_SUSPENDED as i16]);
    // Bytes, its own and those of all.
    let large = |stream| {
        let text = format!("{PARK_REQUEST}{}", "x".repeat(MAX_SUSPENDED_BYTES * 2 / 3));
        kind.sent(0, stream, QUERY, &ask(kind.version, &text))
    };
    let mut flow = Flow::new(kind, false, None);
    flow.client_sends(&large(1));
    flow.client_sends(&large(2));
    assert_eq!(flow.edits.editor.suspended(), 1);
    let room = Room::new(100);
    let mut flow = Flow::new(kind, false, None);
    let empty: Vec<Arc<dyn Transform>> = Vec::new();
    let none = cql_edit::Editor::new(empty.into(), Caller::default());
    flow.edits.editor = std::mem::replace(&mut flow.edits.editor, none).within(&room);
    for stream in [1, 2] {
        flow.client_sends(&asks(kind, stream, PARK_REQUEST));
    }
    assert_eq!(flow.edits.editor.suspended(), 1);
    // It comes back.
    flow.ticket(true, 1).resolve(Resolution::Pass);
    flow.runs();
    flow.client_sends(&asks(kind, 3, PARK_REQUEST));
    assert_eq!(streams(&flow.asked()), [2, 1]);
}

#[test]
fn a_flow_that_ends_gives_up_or_abandons() {
    for kind in KINDS {
        let mut flow = Flow::new(kind, false, None);
        flow.client_sends(&asks(kind, 1, PARK_REQUEST));
        flow.client_sends(&asks(kind, 2, PARK_RESPONSE));
        flow.database_sends(&answer(kind, 2));
        flow.edits.editor.give_up(0, true, &mut flow.counts);
        flow.runs();
        assert_eq!(streams(&flow.asked()), [2, 1], "{kind:?}");
        assert_eq!(flow.edits.editor.suspended(), 1);
        flow.edits.editor.abandon(&mut flow.counts);
        assert_eq!(flow.edits.editor.suspended(), 0);
        assert_eq!(flow.counts.waited, [Waited::GivenUp, Waited::Abandoned]);
        // Later words change nothing.
        flow.ticket(true, 1).resolve(Resolution::Pass);
        flow.ticket(false, 2).resolve(Resolution::Pass);
        flow.runs();
        assert_eq!((flow.asked().len(), flow.told().len()), (2, 0));
    }
}

/// An action of the test.
#[derive(Clone, Debug)]
enum Act {
    /// The client sends so many bytes of what it has to send; the database.
    Client(usize),
    Database(usize),
    /// Some ticket is used, in this way.
    Resolve(usize, u8),
    Run,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (1_usize..300).prop_map(Act::Client),
        (1_usize..300).prop_map(Act::Database),
        (0_usize..100, 0_u8..4).prop_map(|(n, how)| Act::Resolve(n, how)),
        Just(Act::Run),
    ]
}

proptest! {
    #[test]
    fn each_stream_gets_its_answer_whatever_comes_when(
        acts in proptest::collection::vec(act(), 0..200),
        kind in 0_usize..8,
        tables in proptest::collection::vec(0_usize..5, 1..24),
        together: bool,
    ) {
        let kind = KINDS[kind];
        let mut flow = Flow::new(kind, false, None);
        let mut sent = Vec::new();
        let mut frames = Vec::new();
        for (stream, table) in (0_i16..).zip(&tables) {
            let both = format!("{PARK_REQUEST}{PARK_RESPONSE}");
            frames.extend(kind.read(&match table {
                0 => asks(kind, stream, "ks.other"),
                1 => asks(kind, stream, PARK_REQUEST),
                2 => asks(kind, stream, PARK_RESPONSE),
                3 => asks(kind, stream, &both),
                // Nobody asks for it: it passes as it comes, in pieces.
                _ => kind.sent(0, stream, PREPARE, &prepare(kind.version, &noise(stream), None)),
            }));
        }
        match together {
            true => sent.extend(kind.wrap(&frames)),
            false => frames.iter().for_each(|f| sent.extend(kind.wrap(std::slice::from_ref(f)))),
        }
        let mut sent = &sent[..];
        let mut answers: Vec<u8> = Vec::new();
        let mut known = 0;
        // Whose request was resolved so that the database does not see it.
        let mut answered_here = HashSet::new();
        let mut step = |flow: &mut Flow, act: &Act| {
            match act {
                Act::Client(n) => {
                    let (now, later) = sent.split_at((*n).min(sent.len()));
                    sent = later;
                    flow.client_sends(now);
                }
                Act::Database(n) => {
                    let whole = flow.asked_whole();
                    for stream in whole.iter().skip(known) {
                        answers.extend(answer(kind, *stream));
                    }
                    known = whole.len();
                    let rest = answers.split_off((*n).min(answers.len()));
                    let now = std::mem::replace(&mut answers, rest);
                    flow.database_sends(&now);
                }
                Act::Resolve(n, how) => {
                    let mut tickets = flow.parks.tickets.lock().unwrap();
                    let mut keys: Vec<(bool, i16)> = tickets.keys().copied().collect();
                    keys.sort_unstable();
                    let Some(key) = keys.get(n % keys.len().max(1)).copied() else {
                        return;
                    };
                    let ticket = tickets.remove(&key).unwrap();
                    drop(tickets);
                    match how {
                        0 => ticket.resolve(Resolution::Pass),
                        1 => drop(ticket),
                        2 => {
                            answered_here.insert(key.1);
                            ticket.resolve(Resolution::Answer(vec![0, 0, 0, 1]));
                        }
                        _ => {
                            answered_here.insert(key.1);
                            ticket.resolve(Resolution::Refuse(refused()));
                        }
                    }
                }
                Act::Run => flow.runs(),
            }
        };
        for act in &acts {
            step(&mut flow, act);
        }
        // All of it, then.
        for _ in 0..4 {
            step(&mut flow, &Act::Client(usize::MAX));
            for _ in 0..tables.len() * 2 {
                step(&mut flow, &Act::Resolve(0, 0));
                step(&mut flow, &Act::Run);
            }
            step(&mut flow, &Act::Database(usize::MAX));
            step(&mut flow, &Act::Run);
        }
        prop_assert_eq!(flow.edits.editor.suspended(), 0);
        let told = flow.told();
        let mut streams = streams(&told);
        streams.sort_unstable();
        let expected: Vec<i16> = (0..tables.len() as i16).collect();
        prop_assert_eq!(streams, expected);
        for frame in &told {
            let stream = i16::from_be_bytes([frame[2], frame[3]]);
            if !answered_here.contains(&stream) {
                let own = kind.read(&answer(kind, stream));
                prop_assert_eq!(frame, &own[0]);
            }
        }
        for frame in &flow.asked() {
            prop_assert!(frames.contains(frame), "the database got what nobody sent");
        }
    }
}

impl Flow {
    /// The streams of what has reached the database and is whole.
    fn asked_whole(&self) -> Vec<i16> {
        let kind = self.edits.kind;
        let mut whole = 0;
        while let Some(next) = piece_bytes(kind, &self.asked[whole..])
            && whole + next <= self.asked.len()
        {
            whole += next;
        }
        streams(&kind.read(&self.asked[..whole]))
    }
}
