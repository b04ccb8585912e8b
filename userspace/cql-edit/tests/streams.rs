//! Streams that are used again while their requests are out, or wait in the editor: what steps are shown is of the
//! request that they were shown, or they are shown nothing. The oracle knows which request each response answers.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use cassandra_protocol::compression::Compression;
use cql::Opcode;
use cql_edit::{
    Caller, Error, Outcome, Request, Resolution, Response, Statement, Ticket, Transform, Unpaired,
    Unseen,
};
use proptest::prelude::*;

use crate::support::edit::*;
use crate::support::*;

/// A turn of the conversation.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// A request on this stream, whether or not one is out there.
    Asks(i16, Does),
    /// The database answers one of the requests that it has.
    Answers(usize),
    /// One of the requests that wait goes on, or is answered.
    Resolves(usize, bool),
}

/// The text of a request says what its step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// The step wants to see the response.
    Awaits,
    /// The request waits, and the step wants to see the response.
    Waits,
    /// Nothing is awaited.
    Nothing,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let does = prop::sample::select(vec![Does::Awaits, Does::Waits, Does::Nothing]);
    let turn = prop_oneof![
        4 => (0_i16..3, does).prop_map(|(stream, does)| Turn::Asks(stream, does)),
        4 => any::<usize>().prop_map(Turn::Answers),
        2 => any::<(usize, bool)>().prop_map(|(one, answers)| Turn::Resolves(one, answers)),
    ];
    prop::collection::vec(turn, 0..50)
}

/// Everything that a step was told, by numbers of requests.
#[derive(Debug, Default)]
struct Told {
    asked: Vec<(usize, bool)>,
    /// A request, and the one that the response that was shown to it answers.
    shown: Vec<(usize, usize)>,
    unpaired: Vec<usize>,
    tickets: Vec<(usize, Ticket)>,
}

/// Shared by the test.
#[derive(Clone, Debug)]
struct Step {
    told: Arc<Mutex<Told>>,
    unpaired: Unpaired,
    must_see: bool,
}

fn number_in(bytes: &[u8]) -> usize {
    let text = String::from_utf8_lossy(bytes);
    let (_, rest) = text.split_once("number").unwrap();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

fn text(number: usize, does: Does) -> String {
    format!("SELECT v FROM ks.number{number} WHERE k = '{does:?}'")
}

/// The RESULT that answers a request.
fn answer(number: usize) -> Vec<u8> {
    [
        &1_i32.to_be_bytes()[..],
        format!("number{number} ").as_bytes(),
    ]
    .concat()
}

impl Transform for Step {
    fn name(&self) -> &'static str {
        "watches"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode == Opcode::Query
    }

    fn unpaired(&self) -> Unpaired {
        self.unpaired
    }

    fn must_see(&self) -> bool {
        self.must_see
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        let Some(Statement::Text(text)) = request.statements().next() else {
            panic!("no text");
        };
        let number = number_in(text);
        let says = |does: Does| text.ends_with(format!("'{does:?}'").as_bytes());
        let (awaits, waits) = (says(Does::Awaits), says(Does::Waits));
        let mut told = self.told.lock().unwrap();
        told.asked.push((number, request.is_unpaired()));
        if awaits || waits {
            request.await_response(number as u64);
        }
        if waits && let Some(ticket) = request.suspend() {
            told.tickets.push((number, ticket));
        }
        Outcome::Pass
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        let of = number_in(response.proper().unwrap());
        self.told.lock().unwrap().shown.push((number as usize, of));
        // The next one sees whether it is changed, too.
        response.fail(&Error::Invalid(format!("seen number{of} ")));
        true
    }

    fn response_unpaired(&self, number: u64) -> bool {
        self.told.lock().unwrap().unpaired.push(number as usize);
        false
    }
}

/// The flow, and the truth about it.
struct World {
    flow: Edits,
    letters: Arc<Completions>,
    told: Arc<Mutex<Told>>,
    /// The requests that the database has, by stream and number.
    database: Vec<(i16, usize)>,
    /// The requests that have no response, and have had their stream for themselves since it was last free; or not.
    out: HashMap<i16, Vec<usize>>,
    shared: HashSet<usize>,
    streams: HashMap<usize, i16>,
    /// How often a request was answered on its stream, for all requests of the stream since it was last free.
    refused: HashSet<usize>,
    responses: usize,
}

