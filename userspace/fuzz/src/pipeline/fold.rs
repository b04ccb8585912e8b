//! Several clients behind `fold`, beside the same clients with direct connections to another database.
//!
//! That one is asked each request when the first one has carried it out, on the connection of the client that has sent it. So
//! each answer has to be the direct one to the last byte, whichever way its request has taken: on its client's stream, from its
//! client's keyspace, and nobody else's. Events come to those who have registered, and at the end the rows are the same.
//!
//! A request is carried out once. One that could not be, because the database does not know its prepared statement, may come
//! again. A flow ends for a shared connection that is lost only if it has a request out on it.

use std::collections::{BTreeSet, HashMap};

use cql_node::{Connection, InProcess};

use super::{
    HOLDS, LOOKS_BACK, LOSES, MAX_UNDER_WAY, REPEATS,
    answers::{Answer, Answers},
    behind::{Done, ask},
    flows::{Flows, Reached, timestamp},
    requests::{Choices, Ids, Kind, Request, Statements},
    sent,
    steps::{Steps, two_keyspaces},
};
use crate::script::{Compression, frame, startup};

/// Clients at a time.
const CLIENTS: usize = 4;

/// Requests of an input, behind those by which its clients begin.
const MAX_REQUESTS: usize = 64;

/// Requests until a client shares a connection, at most: more than the step waits for, and those during which one begins.
const MAX_ALONE: usize = 16;

/// Bits of an input's choice: the answers on one connection come back, if any is set; everything comes back, if none is.
const RETURNS: u8 = 0x60;
const SETTLES: u8 = 0x1C;

const REGISTER: u8 = 0x0B;

/// The body of a REGISTER for changes of the schema.
const EVENTS: &[u8] = b"\0\x01\0\x0dSCHEMA_CHANGE";

/// The stream on which events come.
const EVENT_STREAM: i16 = -1;

/// The code of an error: the statement is not prepared, so that it was not carried out.
const UNPREPARED: i32 = 0x2500;

/// A request that a client has sent.
struct Asked {
    /// None: it is one by which the client begins.
    request: Option<Request>,
    client: usize,
    stream: usize,
    sent: Vec<u8>,
    /// The shared connection by which it has reached the database.
    shared: Option<usize>,
    /// The direct answer. None: it has not reached the database.
    expected: Option<Answer>,
}

/// Clients behind the steps, and without.
struct Both<'s> {
    steps: &'s Steps,
    version: u8,
    flows: Flows,
    direct: Direct,
    statements: Statements,
    ids: Ids,
    /// All requests that were sent, by their numbers.
    asked: Vec<Asked>,
    /// The numbers of the requests that are out, by each client that there ever was, and stream.
    out: Vec<[Option<usize>; MAX_UNDER_WAY]>,
    /// The clients of now.
    present: Vec<usize>,
    /// The clients whose requests have reached the database on each shared connection.
    askers: HashMap<usize, BTreeSet<usize>>,
}

pub fn drive(steps: &Steps, version: u8, input: &[u8]) -> Done {
    let mut choices = Choices(input);
    let mut both = Both::new(steps, version);
    for _ in 0..CLIENTS {
        let client = both.come(&mut choices);
        both.present.push(client);
        both.share(client);
    }
    for _ in 0..MAX_REQUESTS {
        let Some(how) = choices.next_byte() else {
            break;
        };
        let outside = choices.next_byte().unwrap_or(0);
        let place = usize::from(how) % CLIENTS;
        both.ask(both.present[place], outside & REPEATS != 0, &mut choices);
        if outside & HOLDS == 0 {
            both.flows.carry();
        }
        if outside & RETURNS != 0 {
            both.flows.come_back(choices.next_byte().unwrap_or(0));
        }
        both.compare();
        if outside & LOSES == LOSES {
            match choices.of(4) {
                0 => both.lose(&mut choices),
                1 => both.replace(place, &mut choices),
                _ => {}
            }
        }
        if how & SETTLES == 0 {
            both.settle();
        }
    }
    both.settle();
    both.compare_rows();
    both.flows.done
}

