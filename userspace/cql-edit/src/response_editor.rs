//! [`ResponseEditor`]: responses on their way through the pipeline.

use crate::awaited::{Awaiter, Awaits};
use crate::cutter::{FrameAction, Frames, Plan};
use crate::edited::Unreadable;
use crate::lane::{Lane, Reads, in_segments, may_begin};
use crate::log::Waited;
use crate::log::{Log, Unseen};
use crate::outcome::Refused;
use crate::output::Output;
use crate::response::Response;
use crate::room::Taken;
use crate::state::EditState;
use crate::suspended::{Kept, Relayed, Resolution, SuspendSlots, Suspended};
use crate::terms::{RESULT, Terms};
use cql::wire::compress::MAX_SEEN_BYTES;
use cql::wire::{Flags, HEADER_BYTES, Header, RESPONSE_BIT};
use cql::{MAX_SUPPORTED_BYTES, Opcode, offered};

/// Edits a flow's responses.
pub(crate) struct ResponseEditor<'e> {
    pub(crate) state: &'e mut EditState,
    /// The direction's first frame was seen to begin.
    pub(crate) begun: &'e mut bool,
    pub(crate) log: &'e mut dyn Log,
}

impl Reads for ResponseEditor<'_> {
    fn terms(&self) -> &Terms {
        &self.state.session.terms
    }

    fn waits(&mut self, _: usize) -> Option<Taken> {
        None
    }

    fn between(&mut self, lane: &Lane, out: &mut Output<'_>) {
        if !self.state.outgoing.answers.is_empty() && lane.cutter.is_between() {
            let frames = self.state.outgoing.take_answers();
            out.put(&in_segments(lane, &frames));
        }
    }
}

impl Frames<Unreadable> for ResponseEditor<'_> {
    fn begins(&mut self, first: u8) -> Result<(), Unreadable> {
        may_begin(first, RESPONSE_BIT, *self.begun, &self.state.session.terms)
    }

    fn plan(&mut self, first: u8, header: &Header) -> Result<Plan, Unreadable> {
        let plan = self.plan_for(first, header)?;
        if plan == Plan::Pass {
            self.state.answered(header);
        }
        Ok(plan)
    }

    fn room(&mut self, bytes: usize) -> Option<Taken> {
        self.state.room.take(bytes)
    }

    fn crowded(&mut self, header: &Header) -> Plan {
        if self.state.lookups.is_out(header.stream) {
            self.state.fail_lookup(header, self.log);
            return Plan::Drop;
        }
        if self.state.pairing.streams.is_unpaired(header.stream) {
            self.see_unpaired(header, None);
            self.state.answered(header);
            return Plan::Pass;
        }
        match self.withhold(header, Unseen::NoRoom) {
            true => Plan::Drop,
            false => {
                self.state.answered(header);
                Plan::Pass
            }
        }
    }

    fn lost(&mut self, _: u8) -> Unreadable {
        match *self.begun {
            true => Unreadable::Framing,
            false => Unreadable::NotCql,
        }
    }

    fn see(&mut self, header: &Header, frame: &[u8]) -> FrameAction {
        let action = self.show(header, frame);
        if action != FrameAction::Drop {
            self.state.answered(header);
        }
        action
    }
}

