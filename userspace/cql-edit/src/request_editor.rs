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
use crate::request::{Request, Statement};
use crate::room::Taken;
use crate::state::EditState;
use crate::suspended::{Completion, Kept, Resolution, SuspendSlots, Suspended};
use crate::terms::{ERROR, Terms};
use crate::transform::Unpaired;
use cql::Opcode;
use cql::StatementKind;
use cql::text::parse;
use cql::wire::compress::MAX_SEEN_BYTES;
use cql::wire::{Flags, HEADER_BYTES, Header};

/// A few short strings; with the configuration that some drivers report, some KiB.
const MAX_STARTUP_BYTES: u32 = 1 << 20;

/// The state of a flow's requests that its responses do not need.
#[derive(Debug, Default)]
pub(crate) struct RequestState {
    /// The first request was seen to begin.
    pub(crate) begun: bool,
    /// Nothing more is to be read from the client for so many ns.
    pub(crate) pause_ns: u64,
    /// The wall clock, as far as it was told.
    pub(crate) unix_us: Option<i64>,
    /// The expanded body of the request at hand. The next one is expanded in the same buffer.
    expanded: Vec<u8>,
}

/// Requests.
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
        if header.length as usize <= MAX_SEEN_BYTES {
            return Ok(Plan::See);
        }
        Ok(match self.refuse_unseen(header, opcode, Unseen::TooLarge) {
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
        if header.opcode == Some(Opcode::Startup) {
            self.state.session.terms.starts(header, body);
            if self.state.session.remembers {
                self.state.session.handshake.starts(header, body);
            }
            return FrameAction::Keep;
        }
        if header.opcode == Some(Opcode::AuthResponse) {
            let plain = self
                .state
                .session
                .terms
                .plain(header, body)
                .unwrap_or_default();
            self.state.session.login.goes_out(header.stream, &plain);
            let compression = self.state.session.terms.compression;
            self.state
                .session
                .handshake
                .tells(header, Some(body), compression);
            return FrameAction::Keep;
        }
        let fate = self.show(header, frame, body);
        self.obey_completions();
        match (self.state.outgoing.late.is_empty(), fate) {
            (true, fate) => fate,
            // What has waited is older, and this is not to overtake it.
            (false, FrameAction::Keep) => {
                self.state.outgoing.late.extend_from_slice(frame);
                FrameAction::Drop
            }
            (false, FrameAction::Instead(frame)) => {
                self.state.outgoing.late.extend_from_slice(&frame);
                FrameAction::Drop
            }
            (false, FrameAction::Drop) => FrameAction::Drop,
        }
    }
}

