//! Flows through an editor, in every version and compression.

use std::sync::{Arc, Mutex};

use cassandra_protocol::compression::Compression;
use cassandra_protocol::frame::Envelope;
use cassandra_protocol::frame::message_request::RequestBody;
use cql::{Database, Opcode, StreamId};
use cql_edit::transforms::{self, TransformSettings};
use cql_edit::{
    Caller, CompletionSink, Editor, Error, Log, LookedUp, Outcome, Refused, Request, Resolution,
    Transform, Unseen,
};

pub use super::kind::*;
use super::*;

/// Refuses what names a table of this name, and looks at everything else.
#[derive(Debug)]
pub struct Refuses(pub &'static [u8], pub bool);

impl Transform for Refuses {
    fn name(&self) -> &'static str {
        "refuses"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Query | Opcode::Batch)
    }

    fn is_strict(&self) -> bool {
        self.1
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        let named = |statement| match statement {
            cql_edit::Statement::Text(text) => text.windows(self.0.len()).any(|w| w == self.0),
            cql_edit::Statement::Prepared(_) => false,
        };
        match request.statements().any(named) {
            true => Outcome::Refuse(Refused {
                reason: "named",
                error: Error::Invalid("no".into()),
            }),
            false => Outcome::Pass,
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Noted {
    pub changed: usize,
    pub refused: usize,
    pub answered: usize,
    pub warned: Vec<bool>,
    pub unseen: Vec<(Unseen, bool)>,
    pub unshown: Vec<Unseen>,
    pub looked_up: Vec<LookedUp>,
}

impl Log for Noted {
    fn changed(&mut self, _: &'static str) {
        self.changed += 1;
    }
    fn refused(&mut self, _: StreamId, _: &'static str, _: &'static str) {
        self.refused += 1;
    }
    fn answered(&mut self, _: &'static str) {
        self.answered += 1;
    }
    fn would_refuse(&mut self, _: &'static str, _: &'static str) {}
    fn warned(&mut self, _: &'static str, _: &'static str, is_told: bool) {
        self.warned.push(is_told);
    }
    fn slowed(&mut self, _: &'static str, _: u64) {}
    fn unseen(&mut self, _: StreamId, why: Unseen, refused: bool) {
        self.unseen.push((why, refused));
    }
    fn unshown(&mut self, why: Unseen) {
        self.unshown.push(why);
    }
    fn looked_up(&mut self, what: LookedUp) {
        self.looked_up.push(what);
    }
}

pub struct Edits {
    pub kind: Kind,
    pub editor: Editor,
    pub noted: Noted,
}

impl Edits {
    pub fn new(kind: Kind, pipeline: Vec<Arc<dyn Transform>>) -> Self {
        Self::at(kind, pipeline, "192.0.2.9:9042")
    }

    /// A flow to the database at this address.
    pub fn at(kind: Kind, pipeline: Vec<Arc<dyn Transform>>, address: &str) -> Self {
        let caller = Caller {
            rule: "r".into(),
            client: "192.0.2.1".into(),
            database: Database::new(address.parse().unwrap(), 0),
            ..Caller::default()
        };
        let mut flow = Self {
            kind,
            editor: Editor::new(pipeline.into(), caller),
            noted: Noted::default(),
        };
        let [(_, startup), (_, ready)] = kind.handshake();
        assert_eq!(flow.requests(&startup), startup);
        assert_eq!(flow.responses(&ready), ready);
        flow
    }

    pub fn of(kind: Kind, settings: &str) -> Self {
        Self::new(kind, vec![step(settings)])
    }

    pub fn requests(&mut self, bytes: &[u8]) -> Vec<u8> {
        let edited = self.editor.requests(0, bytes, &mut self.noted);
        assert_eq!(edited.unreadable, None);
        edited.instead.unwrap_or_else(|| bytes.to_vec())
    }

    pub fn responses(&mut self, bytes: &[u8]) -> Vec<u8> {
        let edited = self.editor.responses(bytes, &mut self.noted);
        assert_eq!(edited.unreadable, None);
        edited.instead.unwrap_or_else(|| bytes.to_vec())
    }

    /// The database answers a request that may be out on this stream, so that the next one has it for itself.
    pub fn frees(&mut self, stream: i16) {
        let void = self.kind.sent(0x80, stream, RESULT, &1_i32.to_be_bytes());
        self.responses(&void);
    }

    /// The body that the database gets for a request with this one.
    pub fn changed(&mut self, opcode: u8, body: &[u8]) -> RequestBody {
        self.frees(7);
        let sent = self.kind.sent(0, 7, opcode, body);
        let passed = self.requests(&sent);
        let frames = self.kind.read(&passed);
        let [frame] = &frames[..] else {
            panic!("{} frames", frames.len())
        };
        let envelope = Envelope::from_buffer(frame, Compression::None)
            .unwrap()
            .envelope;
        assert_eq!(envelope.stream_id, 7);
        envelope.request_body().unwrap()
    }
}

pub fn step(settings: &str) -> Arc<dyn Transform> {
    // The agent reads its settings, which say more than the transform needs.
    if settings.trim() == "transform = \"lookup\"" {
        return transforms::lookup();
    }
    let settings: TransformSettings = toml::from_str(settings).unwrap();
    settings.build().unwrap()
}

/// A RESULT comes, and passes as it is.
pub fn answered(flow: &mut Edits, stream: i16, body: &[u8]) {
    let answer = flow.kind.sent(0x80, stream, RESULT, body);
    assert_eq!(flow.responses(&answer), answer);
}

/// The completions that came, in order, by the numbers of what they complete.
#[derive(Debug, Default)]
pub struct Completions(pub Mutex<Vec<(u64, Option<Resolution>)>>);

impl CompletionSink for Completions {
    fn put(&self, number: u64, resolution: Option<Resolution>) {
        self.0.lock().unwrap().push((number, resolution));
    }
}
