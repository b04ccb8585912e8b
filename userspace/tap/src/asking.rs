//! [`Asking`]: what the handshake says of a flow's session, where its rule depends on that.

use cql::{Handshake, PreparedAt, Session, Step, Unknowable};

use crate::packet::Direction;

/// Bytes of a direction that wait to be looked at, at most: a frame's beginning, or a segment, and what a client sends
/// on before it is answered. A handshake beyond that is not understood.
const MAX_WAITING_BYTES: usize = 512 << 10;

/// Packets of a flow that are looked at for what no rule waits for: a log-in, and the first requests, of which one may
/// name the keyspace. The connection by which a driver watches its cluster never names one.
const SHOWN_PACKETS: u32 = 64;

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

/// The name of the reason for a keyspace that [`SHOWN_PACKETS`] have not named.
const NOT_NAMED: &str = "not_named";

/// A flow's handshake, as far as it has passed.
#[derive(Debug)]
pub(crate) struct Asking {
    handshake: Handshake,
    requests: Vec<u8>,
    responses: Vec<u8>,
    has_news: bool,
    /// Why nothing more is looked at.
    missed: Option<&'static str>,
    /// Packets that are still looked at. None: as many as come.
    left: Option<u32>,
}

impl Asking {
    pub(crate) fn new(prepared: PreparedAt) -> Self {
        Self {
            handshake: Handshake::new(prepared),
            requests: Vec::new(),
            responses: Vec::new(),
            has_news: false,
            missed: None,
            left: None,
        }
    }

    /// Looks at a few more packets, and then at none.
    pub(crate) fn ends_soon(&mut self) {
        self.left = Some(SHOWN_PACKETS);
        // What was told before counts as news to who asks from now on.
        self.has_news = true;
    }

    /// The next bytes of a direction.
    pub(crate) fn bytes(&mut self, direction: Direction, bytes: &[u8]) {
        match &mut self.left {
            Some(0) => return self.stop(NOT_NAMED),
            Some(left) => *left -= 1,
            None => {}
        }
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
        self.stop(MISSED);
    }

    fn stop(&mut self, why: &'static str) {
        self.missed = Some(why);
        self.has_news = true;
        self.requests = Vec::new();
        self.responses = Vec::new();
    }

    /// The session as it is known, if that is more than when it was last asked.
    pub(crate) fn news(&mut self) -> Option<AskedSession<'_>> {
        std::mem::take(&mut self.has_news).then(|| AskedSession {
            session: self.handshake.session(),
            over: self
                .handshake
                .over()
                .map(Unknowable::as_str)
                .or(self.missed),
            unknowable: self.handshake.unknowable(),
        })
    }

    /// Whether nothing more can become known.
    fn is_over(&self) -> bool {
        self.missed.is_some() || self.handshake.over().is_some()
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
