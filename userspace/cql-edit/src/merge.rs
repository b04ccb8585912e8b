//! EXECUTEs as they are merged into a batch, and its answer as it is told to each: see `merging`.

use crate::awaited::{Awaiter, Awaits, leads};
use crate::log::Log;
use crate::merging::{BATCH, MAX_SHARED_BYTES, Mergeable, Rider, Riding, UNPREPARED, batch, frame};
use crate::outcome::Error;
use crate::request_editor::RequestEditor;
use crate::response::Response;
use crate::state::EditState;
use crate::suspended::{Kept, Suspended};
use crate::terms::ERROR;
use cql::wire::{Flags, HEADER_BYTES, Header};
use cql::{Opcode, StreamId};

impl RequestEditor<'_> {
    /// The one that leads goes on as a batch with these; what cannot be one of it goes on by itself.
    pub(crate) fn go_together(&mut self, leads: Suspended, others: &[u64]) {
        let others = others.iter().filter_map(|n| self.state.suspended.take(*n));
        // Its stream leads one already: its client does not wait for answers before it says the same again.
        let leads_others = self.state.pairing.riders.contains_key(&leads.header.stream);
        let those: Vec<Suspended> = std::iter::once(leads).chain(others).collect();
        // Whose the answer to a batch is must be sure, for all in it.
        let streams = &self.state.pairing.streams;
        let is_unpaired = |one: &Suspended| streams.is_unpaired(one.header.stream);
        let merged = match those.len() {
            0 | 1 => None,
            _ if leads_others || those.iter().any(is_unpaired) => None,
            _ => self.merged(&those),
        };
        let Some((body, mut riders)) = merged else {
            for one in those {
                self.goes_on(&one.header, one.kept, one.step_index, one.awaited);
            }
            return;
        };
        let mut those = those.into_iter();
        let Some(leads) = those.next() else { return };
        for (rider, one) in riders.others.iter_mut().zip(those) {
            rider.awaited = one.awaited;
        }
        let Suspended {
            header,
            kept,
            step_index,
            mut awaited,
            ..
        } = leads;
        let header = Header {
            opcode: Some(Opcode::Batch),
            ..header
        };
        let mut frame = kept
            .bytes()
            .get(..HEADER_BYTES)
            .unwrap_or_default()
            .to_vec();
        if let Some(opcode) = frame.get_mut(4) {
            *opcode = BATCH;
        }
        frame.extend(body);
        awaited.push(Awaits::own(Awaiter::Riders));
        self.state.pairing.riders.insert(header.stream, riders);
        self.goes_on(&header, Kept::Changed(frame), step_index, awaited);
    }

    fn merged(&self, those: &[Suspended]) -> Option<(Vec<u8>, Riding)> {
        let terms = &self.state.session.terms;
        let bodies = those.iter().map(|one| one.kept.plain(terms, &one.header));
        let bodies = bodies.collect::<Option<Vec<_>>>()?;
        let parts = those.iter().zip(&bodies);
        let parts = parts.map(|(one, body)| Mergeable::of(&one.header, body).ok());
        let parts = parts.collect::<Option<Vec<_>>>()?;
        let first = parts.first()?;
        if parts
            .iter()
            .any(|part| part.consistency != first.consistency)
        {
            return None;
        }
        let body = batch(those.first()?.header.version, &parts)?;
        let others = those.iter().zip(&parts).skip(1);
        let others = others.map(|(one, part)| Rider {
            header: one.header,
            id: part.id.to_vec(),
            consistency: part.consistency,
            awaited: Vec::new(),
        });
        let leads = first.id.to_vec();
        let others = others.collect();
        Some((body, Riding { leads, others }))
    }
}

impl EditState {
    /// The answer to a batch, which has passed the steps behind the one that has merged it, is that of each. `raw`:
    /// its opcode, as it was sent. Gives what the one that leads is told instead, if that is something else.
    pub(crate) fn answer_riders(
        &mut self,
        response: &Header,
        raw: u8,
        body: &[u8],
        log: &mut dyn Log,
    ) -> Option<Error> {
        let riding = self.pairing.riders.remove(&response.stream)?;
        let response = Header {
            flags: Flags(response.flags.0 & !Flags::COMPRESSION.0),
            ..*response
        };
        let of_response = Response::new(response, body.into()).error();
        let is_unprepared = of_response == Some(UNPREPARED);
        if body.len() > MAX_SHARED_BYTES && !is_unprepared {
            self.may_be_done(riding);
            return None;
        }
        for rider in riding.others {
            // Each has to prepare its own again, since the database names one.
            let error = is_unprepared.then(|| Error::Unprepared(rider.id).body());
            let (flags, opcode) = match is_unprepared {
                true => (Flags(0), Some(Opcode::Error)),
                false => (response.flags, response.opcode),
            };
            let header = Header {
                stream: rider.header.stream,
                flags,
                opcode,
                ..response
            };
            let raw = match opcode {
                Some(Opcode::Error) => ERROR,
                _ => raw,
            };
            let body = error.as_deref().unwrap_or(body);
            let frame = frame(&header, raw, body);
            let own = Response::new(header, body.into());
            let action = self.show_response(own, &header, &frame, rider.awaited, log);
            self.tell(header.stream, action, &frame);
        }
        is_unprepared.then_some(Error::Unprepared(riding.leads))
    }

    /// The one that leads is answered by the proxy itself: so are those that ride with it.
    pub(crate) fn tell_all(&mut self, leads: &Header, opcode: u8, body: &[u8], riding: Riding) {
        let code = body.first_chunk().map(|code| i32::from_be_bytes(*code));
        let is_unprepared = opcode == ERROR && code == Some(UNPREPARED);
        let others = riding.others.into_iter();
        let others = others.map(|rider| (rider.header, rider.id));
        for (header, id) in std::iter::once((*leads, riding.leads)).chain(others) {
            match is_unprepared {
                true => self.answer(&header, &Error::Unprepared(id)),
                false => self.put_answer(&header, opcode, body),
            }
        }
    }

    /// A response goes on unread. To those that ride with it, nothing can be said but that they may have been done.
    pub(crate) fn pass_unseen(&mut self, stream: StreamId) {
        if let Some(riding) = self.pairing.riders.remove(&stream) {
            self.may_be_done(riding);
        }
    }

    fn may_be_done(&mut self, riding: Riding) {
        for rider in riding.others {
            let message = "the proxy cannot read the answer to the batch that the write was in";
            let error = Error::WriteTimeout(message.to_owned(), rider.consistency);
            self.answer(&rider.header, &error);
        }
    }

    /// A request's own stream, and those of the requests that ride with it. `awaited`: who awaits its response.
    pub(crate) fn streams_of(&self, stream: StreamId, awaited: &[Awaits]) -> Vec<StreamId> {
        let riding = leads(awaited)
            .then(|| self.pairing.riders.get(&stream))
            .flatten();
        let others = riding.into_iter().flat_map(|riding| &riding.others);
        let others = others.map(|rider| rider.header.stream);
        std::iter::once(stream).chain(others).collect()
    }
}
