//! What becomes of responses.

use super::Unreadable;
use super::cutter::{Fate, Frames, Plan};
use super::lane::{Lane, Reads, in_segments, may_begin};
use super::output::Output;
use super::response::Response;
use super::room::Taken;
use super::talk::{KEYSPACE, Talk, Terms};
use super::transform::{Log, Unseen};
use crate::compress::MAX_SEEN_BYTES;
use crate::frame::{HEADER_BYTES, Header, Opcode, RESPONSE_BIT};

/// Responses.
pub(super) struct Answering<'e> {
    pub(super) talk: &'e mut Talk,
    /// The direction's first frame was seen to begin.
    pub(super) begun: &'e mut bool,
    pub(super) log: &'e mut dyn Log,
}

impl Reads for Answering<'_> {
    fn terms(&self) -> &Terms {
        &self.talk.terms
    }

    fn between(&mut self, lane: &Lane, out: &mut Output<'_>) {
        if !self.talk.answers.is_empty() && lane.cutter.is_between() {
            let frames = std::mem::take(&mut self.talk.answers);
            out.put(&in_segments(lane, &frames));
        }
    }
}

impl Frames<Unreadable> for Answering<'_> {
    fn plan(&mut self, first: u8, header: &Header) -> Result<Plan, Unreadable> {
        may_begin(first, RESPONSE_BIT, *self.begun, &self.talk.terms)?;
        *self.begun = true;
        if self.talk.terms.startup == Some(header.stream) && !self.talk.terms.accepted {
            self.talk.terms.startup = None;
            if let Some(Opcode::Ready | Opcode::Authenticate) = header.opcode {
                self.talk.terms.accepted = true;
                self.talk.terms.version = header.version;
                self.talk.terms.segmented = header.version >= 5;
            }
        }
        self.talk.logs_in(header);
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
        let Some((raw, body)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return Fate::Keep;
        };
        let Some(plain) = self.talk.terms.plain(header, body) else {
            return match self.is_withheld(header, Unseen::Compression) {
                true => Fate::Drop,
                false => Fate::Keep,
            };
        };
        let mut response = Response::new(*header, plain);
        if header.opcode == Some(Opcode::Event) {
            let mut asked = self.talk.pipeline.iter().filter(|step| step.wants_events());
            return match asked.find(|step| !step.lets_pass(&response)) {
                Some(step) => {
                    self.log.changed(step.name());
                    Fate::Drop
                }
                None => Fate::Keep,
            };
        }
        let awaited = self.talk.awaited.remove(&header.stream).unwrap_or_default();
        // The step that saw the request last sees its response first.
        for (place, number, note) in awaited.into_iter().rev() {
            response.set_note(note);
            if place == KEYSPACE {
                let now = response.set_keyspace();
                self.talk
                    .uses
                    .comes_back(now, &mut self.talk.caller.keyspace);
            }
            if let Some(step) = self.talk.pipeline.get(place)
                && step.response(&mut response, &self.talk.caller, number)
            {
                self.log.changed(step.name());
            }
        }
        match response.changed() {
            None => Fate::Keep,
            Some((header, body)) => self.talk.terms.encoded(header, raw, body),
        }
    }
}

impl Answering<'_> {
    /// A response that nobody can be shown does not go on, because somebody has to see it.
    fn is_withheld(&mut self, header: &Header, why: Unseen) -> bool {
        let withheld = self.talk.cannot_show(header);
        match withheld {
            true => self.log.withheld(why),
            false => self.log.unseen(header.stream, why, false),
        }
        withheld
    }
}