impl World {
    fn new(kind: Kind, unpaired: Unpaired, must_see: bool) -> Self {
        let told = Arc::new(Mutex::new(Told::default()));
        let step = Step {
            told: told.clone(),
            unpaired,
            must_see,
        };
        let letters = Arc::new(Completions::default());
        let mut flow = Edits::new(kind, vec![]);
        flow.editor = flow.editor.told_by(letters.clone());
        flow.editor.becomes(
            vec![Arc::new(step) as Arc<dyn Transform>].into(),
            Caller::default(),
        );
        Self {
            flow,
            letters,
            told,
            database: Vec::new(),
            out: HashMap::new(),
            shared: HashSet::new(),
            streams: HashMap::new(),
            refused: HashSet::new(),
            responses: 0,
        }
    }

    fn takes(&mut self, bytes: &[u8]) {
        for frame in self.flow.kind.read(bytes) {
            let stream = i16::from_be_bytes([frame[2], frame[3]]);
            self.database.push((stream, number_in(&frame)));
        }
    }

    /// The client is told these. `from`: the request that the database has answered by them.
    fn hears(&mut self, bytes: &[u8]) {
        for frame in self.flow.kind.read(bytes) {
            let stream = i16::from_be_bytes([frame[2], frame[3]]);
            let message = String::from_utf8_lossy(&frame).into_owned();
            if message.contains("waits for a response") {
                continue;
            }
            self.responses += 1;
            let of = number_in(&frame);
            assert_eq!(self.streams[&of], stream);
            let from_elsewhere = message.contains("cached");
            let is_changed = message.contains("seen");
            if from_elsewhere || is_changed {
                assert!(!self.shared.contains(&of), "{message}");
            }
            let out = self.out.get_mut(&stream).unwrap();
            out.retain(|other| *other != of);
            if out.is_empty() {
                self.out.remove(&stream);
            }
        }
    }

    fn asks(&mut self, stream: i16, number: usize, does: Does) {
        let kind = self.flow.kind;
        let sent = kind.sent(0, stream, QUERY, &ask(kind.version, &text(number, does)));
        let passed = self.flow.requests(&sent);
        self.streams.insert(number, stream);
        let answers = self.flow.editor.answers().unwrap_or_default();
        let frames = kind.read(&answers);
        let refuses = |frame: &Vec<u8>| String::from_utf8_lossy(frame).contains("waits for a");
        if frames.iter().any(refuses) {
            assert!(self.out.contains_key(&stream), "it is free");
            self.refused.insert(number);
        } else {
            let out = self.out.entry(stream).or_default();
            out.push(number);
            if out.len() > 1 || out.iter().any(|other| self.shared.contains(other)) {
                self.shared.extend(out.iter());
                let is_out = self.told.lock().unwrap().asked.last() == Some(&(number, false));
                assert!(!is_out, "it was shown as if it was alone");
            }
        }
        self.takes(&passed);
        self.hears(&answers);
    }

    fn answers(&mut self, index: usize) {
        if self.database.is_empty() {
            return;
        }
        let (stream, number) = self.database.remove(index % self.database.len());
        let kind = self.flow.kind;
        let sent = kind.sent(0x80, stream, RESULT, &answer(number));
        let passed = self.flow.responses(&sent);
        if self.shared.contains(&number) {
            assert_eq!(passed, sent, "a response that nobody can pair is as it was");
        }
        self.hears(&passed);
        let answers = self.flow.editor.answers().unwrap_or_default();
        self.hears(&answers);
    }

    fn resolves(&mut self, index: usize, answers: bool) {
        let (number, ticket) = {
            let mut told = self.told.lock().unwrap();
            if told.tickets.is_empty() {
                return;
            }
            let index = index % told.tickets.len();
            told.tickets.remove(index)
        };
        ticket.resolve(match answers {
            true => Resolution::Answer([&answer(number)[..], b"cached"].concat()),
            false => Resolution::Pass,
        });
        let letters = std::mem::take(&mut *self.letters.0.lock().unwrap());
        for (number, resolution) in letters {
            let noted = &mut self.flow.noted;
            self.flow.editor.resolve(0, number, resolution, noted);
        }
        let late = self.flow.editor.late().unwrap_or_default();
        self.takes(&late);
        let answers = self.flow.editor.answers().unwrap_or_default();
        self.hears(&answers);
    }
}

