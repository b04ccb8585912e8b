//! [`EditState`]: the state of a flow that both directions share.

use std::sync::Arc;

use crate::awaited::{Awaited, Awaits, leads};
use crate::caller::Caller;
use crate::login::Login;
use crate::lookups::Lookups;
use crate::merging::Riders;
use crate::note::Note;
use crate::opening::Handshake;
use crate::outcome::Error;
use crate::response::Response;
use crate::room::Room;
use crate::streams::Streams;
use crate::suspended::SuspendedFrames;
use crate::terms::{ERROR, RESULT, Terms};
use crate::transform::Pipeline;
use crate::uses::Uses;
use cql::wire::{Flags, Header, RESPONSE_BIT};
use cql::{Compression, Extensions, Offered, Opcode};

/// Some thousand refusals. Whoever does not read them is not read, either.
const MAX_ANSWERS_BYTES: usize = 256 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct EditState {
    pub(crate) pipeline: Pipeline,
    /// The note that a step keeps of this flow.
    pub(crate) kept: Option<Note>,
    pub(crate) session: SessionFacts,
    pub(crate) pairing: Pairing,
    pub(crate) outgoing: Outgoing,
    pub(crate) suspended: SuspendedFrames,
    pub(crate) lookups: Lookups,
    /// The bound on the bytes that are held back.
    pub(crate) room: Arc<Room>,
    /// Set where frames have passed already, and these are copies.
    pub(crate) is_copy: bool,
}

/// The facts of a flow's session, as far as they are known.
#[derive(Debug)]
pub(crate) struct SessionFacts {
    pub(crate) caller: Caller,
    pub(crate) terms: Terms,
    /// The extensions that the server has offered; `None`: that was not seen.
    pub(crate) offered: Option<Offered>,
    pub(crate) uses: Uses,
    pub(crate) login: Login,
    pub(crate) handshake: Handshake,
    /// Somebody may want to know the handshake.
    pub(crate) remembers: bool,
    /// The client has not waited for the answer to its STARTUP.
    pub(crate) early: bool,
}

/// The responses that somebody has to see, paired with their requests by stream.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    /// The responses that somebody wants to see, by stream.
    pub(crate) awaited: Awaited,
    /// The requests of merged batches, by the stream on which the batch is out.
    pub(crate) riders: Riders,
    /// Where responses can be paired with requests at all.
    pub(crate) streams: Streams,
}

/// The frames of the editor's own that have not gone on.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Frames for the client.
    pub(crate) answers: Vec<u8>,
    /// Frames for the database that have waited.
    pub(crate) late: Vec<u8>,
    /// Notes that came with relayed responses among `answers`: each is dropped when its response has
    /// gone on.
    pub(crate) held: Vec<Note>,
    /// Notes of the responses that go on now. They are dropped once those have been written.
    pub(crate) going: Vec<Note>,
}

impl SessionFacts {
    fn new(caller: Caller) -> Self {
        Self {
            caller,
            terms: Terms {
                version: 0,
                compression: Compression::None,
                startup: None,
                accepted: false,
                segmented: false,
                may_be_beta: false,
                extensions: Extensions::default(),
            },
            offered: None,
            uses: Uses::default(),
            login: Login::default(),
            handshake: Handshake::default(),
            remembers: false,
            early: false,
        }
    }

    /// Takes over the caller under a pipeline that begins now, with the facts that the session has
    /// told already.
    pub(crate) fn adopt(&mut self, caller: Caller, wants_opening: bool) {
        if !wants_opening {
            self.remembers = false;
            self.handshake = Handshake::Unknown;
        }
        let Caller {
            keyspace,
            user,
            driver,
            logged_in,
            keyspace_unclear,
            ..
        } = std::mem::take(&mut self.caller);
        self.caller = Caller {
            keyspace_before: keyspace.is_some() || self.uses.is_out(),
            keyspace,
            user,
            driver: driver.or(caller.driver),
            logged_in,
            keyspace_unclear,
            ..caller
        };
    }
}

