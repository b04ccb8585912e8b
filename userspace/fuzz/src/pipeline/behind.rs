//! A client whose requests go through a pipeline to a database, and those whom its steps ask.

use std::{
    mem,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use cql::StreamId;
use cql_edit::{Caller, CompletionSink, Editor, Log, Resolution, Unseen, Waited};
use cql_node::{Connection, InProcess};
use steps::cache::ByHand;

use super::{MAX_REQUESTS, answers::Answers, redis::Redis, statements::HIDDEN, steps::Steps};
use crate::script::{Compression, frame, startup};

const QUERY: u8 = 0x07;

/// Numbers that the frames of an input wait under, at most: a request, and its response, in each of two steps.
const MAX_NUMBERS: u64 = 4 * MAX_REQUESTS as u64;

/// Rounds after which nothing waits any more.
pub const MAX_ROUNDS: usize = 64;

/// The longest time that a step's own thread takes to say what becomes of a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// A database with a client's connection.
pub struct Database {
    node: InProcess,
    connection: Connection,
}

impl Database {
    pub fn new(schema: &[String]) -> Self {
        let node = InProcess::new(schema).expect("a good schema");
        let connection = node.connect();
        Self { node, connection }
    }

    pub fn answer(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.node.answer(&mut self.connection, bytes)
    }

    /// Asks on another connection, and returns the answer's body.
    pub fn ask(&mut self, text: &str) -> Vec<u8> {
        ask(&mut self.node, text)
    }
}

/// Asks a node on a connection of its own, and returns the answer's body.
pub fn ask(node: &mut InProcess, text: &str) -> Vec<u8> {
    let mut connection = node.connect();
    let mut answers = Answers::new(4);
    let opening = startup(4, Compression::None);
    answers.take(&node.answer(&mut connection, &opening));
    answers.pop().expect("READY");
    let length = (text.len() as u32).to_be_bytes();
    // At ONE, and without flags.
    let body = [&length[..], text.as_bytes(), &[0, 1, 0]].concat();
    let query = frame(4, 0, 0, QUERY, &body);
    answers.take(&node.answer(&mut connection, &query));
    answers.pop().expect("an answer").body
}

/// Counts of what steps have done: a test holds them against what they were to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Reads that were answered in place of the database.
    pub answered: usize,
    /// Writes that led a batch.
    pub merged: usize,
    /// Values that the database has encrypted.
    pub sealed: usize,
    /// Writes of which the client was told that one of two databases has them.
    pub half_done: usize,
    /// Connections on which requests of two clients have reached the database.
    pub shared: usize,
}