/// Kinds whose frames can be read without expanding bodies.
fn readable() -> Vec<Kind> {
    let plain = |kind: &Kind| kind.version == 5 || kind.compression == Compression::None;
    KINDS.into_iter().filter(plain).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn a_step_is_shown_the_response_to_its_own_request_or_none(
        turns in turns(),
        kind in prop::sample::select(readable()),
        unpaired in prop::sample::select(vec![Unpaired::Unseen, Unpaired::Judged, Unpaired::Refused]),
        must_see: bool,
    ) {
        let mut world = World::new(kind, unpaired, must_see);
        let mut asked = Vec::new();
        for turn in turns {
            match turn {
                Turn::Asks(stream, does) => {
                    world.asks(stream, asked.len(), does);
                    asked.push(does);
                }
                Turn::Answers(index) => world.answers(index),
                Turn::Resolves(index, answers) => world.resolves(index, answers),
            }
        }
        // All that waits goes on, and is answered.
        while !world.told.lock().unwrap().tickets.is_empty() {
            world.resolves(0, false);
        }
        while !world.database.is_empty() {
            world.answers(0);
        }
        prop_assert!(world.out.is_empty());
        prop_assert_eq!(world.responses, asked.len() - world.refused.len());
        let refuses = must_see || unpaired == Unpaired::Refused;
        prop_assert_eq!(refuses && !world.shared.is_empty(), false);
        prop_assert_eq!(!refuses && !world.refused.is_empty(), false);
        {
            let told = world.told.lock().unwrap();
            let mut shown = told.shown.clone();
            shown.sort_unstable();
            let expected: Vec<_> = (0..asked.len())
                .filter(|number| asked[*number] != Does::Nothing)
                .filter(|n| !world.refused.contains(n) && !world.shared.contains(n))
                .map(|number| (number, number))
                .collect();
            prop_assert_eq!(shown, expected);
            for (number, is_unpaired) in &told.asked {
                prop_assert!(!is_unpaired || unpaired == Unpaired::Judged && !must_see, "{}", number);
            }
            // Whoever has asked for a response is shown it, or told that it will not be.
            for number in &told.unpaired {
                prop_assert!(world.shared.contains(number));
            }
        }
        let unseen = world.flow.noted.unseen.clone();
        prop_assert_eq!(unseen, vec![(Unseen::Stream, false); world.shared.len()]);
        prop_assert_eq!(world.flow.noted.refused, world.refused.len());
        // Each stream is free again.
        for stream in 0..3 {
            let number = asked.len();
            world.asks(stream, number, Does::Awaits);
            let last = world.told.lock().unwrap().asked.last().copied();
            prop_assert_eq!(last, Some((number, false)));
            world.answers(0);
            asked.push(Does::Awaits);
        }
    }
}

/// A step that refuses by the text alone.
#[test]
fn who_judges_requests_alone_does_so_on_a_stream_that_is_out() {
    for kind in KINDS {
        let guard = "transform = \"guard\"\nrefuse = [\"truncate\"]";
        let mut flow = Edits::new(kind, vec![step(guard)]);
        let asks = |text: &str| kind.sent(0, 7, QUERY, &ask(kind.version, text));
        for _ in 0..2 {
            assert_eq!(
                flow.requests(&asks("SELECT a FROM t")),
                asks("SELECT a FROM t")
            );
        }
        assert_eq!(flow.requests(&asks("TRUNCATE t")), b"", "{kind:?}");
        let told = kind.read(&flow.editor.answers().unwrap());
        assert_eq!(told[0][9..13], 0x2200_i32.to_be_bytes());
    }
}