impl Outgoing {
    /// A frame for the client, without compression.
    pub(crate) fn put_answer(&mut self, header: &Header, flags: Flags, opcode: u8, body: &[u8]) {
        self.answers
            .extend([header.version | RESPONSE_BIT, flags.0]);
        self.answers.extend(header.stream.0.to_be_bytes());
        self.answers.push(opcode);
        self.answers.extend((body.len() as u32).to_be_bytes());
        self.answers.extend_from_slice(body);
    }

    /// Takes the frames for the client, which go on now.
    pub(crate) fn take_answers(&mut self) -> Vec<u8> {
        self.going.append(&mut self.held);
        std::mem::take(&mut self.answers)
    }

    /// Whether so many frames wait for the client that nothing more should be read from it before it
    /// has taken them.
    pub(crate) fn is_full(&self) -> bool {
        self.answers.len() > MAX_ANSWERS_BYTES
    }
}

impl EditState {
    pub(crate) fn new(pipeline: Pipeline, caller: Caller) -> Self {
        Self {
            pipeline,
            kept: None,
            session: SessionFacts::new(caller),
            pairing: Pairing::default(),
            outgoing: Outgoing::default(),
            suspended: SuspendedFrames::default(),
            lookups: Lookups::default(),
            room: Room::new(usize::MAX),
            is_copy: false,
        }
    }

    /// Whether no request is out, and nothing waits to go on.
    pub(crate) fn is_at_rest(&self) -> bool {
        let Self {
            pairing,
            outgoing,
            suspended,
            lookups,
            ..
        } = self;
        let is_paired = pairing.awaited.is_empty() && pairing.riders.is_empty();
        let has_sent = outgoing.answers.is_empty() && outgoing.late.is_empty();
        let is_let_go = outgoing.held.is_empty() && outgoing.going.is_empty();
        is_paired
            && pairing.streams.are_idle()
            && !self.session.uses.is_out()
            && has_sent
            && is_let_go
            && suspended.len() == 0
            && !suspended.lost
            && lookups.is_idle()
    }

    /// Whether a request that cannot be read is better refused than let pass.
    pub(crate) fn is_strict(&self) -> bool {
        self.pipeline.iter().any(|step| step.is_strict())
    }

    /// Nobody can be shown the response on this stream. True: somebody has to see it, and its client is told
    /// instead.
    pub(crate) fn cannot_show(&mut self, header: &Header) -> bool {
        let awaited = self
            .pairing
            .awaited
            .remove(&header.stream)
            .unwrap_or_default();
        let mut steps = awaited
            .iter()
            .filter_map(|awaits| self.pipeline.get(awaits.who.step()?));
        let withheld = steps.any(|step| step.must_see());
        if withheld {
            let message = "the proxy's policy cannot read the result: ask for smaller pages";
            self.refuse(header, Error::Invalid(message.to_owned()), &awaited);
        }
        withheld
    }

    /// An ERROR in place of a response, to this one alone.
    pub(crate) fn answer(&mut self, header: &Header, error: &Error) {
        self.put_answer(header, ERROR, &error.body());
    }

    /// An ERROR by the flow's rule in place of a response, as [`Self::answer_all`] gives it.
    #[cold]
    #[inline(never)]
    pub(crate) fn refuse(&mut self, header: &Header, error: Error, awaited: &[Awaits]) {
        let error = error.by(&self.session.caller.rule);
        self.answer_all(header, &error, awaited);
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

    /// Tells the client what steps have made of a RESULT in place of a response.
    pub(crate) fn respond_with(&mut self, header: &Header, response: &Response<'_>) {
        match response.opcode() {
            Some(Opcode::Error) => self.put_answer(header, ERROR, response.body()),
            _ => self.put_answer(header, RESULT, response.body()),
        }
    }

    /// A frame in place of the response to a request that was taken.
    pub(crate) fn put_answer(&mut self, header: &Header, opcode: u8, body: &[u8]) {
        self.pairing.streams.comes_back(header.stream);
        self.outgoing.put_answer(header, Flags(0), opcode, body);
    }

    fn respond(&mut self, header: &Header, opcode: u8, body: &[u8], awaited: &[Awaits]) {
        let riding = leads(awaited).then(|| self.pairing.riders.remove(&header.stream));
        match riding.flatten() {
            None => self.put_answer(header, opcode, body),
            Some(riding) => self.tell_all(header, opcode, body, riding),
        }
    }
}