impl ResponseEditor<'_> {
    fn plan_for(&mut self, first: u8, header: &Header) -> Result<Plan, Unreadable> {
        may_begin(first, RESPONSE_BIT, *self.begun, &self.state.session.terms)?;
        *self.begun = true;
        if self.state.lookups.is_out(header.stream) {
            return Ok(match self.state.reads_answer(header, self.log) {
                true => Plan::See,
                false => Plan::Drop,
            });
        }
        if self.offers(header) {
            self.state.session.offered = None;
            return Ok(match header.length as usize <= MAX_SUPPORTED_BYTES {
                true => Plan::See,
                false => Plan::Pass,
            });
        }
        if self.state.session.terms.startup == Some(header.stream)
            && !self.state.session.terms.accepted
        {
            self.state.session.terms.startup = None;
            if let Some(Opcode::Ready | Opcode::Authenticate) = header.opcode {
                self.state.session.terms.accepted = true;
                self.state.session.terms.version = header.version;
                self.state.session.terms.segmented = header.version >= 5;
                let compression = self.state.session.terms.compression;
                self.state.session.handshake.accept(header, compression);
            }
        }
        let is_paired = !self.state.pairing.streams.is_unpaired(header.stream);
        let session = &mut self.state.session;
        session.login.see(header, is_paired, &mut session.caller);
        self.state.lookups.sees(header.opcode);
        self.state.session.handshake.see(header);
        let is_event = header.opcode == Some(Opcode::Event);
        if !is_event && self.state.pairing.streams.is_unpaired(header.stream) {
            return Ok(self.passes_unpaired(header));
        }
        let wanted = match header.opcode {
            _ if self.state.session.terms.extensions.unknown => false,
            Some(Opcode::Event) => self.state.pipeline.iter().any(|step| step.wants_events()),
            _ => {
                self.state.pairing.awaited.contains_key(&header.stream)
                    || self.state.may_mirror_payload(header)
            }
        };
        if !wanted {
            return Ok(Plan::Pass);
        }
        if header.length as usize > MAX_SEEN_BYTES {
            return Ok(match self.withhold(header, Unseen::TooLarge) {
                true => Plan::Drop,
                false => Plan::Pass,
            });
        }
        Ok(Plan::See)
    }

    /// Whether it is a SUPPORTED that tells what a STARTUP can ask for.
    fn offers(&self, header: &Header) -> bool {
        header.opcode == Some(Opcode::Supported) && !self.state.session.terms.accepted
    }

    /// Shows a frame to those who want to see it.
    fn show(&mut self, header: &Header, frame: &[u8]) -> FrameAction {
        let Some((_, body)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return FrameAction::Keep;
        };
        if self.state.lookups.is_out(header.stream) {
            self.state.finish_lookup(header, body, self.log);
            return FrameAction::Drop;
        }
        if self.offers(header) {
            self.state.session.offered = offered(header, body);
            return FrameAction::Keep;
        }
        let header = &self.state.session.terms.extended(header);
        let is_event = header.opcode == Some(Opcode::Event);
        if !is_event && self.state.pairing.streams.is_unpaired(header.stream) {
            let plain = self.state.session.terms.plain(header, body);
            self.see_unpaired(header, plain.as_deref());
            return FrameAction::Keep;
        }
        let Some(plain) = self.state.session.terms.plain(header, body) else {
            return match self.withhold(header, Unseen::Compression) {
                true => FrameAction::Drop,
                false => FrameAction::Keep,
            };
        };
        let mut response = Response::new(*header, plain);
        if frame.len() < header.frame_bytes() as usize {
            response.mark_cut();
        }
        if is_event {
            // Its way is that of a response: from the last step to the first.
            let asked = self.state.pipeline.iter().rev();
            for step in asked.filter(|step| step.wants_events()) {
                if !step.lets_pass(&response) {
                    self.log.changed(step.name());
                    return FrameAction::Drop;
                }
                if step.event(&mut response) {
                    self.log.changed(step.name());
                }
            }
            return match (response.changed(), frame.first_chunk()) {
                (Some((header, body)), Some(raw)) => {
                    self.state.session.terms.encoded(header, raw, body)
                }
                _ => FrameAction::Keep,
            };
        }
        let awaited = self
            .state
            .pairing
            .awaited
            .remove(&header.stream)
            .unwrap_or_default();
        self.state
            .show_response(response, header, frame, awaited, self.log)
    }
}

impl ResponseEditor<'_> {
    /// Has a suspended response go on, to the steps that have not seen it.
    pub(crate) fn resumes(&mut self, suspended: Suspended, resolution: Resolution) {
        if let Some(suspended) = self.state.resolved(suspended, resolution, self.log) {
            self.goes_on(&suspended.header, &suspended.kept, suspended.awaited);
        }
    }

    /// The response to one that was carried, for those who await it and then the client.
    pub(crate) fn relays(&mut self, suspended: Suspended, relayed: Relayed) {
        let (frame, held) = relayed.into_parts();
        self.state.outgoing.held.extend(held);
        let stream = suspended.header.stream;
        if self.state.pairing.streams.is_unpaired(stream) {
            self.state.unpair(stream, suspended.awaited);
            return self.state.tell(stream, FrameAction::Keep, &frame);
        }
        let Some(header) = frame.first_chunk().and_then(|raw| Header::read(*raw)) else {
            return;
        };
        if suspended.awaited.is_empty() && !self.state.may_mirror_payload(&header) {
            return self.state.tell(stream, FrameAction::Keep, &frame);
        }
        self.state
            .pairing
            .awaited
            .insert(header.stream, suspended.awaited);
        let action = self.show(&header, &frame);
        self.state.tell(stream, action, &frame);
    }

    fn goes_on(&mut self, header: &Header, kept: &Kept, awaited: Vec<Awaits>) {
        let frame = kept.bytes();
        // It could be read before.
        let plain = kept.plain(&self.state.session.terms, header);
        let mut response = Response::new(*header, plain.unwrap_or_default());
        if kept.is_changed() {
            response.mark_changed();
        }
        let action = self
            .state
            .show_response(response, header, frame, awaited, self.log);
        self.state.tell(header.stream, action, frame);
    }

    /// A response that nobody can be shown does not go on, because somebody has to see it.
    fn withhold(&mut self, header: &Header, why: Unseen) -> bool {
        let withheld = self.state.cannot_show(header);
        match withheld {
            true => self.log.unshown(why),
            false => {
                self.log.unseen(header.stream, why, false);
                self.state.pass_unseen(header.stream);
            }
        }
        withheld
    }
}

impl EditState {
    /// Whether a server may have sent back with it what a step has added to its request.
    fn may_mirror_payload(&self, header: &Header) -> bool {
        header.flags.any(Flags::CUSTOM_PAYLOAD)
            && self.pipeline.iter().any(|step| step.adds_payload())
    }

