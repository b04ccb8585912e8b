//! Clients whose flows go through `fold` to one database, each with a connection of its own there, and the connections that
//! they share.

use std::{iter, mem, sync::Arc};

use cql_edit::{Editor, Pipeline};
use cql_node::{Connection, InProcess};
use steps::fold::{ByHand, DatabaseEnd};

use super::{
    answers::{Answer, Answers},
    behind::{Done, Letters, MAX_ROUNDS, ask},
    steps::{Steps, two_keyspaces},
};

const STARTUP: u8 = 0x01;
const OPTIONS: u8 = 0x05;
const QUERY: u8 = 0x07;

/// The wall clock, in µs since 1970.
const NOW_US: i64 = 1_700_000_000_000_000;

/// The first bytes of a timestamp that says which request it belongs to. No text has them: they are not UTF-8.
const MARK: i64 = 0x0005_F10D_F10D;
const MARK_BYTES: usize = 6;

/// The timestamp of a request with this number.
pub fn timestamp(number: usize) -> i64 {
    MARK << 16 | i64::from(number as u16)
}

/// The number of a request, by its timestamp.
fn number_of(request: &Answer) -> Option<usize> {
    let [_, _, mark @ ..] = MARK.to_be_bytes();
    let mut parts = request.body.windows(MARK_BYTES);
    let at = parts.position(|part| part == mark)?;
    let number = request.body.get(at + MARK_BYTES..)?.first_chunk()?;
    Some(usize::from(u16::from_be_bytes(*number)))
}

/// A request that has reached the database, which has carried it out.
#[derive(Debug)]
pub enum Reached {
    /// By its client's own connection: the one that is out on this stream.
    Own { client: usize, stream: usize },
    /// By a shared connection: the one with this number.
    Shared { connection: usize, number: usize },
}

impl Reached {
    /// A frame on a shared connection. None: the connection's own, by which it begins as a flow has, or asks whether the
    /// database is there.
    fn on(connection: usize, request: &Answer) -> Option<Self> {
        let Some(number) = number_of(request) else {
            let text = request.body.get(4..).unwrap_or_default();
            let is_use = request.opcode == QUERY && text.starts_with(b"USE ");
            assert!(
                is_use || [STARTUP, OPTIONS].contains(&request.opcode),
                "it is not for a shared connection: {request:?}"
            );
            return None;
        };
        Some(Self::Shared { connection, number })
    }
}

/// A connection, as the database sees it.
struct Upstream {
    connection: Connection,
    /// The requests that have come, which are frames in segments or not, as answers are.
    requests: Answers,
    /// Bytes that the database has answered, and that have not gone back.
    under_way: Vec<u8>,
}

impl Upstream {
    fn new(node: &InProcess, version: u8) -> Self {
        Self {
            connection: node.connect(),
            requests: Answers::new(version),
            under_way: Vec::new(),
        }
    }

    /// Has bytes reach the database, and returns the requests that it has carried out.
    fn reach(&mut self, node: &mut InProcess, bytes: &[u8]) -> Vec<Answer> {
        self.under_way
            .extend(node.answer(&mut self.connection, bytes));
        self.requests.take(bytes);
        iter::from_fn(|| self.requests.pop()).collect()
    }
}

/// A client, with its flow.
struct Client {
    editor: Editor,
    letters: Arc<Letters>,
    own: Upstream,
    answers: Answers,
}

/// A shared connection.
struct Shared {
    number: usize,
    end: DatabaseEnd,
    upstream: Upstream,
}

/// Clients, and their database.
pub struct Flows {
    version: u8,
    pipeline: Pipeline,
    /// All that there ever were; None: it has gone.
    clients: Vec<Option<Client>>,
    shared: Vec<Shared>,
    /// Shared connections that there ever were.
    begun: usize,
    by_hand: ByHand,
    node: InProcess,
    reached: Vec<Reached>,
    pub done: Done,
}

impl Flows {
    pub fn new(steps: &Steps, version: u8) -> Self {
        let (pipeline, ways) = steps.pipeline();
        Self {
            version,
            pipeline,
            clients: Vec::new(),
            shared: Vec::new(),
            begun: 0,
            by_hand: ways.shared.expect("a step that shares connections"),
            node: InProcess::new(&two_keyspaces()).expect("a good schema"),
            reached: Vec::new(),
            done: Done::default(),
        }
    }

    /// Has a client come. Returns its number.
    pub fn come(&mut self) -> usize {
        let client = self.clients.len();
        let letters = Arc::<Letters>::default();
        let editor = Editor::new(self.pipeline.clone(), self.by_hand.caller(client as u64));
        self.clients.push(Some(Client {
            editor: editor.remembering().told_by(letters.clone()),
            letters,
            own: Upstream::new(&self.node, self.version),
            answers: Answers::new(self.version),
        }));
        client
    }

    /// Has a client go, whatever it has asked.
    pub fn leave(&mut self, client: usize) {
        if let Some(gone) = self.clients[client].take() {
            gone.letters.end();
        }
    }

    /// Has a client send bytes. What goes by its own connection reaches the database at once.
    pub fn send(&mut self, client: usize, bytes: &[u8]) {
        let sender = self.clients[client].as_mut().expect("a client");
        sender.editor.set_time(NOW_US);
        let edited = self
            .by_hand
            .within(|| sender.editor.requests(0, bytes, &mut self.done));
        assert_eq!(edited.unreadable, None);
        self.reach(client, edited.instead.as_deref().unwrap_or(bytes));
        self.hear();
    }