impl RequestEditor<'_> {
    /// Shows a request to the pipeline.
    fn show(&mut self, header: &Header, frame: &[u8], body: &[u8]) -> FrameAction {
        let opcode = header.opcode.unwrap_or(Opcode::Options);
        let mut expanded = std::mem::take(&mut self.request_state.expanded);
        let plain = self
            .state
            .session
            .terms
            .plain_in(header, body, &mut expanded)
            .ok_or(Unseen::Compression);
        let request =
            plain.and_then(|plain| Request::read(*header, plain.into()).ok_or(Unseen::Malformed));
        let fate = match request {
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
        fate
    }

    /// Shows it to the steps from this place on. `awaited`: who wants to see its response so far; `frame`: as it
    /// was sent.
    fn go_through(
        &mut self,
        request: Request<'_>,
        header: &Header,
        frame: &[u8],
        from: usize,
        mut awaited: Vec<Awaits>,
    ) -> FrameAction {
        let opcode = request.opcode();
        let is_unpaired = self.state.pairing.streams.is_unpaired(header.stream);
        if is_unpaired && let Some(step) = self.refuses_unpaired(opcode, from) {
            // It has waited while another came, which that step does not want to see.
            self.log.refused(header.stream, step, "stream");
            let message = format!("stream {} was used again", header.stream.0);
            self.state
                .answer_all(header, &Error::Protocol(message), &awaited);
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
        let steps = pipeline.iter().enumerate().skip(from);
        for (place, step) in steps.filter(|(_, step)| step.wants(opcode)) {
            if is_unpaired && step.unpaired() != Unpaired::Judged {
                continue;
            }
            let outcome = step.request(&mut request, &state.session.caller, self.now_ns);
            if let Some((number, note)) = request.take_awaited() {
                let who = Awaiter::Step(place);
                awaited.push(Awaits { who, number, note });
            }
            match outcome {
                Outcome::Pass => {}
                Outcome::Answer if is_unpaired => {}
                Outcome::Changed => self.log.changed(step.name()),
                Outcome::Slow(ns) => {
                    self.request_state.pause_ns = ns.max(self.request_state.pause_ns);
                    self.log.slowed(step.name(), ns);
                }
                Outcome::WouldRefuse(reason) => self.log.would_refuse(step.name(), reason),
                Outcome::Answer => {
                    self.log.answered(step.name());
                    state.answer_void(header, &awaited);
                    return FrameAction::Drop;
                }
                Outcome::Refuse(Refused { reason, error }) => {
                    for stream in state.streams_of(header.stream, &awaited) {
                        self.log.refused(stream, step.name(), reason);
                    }
                    state.answer_all(header, &error, &awaited);
                    return FrameAction::Drop;
                }
            }
            if request.take_full() {
                self.log.waited(step.name(), Waited::NoRoom);
            }
            if let Some(permit) = request.take_space() {
                let carried = request.take_carried();
                let changed = request.changed();
                // As the database would have got it from here.
                let own = match (&carried, changed, frame.first_chunk()) {
                    (Some(_), Some((header, body)), Some(raw)) => {
                        Some(state.session.terms.encoded(header, raw, body))
                    }
                    _ => None,
                };
                let suspended = Suspended {
                    header: changed.map_or(*header, |(header, _)| *header),
                    kept: Kept::of(frame, changed),
                    place,
                    awaited,
                    to_database: true,
                    is_carried: carried.is_some(),
                    permit,
                };
                state.suspended.put(suspended);
                if let Some((carrier, ticket, number)) = carried {
                    let frame = match &own {
                        Some(FrameAction::Instead(own)) => own,
                        _ => frame,
                    };
                    carrier.carry(ticket, frame, number);
                }
                return FrameAction::Drop;
            }
            if request.has_said() {
                // What waited is older to the steps behind, too.
                let changed = request.changed();
                let now = changed.map_or(*header, |(header, _)| *header);
                let kept = Kept::of(frame, changed);
                self.obey_completions();
                return self.goes_further(&now, &kept, place, awaited);
            }
        }
        if is_unpaired {
            let may_use = asks_to_use(&request);
            let fate = match (request.changed(), frame.first_chunk()) {
                (Some((header, body)), Some(raw)) => state.session.terms.encoded(header, raw, body),
                _ => FrameAction::Keep,
            };
            if may_use {
                state.forget_keyspace();
            }
            state.unpair(header.stream, awaited);
            return fate;
        }
        if asks_to_use(&request) {
            let has_pipeline = !pipeline.is_empty();
            state
                .session
                .uses
                .goes_out(&mut state.session.caller, has_pipeline);
            // Behind all others: it is the keyspace that the client is told.
            awaited.insert(0, Awaits::own(Awaiter::Keyspace));
        }
        if request.may_use() {
            awaited.insert(0, Awaits::own(Awaiter::MayUse));
        }
        let fate = match (request.changed(), frame.first_chunk()) {
            (Some((header, body)), Some(raw)) => state.session.terms.encoded(header, raw, body),
            _ => FrameAction::Keep,
        };
        if !leads(&awaited) {
            // Those that ride with an earlier request of the stream would never be told.
            state.pass_unseen(header.stream);
        }
        match awaited.is_empty() {
            true => drop(state.pairing.awaited.remove(&header.stream)),
            false => drop(state.pairing.awaited.insert(header.stream, awaited)),
        }
        fate
    }

    /// Does what steps have said of what waits, while they were shown another.
    pub(crate) fn obey_completions(&mut self) {
        loop {
            let said = std::mem::take(&mut self.state.suspended.said);
            if said.is_empty() {
                return;
            }
            for Completion { number, resolution } in said {
                let Some(suspended) = self.state.suspended.take(number) else {
                    continue;
                };
                let what = match resolution {
                    Resolution::Leads(_) => Waited::Merged,
                    _ => Waited::Passed,
                };
                if let Some(step) = self.state.pipeline.get(suspended.place) {
                    self.log.waited(step.name(), what);
                }
                self.resumes(suspended, resolution);
            }
        }
    }

    /// Has a suspended request go on, to the steps behind the one that suspended it, or answers its
    /// client.
    pub(crate) fn resumes(&mut self, suspended: Suspended, resolution: Resolution) {
        if let Resolution::Leads(others) = resolution {
            return self.go_together(suspended, &others);
        }
        let Suspended {
            header,
            kept,
            place,
            awaited,
            ..
        } = suspended;
        match resolution {
            // The first two are no words on one alone; the next two the editor takes itself.
            Resolution::Leads(_)
            | Resolution::Due
            | Resolution::Relayed(_)
            | Resolution::Lost
            | Resolution::Pass => {
                self.goes_on(&header, kept, place, awaited);
            }
            Resolution::Instead(body) => {
                let raw = kept.bytes().get(..HEADER_BYTES).unwrap_or_default();
                let kept = Kept::Changed([raw, &body].concat());
                self.goes_on(&header, kept, place, awaited);
            }
            Resolution::Answer(body) => self.state.answer_for(&header, body, awaited, self.log),
            Resolution::Refuse(Refused { reason, error }) => {
                if let Some(step) = self.state.pipeline.get(place) {
                    for stream in self.state.streams_of(header.stream, &awaited) {
                        self.log.refused(stream, step.name(), reason);
                    }
                }
                self.state.answer_all(&header, &error, &awaited);
            }
        }
    }

    pub(crate) fn goes_on(
        &mut self,
        header: &Header,
        kept: Kept,
        place: usize,
        awaited: Vec<Awaits>,
    ) {
        match self.goes_further(header, &kept, place, awaited) {
            FrameAction::Drop => {}
            FrameAction::Keep => self.state.outgoing.late.extend_from_slice(kept.bytes()),
            FrameAction::Instead(frame) => self.state.outgoing.late.extend_from_slice(&frame),
        }
    }

    /// Shows it to the steps behind this place.
    fn goes_further(
        &mut self,
        header: &Header,
        kept: &Kept,
        place: usize,
        awaited: Vec<Awaits>,
    ) -> FrameAction {
        let frame = kept.bytes();
        let body = frame.get(HEADER_BYTES..).unwrap_or_default();
        let plain = match kept {
            Kept::Sent(_) => self.state.session.terms.plain(header, body),
            Kept::Changed(_) => Some(body.into()),
        };
        // It was read before; another body may be none.
        let request = plain.and_then(|plain| Request::read(*header, plain));
        let Some(mut request) = request else {
            let error = Error::Invalid("the proxy's policy cannot read the request".to_owned());
            self.log.unseen(header.stream, Unseen::Malformed, true);
            self.state.answer_all(header, &error, &awaited);
            return FrameAction::Drop;
        };
        if matches!(kept, Kept::Changed(_)) {
            request.mark_changed();
        }
        self.go_through(request, header, frame, place + 1, awaited)
    }

    /// Whether a request that nobody can look at is refused.
    fn refuse_unseen(&mut self, header: &Header, opcode: Opcode, why: Unseen) -> bool {
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
                Unseen::Compression | Unseen::Malformed | Unseen::Stream => {
                    Error::Invalid("the proxy's policy cannot read the request".to_owned())
                }
            };
            self.state.answer(header, &error);
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

/// See [`asks_to_use`].
pub(crate) fn may_use(text: &[u8]) -> bool {
    let parsed = parse(text, text.len());
    match parsed.statement.kind {
        StatementKind::Use => true,
        StatementKind::Unknown => parsed.cut,
        _ => false,
    }
}
