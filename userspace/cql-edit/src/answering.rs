//! What becomes of responses.

use crate::cutter::{Fate, Frames, Plan};
use crate::editor::Unreadable;
use crate::lane::{Lane, Reads, in_segments, may_begin};
use crate::merging::RIDERS;
use crate::output::Output;
use crate::parking::{Kept, Lot, Parked, Relayed, Resolution, Waited};
use crate::response::Response;
use crate::room::Taken;
use crate::talk::{Awaits, KEYSPACE, MAY_USE, RESULT, Talk, Terms};
use crate::transform::{Log, Refused, Unseen};
use cql::Opcode;
use cql::wire::compress::MAX_SEEN_BYTES;
use cql::wire::{Flags, HEADER_BYTES, Header, RESPONSE_BIT};

/// Responses.
pub(crate) struct Answering<'e> {
    pub(crate) talk: &'e mut Talk,
    /// The direction's first frame was seen to begin.
    pub(crate) begun: &'e mut bool,
    pub(crate) log: &'e mut dyn Log,
}

impl Reads for Answering<'_> {
    fn terms(&self) -> &Terms {
        &self.talk.terms
    }

    fn between(&mut self, lane: &Lane, out: &mut Output<'_>) {
        if !self.talk.answers.is_empty() && lane.cutter.is_between() {
            let frames = self.talk.take_answers();
            out.put(&in_segments(lane, &frames));
        }
    }
}

impl Frames<Unreadable> for Answering<'_> {
    fn begins(&mut self, first: u8) -> Result<(), Unreadable> {
        may_begin(first, RESPONSE_BIT, *self.begun, &self.talk.terms)
    }

    fn plan(&mut self, first: u8, header: &Header) -> Result<Plan, Unreadable> {
        may_begin(first, RESPONSE_BIT, *self.begun, &self.talk.terms)?;
        *self.begun = true;
        if self.talk.lookups.is_out(header.stream) {
            return Ok(match self.talk.reads_answer(header, self.log) {
                true => Plan::See,
                false => Plan::Drop,
            });
        }
        if self.talk.terms.startup == Some(header.stream) && !self.talk.terms.accepted {
            self.talk.terms.startup = None;
            if let Some(Opcode::Ready | Opcode::Authenticate) = header.opcode {
                self.talk.terms.accepted = true;
                self.talk.terms.version = header.version;
                self.talk.terms.segmented = header.version >= 5;
                self.talk.is_let_in(header);
            }
        }
        self.talk.logs_in(header);
        self.talk.lookups.sees(header.opcode);
        self.talk.is_answered(header);
        let wanted = match header.opcode {
            Some(Opcode::Event) => self.talk.pipeline.iter().any(|step| step.wants_events()),
            _ => self.talk.awaited.contains_key(&header.stream),
        };
        if !wanted {
            return Ok(Plan::Pass);
        }
        if header.length as usize > MAX_SEEN_BYTES {
            return Ok(match self.is_withheld(header, Unseen::TooLarge) {
                true => Plan::Drop,
                false => Plan::Pass,
            });
        }
        Ok(Plan::See)
    }

    fn room(&mut self, bytes: usize) -> Option<Taken> {
        self.talk.room.take(bytes)
    }

    fn crowded(&mut self, header: &Header) -> Plan {
        if self.talk.lookups.is_out(header.stream) {
            self.talk.is_unanswered(header, self.log);
            return Plan::Drop;
        }
        match self.is_withheld(header, Unseen::NoRoom) {
            true => Plan::Drop,
            false => Plan::Pass,
        }
    }

    fn lost(&mut self, _: u8) -> Unreadable {
        match *self.begun {
            true => Unreadable::Framing,
            false => Unreadable::NotCql,
        }
    }

    fn see(&mut self, header: &Header, frame: &[u8]) -> Fate {
        let Some((_, body)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return Fate::Keep;
        };
        if self.talk.lookups.is_out(header.stream) {
            self.talk.is_looked_up(header, body, self.log);
            return Fate::Drop;
        }
        let Some(plain) = self.talk.terms.plain(header, body) else {
            return match self.is_withheld(header, Unseen::Compression) {
                true => Fate::Drop,
                false => Fate::Keep,
            };
        };
        let mut response = Response::new(*header, plain);
        if header.opcode == Some(Opcode::Event) {
            // Its way is that of a response: from the last step to the first.
            let asked = self.talk.pipeline.iter().rev();
            for step in asked.filter(|step| step.wants_events()) {
                if !step.lets_pass(&response) {
                    self.log.changed(step.name());
                    return Fate::Drop;
                }
                if step.event(&mut response) {
                    self.log.changed(step.name());
                }
            }
            return match (response.changed(), frame.first_chunk()) {
                (Some((header, body)), Some(raw)) => self.talk.terms.encoded(header, raw, body),
                _ => Fate::Keep,
            };
        }
        let awaited = self.talk.awaited.remove(&header.stream).unwrap_or_default();
        self.talk
            .show_response(response, header, frame, awaited, self.log)
    }
}