/// A statement that was prepared on a stream that is out is not learned, as its id may be another's.
#[test]
fn an_id_that_may_be_anothers_is_not_learned() {
    let kind = KINDS[3];
    let guard = "transform = \"guard\"\nrefuse = [\"truncate\"]";
    let mut flow = Edits::new(kind, vec![step(guard)]);
    let prepares = |text: &str| kind.sent(0, 7, PREPARE, &prepare(kind.version, text, None));
    for text in ["SELECT a FROM t", "SELECT b FROM t"] {
        assert_eq!(flow.requests(&prepares(text)), prepares(text));
    }
    for id in [b"two", b"one"] {
        flow.responses(&kind.sent(0x80, 7, RESULT, &prepared(id)));
    }
    for id in [b"two", b"one"] {
        let execute = kind.sent(0, 7, EXECUTE, &execute(id));
        assert_eq!(flow.requests(&execute), b"");
        let told = kind.read(&flow.editor.answers().unwrap());
        assert_eq!(told[0][9..13], 0x2500_i32.to_be_bytes());
    }
}

/// The keyspace is unclear once a stream of a USE was used again.
#[test]
fn a_use_whose_answer_cannot_be_told_leaves_the_keyspace_unclear() {
    for kind in KINDS {
        let step = Arc::new(Keyspaces::default());
        let mut flow = Edits::new(kind, vec![step.clone()]);
        let asks = |stream, text: &str| kind.sent(0, stream, QUERY, &ask(kind.version, text));
        flow.requests(&asks(1, "USE one"));
        flow.responses(&kind.sent(0x80, 1, RESULT, &set_keyspace("one")));
        flow.requests(&asks(2, "SELECT a FROM t"));
        assert_eq!(step.take(), Some((Some("one".into()), false)));
        for (first, second) in [
            ("USE two", "SELECT b FROM t"),
            ("SELECT b FROM t", "USE two"),
        ] {
            let step = Arc::new(Keyspaces::default());
            let mut flow = Edits::new(kind, vec![step.clone()]);
            flow.requests(&asks(1, first));
            flow.requests(&asks(1, second));
            flow.requests(&asks(2, "SELECT a FROM t"));
            assert_eq!(step.take(), Some((None, true)), "{kind:?} {first}");
            flow.responses(&kind.sent(0x80, 1, RESULT, &set_keyspace("two")));
            flow.frees(1);
            flow.requests(&asks(3, "SELECT a FROM t"));
            assert_eq!(step.take(), Some((None, true)), "{kind:?} {first}");
        }
        // One that was executed.
        flow.requests(&kind.sent(0, 5, EXECUTE, &execute(b"use")));
        flow.requests(&kind.sent(0, 5, EXECUTE, &execute(b"use")));
        flow.responses(&kind.sent(0x80, 5, RESULT, &set_keyspace("two")));
        flow.frees(5);
        flow.requests(&asks(3, "SELECT a FROM t"));
        assert_eq!(step.take(), Some((None, true)), "{kind:?}");
    }
}

#[derive(Debug, Default)]
struct Keyspaces(Mutex<Option<(Option<String>, bool)>>);

impl Keyspaces {
    fn take(&self) -> Option<(Option<String>, bool)> {
        self.0.lock().unwrap().take()
    }
}

impl Transform for Keyspaces {
    fn name(&self) -> &'static str {
        "keyspaces"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode.has_statements()
    }

    fn request(&self, _: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        *self.0.lock().unwrap() = Some((caller.keyspace.clone(), caller.keyspace_unclear));
        Outcome::Pass
    }
}

/// A flood of requests on one stream is refused at its bound, and told so.
#[test]
fn so_many_requests_on_one_stream_and_no_more() {
    let kind = KINDS[3];
    let mut flow = Edits::new(kind, vec![Arc::new(Refuses(b"nothing", false))]);
    let sent = kind.sent(0, 7, QUERY, &ask(kind.version, "SELECT a FROM t"));
    for _ in 0..1_024 {
        assert_eq!(flow.requests(&sent), sent);
    }
    assert_eq!(flow.requests(&sent), b"");
    let told = kind.read(&flow.editor.answers().unwrap());
    assert_eq!(told[0][9..13], 0x000A_i32.to_be_bytes());
    for _ in 0..1_024 {
        flow.frees(7);
    }
    let refused = kind.sent(0, 7, QUERY, &ask(kind.version, "SELECT a FROM nothing"));
    assert_eq!(flow.requests(&refused), b"", "it is seen again");
}