impl<'s> Both<'s> {
    fn new(steps: &'s Steps, version: u8) -> Self {
        Self {
            steps,
            version,
            flows: Flows::new(steps, version),
            direct: Direct::new(version),
            statements: Statements::default(),
            ids: Ids::default(),
            asked: Vec::new(),
            out: Vec::new(),
            present: Vec::new(),
            askers: HashMap::new(),
        }
    }

    /// Has a client come, which begins as the input says. Returns its number.
    fn come(&mut self, choices: &mut Choices<'_>) -> usize {
        let client = self.flows.come();
        self.direct.come();
        self.out.push([None; MAX_UNDER_WAY]);
        let opening = startup(self.version, Compression::None);
        self.send(client, 0, opening, None);
        self.hear_own(client);
        if choices.of(2) == 0 {
            let register = frame(self.version, 0, 0, REGISTER, EVENTS);
            self.send(client, 0, sent(self.version, &register), None);
            self.hear_own(client);
        }
        let uses = [None, None, Some("USE ks"), Some("USE other")];
        if let Some(text) = uses[usize::from(choices.of(4))] {
            self.request(client, Request::query(text));
            self.hear_own(client);
        }
        client
    }

    /// Has a client ask until its requests go by a shared connection.
    fn share(&mut self, client: usize) {
        for _ in 0..MAX_ALONE {
            let number = self.asked.len();
            self.request(client, Request::query("SELECT * FROM ks.t"));
            self.settle();
            if self.asked[number].shared.is_some() {
                return;
            }
        }
        panic!("{:?}: client {client} shares no connection", self.steps);
    }

    /// Has a client ask what the input says, or what somebody has asked before.
    fn ask(&mut self, client: usize, repeats: bool, choices: &mut Choices<'_>) {
        let ids = [&self.ids, &self.ids];
        let request = match repeats {
            true => self.made_before(choices),
            false => self.statements.request(choices, ids, self.steps),
        };
        // A database says nothing of the order of what is under way: which keyspace a request is in has to be sure.
        let (may_use, kind) = (request.may_use(), request.kind);
        if may_use {
            self.flows.carry();
        }
        if self.out[client].iter().all(Option::is_some) {
            self.settle();
        }
        self.request(client, request);
        // Nor does anybody know of this one that it may be a USE, before its answer says so.
        if may_use && kind == Kind::Execute {
            self.hear_own(client);
        }
    }

    /// One of the last requests, to be sent again.
    fn made_before(&self, choices: &mut Choices<'_>) -> Request {
        let back = usize::from(choices.of(LOOKS_BACK));
        let mut made = self.asked.iter().rev().filter_map(|a| a.request.as_ref());
        let first = made.next().expect("a request of each client");
        made.nth(back).unwrap_or(first).clone()
    }

    /// Has a client send a request on a free stream.
    fn request(&mut self, client: usize, mut request: Request) {
        request.timestamp = Some(timestamp(self.asked.len()));
        let free = self.out[client].iter().position(Option::is_none);
        let stream = free.expect("a free stream");
        let [frame, _] = request.frames(self.version, stream as i16, self.steps);
        self.send(client, stream, sent(self.version, &frame), Some(request));
    }

    fn send(&mut self, client: usize, stream: usize, sent: Vec<u8>, request: Option<Request>) {
        self.out[client][stream] = Some(self.asked.len());
        self.flows.send(client, &sent);
        self.asked.push(Asked {
            request,
            client,
            stream,
            sent,
            shared: None,
            expected: None,
        });
    }

    /// Has a client's answers on its own connection come back.
    fn hear_own(&mut self, client: usize) {
        self.flows.come_back_to(client);
        self.compare();
    }

    /// Has the direct connections asked what has reached the database, and holds the answers that have come against theirs.
    fn compare(&mut self) {
        for reached in self.flows.take_reached() {
            self.ask_directly(&reached);
        }
        for client in 0..self.out.len() {
            while let Some(answer) = self.flows.pop(client) {
                self.assert_expected(client, answer);
            }
        }
    }

    fn ask_directly(&mut self, reached: &Reached) {
        let (number, shared) = match *reached {
            Reached::Own { client, stream } => (self.out[client][stream], None),
            Reached::Shared { connection, number } => (Some(number), Some(connection)),
        };
        let number = number.expect("a request that is out");
        let asked = &mut self.asked[number];
        asked.shared = shared;
        let expected = self.direct.ask(asked.client, asked.stream, &asked.sent);
        let before = asked.expected.replace(expected);
        assert!(
            before.is_none_or(|before| before.error() == Some(UNPREPARED)),
            "{:?}: carried out twice: {:?}",
            self.steps,
            asked.request
        );
        if let Some(connection) = shared {
            let askers = self.askers.entry(connection).or_default();
            let is_another = askers.insert(asked.client);
            self.flows.done.shared += usize::from(is_another && askers.len() == 2);
        }
    }

