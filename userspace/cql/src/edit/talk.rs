//! What both directions of a flow know of each other.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::cutter::Fate;
use super::login::Login;
use super::lookups::Lookups;
use super::merging::{Riders, leads};
use super::opening::Handshake;
use super::parking::Parking;
use super::request::Note;
use super::response::Response;
use super::room::Room;
use super::transform::{Caller, Error};
use super::{MAX_ANSWERS_BYTES, Pipeline};
use crate::compress::{self, MAX_SEEN_BYTES};
use crate::frame::{Flags, HEADER_BYTES, Header, Opcode, RESPONSE_BIT, StreamId};
use crate::session::{Compression, Fact};
use crate::wire::Cursor;

/// Opcodes.
pub(super) const ERROR: u8 = 0x00;
pub(super) const RESULT: u8 = 0x08;

/// See the module.
#[derive(Debug)]
pub(super) struct Talk {
    pub(super) pipeline: Pipeline,
    pub(super) caller: Caller,
    pub(super) terms: Terms,
    /// Who wants to see which responses: a step's place in the pipeline, its number, and what it has kept.
    pub(super) awaited: Awaited,
    /// By the stream on which their batch is out.
    pub(super) riders: Riders,
    pub(super) uses: Uses,
    pub(super) login: Login,
    pub(super) lookups: Lookups,
    /// Frames for the client that have not gone on.
    pub(super) answers: Vec<u8>,
    /// Frames for the database that have waited, and have not gone on.
    pub(super) late: Vec<u8>,
    pub(super) parking: Parking,
    /// What those who gave some of the answers want to know to have gone on, by its being dropped.
    pub(super) held: Vec<Note>,
    /// Of those that go on now: whoever carries them comes back when they have.
    pub(super) going: Vec<Note>,
    pub(super) handshake: Handshake,
    /// Somebody may want to know the handshake.
    pub(super) remembers: bool,
    /// What a step keeps of this flow.
    pub(super) kept: Option<Note>,
    /// What was carried is lost, and the flow has to end for that.
    pub(super) lost: bool,
    /// The client has not waited for the answer to its STARTUP.
    pub(super) early: bool,
    pub(super) room: Arc<Room>,
    /// What the body of the request at hand was before compression: the next one's is made in the same buffer.
    pub(super) expanded: Vec<u8>,
    /// The wall clock, as far as it was told.
    pub(super) unix_us: Option<i64>,
}

impl Talk {
    pub(super) fn new(pipeline: Pipeline, caller: Caller) -> Self {
        Self {
            pipeline,
            caller,
            terms: Terms {
                version: 0,
                compression: Compression::None,
                startup: None,
                accepted: false,
                segmented: false,
            },
            awaited: HashMap::new(),
            riders: Riders::new(),
            uses: Uses::default(),
            login: Login::default(),
            lookups: Lookups::default(),
            answers: Vec::new(),
            late: Vec::new(),
            parking: Parking::default(),
            held: Vec::new(),
            going: Vec::new(),
            handshake: Handshake::default(),
            remembers: false,
            kept: None,
            lost: false,
            early: false,
            room: Room::new(usize::MAX),
            expanded: Vec::new(),
            unix_us: None,
        }
    }

    /// What cannot be read is better refused than let pass.
    pub(super) fn is_strict(&self) -> bool {
        self.pipeline.iter().any(|step| step.is_strict())
    }

    /// Nobody can be shown the response on this stream. True: somebody has to see it, and its client is told
    /// instead.
    pub(super) fn cannot_show(&mut self, header: &Header) -> bool {
        let awaited = self.awaited.remove(&header.stream).unwrap_or_default();
        let mut steps = awaited
            .iter()
            .filter_map(|(place, ..)| self.pipeline.get(*place));
        let withheld = steps.any(|step| step.must_see());
        if withheld {
            let message = "the proxy's policy cannot read the result: ask for smaller pages";
            self.answer_all(header, &Error::Invalid(message.to_owned()), &awaited);
        }
        withheld
    }

