//! What becomes of requests.

use crate::cutter::{Fate, Frames, KEPT_BUFFER_BYTES, Plan};
use crate::editor::Unreadable;
use crate::lane::{Lane, Reads, in_segments, may_begin};
use crate::login::MAX_TOKEN_BYTES;
use crate::merging::leads;
use crate::output::Output;
use crate::parking::{Kept, Letter, Lot, Parked, Resolution, Waited};
use crate::request::{Request, Statement};
use crate::room::Taken;
use crate::talk::{Awaits, KEYSPACE, MAY_USE, Talk, Terms};
use crate::transform::{Error, Log, Outcome, Refused, Unseen};
use cql::Opcode;
use cql::StatementKind;
use cql::text::parse;
use cql::wire::compress::MAX_SEEN_BYTES;
use cql::wire::{HEADER_BYTES, Header};

/// A few short strings; with the configuration that some drivers report, some KiB.
const MAX_STARTUP_BYTES: u32 = 1 << 20;

/// Requests.
pub(crate) struct Asking<'e> {
    pub(crate) talk: &'e mut Talk,
    /// The direction's first frame was seen to begin.
    pub(crate) begun: &'e mut bool,
    pub(crate) pause_ns: &'e mut u64,
    pub(crate) now_ns: u64,
    pub(crate) log: &'e mut dyn Log,
}

impl Reads for Asking<'_> {
    fn terms(&self) -> &Terms {
        &self.talk.terms
    }

    fn between(&mut self, lane: &Lane, out: &mut Output<'_>) {
        if !self.talk.late.is_empty() && lane.cutter.is_between() {
            let frames = std::mem::take(&mut self.talk.late);
            out.put(&in_segments(lane, &frames));
        }
    }
}

impl Frames<Unreadable> for Asking<'_> {
    fn begins(&mut self, first: u8) -> Result<(), Unreadable> {
        match may_begin(first, 0, *self.begun, &self.talk.terms) {
            // Its client is answered on its stream.
            Err(Unreadable::Version) if self.talk.is_strict() => Ok(()),
            known => known,
        }
    }

    fn plan(&mut self, first: u8, header: &Header) -> Result<Plan, Unreadable> {
        if let Err(why) = may_begin(first, 0, *self.begun, &self.talk.terms) {
            if why == Unreadable::Version && self.talk.is_strict() {
                self.answer_version(header);
            }
            return Err(why);
        }
        *self.begun = true;
        if !self.talk.terms.accepted {
            self.talk.terms.version = header.version;
        }
        if self.talk.is_for_lookups(header.stream) {
            let message = format!("stream {}: expected one from 0 up", header.stream.0);
            self.log.refused(header.stream, "lookup", "stream");
            self.talk.answer(header, &Error::Protocol(message));
            return Ok(Plan::Drop);
        }
        let Some(opcode) = header.opcode else {
            return Ok(Plan::Pass);
        };
        if self.talk.terms.startup.is_some() {
            self.talk.early = true;
            if self.talk.is_strict() {
                return Err(Unreadable::Early);
            }
        }
        if opcode == Opcode::Startup && self.talk.terms.may_start() {
            return match header.length <= MAX_STARTUP_BYTES {
                true => Ok(Plan::See),
                false => Err(Unreadable::NotCql),
            };
        }
        if opcode == Opcode::AuthResponse {
            if header.length > MAX_TOKEN_BYTES {
                let compression = self.talk.terms.compression;
                self.talk.handshake.tells(header, None, compression);
            }
            return Ok(match header.length <= MAX_TOKEN_BYTES {
                true => Plan::See,
                false => Plan::Pass,
            });
        }
        // Without a pipeline, which may come: in which keyspace the flow is.
        let is_looked_at = self.talk.pipeline.is_empty() && opcode == Opcode::Query;
        if !is_looked_at && !self.talk.pipeline.iter().any(|step| step.wants(opcode)) {
            return Ok(Plan::Pass);
        }
        if header.length as usize <= MAX_SEEN_BYTES {
            return Ok(Plan::See);
        }
        Ok(match self.is_unseen(header, opcode, Unseen::TooLarge) {
            true => Plan::Drop,
            false => Plan::Pass,
        })
    }

    fn room(&mut self, bytes: usize) -> Option<Taken> {
        self.talk.room.take(bytes)
    }

    fn crowded(&mut self, header: &Header) -> Plan {
        let opcode = header.opcode.unwrap_or(Opcode::Options);
        match self.is_unseen(header, opcode, Unseen::NoRoom) {
            true => Plan::Drop,
            false => Plan::Pass,
        }
    }

    fn lost(&mut self, first: u8) -> Unreadable {
        let why = may_begin(first, 0, *self.begun, &self.talk.terms).err();
        why.unwrap_or(match *self.begun {
            true => Unreadable::Framing,
            false => Unreadable::NotCql,
        })
    }

    fn see(&mut self, header: &Header, frame: &[u8]) -> Fate {
        let Some((_, body)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return Fate::Keep;
        };
        if header.opcode == Some(Opcode::Startup) {
            self.talk.terms.starts(header, body);
            if self.talk.remembers {
                self.talk.handshake.starts(header, body);
            }
            return Fate::Keep;
        }
        if header.opcode == Some(Opcode::AuthResponse) {
            let plain = self.talk.terms.plain(header, body).unwrap_or_default();
            self.talk.login.goes_out(header.stream, &plain);
            let compression = self.talk.terms.compression;
            self.talk.handshake.tells(header, Some(body), compression);
            return Fate::Keep;
        }
        let fate = self.show(header, frame, body);
        self.does_said();
        match (self.talk.late.is_empty(), fate) {
            (true, fate) => fate,
            // What has waited is older, and this is not to overtake it.
            (false, Fate::Keep) => {
                self.talk.late.extend_from_slice(frame);
                Fate::Drop
            }
            (false, Fate::Instead(frame)) => {
                self.talk.late.extend_from_slice(&frame);
                Fate::Drop
            }
            (false, Fate::Drop) => Fate::Drop,
        }
    }
}

