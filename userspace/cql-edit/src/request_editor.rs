//! [`RequestEditor`]: requests on their way through the pipeline.

use crate::awaited::leads;
use crate::awaited::{Awaiter, Awaits};
use crate::cutter::{FrameAction, Frames, KEPT_BUFFER_BYTES, Plan};
use crate::edited::Unreadable;
use crate::lane::{Lane, Reads, in_segments, may_begin};
use crate::log::Waited;
use crate::log::{Log, Unseen};
use crate::login::MAX_TOKEN_BYTES;
use crate::outcome::{Error, Outcome, Refused};
use crate::output::Output;
use crate::pacing::Pacing;
use crate::request::{Request, Statement};
use crate::room::Taken;
use crate::state::EditState;
use crate::suspended::{Kept, SuspendSlots, Suspended};
use crate::terms::{ERROR, Terms};
use crate::transform::Unpaired;
use cql::StatementKind;
use cql::text::parse;
use cql::wire::compress::MAX_SEEN_BYTES;
use cql::wire::{Flags, HEADER_BYTES, Header};
use cql::{Opcode, StreamId, startup_driver};

/// A few short strings; with the configuration that some drivers report, some KiB.
const MAX_STARTUP_BYTES: u32 = 1 << 20;

/// The state of a flow's requests that its responses do not need.
#[derive(Debug, Default)]
pub(crate) struct RequestState {
    /// The first request was seen to begin.
    pub(crate) begun: bool,
    /// The requests that a step has slowed down.
    pub(crate) pacing: Pacing,
    /// The wall clock, as far as it was told.
    pub(crate) unix_us: Option<i64>,
    /// The expanded body of the request at hand. The next one is expanded in the same buffer.
    expanded: Vec<u8>,
}

impl RequestState {
    /// Takes note of the outcome of a step that lets a request pass.
    #[inline(never)]
    fn note(&mut self, outcome: Outcome, step: &'static str, log: &mut dyn Log) {
        match outcome {
            Outcome::Pass | Outcome::Answer | Outcome::Refuse(_) | Outcome::Slow(_) => {}
            Outcome::Changed => log.changed(step),
            Outcome::WouldRefuse(reason) => log.would_refuse(step, reason),
            Outcome::Warn { reason, is_told } => log.warned(step, reason, is_told),
        }
    }
}

/// Edits a flow's requests.
pub(crate) struct RequestEditor<'e> {
    pub(crate) state: &'e mut EditState,
    pub(crate) request_state: &'e mut RequestState,
    pub(crate) now_ns: u64,
    pub(crate) log: &'e mut dyn Log,
}

impl Reads for RequestEditor<'_> {
    fn terms(&self) -> &Terms {
        &self.state.session.terms
    }

    fn between(&mut self, lane: &Lane, out: &mut Output<'_>) {
        if !self.state.outgoing.late.is_empty() && lane.cutter.is_between() {
            let frames = std::mem::take(&mut self.state.outgoing.late);
            out.put(&in_segments(lane, &frames));
        }
    }

    #[inline]
    fn waits(&mut self, behind: usize) -> Option<Taken> {
        let step = self.request_state.pacing.holds()?;
        let taken = self.state.room.take(behind);
        if taken.is_none() {
            self.log.waited(step, Waited::NoRoom);
            self.lend();
        }
        taken
    }
}

