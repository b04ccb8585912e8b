//! Requests on streams that have others out: see [`Streams`](crate::streams::Streams). Whose the responses are
//! cannot be told, so that they are shown to nobody.

use crate::awaited::{Awaiter, Awaits};
use crate::cutter::{FrameAction, Plan};
use crate::log::Unseen;
use crate::outcome::Error;
use crate::request_editor::RequestEditor;
use crate::response::Response;
use crate::response_editor::ResponseEditor;
use crate::state::EditState;
use crate::suspended::{Resolution, Suspended};
use crate::terms::ERROR;
use crate::transform::Unpaired;
use cql::wire::compress::MAX_SEEN_BYTES;
use cql::wire::{Flags, Header};
use cql::{Opcode, StreamId};

/// The longest RESULT without anything in front that can set the keyspace, in bytes: a kind and a name, of at most 48
/// characters in Cassandra.
const MAX_SET_KEYSPACE_BYTES: u32 = 512;

impl RequestEditor<'_> {
    /// A request begins on a stream that has another out. True: it is refused, and the other has its stream for itself.
    #[cold]
    #[inline(never)]
    pub(crate) fn shares_stream(&mut self, header: &Header) -> bool {
        let stream = header.stream;
        let wants = |opcode| header.opcode.is_some_and(opcode);
        let steps = self.state.pipeline.clone();
        let refusing = steps.iter().find(|step| {
            step.must_see()
                || wants(|opcode| step.wants(opcode)) && step.unpaired() == Unpaired::Refused
        });
        let is_full = self.state.pairing.streams.is_full(stream);
        if let Some(step) = refusing.or(steps.first().filter(|_| is_full))
            && self.state.session.terms.accepted
        {
            self.log.refused(stream, step.name(), "stream");
            let error = Error::Protocol(format!("stream {} waits for a response", stream.0));
            let error = error.by(&self.state.session.caller.rule);
            let outgoing = &mut self.state.outgoing;
            outgoing.put_answer(header, Flags(0), ERROR, &error.body());
            return true;
        }
        let is_second = self.state.pairing.streams.goes_out_beside(stream);
        if !steps.is_empty() {
            for _ in 0..=u8::from(is_second) {
                self.log.unseen(stream, Unseen::Stream, false);
            }
        }
        let awaited = self.state.pairing.awaited.remove(&stream);
        self.state.unpair(stream, awaited.unwrap_or_default());
        // Those that ride with the other would never be told.
        self.state.pass_unseen(stream);
        false
    }

    /// Notes that a request goes on to the database whose response nobody will be shown.
    #[cold]
    pub(crate) fn send_unpaired(
        &mut self,
        stream: StreamId,
        asks_to_use: bool,
        awaited: Vec<Awaits>,
    ) {
        if asks_to_use {
            self.state.forget_keyspace();
        }
        self.state.unpair(stream, awaited);
    }

    /// Refuses a request whose response cannot be told from others, if one of the steps from `from` on wants that: the
    /// request has waited while another came, which that step does not want to see.
    pub(crate) fn refuse_unpaired(
        &mut self,
        opcode: Opcode,
        from: usize,
        header: &Header,
        awaited: &[Awaits],
    ) -> bool {
        let steps = self.state.pipeline.iter().skip(from);
        let mut wanting = steps.filter(|step| step.wants(opcode));
        let Some(step) = wanting.find(|step| step.unpaired() == Unpaired::Refused) else {
            return false;
        };
        self.log.refused(header.stream, step.name(), "stream");
        let message = format!("stream {} was used again", header.stream.0);
        self.state.refuse(header, Error::Protocol(message), awaited);
        true
    }
}

impl ResponseEditor<'_> {
    /// A response on an unpaired stream begins. It is looked at only for the keyspace that the flow may be in now.
    #[cold]
    #[inline(never)]
    pub(crate) fn passes_unpaired(&mut self, header: &Header) -> Plan {
        for (place, number) in self.state.pairing.streams.minded(header.stream) {
            if let Some(step) = self.state.pipeline.get(*place) {
                step.response_unpaired(*number);
            }
        }
        let is_short = header.length <= MAX_SET_KEYSPACE_BYTES;
        let may_be_long = header.flags.any(Flags::PRELUDE) || header.is_compressed();
        let may_set = header.opcode == Some(Opcode::Result) && (is_short || may_be_long);
        match may_set && header.length as usize <= MAX_SEEN_BYTES {
            true => Plan::See,
            false => Plan::Pass,
        }
    }

    /// Looks at a response on an unpaired stream. `plain`: its body, if it could be read.
    pub(crate) fn see_unpaired(&mut self, header: &Header, plain: Option<&[u8]>) {
        let sets = plain.is_none_or(|plain| {
            let response = Response::new(*header, plain.into());
            response.set_keyspace().is_some()
        });
        if sets {
            self.state.forget_keyspace();
        }
    }
}

impl EditState {
    /// Steps that await a response will not be shown it, because it cannot be told from others of its stream.
    pub(crate) fn unpair(&mut self, stream: StreamId, awaited: Vec<Awaits>) {
        for Awaits { who, number, .. } in awaited {
            match who {
                Awaiter::Step(place) => {
                    let step = self.pipeline.get(place);
                    if step.is_some_and(|step| step.response_unpaired(number)) {
                        self.pairing.streams.minds(stream, place, number);
                    }
                }
                Awaiter::Keyspace => {
                    self.session.uses.comes_back(None, &mut self.session.caller);
                    self.forget_keyspace();
                }
                // Each response on the stream is looked at for the keyspace.
                Awaiter::MayUse | Awaiter::Riders => {}
            }
        }
    }

    /// The flow may be in any keyspace from now on.
    pub(crate) fn forget_keyspace(&mut self) {
        self.session.uses.lose();
        self.session.caller.keyspace = None;
        self.session.caller.keyspace_unclear = true;
    }

    /// The decision on a suspended request, which is not answered from anywhere but the database if its stream
    /// is unpaired.
    pub(crate) fn certain(
        &self,
        suspended: &Suspended,
        resolution: Option<Resolution>,
    ) -> Option<Resolution> {
        let is_unpaired =
            suspended.to_database && self.pairing.streams.is_unpaired(suspended.header.stream);
        match resolution {
            Some(Resolution::Answer(_)) if is_unpaired => Some(Resolution::Pass),
            resolution => resolution,
        }
    }

    /// A response has gone on to the client, or will.
    #[inline]
    pub(crate) fn answered(&mut self, header: &Header) {
        if header.opcode != Some(Opcode::Event) {
            self.pairing.streams.comes_back(header.stream);
        }
    }

    /// Has the client told what goes on of this frame, in place of a response.
    pub(crate) fn tell(&mut self, stream: StreamId, action: FrameAction, frame: &[u8]) {
        if action != FrameAction::Drop {
            self.pairing.streams.comes_back(stream);
        }
        action.put(frame, &mut self.outgoing.answers);
    }
}
