//! [`Asking`]: what the handshake says of a flow's session, where its rule depends on that.

use std::sync::Arc;

use cql::{Handshake, PreparedStatements, Session, Step, Unknowable};

use crate::packet::Direction;

/// Bytes of a direction that wait to be looked at, at most: a frame's beginning, or a segment, and what a client sends
/// on before it is answered. A handshake beyond that is not understood.
const MAX_WAITING_BYTES: usize = 512 << 10;

/// Bytes of bodies that nobody has a copy of are shown as zeros, so many at once.
static ZEROS: [u8; 4 << 10] = [0; 4 << 10];

/// The session of a flow, as far as copies of its handshake have told it.
#[derive(Clone, Copy, Debug)]
pub struct AskedSession<'a> {
    /// The facts that are known.
    pub session: &'a Session,
    /// Why nothing more can become known, as metrics name it. None: more can.
    pub over: Option<&'static str>,
    /// Why one thing or another could not become known.
    pub unknowable: &'a [Unknowable],
}

/// The name of the reason in metrics: bytes of the handshake were not copied, or came in no order that is understood.
const MISSED: &str = "not_copied";

/// A flow's handshake, as far as it has passed.
#[derive(Debug)]
pub(crate) struct Asking {
    handshake: Handshake,
    requests: Vec<u8>,
    responses: Vec<u8>,
    has_news: bool,
    has_missed: bool,
}

impl Asking {
    pub(crate) fn new(prepared: Arc<PreparedStatements>) -> Self {
        Self {
            handshake: Handshake::new(prepared),
            requests: Vec::new(),
            responses: Vec::new(),
            has_news: false,
            has_missed: false,
        }
    }

    /// The next bytes of a direction.
    pub(crate) fn bytes(&mut self, direction: Direction, bytes: &[u8]) {
        let waiting = self.waiting(direction);
        waiting.extend_from_slice(bytes);
        if waiting.len() > MAX_WAITING_BYTES {
            return self.miss();
        }
        self.look(direction);
        // What the client sends waits until its request is answered.
        if direction == Direction::Responses && !self.requests.is_empty() {
            self.look(Direction::Requests);
        }
    }

    /// The next bytes, which nobody has a copy of.
    pub(crate) fn skipped(&mut self, direction: Direction, bytes: u32) {
        // The handshake waits for what is missing.
        if !self.waiting(direction).is_empty() {
            return self.miss();
        }
        let mut left = bytes as usize;
        while left > 0 && !self.is_over() {
            let zeros = ZEROS.get(..left).unwrap_or(&ZEROS);
            match self.step(direction, zeros) {
                Step::Pass(passed) if passed == zeros.len() => left -= passed,
                _ => self.miss(),
            }
        }
    }

    /// Something was missed: nothing more can become known.
    pub(crate) fn miss(&mut self) {
        self.has_missed = true;
        self.has_news = true;
        self.requests = Vec::new();
        self.responses = Vec::new();
    }

    /// The session as it is known, if that is more than when it was last asked.
    pub(crate) fn news(&mut self) -> Option<AskedSession<'_>> {
        let missed = self.has_missed.then_some(MISSED);
        std::mem::take(&mut self.has_news).then(|| AskedSession {
            session: self.handshake.session(),
            over: self.handshake.over().map(Unknowable::as_str).or(missed),
            unknowable: self.handshake.unknowable(),
        })
    }

    /// Whether nothing more can become known.
    fn is_over(&self) -> bool {
        self.has_missed || self.handshake.over().is_some()
    }

    fn waiting(&mut self, direction: Direction) -> &mut Vec<u8> {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Responses => &mut self.responses,
        }
    }

    fn step(&mut self, direction: Direction, bytes: &[u8]) -> Step {
        match direction {
            Direction::Requests => self.handshake.requests(bytes),
            Direction::Responses => self.handshake.responses(bytes),
        }
    }

    fn look(&mut self, direction: Direction) {
        if self.is_over() {
            return;
        }
        let mut waiting = std::mem::take(self.waiting(direction));
        let mut passed = 0;
        while let Some(rest) = waiting.get(passed..).filter(|rest| !rest.is_empty()) {
            match self.step(direction, rest) {
                Step::More | Step::Wait => break,
                Step::Pass(bytes) => passed += bytes,
                Step::Told(bytes) => {
                    passed += bytes;
                    self.has_news = true;
                }
            }
        }
        self.has_news |= self.is_over();
        waiting.drain(..passed.min(waiting.len()));
        *self.waiting(direction) = waiting;
    }
}