    /// An ERROR in place of a response, to this one alone.
    pub(super) fn answer(&mut self, header: &Header, error: &Error) {
        self.put_answer(header, Flags(0), ERROR, &error.body());
    }

    /// An ERROR in place of a response; to those that ride with it, too. `awaited`: who would have seen the response.
    pub(super) fn answer_all(&mut self, header: &Header, error: &Error, awaited: &[Awaits]) {
        self.respond(header, ERROR, &error.body(), awaited);
    }

    /// A RESULT without rows in place of a response, likewise.
    pub(super) fn answer_void(&mut self, header: &Header, awaited: &[Awaits]) {
        const VOID: u32 = 1;
        self.respond(header, RESULT, &VOID.to_be_bytes(), awaited);
    }

    /// What steps have made of a RESULT in place of a response.
    pub(super) fn respond_with(&mut self, header: &Header, response: &Response<'_>) {
        match response.opcode() {
            Some(Opcode::Error) => self.put_answer(header, Flags(0), ERROR, response.body()),
            _ => self.put_answer(header, Flags(0), RESULT, response.body()),
        }
    }

    /// Whether the client has a request out on this stream of which a step knows.
    pub(super) fn is_out(&self, stream: StreamId) -> bool {
        self.awaited.contains_key(&stream) || self.parking.has(stream) || self.rides(stream)
    }

    fn respond(&mut self, header: &Header, opcode: u8, body: &[u8], awaited: &[Awaits]) {
        let riding = leads(awaited).then(|| self.riders.remove(&header.stream));
        match riding.flatten() {
            None => self.put_answer(header, Flags(0), opcode, body),
            Some(riding) => self.tell_all(header, opcode, body, riding),
        }
    }

    /// A frame without compression.
    pub(super) fn put_answer(&mut self, header: &Header, flags: Flags, opcode: u8, body: &[u8]) {
        self.answers
            .extend([header.version | RESPONSE_BIT, flags.0]);
        self.answers.extend(header.stream.0.to_be_bytes());
        self.answers.push(opcode);
        self.answers.extend((body.len() as u32).to_be_bytes());
        self.answers.extend_from_slice(body);
    }

    /// What the client is told goes on.
    pub(super) fn take_answers(&mut self) -> Vec<u8> {
        self.going.append(&mut self.held);
        std::mem::take(&mut self.answers)
    }

    /// It has been told so much that it is better not asked for more before it was read.
    pub(super) fn is_full(&self) -> bool {
        self.answers.len() > MAX_ANSWERS_BYTES
    }
}

/// What both sides have agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Of the client's latest frame; of the accepted STARTUP, once one is.
    pub(super) version: u8,
    pub(super) compression: Compression,
    /// The stream of a STARTUP whose answer is out.
    pub(super) startup: Option<StreamId>,
    pub(super) accepted: bool,
    /// Both directions travel in segments, from their next frame on.
    pub(super) segmented: bool,
}

impl Terms {
    /// The next STARTUP counts. A second one does not, whatever it asks for.
    pub(super) fn may_start(&self) -> bool {
        !self.accepted && self.startup.is_none()
    }

    /// A STARTUP is on its way.
    pub(super) fn starts(&mut self, header: &Header, body: &[u8]) {
        self.startup = Some(header.stream);
        let mut options = Cursor::new(body);
        if header.flags.any(Flags::CUSTOM_PAYLOAD) && options.skip_bytes_map().is_none() {
            options = Cursor::new(&[]);
        }
        // One that nobody knows no database accepts; if it did, nothing compressed could be read.
        self.compression = match Compression::asked_for(options.rest()) {
            Some(Fact::Is(compression)) => compression,
            Some(Fact::Open | Fact::Absent) | None => Compression::None,
        };
    }

