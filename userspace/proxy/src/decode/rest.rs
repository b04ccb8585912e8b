//! A flow of which nothing is under way, for another agent that goes on with it, or from one.

use cql::{FlowDecoder, NoPosition, Unread};
use flow::{Handing, Stays};

use super::{Decoder, Edits, Reading};
use crate::{
    edit::Editing,
    read_on::{NotHanded, ReadOn},
};

impl Decoder {
    /// Returns how another agent reads the flow on from here.
    ///
    /// # Errors
    /// Only this one can: for this reason.
    pub(crate) fn read_on(&self) -> Result<ReadOn, NotHanded> {
        let decoder = match &self.reading {
            Reading::Walks(unread) if self.is_off() => return Ok(ReadOn::unread(*unread)),
            Reading::Walks(Err(_)) if self.gate.is_none() => {
                return Err(NotHanded::Stays(Stays::Unreadable));
            }
            Reading::Decodes {
                decoder,
                stops: false,
            } if self.gate.is_none() => decoder,
            _ if self.gate.as_ref().is_some_and(|gate| gate.stays()) => {
                return Err(NotHanded::Stays(Stays::Login));
            }
            _ => return Err(NotHanded::NotYet),
        };
        let unread = match decoder.at_rest() {
            Ok(Some(unread)) => unread,
            Ok(None) | Err(NoPosition::Handshake) => return Err(NotHanded::NotYet),
            Err(_) => return Err(NotHanded::Stays(Stays::Unreadable)),
        };
        let session = match &self.edits {
            Edits::Nothing => None,
            Edits::Editing(editing) => Some(editing.at_rest()?),
            Edits::Left(_) => return Err(NotHanded::NotYet),
        };
        let followed = self.recorder.followed.as_ref();
        let whose = followed.map(|followed| followed.whose().facts());
        Ok(ReadOn::decoded(&unread, decoder.keyspace(), whose, session))
    }

    /// Goes on with a flow that another agent has read to here.
    pub(crate) fn join_in(&mut self, unread: Unread, reading: ReadOn) {
        let ReadOn {
            keyspace,
            session,
            whose,
            ..
        } = reading;
        self.decode_by(|prepared| FlowDecoder::go_on(prepared, unread));
        if let Reading::Decodes { decoder, .. } = &mut self.reading {
            decoder.set_keyspace(keyspace.as_deref());
        }
        if let (Some(followed), Some(facts)) = (&self.recorder.followed, whose) {
            followed.whose().learn(facts);
        }
        if let Some(session) = session {
            let editing = Editing::go_on_with(&self.recorder.shared, &self.flow, &unread, session);
            self.edits = editing.map_or(Edits::Nothing, Edits::Editing);
        }
    }

    /// The bytes of requests that are to come until none is under way, where no further one is to be read meanwhile.
    pub(crate) fn held_at(&self) -> Option<usize> {
        match &self.reading {
            Reading::Decodes {
                decoder,
                stops: false,
            } if self.gate.is_none() && self.flow.handing() == Handing::Held => {
                decoder.requests_missing()
            }
            _ => None,
        }
    }
}