impl Frames<Unreadable> for RequestEditor<'_> {
    fn begins(&mut self, first: u8) -> Result<(), Unreadable> {
        match may_begin(
            first,
            0,
            self.request_state.begun,
            &self.state.session.terms,
        ) {
            // Its client is answered on its stream.
            Err(Unreadable::Version) if self.state.is_strict() => Ok(()),
            known => known,
        }
    }

    fn plan(&mut self, first: u8, header: &Header) -> Result<Plan, Unreadable> {
        if let Err(why) = may_begin(
            first,
            0,
            self.request_state.begun,
            &self.state.session.terms,
        ) {
            if why == Unreadable::Version && self.state.is_strict() {
                self.answer_version(header);
            }
            return Err(why);
        }
        self.request_state.begun = true;
        if !self.state.session.terms.accepted {
            self.state.session.terms.version = header.version;
        }
        if self.state.is_for_lookups(header.stream) {
            let message = format!("stream {}: expected one from 0 up", header.stream.0);
            self.log.refused(header.stream, "lookup", "stream");
            self.refuse_untaken(header, &Error::Protocol(message));
            return Ok(Plan::Drop);
        }
        match self.state.pairing.streams.is_out(header.stream) {
            false => self.state.pairing.streams.goes_out(header.stream),
            true if self.shares_stream(header) => return Ok(Plan::Drop),
            true => {}
        }
        let Some(opcode) = header.opcode else {
            return Ok(Plan::Pass);
        };
        if self.state.session.terms.startup.is_some() {
            self.state.session.early = true;
            if self.state.is_strict() {
                return Err(Unreadable::Early);
            }
        }
        if opcode == Opcode::Startup && self.state.session.terms.may_start() {
            return match header.length <= MAX_STARTUP_BYTES {
                true => Ok(Plan::See),
                false => Err(Unreadable::NotCql),
            };
        }
        if opcode == Opcode::AuthResponse {
            if header.length > MAX_TOKEN_BYTES {
                let compression = self.state.session.terms.compression;
                self.state
                    .session
                    .handshake
                    .tells(header, None, compression);
            }
            return Ok(match header.length <= MAX_TOKEN_BYTES {
                true => Plan::See,
                false => Plan::Pass,
            });
        }
        // Without a pipeline, which may come: in which keyspace the flow is.
        let is_looked_at = self.state.pipeline.is_empty() && opcode == Opcode::Query;
        if !is_looked_at && !self.state.pipeline.iter().any(|step| step.wants(opcode)) {
            return Ok(Plan::Pass);
        }
        let unseen = match header.length as usize <= MAX_SEEN_BYTES {
            _ if self.state.session.terms.extensions.unknown => Unseen::Extension,
            true => return Ok(Plan::See),
            false => Unseen::TooLarge,
        };
        Ok(match self.refuse_unseen(header, opcode, unseen) {
            true => Plan::Drop,
            false => Plan::Pass,
        })
    }

    fn room(&mut self, bytes: usize) -> Option<Taken> {
        self.state.room.take(bytes)
    }

    fn crowded(&mut self, header: &Header) -> Plan {
        let opcode = header.opcode.unwrap_or(Opcode::Options);
        match self.refuse_unseen(header, opcode, Unseen::NoRoom) {
            true => Plan::Drop,
            false => Plan::Pass,
        }
    }

    fn lost(&mut self, first: u8) -> Unreadable {
        let why = may_begin(
            first,
            0,
            self.request_state.begun,
            &self.state.session.terms,
        )
        .err();
        why.unwrap_or(match self.request_state.begun {
            true => Unreadable::Framing,
            false => Unreadable::NotCql,
        })
    }

    fn see(&mut self, header: &Header, frame: &[u8]) -> FrameAction {
        let Some((_, body)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return FrameAction::Keep;
        };
        let opcode = match header.opcode {
            Some(opcode @ (Opcode::Startup | Opcode::AuthResponse)) => {
                self.note_handshake(opcode, header, body);
                return FrameAction::Keep;
            }
            opcode => opcode.unwrap_or(Opcode::Options),
        };
        let header = &self.state.session.terms.extended(header);
        let mut expanded = std::mem::take(&mut self.request_state.expanded);
        let terms = &self.state.session.terms;
        let plain = terms.plain_in(header, body, &mut expanded);
        let request = plain
            .ok_or(Unseen::Compression)
            .and_then(|plain| Request::read(*header, plain.into()).ok_or(Unseen::Malformed));
        let action = match request {
            Ok(request) => {
                self.state.look_up(&request, self.now_ns, self.log);
                self.go_through(request, header, frame, 0, Vec::new())
            }
            Err(why) => match self.refuse_unseen(header, opcode, why) {
                true => FrameAction::Drop,
                false => FrameAction::Keep,
            },
        };
        expanded.clear();
        expanded.shrink_to(KEPT_BUFFER_BYTES);
        self.request_state.expanded = expanded;
        self.apply_completions();
        let late = &mut self.state.outgoing.late;
        if late.is_empty() {
            return action;
        }
        // What has waited is older, and this is not to overtake it.
        action.put(frame, late);
        FrameAction::Drop
    }
}