impl Answering<'_> {
    /// One that has waited goes on, to those who have not seen it.
    pub(crate) fn resumes(&mut self, parked: Parked, resolution: Resolution) {
        let Parked {
            header,
            kept,
            place,
            awaited,
            ..
        } = parked;
        match resolution {
            // All but the last are said of requests.
            Resolution::Leads(_)
            | Resolution::Due
            | Resolution::Relayed(_)
            | Resolution::Lost
            | Resolution::Pass => {
                self.goes_on(&header, kept, awaited);
            }
            Resolution::Instead(body) => {
                let raw = kept.bytes().get(..HEADER_BYTES).unwrap_or_default();
                let kept = Kept::Changed([raw, &body].concat());
                self.goes_on(&header, kept, awaited);
            }
            Resolution::Answer(body) => self.talk.answer_for(&header, body, awaited, self.log),
            Resolution::Refuse(Refused { reason, error }) => {
                if let Some(step) = self.talk.pipeline.get(place) {
                    self.log.withheld(step.name(), reason);
                }
                self.talk.answer_all(&header, &error, &awaited);
            }
        }
    }

    /// The response to one that was carried, for those who await it and then the client.
    pub(crate) fn relays(&mut self, parked: Parked, relayed: Relayed) {
        let (frame, held) = relayed.into_parts();
        self.talk.held.extend(held);
        if parked.awaited.is_empty() {
            return self.talk.answers.extend_from_slice(&frame);
        }
        let Some(header) = frame.first_chunk().and_then(|raw| Header::read(*raw)) else {
            return;
        };
        self.talk.awaited.insert(header.stream, parked.awaited);
        match self.see(&header, &frame) {
            Fate::Drop => {}
            Fate::Keep => self.talk.answers.extend_from_slice(&frame),
            Fate::Instead(frame) => self.talk.answers.extend_from_slice(&frame),
        }
    }

    fn goes_on(&mut self, header: &Header, kept: Kept, awaited: Vec<Awaits>) {
        let frame = kept.bytes();
        let body = frame.get(HEADER_BYTES..).unwrap_or_default();
        let plain = match &kept {
            Kept::Sent(_) => self.talk.terms.plain(header, body),
            Kept::Changed(_) => Some(body.into()),
        };
        // It could be read before.
        let mut response = Response::new(*header, plain.unwrap_or_default());
        if matches!(kept, Kept::Changed(_)) {
            response.is_changed();
        }
        match self
            .talk
            .show_response(response, header, frame, awaited, self.log)
        {
            Fate::Drop => {}
            Fate::Keep => self.talk.answers.extend_from_slice(frame),
            Fate::Instead(frame) => self.talk.answers.extend_from_slice(&frame),
        }
    }
}

impl Answering<'_> {
    /// A response that nobody can be shown does not go on, because somebody has to see it.
    fn is_withheld(&mut self, header: &Header, why: Unseen) -> bool {
        let withheld = self.talk.cannot_show(header);
        match withheld {
            true => self.log.unshown(why),
            false => {
                self.log.unseen(header.stream, why, false);
                self.talk.is_not_seen(header.stream);
            }
        }
        withheld
    }
}

impl Talk {
    /// Shows a response to those who await it; the step that saw the request last sees it first.
    pub(crate) fn show_response(
        &mut self,
        response: Response<'_>,
        header: &Header,
        frame: &[u8],
        mut awaited: Vec<Awaits>,
        log: &mut dyn Log,
    ) -> Fate {
        let mut response = response.beside(Lot::new(&mut self.parking, &self.room));
        while let Some((place, number, note)) = awaited.pop() {
            if place == RIDERS {
                let head = *response.header();
                let body = response.body().to_vec();
                let raw = frame.get(4).copied().unwrap_or_default();
                let own = self.is_for_all(&head, raw, &body, log);
                // There is one such place.
                let mut response = Response::new(head, body.into());
                match own {
                    Some(error) => response.fail(&error),
                    None => response.is_changed(),
                }
                return self.show_response(response, header, frame, awaited, log);
            }
            response.set_note(note);
            if place == KEYSPACE {
                let now = response.set_keyspace();
                self.uses.comes_back(now, &mut self.caller);
            }
            if place == MAY_USE && response.set_keyspace().is_some() {
                self.caller.keyspace_unclear = true;
                self.uses.is_lost();
            }
            let Some(step) = self.pipeline.get(place) else {
                continue;
            };
            if step.response(&mut response, &self.caller, number) {
                log.changed(step.name());
            }
            if let Some(Refused { reason, error }) = response.take_refused() {
                log.withheld(step.name(), reason);
                self.answer_all(header, &error, &awaited);
                return Fate::Drop;
            }
            if response.found_no_room() {
                log.waited(step.name(), Waited::NoRoom);
            }
            if let Some(space) = response.take_space() {
                let changed = response.changed();
                let parked = Parked {
                    header: changed.map_or(*header, |(header, _)| *header),
                    kept: Kept::of(frame, changed),
                    place,
                    awaited,
                    to_database: false,
                    is_carried: false,
                    space,
                };
                self.parking.put(parked);
                return Fate::Drop;
            }
        }
        match (response.changed(), frame.first_chunk()) {
            (Some((header, body)), Some(raw)) => self.terms.encoded(header, raw, body),
            _ => Fate::Keep,
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
        while let Some((place, number, note)) = awaited.pop() {
            if place == RIDERS {
                let (head, body) = (*answer.header(), answer.body().to_vec());
                if let Some(error) = self.is_for_all(&head, RESULT, &body, log) {
                    answer.fail(&error);
                }
                continue;
            }
            let Some(step) = self.pipeline.get(place) else {
                continue;
            };
            answer.set_note(note);
            if step.response(&mut answer, &self.caller, number) {
                log.changed(step.name());
            }
            if let Some(Refused { reason, error }) = answer.take_refused() {
                log.withheld(step.name(), reason);
                self.answer_all(&header, &error, &awaited);
                return;
            }
        }
        self.respond_with(&header, &answer);
    }
}
