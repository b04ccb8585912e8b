//! What both directions of a flow know of each other.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::cutter::Fate;
use crate::editor::{MAX_ANSWERS_BYTES, Pipeline};
use crate::login::Login;
use crate::lookups::Lookups;
use crate::merging::{Riders, leads};
use crate::opening::Handshake;
use crate::parking::Parking;
use crate::request::Note;
use crate::response::Response;
use crate::room::Room;
use crate::transform::{Caller, Error};
use cql::wire::Cursor;
use cql::wire::compress;
use cql::wire::compress::MAX_SEEN_BYTES;
use cql::wire::{Flags, HEADER_BYTES, Header, RESPONSE_BIT};
use cql::{Compression, Fact};
use cql::{Opcode, StreamId};

/// Opcodes.
pub(crate) const ERROR: u8 = 0x00;
pub(crate) const RESULT: u8 = 0x08;

/// See the module.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) pipeline: Pipeline,
    pub(crate) caller: Caller,
    pub(crate) terms: Terms,
    /// Who wants to see which responses: a step's place in the pipeline, its number, and what it has kept.
    pub(crate) awaited: Awaited,
    /// By the stream on which their batch is out.
    pub(crate) riders: Riders,
    pub(crate) uses: Uses,
    pub(crate) login: Login,
    pub(crate) lookups: Lookups,
    /// Frames for the client that have not gone on.
    pub(crate) answers: Vec<u8>,
    /// Frames for the database that have waited, and have not gone on.
    pub(crate) late: Vec<u8>,
    pub(crate) parking: Parking,
    /// What those who gave some of the answers want to know to have gone on, by its being dropped.
    pub(crate) held: Vec<Note>,
    /// Of those that go on now: whoever carries them comes back when they have.
    pub(crate) going: Vec<Note>,
    pub(crate) handshake: Handshake,
    /// Somebody may want to know the handshake.
    pub(crate) remembers: bool,
    /// What a step keeps of this flow.
    pub(crate) kept: Option<Note>,
    /// What was carried is lost, and the flow has to end for that.
    pub(crate) lost: bool,
    /// The client has not waited for the answer to its STARTUP.
    pub(crate) early: bool,
    pub(crate) room: Arc<Room>,
    /// What the body of the request at hand was before compression: the next one's is made in the same buffer.
    pub(crate) expanded: Vec<u8>,
    /// The wall clock, as far as it was told.
    pub(crate) unix_us: Option<i64>,
}

impl Talk {
    pub(crate) fn new(pipeline: Pipeline, caller: Caller) -> Self {
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
    pub(crate) fn is_strict(&self) -> bool {
        self.pipeline.iter().any(|step| step.is_strict())
    }

    /// Nobody can be shown the response on this stream. True: somebody has to see it, and its client is told
    /// instead.
    pub(crate) fn cannot_show(&mut self, header: &Header) -> bool {
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
    pub(crate) fn answer(&mut self, header: &Header, error: &Error) {
        self.put_answer(header, Flags(0), ERROR, &error.body());
    }

    /// An ERROR in place of a response; to those that ride with it, too. `awaited`: who would have seen the response.
    pub(crate) fn answer_all(&mut self, header: &Header, error: &Error, awaited: &[Awaits]) {
        self.respond(header, ERROR, &error.body(), awaited);
    }

    /// A RESULT without rows in place of a response, likewise.
    pub(crate) fn answer_void(&mut self, header: &Header, awaited: &[Awaits]) {
        const VOID: u32 = 1;
        self.respond(header, RESULT, &VOID.to_be_bytes(), awaited);
    }

    /// What steps have made of a RESULT in place of a response.
    pub(crate) fn respond_with(&mut self, header: &Header, response: &Response<'_>) {
        match response.opcode() {
            Some(Opcode::Error) => self.put_answer(header, Flags(0), ERROR, response.body()),
            _ => self.put_answer(header, Flags(0), RESULT, response.body()),
        }
    }

    /// Whether the client has a request out on this stream of which a step knows.
    pub(crate) fn is_out(&self, stream: StreamId) -> bool {
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
    pub(crate) fn put_answer(&mut self, header: &Header, flags: Flags, opcode: u8, body: &[u8]) {
        self.answers
            .extend([header.version | RESPONSE_BIT, flags.0]);
        self.answers.extend(header.stream.0.to_be_bytes());
        self.answers.push(opcode);
        self.answers.extend((body.len() as u32).to_be_bytes());
        self.answers.extend_from_slice(body);
    }

    /// What the client is told goes on.
    pub(crate) fn take_answers(&mut self) -> Vec<u8> {
        self.going.append(&mut self.held);
        std::mem::take(&mut self.answers)
    }

    /// It has been told so much that it is better not asked for more before it was read.
    pub(crate) fn is_full(&self) -> bool {
        self.answers.len() > MAX_ANSWERS_BYTES
    }
}

/// What both sides have agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Of the client's latest frame; of the accepted STARTUP, once one is.
    pub(crate) version: u8,
    pub(crate) compression: Compression,
    /// The stream of a STARTUP whose answer is out.
    pub(crate) startup: Option<StreamId>,
    pub(crate) accepted: bool,
    /// Both directions travel in segments, from their next frame on.
    pub(crate) segmented: bool,
}

impl Terms {
    /// The next STARTUP counts. A second one does not, whatever it asks for.
    pub(crate) fn may_start(&self) -> bool {
        !self.accepted && self.startup.is_none()
    }

    /// A STARTUP is on its way.
    pub(crate) fn starts(&mut self, header: &Header, body: &[u8]) {
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
    pub(crate) fn plain<'b>(&self, header: &Header, body: &'b [u8]) -> Option<Cow<'b, [u8]>> {
        match header.is_compressed() {
            true => compress::expand(self.compression, body),
            false => Some(Cow::Borrowed(body)),
        }
    }

    /// The same, made in a buffer that may have been used before.
    pub(crate) fn plain_in<'b>(
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
    pub(crate) fn encoded(&self, header: &Header, raw: &[u8; HEADER_BYTES], body: &[u8]) -> Fate {
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
pub(crate) const KEYSPACE: usize = usize::MAX;

/// Likewise, of a response that may set the keyspace, though no USE was seen.
pub(crate) const MAY_USE: usize = usize::MAX - 2;

/// Which keyspace a flow is in. While the answer to a USE is out, and after several were out at once,
/// nobody can tell.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    out: usize,
    ambiguous: bool,
    /// It was, once.
    was_ambiguous: bool,
    before: Option<String>,
    /// The last one has gone out under this pipeline.
    is_of_pipeline: bool,
}

impl Uses {
    pub(crate) fn goes_out(&mut self, caller: &mut Caller, has_pipeline: bool) {
        self.ambiguous |= self.out > 0;
        self.out += 1;
        caller.keyspace_unclear = true;
        self.is_of_pipeline = has_pipeline;
        if let Some(keyspace) = caller.keyspace.take() {
            self.before = Some(keyspace);
        }
    }

    /// What has gone out may have been one.
    pub(crate) fn is_lost(&mut self) {
        self.was_ambiguous = true;
    }

    /// The answer to one is not there yet.
    pub(crate) fn is_out(&self) -> bool {
        self.out > 0
    }

    /// `now`: none if it failed.
    pub(crate) fn comes_back(&mut self, now: Option<&str>, caller: &mut Caller) {
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
pub(crate) type Awaited = HashMap<StreamId, Vec<Awaits>>;

/// Who wants to see a response: a step's place in the pipeline, its number, and what it has kept.
pub(crate) type Awaits = (usize, u64, Option<Note>);
