//! [`Conversation`]: questions and answers on one connection, as a function of bytes and time.

use std::time::Instant;

use cassandra_protocol::frame::{Opcode, Version};
use cql::Compression;
use cql_edit::{Incoming, Response, in_segments_of};
use zeroize::Zeroizing;

use crate::{Answer, NoAnswer, Request};

/// The largest answer that a caller may take, in bytes. `system.peers_v2` has 5 KB for a node with 256 tokens.
pub const MAX_ANSWER_BYTES: usize = 8 << 20;

/// The stream of all questions: one is out at a time.
pub(crate) const STREAM: i16 = 0;

/// The stream of events (`native_protocol_v4.spec`, 2.3).
const EVENTS: i16 = -1;

/// A conversation: one question at a time, each with a deadline. **Invariant**: it holds no more than the
/// largest answer that it takes and what has come with that.
#[derive(Debug)]
pub struct Conversation {
    version: Version,
    compression: Compression,
    incoming: Incoming,
    /// Version 5, and the database has answered the STARTUP.
    in_segments: bool,
    output: Zeroizing<Vec<u8>>,
    most: usize,
    /// A question is out; it has to be answered by then.
    until: Option<Instant>,
    /// Events were asked for.
    listens: bool,
    /// One has come that nobody has taken.
    has_event: bool,
}

impl Conversation {
    /// A conversation that has not begun. `compression` is what its STARTUP asks for; answers of more than `most` bytes
    /// are not taken, nor those of more than [`MAX_ANSWER_BYTES`].
    pub fn new(version: Version, compression: Compression, most: usize) -> Self {
        Self {
            version,
            compression,
            incoming: Incoming::new(version.into()),
            in_segments: false,
            output: Zeroizing::default(),
            most: most.min(MAX_ANSWER_BYTES),
            until: None,
            listens: false,
            has_event: false,
        }
    }

    /// Takes answers of up to `most` bytes from now on.
    pub fn take_up_to(&mut self, most: usize) {
        self.most = most.min(MAX_ANSWER_BYTES);
    }

    /// Queues a request. The one before has to be answered. The bytes are in [`take_output`](Self::take_output).
    pub fn ask(&mut self, request: &Request<'_>, until: Instant) {
        let frame = request.frame(self.version, STREAM);
        self.output = match self.in_segments {
            true => Zeroizing::new(in_segments_of(self.compression, &frame)),
            false => frame,
        };
        self.until = Some(until);
        self.listens |= matches!(request, Request::Register(_));
    }

    /// Takes the events that have come, however many. Gives whether there was one.
    pub fn take_event(&mut self) -> bool {
        std::mem::take(&mut self.has_event)
    }

    /// Takes the bytes that are to be sent.
    pub fn take_output(&mut self) -> Zeroizing<Vec<u8>> {
        std::mem::take(&mut self.output)
    }

    /// The time at which the answer to what is out is late. `None`: nothing is out.
    pub fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Checks the deadline.
    ///
    /// # Errors
    /// [`NoAnswer::Late`] if the deadline has passed.
    pub fn tick(&self, now: Instant) -> Result<(), NoAnswer> {
        match self.until {
            Some(until) if until <= now => Err(NoAnswer::Late),
            _ => Ok(()),
        }
    }

    /// Takes bytes that have come. `None`: the answer is not there yet, or there is nothing more.
    ///
    /// # Errors
    /// The conversation is over: the bytes are no answer to what is out.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<Answer>, NoAnswer> {
        self.incoming
            .comes(bytes)
            .map_err(|_| NoAnswer::NotASegment)?;
        let answer = self.next()?;
        if answer.is_none() && self.incoming.held_bytes() > self.most {
            return Err(NoAnswer::TooLong);
        }
        Ok(answer)
    }

    fn next(&mut self) -> Result<Option<Answer>, NoAnswer> {
        let (version, compression, most) = (self.version, self.compression, self.most);
        let came = loop {
            let came = self.incoming.next(most);
            let came = came.map_err(|_| NoAnswer::NotCql(version))?;
            let Some(came) = came else {
                return Ok(None);
            };
            let is_event = came.stream == EVENTS && came.opcode == u8::from(Opcode::Event);
            if !(self.listens && is_event) {
                break came;
            }
            self.has_event = true;
        };
        if self.until.take().is_none() || came.stream != STREAM {
            return Err(NoAnswer::NotAsked);
        }
        let opcode = Opcode::try_from(came.opcode).map_err(|_| NoAnswer::NotCql(version))?;
        let frame = came.frame.ok_or(NoAnswer::TooLong)?;
        let response = Response::of_frame(frame, compression, most);
        let body = response.as_ref().and_then(Response::proper);
        let body = body.ok_or(NoAnswer::Unreadable)?.to_vec();
        if opcode_answers_startup(opcode) {
            self.incoming.accept(compression);
            self.in_segments = version >= Version::V5;
        }
        Ok(Some(Answer::new(version, opcode, body)))
    }

    /// The reader of what comes, for whoever goes on with the connection.
    pub fn into_incoming(self) -> Incoming {
        self.incoming
    }
}

/// READY and AUTHENTICATE answer a STARTUP and nothing else. Version 5 has segments behind them.
fn opcode_answers_startup(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Ready | Opcode::Authenticate)
}