impl Asking<'_> {
    /// Shows a request to the pipeline.
    fn show(&mut self, header: &Header, frame: &[u8], body: &[u8]) -> Fate {
        let opcode = header.opcode.unwrap_or(Opcode::Options);
        let mut expanded = std::mem::take(&mut self.talk.expanded);
        let plain = self
            .talk
            .terms
            .plain_in(header, body, &mut expanded)
            .ok_or(Unseen::Compression);
        let request =
            plain.and_then(|plain| Request::read(*header, plain.into()).ok_or(Unseen::Malformed));
        let fate = match request {
            Ok(request) => {
                self.talk.look_up(&request, self.now_ns, self.log);
                self.go_through(request, header, frame, 0, Vec::new())
            }
            Err(why) => match self.is_unseen(header, opcode, why) {
                true => Fate::Drop,
                false => Fate::Keep,
            },
        };
        expanded.clear();
        expanded.shrink_to(KEPT_BUFFER_BYTES);
        self.talk.expanded = expanded;
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
    ) -> Fate {
        let opcode = request.opcode();
        let talk = &mut *self.talk;
        let pipeline = talk.pipeline.clone();
        if from == 0
            && let Some(step) = pipeline.iter().find(|step| step.must_see())
            && talk.is_out(header.stream)
        {
            // Whose the next response is could not be told: what is learned of one would be of the other.
            self.log.refused(header.stream, step.name(), "stream");
            let message = format!("stream {} waits for a response", header.stream.0);
            talk.answer(header, &Error::Protocol(message));
            return Fate::Drop;
        }
        // What a database reads before it has answered a STARTUP, nobody else can know.
        let mut request = match talk.terms.accepted {
            true => request
                .beside(Lot::new(&mut talk.parking, &talk.room))
                .of_flow(talk.handshake.opening(), &mut talk.kept),
            false => request,
        };
        request.is_at(talk.unix_us);
        let steps = pipeline.iter().enumerate().skip(from);
        for (place, step) in steps.filter(|(_, step)| step.wants(opcode)) {
            let outcome = step.request(&mut request, &talk.caller, self.now_ns);
            if let Some((number, note)) = request.take_awaited() {
                awaited.push((place, number, note));
            }
            match outcome {
                Outcome::Pass => {}
                Outcome::Changed => self.log.changed(step.name()),
                Outcome::Slow(ns) => {
                    *self.pause_ns = ns.max(*self.pause_ns);
                    self.log.slowed(step.name(), ns);
                }
                Outcome::WouldRefuse(reason) => self.log.would_refuse(step.name(), reason),
                Outcome::Answer => {
                    self.log.answered(step.name());
                    talk.answer_void(header, &awaited);
                    return Fate::Drop;
                }
                Outcome::Refuse(Refused { reason, error }) => {
                    for stream in talk.streams_of(header.stream, &awaited) {
                        self.log.refused(stream, step.name(), reason);
                    }
                    talk.answer_all(header, &error, &awaited);
                    return Fate::Drop;
                }
            }
            if request.found_no_room() {
                self.log.waited(step.name(), Waited::NoRoom);
            }
            if let Some(space) = request.take_space() {
                let carried = request.take_carried();
                let changed = request.changed();
                // As the database would have got it from here.
                let own = match (&carried, changed, frame.first_chunk()) {
                    (Some(_), Some((header, body)), Some(raw)) => {
                        Some(talk.terms.encoded(header, raw, body))
                    }
                    _ => None,
                };
                let parked = Parked {
                    header: changed.map_or(*header, |(header, _)| *header),
                    kept: Kept::of(frame, changed),
                    place,
                    awaited,
                    to_database: true,
                    is_carried: carried.is_some(),
                    space,
                };
                talk.parking.put(parked);
                if let Some((carrier, ticket, number)) = carried {
                    let frame = match &own {
                        Some(Fate::Instead(own)) => own,
                        _ => frame,
                    };
                    carrier.carry(ticket, frame, number);
                }
                return Fate::Drop;
            }
            if request.has_said() {
                // What waited is older to the steps behind, too.
                let changed = request.changed();
                let now = changed.map_or(*header, |(header, _)| *header);
                let kept = Kept::of(frame, changed);
                self.does_said();
                return self.goes_further(&now, &kept, place, awaited);
            }
        }
        if asks_to_use(&request) {
            let has_pipeline = !pipeline.is_empty();
            talk.uses.goes_out(&mut talk.caller, has_pipeline);
            // Behind all others: it is the keyspace that the client is told.
            awaited.insert(0, (KEYSPACE, 0, None));
        }
        if request.may_use() {
            awaited.insert(0, (MAY_USE, 0, None));
        }
        let fate = match (request.changed(), frame.first_chunk()) {
            (Some((header, body)), Some(raw)) => talk.terms.encoded(header, raw, body),
            _ => Fate::Keep,
        };
        if !leads(&awaited) {
            // Those that ride with an earlier request of the stream would never be told.
            talk.is_not_seen(header.stream);
        }
        match awaited.is_empty() {
            true => drop(talk.awaited.remove(&header.stream)),
            false => drop(talk.awaited.insert(header.stream, awaited)),
        }
        fate
    }

    /// Does what steps have said of what waits, while they were shown another.
    pub(crate) fn does_said(&mut self) {
        loop {
            let said = std::mem::take(&mut self.talk.parking.said);
            if said.is_empty() {
                return;
            }
            for Letter { number, resolution } in said {
                let Some(parked) = self.talk.parking.take(number) else {
                    continue;
                };
                let what = match resolution {
                    Resolution::Leads(_) => Waited::Merged,
                    _ => Waited::Passed,
                };
                if let Some(step) = self.talk.pipeline.get(parked.place) {
                    self.log.waited(step.name(), what);
                }
                self.resumes(parked, resolution);
            }
        }
    }

    /// One that has waited goes on, to the steps behind the one that parked it, or its client is answered.
    pub(crate) fn resumes(&mut self, parked: Parked, resolution: Resolution) {
        if let Resolution::Leads(others) = resolution {
            return self.go_together(parked, &others);
        }
        let Parked {
            header,
            kept,
            place,
            awaited,
            ..
        } = parked;
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
            Resolution::Answer(body) => self.talk.answer_for(&header, body, awaited, self.log),
            Resolution::Refuse(Refused { reason, error }) => {
                if let Some(step) = self.talk.pipeline.get(place) {
                    for stream in self.talk.streams_of(header.stream, &awaited) {
                        self.log.refused(stream, step.name(), reason);
                    }
                }
                self.talk.answer_all(&header, &error, &awaited);
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
            Fate::Drop => {}
            Fate::Keep => self.talk.late.extend_from_slice(kept.bytes()),
            Fate::Instead(frame) => self.talk.late.extend_from_slice(&frame),
        }
    }

    /// Shows it to the steps behind this place.
    fn goes_further(
        &mut self,
        header: &Header,
        kept: &Kept,
        place: usize,
        awaited: Vec<Awaits>,
    ) -> Fate {
        let frame = kept.bytes();
        let body = frame.get(HEADER_BYTES..).unwrap_or_default();
        let plain = match kept {
            Kept::Sent(_) => self.talk.terms.plain(header, body),
            Kept::Changed(_) => Some(body.into()),
        };
        // It was read before; another body may be none.
        let request = plain.and_then(|plain| Request::read(*header, plain));
        let Some(mut request) = request else {
            let error = Error::Invalid("the proxy's policy cannot read the request".to_owned());
            self.log.unseen(header.stream, Unseen::Malformed, true);
            self.talk.answer_all(header, &error, &awaited);
            return Fate::Drop;
        };
        if matches!(kept, Kept::Changed(_)) {
            request.is_changed();
        }
        self.go_through(request, header, frame, place + 1, awaited)
    }

    /// Whether a request that nobody can look at is refused.
    fn is_unseen(&mut self, header: &Header, opcode: Opcode, why: Unseen) -> bool {
        let mut wanting = self.talk.pipeline.iter().filter(|step| step.wants(opcode));
        let refused = wanting.any(|step| step.is_strict());
        if matches!(opcode, Opcode::Query | Opcode::Execute) && !refused {
            // It may be a USE.
            self.talk.caller.keyspace_unclear = true;
            self.talk.uses.is_lost();
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
                Unseen::Compression | Unseen::Malformed => {
                    Error::Invalid("the proxy's policy cannot read the request".to_owned())
                }
            };
            self.talk.answer(header, &error);
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
        self.talk.answer(&readable, &Error::Protocol(message));
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