impl Log for Done {
    fn changed(&mut self, _: &'static str) {}
    fn refused(&mut self, _: StreamId, _: &'static str, _: &'static str) {}
    fn answered(&mut self, _: &'static str) {}
    fn would_refuse(&mut self, _: &'static str, _: &'static str) {}
    fn slowed(&mut self, _: &'static str, _: u64) {}
    fn unseen(&mut self, _: StreamId, _: Unseen, _: bool) {}

    fn waited(&mut self, _: &'static str, what: Waited) {
        match what {
            Waited::Answered => self.answered += 1,
            Waited::Merged => self.merged += 1,
            _ => {}
        }
    }
}

/// Decisions on what waits, by the numbers under which it does.
#[derive(Debug, Default)]
pub struct Letters {
    said: Mutex<Vec<Letter>>,
    news: Condvar,
    has_ended: AtomicBool,
}

type Letter = (u64, Option<Resolution>);

impl CompletionSink for Letters {
    fn put(&self, number: u64, resolution: Option<Resolution>) {
        self.said.lock().unwrap().push((number, resolution));
        self.news.notify_one();
    }

    fn is_read(&self) -> bool {
        !self.has_ended.load(Relaxed)
    }
}

impl Letters {
    /// Notes that the flow has ended.
    pub fn end(&self) {
        self.has_ended.store(true, Relaxed);
    }

    pub fn take(&self) -> Vec<Letter> {
        mem::take(&mut *self.said.lock().unwrap())
    }

    /// Waits for one. False: none has come.
    fn wait(&self) -> bool {
        let said = self.said.lock().unwrap();
        let waited = self
            .news
            .wait_timeout_while(said, PATIENCE, |said| said.is_empty());
        !waited.unwrap().1.timed_out()
    }
}

/// A client behind a pipeline.
pub struct Behind {
    editor: Editor,
    letters: Arc<Letters>,
    redis: Option<(ByHand, Redis)>,
    /// Replies of Redis that have not come back.
    replies: Vec<u8>,
    pub database: Database,
    /// Whether the database is to see no [`HIDDEN`] text.
    hides: bool,
    /// Bytes that the database has answered, and that have not gone back.
    under_way: Vec<u8>,
    pub answers: Answers,
    pub done: Done,
    pub now_ns: u64,
}

impl Behind {
    pub fn new(steps: &Steps, version: u8) -> Self {
        let caller = Caller {
            rule: "r".into(),
            client: "192.0.2.1".into(),
            ..Caller::default()
        };
        let (pipeline, ways) = steps.pipeline();
        let letters = Arc::<Letters>::default();
        let mut behind = Self {
            editor: Editor::new(pipeline, caller).told_by(letters.clone()),
            letters,
            redis: ways.redis.map(|by_hand| (by_hand, Redis::default())),
            replies: Vec::new(),
            database: Database::new(&steps.schema()),
            hides: steps.hides(),
            under_way: Vec::new(),
            answers: Answers::new(version),
            done: Done::default(),
            now_ns: 0,
        };
        behind.hear_all();
        behind
    }

    /// Sends bytes on. Returns whether anything has reached the database.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.editor.set_time(1_700_000_000_000_000);
        let edited = self.editor.requests(self.now_ns, bytes, &mut self.done);
        assert_eq!(edited.unreadable, None);
        let goes = edited.instead.as_deref().unwrap_or(bytes);
        self.reach(goes);
        let has_more = self.go_on();
        self.tell_redis();
        !goes.is_empty() || has_more
    }

    /// Has what the database has answered come back.
    pub fn receive(&mut self) {
        let bytes = mem::take(&mut self.under_way);
        let edited = self.editor.responses(&bytes, &mut self.done);
        assert_eq!(edited.unreadable, None);
        let goes = edited.instead.as_deref().unwrap_or(&bytes);
        self.answers.take(goes);
        self.go_on();
        self.tell_redis();
    }

    /// Has all that waits go on, and all answers come back.
    pub fn finish(&mut self) {
        for _ in 0..MAX_ROUNDS {
            self.fall_due();
            let has_heard = self.hear();
            let has_answers = !self.under_way.is_empty();
            self.receive();
            let waits = self.editor.suspended();
            if waits == 0 && self.under_way.is_empty() {
                return;
            }
            let goes_on = has_heard || has_answers || !self.replies.is_empty();
            assert!(goes_on || self.letters.wait(), "nobody decides of {waits}");
        }
        panic!("something waits for ever");
    }

    /// Has steps asked for their decisions on all that waits.
    pub fn fall_due(&mut self) {
        for number in 0..MAX_NUMBERS {
            let due = Some(Resolution::Due);
            self.editor
                .resolve(self.now_ns, number, due, &mut self.done);
        }
        self.go_on();
        self.tell_redis();
    }

    /// Has Redis's replies come back, and decisions be carried out, until there are no more.
    pub fn hear_all(&mut self) {
        while self.hear() {}
    }

    /// Has the replies come back that Redis has given, and decisions be carried out. Returns whether there were any.
    fn hear(&mut self) -> bool {
        self.tell_redis();
        let replies = mem::take(&mut self.replies);
        if let Some((by_hand, _)) = &mut self.redis {
            assert_eq!(by_hand.give_replies(&replies), Ok(()));
        }
        let letters = self.letters.take();
        let has_heard = !replies.is_empty() || !letters.is_empty();
        for (number, resolution) in letters {
            self.editor
                .resolve(self.now_ns, number, resolution, &mut self.done);
        }
        self.go_on();
        has_heard
    }

    /// Loses the connection with Redis, and the replies on it.
    pub fn lose_redis(&mut self) {
        if let Some((by_hand, _)) = &mut self.redis {
            by_hand.lose();
            self.replies.clear();
        }
    }

    /// Has commands reach Redis, whose replies are on their way then.
    fn tell_redis(&mut self) {
        if let Some((by_hand, redis)) = &mut self.redis {
            let commands = by_hand.take_commands();
            self.replies.extend(redis.answer(self.now_ns, &commands));
        }
    }

    /// Has go on what has waited, and come back what steps answer. Returns whether anything has reached the database.
    fn go_on(&mut self) -> bool {
        let late = self.editor.late();
        self.reach(late.as_deref().unwrap_or_default());
        if let Some(answers) = self.editor.answers() {
            self.answers.take(&answers);
        }
        late.is_some()
    }

    fn reach(&mut self, bytes: &[u8]) {
        if self.hides {
            let hidden = HIDDEN.as_bytes();
            let mut parts = bytes.windows(hidden.len());
            assert!(!parts.any(|part| part == hidden), "it is not hidden");
        }
        self.under_way.extend(self.database.answer(bytes));
    }
}