impl RequestEditor<'_> {
    /// Notes what a frame says that belongs to the flow's handshake.
    fn note_handshake(&mut self, opcode: Opcode, header: &Header, body: &[u8]) {
        let session = &mut self.state.session;
        if opcode == Opcode::Startup {
            let offered = session.offered.as_ref();
            session.terms.starts(header, body, offered);
            let is_bare = !header.flags.any(Flags::CUSTOM_PAYLOAD);
            let driver = is_bare.then(|| startup_driver(body)).flatten();
            session.caller.driver = driver.map(String::from);
            if session.remembers {
                session.handshake.starts(header, body);
            }
            return;
        }
        let plain = session.terms.plain(header, body);
        let is_read = !session.terms.extensions.unknown;
        let plain = plain.as_deref().filter(|_| is_read);
        let caller = &mut session.caller;
        let said = plain.unwrap_or_default();
        session.login.goes_out(header.stream, said, caller);
        let compression = session.terms.compression;
        session.handshake.tells(header, plain, compression);
    }

    /// Shows it to the steps from this one on. `awaited`: who wants to see its response so far; `frame`: as it
    /// was sent.
    pub(crate) fn go_through(
        &mut self,
        request: Request<'_>,
        header: &Header,
        frame: &[u8],
        from: usize,
        mut awaited: Vec<Awaits>,
    ) -> FrameAction {
        let opcode = request.opcode();
        let is_unpaired = self.state.pairing.streams.is_unpaired(header.stream);
        if is_unpaired && self.refuse_unpaired(opcode, from, header, &awaited) {
            return FrameAction::Drop;
        }
        let state = &mut *self.state;
        let pipeline = state.pipeline.clone();
        // What a database reads before it has answered a STARTUP, nobody else can know.
        let mut request = match state.session.terms.accepted {
            true => request
                .beside(SuspendSlots::new(&mut state.suspended, &state.room))
                .of_flow(state.session.handshake.opening(), &mut state.kept),
            false => request,
        };
        request.set_time(self.request_state.unix_us);
        if is_unpaired {
            request.mark_unpaired();
        }
        if state.is_copy {
            request.mark_copy();
        }
        let steps = pipeline.iter().enumerate().skip(from);
        for (step_index, step) in steps.filter(|(_, step)| step.wants(opcode)) {
            if is_unpaired && step.unpaired() != Unpaired::Judged {
                continue;
            }
            let outcome = step.request(&mut request, &state.session.caller, self.now_ns);
            if let Some(awaits) = request.take_awaited(step_index) {
                awaited.push(awaits);
            }
            match outcome {
                Outcome::Pass => {}
                Outcome::Answer if is_unpaired => {}
                ends @ (Outcome::Answer | Outcome::Refuse(_)) => {
                    return self.answer_instead(ends, step.name(), header, &awaited);
                }
                Outcome::Slow(ns) => {
                    self.log.slowed(step.name(), ns);
                    let pacing = &mut self.request_state.pacing;
                    pacing.slow(&mut request, self.now_ns, ns, step.name());
                }
                passes => self.request_state.note(passes, step.name(), self.log),
            }
            if request.take_full() {
                self.log.waited(step.name(), Waited::NoRoom);
            }
            if let Some(permit) = request.take_space() {
                let carried = request.take_carried();
                let (header, kept) = Kept::as_it_stands(header, frame, request.changed());
                let suspended = Suspended::new(true, header, kept, step_index, awaited, permit);
                return self.suspend(suspended, carried, frame);
            }
            if request.has_said() {
                // What waited is older to the steps behind, too.
                let (header, kept) = Kept::as_it_stands(header, frame, request.changed());
                self.apply_completions();
                return self.goes_further(&header, &kept, step_index, awaited);
            }
        }
        let action = match (request.changed(), frame.first_chunk()) {
            (Some((header, body)), Some(raw)) => state.session.terms.encoded(header, raw, body),
            _ => FrameAction::Keep,
        };
        let (asks_to_use, may_use) = (asks_to_use(&request), request.may_use());
        match is_unpaired {
            true => self.send_unpaired(header.stream, asks_to_use, awaited),
            false => self.send(header.stream, asks_to_use, may_use, awaited),
        }
        action
    }

    /// Answers a request, and those that ride with it, in place of the database.
    #[inline(never)]
    fn answer_instead(
        &mut self,
        outcome: Outcome,
        step: &'static str,
        header: &Header,
        awaited: &[Awaits],
    ) -> FrameAction {
        if let Outcome::Refuse(Refused { reason, error }) = outcome {
            for stream in self.state.streams_of(header.stream, awaited) {
                self.log.refused(stream, step, reason);
            }
            self.state.refuse(header, error, awaited);
        } else {
            self.log.answered(step);
            self.state.answer_void(header, awaited);
        }
        FrameAction::Drop
    }

    /// Notes that a request goes on to the database, and who awaits its response.
    fn send(
        &mut self,
        stream: StreamId,
        asks_to_use: bool,
        may_use: bool,
        mut awaited: Vec<Awaits>,
    ) {
        let state = &mut *self.state;
        if asks_to_use {
            let has_pipeline = !state.pipeline.is_empty();
            let session = &mut state.session;
            session.uses.goes_out(&mut session.caller, has_pipeline);
            // Behind all others: it is the keyspace that the client is told.
            awaited.insert(0, Awaits::own(Awaiter::Keyspace));
        }
        if may_use {
            awaited.insert(0, Awaits::own(Awaiter::MayUse));
        }
        if !leads(&awaited) {
            // Those that ride with an earlier request of the stream would never be told.
            state.pass_unseen(stream);
        }
        match awaited.is_empty() {
            true => drop(state.pairing.awaited.remove(&stream)),
            false => drop(state.pairing.awaited.insert(stream, awaited)),
        }
    }

    /// Whether a request that nobody can look at is refused.
    pub(crate) fn refuse_unseen(&mut self, header: &Header, opcode: Opcode, why: Unseen) -> bool {
        let mut wanting = self.state.pipeline.iter().filter(|step| step.wants(opcode));
        let refused = wanting.any(|step| step.is_strict());
        if matches!(opcode, Opcode::Query | Opcode::Execute) && !refused {
            // It may be a USE.
            self.state.session.caller.keyspace_unclear = true;
            self.state.session.uses.lose();
        }
        self.log.unseen(header.stream, why, refused);
        if refused {
            let error = match why {
                Unseen::TooLarge => Error::Invalid(
                    "the request is larger than the proxy's policy can look at".to_owned(),
                ),
                Unseen::NoRoom => {
                    Error::Overloaded("the proxy holds back as much as it may".to_owned())
                }
                Unseen::Extension => Error::Invalid(
                    "the proxy's policy does not know a protocol extension that STARTUP asks for"
                        .to_owned(),
                ),
                Unseen::Compression | Unseen::Malformed | Unseen::Stream | Unseen::NotCopied => {
                    Error::Invalid("the proxy's policy cannot read the request".to_owned())
                }
            };
            self.state.refuse(header, error, &[]);
        }
        refused
    }

    /// In a version that every driver reads; those that may try a lower one do, as they do with a
    /// server that does not know theirs.
    fn answer_version(&mut self, header: &Header) {
        let message = format!(
            "Invalid or unsupported protocol version ({}); the proxy's policy reads 3/v3, 4/v4 and \
             5/v5",
            header.version
        );
        let readable = Header {
            version: 4,
            ..*header
        };
        self.refuse_untaken(&readable, &Error::Protocol(message));
    }

    /// An ERROR to a request that has not taken its stream.
    fn refuse_untaken(&mut self, header: &Header, error: &Error) {
        let outgoing = &mut self.state.outgoing;
        outgoing.put_answer(header, Flags(0), ERROR, &error.body());
    }
}

/// Whether it is a USE, or may be one that stands behind more than is read. Drivers send it as text.
fn asks_to_use(request: &Request<'_>) -> bool {
    request.opcode() == Opcode::Query
        && request.statements().any(|statement| match statement {
            Statement::Text(text) => may_use(text),
            Statement::Prepared(_) => false,
        })
}

/// Whether a text may be a USE; see [`asks_to_use`].
pub(crate) fn may_use(text: &[u8]) -> bool {
    let parsed = parse(text, text.len());
    match parsed.statement.kind {
        StatementKind::Use => true,
        StatementKind::Unknown => parsed.cut,
        _ => false,
    }
}