    /// Shows a response to those who await it; the step that saw the request last sees it first.
    pub(crate) fn show_response(
        &mut self,
        response: Response<'_>,
        header: &Header,
        frame: &[u8],
        mut awaited: Vec<Awaits>,
        log: &mut dyn Log,
    ) -> FrameAction {
        let mut response = response.beside(SuspendSlots::new(&mut self.suspended, &self.room));
        if self.pipeline.iter().any(|step| step.adds_payload()) {
            let added = |key: &[u8]| self.pipeline.iter().any(|step| step.has_added(key));
            response.drop_payload(added);
        }
        while let Some(Awaits { who, number, note }) = awaited.pop() {
            if who == Awaiter::Riders {
                let head = *response.header();
                let body = response.body().to_vec();
                let raw = frame.get(4).copied().unwrap_or_default();
                let own = self.answer_riders(&head, raw, &body, log);
                // There is one of them.
                let mut response = Response::new(head, body.into());
                match own {
                    Some(error) => response.fail(&error),
                    None => response.mark_changed(),
                }
                return self.show_response(response, header, frame, awaited, log);
            }
            response.set_note(note);
            if who == Awaiter::Keyspace {
                let now = response.set_keyspace();
                self.session.uses.comes_back(now, &mut self.session.caller);
            }
            if who == Awaiter::MayUse && response.set_keyspace().is_some() {
                self.session.caller.keyspace = None;
                self.session.caller.keyspace_unclear = true;
                self.session.uses.lose();
            }
            let Some(step_index) = who.step() else {
                continue;
            };
            let Some(step) = self.pipeline.get(step_index) else {
                continue;
            };
            if step.response(&mut response, &self.session.caller, number) {
                log.changed(step.name());
            }
            if let Some(Refused { reason, error }) = response.take_refused() {
                log.withheld(step.name(), reason);
                self.refuse(header, error, &awaited);
                return FrameAction::Drop;
            }
            if response.take_full() {
                log.waited(step.name(), Waited::NoRoom);
            }
            if let Some(permit) = response.take_space() {
                let (header, kept) = Kept::as_it_stands(header, frame, response.changed());
                let suspended = Suspended::new(false, header, kept, step_index, awaited, permit);
                self.suspended.put(suspended);
                return FrameAction::Drop;
            }
        }
        match (response.changed(), frame.first_chunk()) {
            (Some((header, body)), Some(raw)) => self.session.terms.encoded(header, raw, body),
            _ => FrameAction::Keep,
        }
    }

    /// Answers the client of a suspended frame, or gives the frame that goes on to the steps that have
    /// not seen it.
    pub(crate) fn resolved(
        &mut self,
        suspended: Suspended,
        resolution: Resolution,
        log: &mut dyn Log,
    ) -> Option<Suspended> {
        match resolution {
            // The editor itself takes the first four, where they are said.
            Resolution::Leads(_)
            | Resolution::Due
            | Resolution::Relayed(_)
            | Resolution::Lost
            | Resolution::Pass => Some(suspended),
            Resolution::Instead(body) => Some(Suspended {
                kept: suspended.kept.with_body(&body),
                ..suspended
            }),
            Resolution::Answer(body) => {
                self.answer_for(&suspended.header, body, suspended.awaited, log);
                None
            }
            Resolution::Refuse(Refused { reason, error }) => {
                let (header, awaited) = (&suspended.header, &suspended.awaited);
                match self.pipeline.get(suspended.step_index) {
                    Some(step) if suspended.to_database => {
                        for stream in self.streams_of(header.stream, awaited) {
                            log.refused(stream, step.name(), reason);
                        }
                    }
                    Some(step) => log.withheld(step.name(), reason),
                    None => {}
                }
                self.refuse(header, error, awaited);
                None
            }
        }
    }

    /// A RESULT in place of a response, which those who await that are shown.
    pub(crate) fn answer_for(
        &mut self,
        header: &Header,
        body: Vec<u8>,
        mut awaited: Vec<Awaits>,
        log: &mut dyn Log,
    ) {
        let header = Header {
            flags: Flags(0),
            opcode: Some(Opcode::Result),
            ..*header
        };
        let mut answer = Response::new(header, body.into());
        while let Some(Awaits { who, number, note }) = awaited.pop() {
            if who == Awaiter::Riders {
                let (head, body) = (*answer.header(), answer.body().to_vec());
                if let Some(error) = self.answer_riders(&head, RESULT, &body, log) {
                    answer.fail(&error);
                }
                continue;
            }
            let step = who.step().and_then(|index| self.pipeline.get(index));
            let Some(step) = step else {
                continue;
            };
            answer.set_note(note);
            if step.response(&mut answer, &self.session.caller, number) {
                log.changed(step.name());
            }
            if let Some(Refused { reason, error }) = answer.take_refused() {
                log.withheld(step.name(), reason);
                self.refuse(&header, error, &awaited);
                return;
            }
        }
        self.respond_with(&header, &answer);
    }
}