    /// A body as it was before compression.
    pub(super) fn plain<'b>(&self, header: &Header, body: &'b [u8]) -> Option<Cow<'b, [u8]>> {
        match header.is_compressed() {
            true => compress::expand(self.compression, body),
            false => Some(Cow::Borrowed(body)),
        }
    }

    /// The same, made in a buffer that may have been used before.
    pub(super) fn plain_in<'b>(
        &self,
        header: &Header,
        body: &'b [u8],
        to: &'b mut Vec<u8>,
    ) -> Option<&'b [u8]> {
        if !header.is_compressed() {
            return Some(body);
        }
        compress::expand_into(self.compression, body, MAX_SEEN_BYTES, to)?;
        Some(to)
    }

    /// A frame with another body, as the flow has it.
    pub(super) fn encoded(&self, header: &Header, raw: &[u8; HEADER_BYTES], body: &[u8]) -> Fate {
        let shrunk = match header.is_compressed() {
            true => compress::shrink(self.compression, body),
            false => None,
        };
        let mut flags = header.flags.0;
        if shrunk.is_none() && header.version < 5 {
            flags &= !Flags::COMPRESSION.0;
        }
        let body = shrunk.as_deref().unwrap_or(body);
        let [version, _, s0, s1, opcode, ..] = *raw;
        let opcode = match header.opcode {
            Some(Opcode::Error) => ERROR,
            _ => opcode,
        };
        let mut frame = Vec::with_capacity(HEADER_BYTES + body.len());
        frame.extend([version, flags, s0, s1, opcode]);
        frame.extend((body.len() as u32).to_be_bytes());
        frame.extend_from_slice(body);
        Fate::Instead(frame)
    }
}

/// In place of a step's: the editor itself wants to see it.
pub(super) const KEYSPACE: usize = usize::MAX;

/// Likewise, of a response that may set the keyspace, though no USE was seen.
pub(super) const MAY_USE: usize = usize::MAX - 2;

/// Which keyspace a flow is in. While the answer to a USE is out, and after several were out at once,
/// nobody can tell.
#[derive(Debug, Default)]
pub(super) struct Uses {
    out: usize,
    ambiguous: bool,
    /// It was, once.
    was_ambiguous: bool,
    before: Option<String>,
    /// The last one has gone out under this pipeline.
    is_of_pipeline: bool,
}

impl Uses {
    pub(super) fn goes_out(&mut self, caller: &mut Caller, has_pipeline: bool) {
        self.ambiguous |= self.out > 0;
        self.out += 1;
        caller.keyspace_unclear = true;
        self.is_of_pipeline = has_pipeline;
        if let Some(keyspace) = caller.keyspace.take() {
            self.before = Some(keyspace);
        }
    }

    /// What has gone out may have been one.
    pub(super) fn is_lost(&mut self) {
        self.was_ambiguous = true;
    }

    /// The answer to one is not there yet.
    pub(super) fn is_out(&self) -> bool {
        self.out > 0
    }

    /// `now`: none if it failed.
    pub(super) fn comes_back(&mut self, now: Option<&str>, caller: &mut Caller) {
        self.out = self.out.saturating_sub(1);
        if self.out > 0 {
            return;
        }
        let before = self.before.take();
        // One that cannot be told may have been set to anything, and stays so.
        self.was_ambiguous |= self.ambiguous;
        caller.keyspace_unclear = self.was_ambiguous;
        caller.keyspace = match std::mem::take(&mut self.ambiguous) {
            true => None,
            false => now.map(str::to_owned).or(before),
        };
        if now.is_some() && caller.keyspace.is_some() && self.is_of_pipeline {
            caller.keyspace_before = false;
        }
    }
}

/// By stream. Bounded: a stream has one request at a time, and there are 65,536 with the negative ones,
/// which no driver uses.
pub(super) type Awaited = HashMap<StreamId, Vec<Awaits>>;

/// Who wants to see a response: a step's place in the pipeline, its number, and what it has kept.
pub(super) type Awaits = (usize, u64, Option<Note>);