    fn assert_expected(&mut self, client: usize, answer: Answer) {
        let steps = self.steps;
        if answer.stream == EVENT_STREAM {
            assert_eq!(Some(answer), self.direct.event(client), "{steps:?}");
            return;
        }
        let stream = usize::try_from(answer.stream).unwrap_or(MAX_UNDER_WAY);
        let out = self.out[client].get_mut(stream);
        let Some(number) = out.and_then(Option::take) else {
            panic!("{steps:?}: client {client} has not asked for {answer:?}");
        };
        let Asked {
            request, expected, ..
        } = &self.asked[number];
        assert_eq!(
            Some(&answer),
            expected.as_ref(),
            "{steps:?}: client {client}: {request:?}"
        );
        if let Some(request) = request {
            self.ids.note(request, &answer);
        }
    }

    /// Has a shared connection be lost. Flows end that have a request out on it, and their clients come anew.
    fn lose(&mut self, choices: &mut Choices<'_>) {
        let Some(connection) = self.flows.lose(choices.next_byte().unwrap_or(0)) else {
            return;
        };
        self.compare();
        for place in 0..CLIENTS {
            let client = self.present[place];
            if !self.flows.is_lost(client) {
                continue;
            }
            let mut out = self.out[client].iter().flatten();
            let is_on_it = |number: &usize| {
                let Asked {
                    shared, expected, ..
                } = &self.asked[*number];
                // Or it was on its way there.
                *shared == Some(connection) || expected.is_none()
            };
            assert!(
                out.any(is_on_it),
                "{:?}: client {client} is lost",
                self.steps
            );
            self.replace(place, choices);
        }
    }

    /// Has a client go, whatever it has asked, and another one come.
    fn replace(&mut self, place: usize, choices: &mut Choices<'_>) {
        let client = self.present[place];
        self.flows.leave(client);
        self.out[client] = [None; MAX_UNDER_WAY];
        self.present[place] = self.come(choices);
    }

    /// All answers come, and all events.
    fn settle(&mut self) {
        self.flows.finish();
        self.compare();
        for client in &self.present {
            let steps = self.steps;
            assert!(!self.flows.is_lost(*client), "{steps:?}: {client} is lost");
            let out = self.out[*client];
            assert_eq!(out, [None; MAX_UNDER_WAY], "{steps:?}: {client} waits");
            assert_eq!(self.direct.event(*client), None, "{steps:?}: {client}");
        }
    }

    /// The rows of both databases are the same.
    fn compare_rows(&mut self) {
        for table in ["ks.t", "ks.u", "other.t", "other.u"] {
            let text = format!("SELECT * FROM {table}");
            let direct = ask(&mut self.direct.node, &text);
            assert_eq!(self.flows.ask(&text), direct, "{:?}", self.steps);
        }
    }
}

/// A database with a direct connection of each client that there ever was.
struct Direct {
    version: u8,
    node: InProcess,
    clients: Vec<(Connection, Answers)>,
}

impl Direct {
    fn new(version: u8) -> Self {
        Self {
            version,
            node: InProcess::new(&two_keyspaces()).expect("a good schema"),
            clients: Vec::new(),
        }
    }

    fn come(&mut self) {
        let client = (self.node.connect(), Answers::new(self.version));
        self.clients.push(client);
    }

    fn ask(&mut self, client: usize, stream: usize, request: &[u8]) -> Answer {
        let (connection, answers) = &mut self.clients[client];
        answers.take(&self.node.answer(connection, request));
        let answer = answers.of(stream as i16).expect("an answer at once");
        for (connection, answers) in &mut self.clients {
            answers.take(&connection.take_events());
        }
        answer
    }

    /// Takes the first event that a client was told of.
    fn event(&mut self, client: usize) -> Option<Answer> {
        self.clients[client].1.of(EVENT_STREAM)
    }
}
