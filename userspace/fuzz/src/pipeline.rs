//! Requests through a pipeline to a database, beside the same requests to another one that nothing stands before.
//!
//! For any input: a client gets the same answers from both, but for what the steps' own pages say; a request that is refused is one
//! that a step refuses, and one that a step refuses reaches no database.

mod answers;
mod requests;
mod steps;

use cql_edit::{Caller, Editor};
use cql_node::{Connection, InProcess};

use self::{
    answers::{Answer, Answers},
    requests::{Choices, Ids, Request, Statements},
    steps::{PIPELINES, Steps},
};
use super::ignore::Ignore;
use super::script::{Compression, segment, startup};

/// Requests of an input.
const MAX_REQUESTS: usize = 24;

/// Requests that are on their way at once.
const MAX_UNDER_WAY: usize = 4;

/// A database with a client's connection.
struct Database {
    node: InProcess,
    connection: Connection,
}

impl Database {
    fn new(schema: &[String]) -> Self {
        let node = InProcess::new(schema).expect("a good schema");
        let connection = node.connect();
        Self { node, connection }
    }

    fn answer(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.node.answer(&mut self.connection, bytes)
    }
}

/// A client whose requests go through a pipeline.
struct Behind {
    editor: Editor,
    database: Database,
    /// Bytes that the database has answered, and that have not gone back.
    under_way: Vec<u8>,
    answers: Answers,
    now_ns: u64,
}

impl Behind {
    fn new(steps: &Steps, version: u8) -> Self {
        let caller = Caller {
            rule: "r".into(),
            client: "192.0.2.1".into(),
            ..Caller::default()
        };
        Self {
            editor: Editor::new(steps.pipeline(), caller),
            database: Database::new(&steps.schema()),
            under_way: Vec::new(),
            answers: Answers::new(version),
            now_ns: 0,
        }
    }

    /// Sends bytes on. Returns whether anything has reached the database.
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.editor.set_time(1_700_000_000_000_000);
        let edited = self.editor.requests(self.now_ns, bytes, &mut Ignore);
        assert_eq!(edited.unreadable, None);
        let goes = edited.instead.as_deref().unwrap_or(bytes).to_vec();
        let answered = self.database.answer(&goes);
        self.under_way.extend(answered);
        if let Some(answers) = self.editor.answers() {
            self.answers.take(&answers);
        }
        !goes.is_empty()
    }

    /// Has what the database has answered come back.
    fn receive(&mut self) {
        let bytes = std::mem::take(&mut self.under_way);
        let edited = self.editor.responses(&bytes, &mut Ignore);
        assert_eq!(edited.unreadable, None);
        let goes = edited.instead.as_deref().unwrap_or(&bytes);
        self.answers.take(goes);
        if let Some(late) = self.editor.late() {
            let answered = self.database.answer(&late);
            self.under_way.extend(answered);
        }
        if let Some(answers) = self.editor.answers() {
            self.answers.take(&answers);
        }
    }
}

/// A client behind a pipeline, and one without.
pub fn pipeline(data: &[u8]) {
    let Some(([first, second], rest)) = data.split_first_chunk() else {
        return;
    };
    let version = 3 + first % 3;
    let steps = &PIPELINES[usize::from(*second) % PIPELINES.len()];
    let mut choices = Choices(rest);
    let mut behind = Behind::new(steps, version);
    let mut plain = Database::new(&steps::plain_schema());
    let mut plain_answers = Answers::new(version);
    let opening = startup_of(version);
    behind.send(&opening);
    behind.receive();
    plain_answers.take(&plain.answer(&opening));
    assert_eq!(behind.answers.pop(), plain_answers.pop());

    let (mut ids, mut plain_ids) = (Ids::default(), Ids::default());
    let mut statements = Statements::default();
    let mut under_way: Vec<Option<Request>> = vec![None; MAX_UNDER_WAY];
    for _ in 0..MAX_REQUESTS {
        let Some(how) = choices.next_byte() else {
            break;
        };
        behind.now_ns += u64::from(how >> 4) * 50_000_000;
        let Some(stream) = under_way.iter().position(Option::is_none) else {
            break;
        };
        let request = statements.request(&mut choices, &ids, &plain_ids);
        let [bytes, plainly] = request.frames(version, stream as i16, steps);
        let has_passed = behind.send(&sent(version, &bytes));
        let may_refuse = steps.refuses(&request);
        // What the database says is still on its way.
        if behind.answers.of(stream as i16).is_some() {
            assert!(
                !has_passed,
                "{steps:?} refuses {request:?}, which has passed"
            );
            assert!(may_refuse != Some(false), "{steps:?} refuses {request:?}");
        } else {
            assert!(may_refuse != Some(true), "{steps:?} lets {request:?} pass");
            plain_answers.take(&plain.answer(&sent(version, &plainly)));
            under_way[stream] = Some(request);
        }
        if how & 0x03 == 0 || under_way.iter().all(Option::is_some) {
            settle(
                &mut behind,
                &mut plain_answers,
                &mut under_way,
                steps,
                [&mut ids, &mut plain_ids],
            );
        }
    }
    settle(
        &mut behind,
        &mut plain_answers,
        &mut under_way,
        steps,
        [&mut ids, &mut plain_ids],
    );
}

/// All answers come, and each is what the other database has answered.
fn settle(
    behind: &mut Behind,
    plain: &mut Answers,
    under_way: &mut [Option<Request>],
    steps: &Steps,
    [ids, plain_ids]: [&mut Ids; 2],
) {
    behind.receive();
    for (stream, request) in under_way.iter_mut().enumerate() {
        let Some(request) = request.take() else {
            continue;
        };
        let (given, expected) = (behind.answers.of(stream as i16), plain.of(stream as i16));
        let (Some(given), Some(expected)) = (given, expected) else {
            panic!("{steps:?}: no answer to {request:?}");
        };
        assert_alike(&given, &expected, &request, steps);
        ids.note(&request, &given);
        plain_ids.note(&request, &expected);
    }
    assert_eq!(behind.answers.pop(), None);
    assert_eq!(plain.pop(), None);
}

fn assert_alike(given: &Answer, expected: &Answer, request: &Request, steps: &Steps) {
    let said = || format!("{steps:?}\n{request:?}\ngiven {given:?}\nexpected {expected:?}");
    assert_eq!(given.opcode, expected.opcode, "{}", said());
    assert_eq!(given.flags, expected.flags, "{}", said());
    if given.is_error() {
        // Texts of errors may say the database's own names.
        return assert_eq!(given.error(), expected.error(), "{}", said());
    }
    assert!(given.without_ids() == expected.without_ids(), "{}", said());
}

fn startup_of(version: u8) -> Vec<u8> {
    startup(version, Compression::None)
}

/// A frame as it is sent in this version.
fn sent(version: u8, frame: &[u8]) -> Vec<u8> {
    match version {
        5 => segment(true, frame),
        _ => frame.to_vec(),
    }
}