    /// Has what was handed over to shared connections reach the database.
    pub fn carry(&mut self) {
        loop {
            self.by_hand.turn();
            while let Some(end) = self.by_hand.take_begun() {
                self.shared.push(Shared {
                    number: self.begun,
                    end,
                    upstream: Upstream::new(&self.node, self.version),
                });
                self.begun += 1;
            }
            let mut has_come = false;
            for shared in &mut self.shared {
                while let Some(bytes) = shared.end.take_requests() {
                    has_come = true;
                    let requests = shared.upstream.reach(&mut self.node, &bytes);
                    let reached = requests
                        .iter()
                        .filter_map(|request| Reached::on(shared.number, request));
                    self.reached.extend(reached);
                }
            }
            if !has_come {
                break;
            }
        }
        self.tell_events();
        self.hear();
    }

    /// Has come back what the database has answered on one of all connections.
    pub fn come_back(&mut self, which: u8) {
        let clients = self.clients.iter().enumerate();
        let present = clients.filter_map(|(number, client)| client.as_ref().map(|_| number));
        let present: Vec<usize> = present.collect();
        let which = usize::from(which) % (present.len() + self.shared.len());
        match present.get(which) {
            Some(client) => self.come_back_to(*client),
            None => self.come_back_on(which - present.len()),
        }
    }

    /// Has come back what the database has answered on a client's own connection.
    pub fn come_back_to(&mut self, client: usize) {
        let Some(asker) = &mut self.clients[client] else {
            return;
        };
        let bytes = mem::take(&mut asker.own.under_way);
        let edited = asker.editor.responses(&bytes, &mut self.done);
        assert_eq!(edited.unreadable, None);
        let goes = edited.instead.as_deref().unwrap_or(&bytes);
        asker.answers.take(goes);
        self.hear();
    }

    /// Has come back what the database has answered on a shared connection.
    fn come_back_on(&mut self, index: usize) {
        let Shared { end, upstream, .. } = &mut self.shared[index];
        while !upstream.under_way.is_empty() {
            let before = upstream.under_way.len();
            end.give_answers(&mut upstream.under_way);
            let has_gone = upstream.under_way.len() < before;
            assert!(has_gone, "nobody reads what the database has answered");
            self.by_hand.turn();
        }
        self.hear();
    }

    /// Has everything go on that waits, and all answers come back.
    pub fn finish(&mut self) {
        for _ in 0..MAX_ROUNDS {
            self.carry();
            (0..self.clients.len()).for_each(|client| self.come_back_to(client));
            (0..self.shared.len()).for_each(|index| self.come_back_on(index));
            if self.is_at_rest() {
                return;
            }
        }
        panic!("something waits for ever");
    }

    /// Whether nothing waits.
    fn is_at_rest(&self) -> bool {
        let mut clients = self.clients.iter().flatten();
        let has_all =
            |client: &Client| client.editor.suspended() == 0 && client.own.under_way.is_empty();
        let mut shared = self.shared.iter();
        clients.all(has_all) && shared.all(|shared| shared.upstream.under_way.is_empty())
    }

    /// Has the database end a shared connection, with all that is under way on it. Returns its number; None: there is none.
    pub fn lose(&mut self, which: u8) -> Option<usize> {
        let index = usize::from(which).checked_rem(self.shared.len())?;
        let Shared { number, .. } = self.shared.remove(index);
        self.by_hand.turn();
        self.hear();
        Some(number)
    }

    /// Whether a client's flow has to end, because nobody knows what became of a request.
    pub fn is_lost(&self, client: usize) -> bool {
        let client = self.clients[client].as_ref();
        client.is_some_and(|client| client.editor.is_lost())
    }

    /// Takes the requests that the database has carried out, in its order.
    pub fn take_reached(&mut self) -> Vec<Reached> {
        mem::take(&mut self.reached)
    }

    /// Takes the first answer that has come to a client.
    pub fn pop(&mut self, client: usize) -> Option<Answer> {
        self.clients[client].as_mut()?.answers.pop()
    }

    /// Asks the database past all of them, and returns the answer's body.
    pub fn ask(&mut self, text: &str) -> Vec<u8> {
        ask(&mut self.node, text)
    }

    /// Has flows do what was decided of the requests that they have handed over.
    fn hear(&mut self) {
        for client in 0..self.clients.len() {
            let Some(hearer) = &mut self.clients[client] else {
                continue;
            };
            for (number, resolution) in hearer.letters.take() {
                let done = &mut self.done;
                hearer.editor.resolve(0, number, resolution, done);
            }
            if let Some(answers) = hearer.editor.answers() {
                hearer.answers.take(&answers);
            }
            let late = hearer.editor.late().unwrap_or_default();
            self.reach(client, &late);
        }
    }

    /// Has bytes reach the database on a client's own connection.
    fn reach(&mut self, client: usize, bytes: &[u8]) {
        if let Some(Client { own, .. }) = &mut self.clients[client]
            && !bytes.is_empty()
        {
            for request in own.reach(&mut self.node, bytes) {
                let stream = usize::try_from(request.stream).expect("a client's stream");
                self.reached.push(Reached::Own { client, stream });
            }
            self.tell_events();
        }
    }

    /// Has the database tell its clients of events.
    fn tell_events(&mut self) {
        for client in self.clients.iter_mut().flatten() {
            let events = client.own.connection.take_events();
            client.own.under_way.extend(events);
        }
    }
}
