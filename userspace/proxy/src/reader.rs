//! The reader of a flow's bytes: a decoder, or none.
//!
//! The position in its frames is known of a flow that is not decoded, too, as long as that can be
//! known. So it can be decoded from its next frame on ([`Reader::enrich`]). The agent follows the
//! position through the bytes that it relays. The kernel follows it through those that it
//! redirects, from the position that it is given when the flow is handed over
//! ([`Reader::hand_over`]).
//!
//! **How a position comes back**: with the first byte of a direction that is read after a
//! hand-over. The kernel let that byte pass after the last one that it redirected (in the near
//! application's socket, or in the agent's that leads to the far one, under that socket's lock). It
//! redirects no further byte before it is told that this byte was read. So the kernel's position is
//! the one right before this byte, and it is final. It was not final when the order to redirect was
//! withdrawn: a `send()` of the client's that had read the order before may redirect its message
//! later, but not after it has let one pass. A hand-over that follows without a byte in between
//! names the same count of bytes read, by which the kernel knows that its own position is the later
//! one.

use std::sync::Arc;

use cql::{NoPlace, Place, Unread};
use dataplane::{FlowPosition, Redirected, Splice};
use flow::{CloseReason, Flow};
use policy::{Action, RuleName};

use super::{
    chunk::{Chunk, Turn, Way},
    context::ProxyContext,
    decode::Decoder,
    place,
    session::Question,
};

/// A flow's decoder, if it has one, and otherwise its position in its frames.
pub(super) struct Reader {
    /// The decoder. None where nobody needs to see the bytes, so that such a flow takes no memory
    /// for it.
    decoder: Option<Box<Decoder>>,
    /// The parts of the first decoder, which is made when the first byte comes and not before:
    /// thousands of flows that have nothing to say yet would leave holes in the heap when theirs
    /// were dropped.
    begins: Option<Begins>,
    /// The flow's frame positions, as far as the agent has followed them, while there is no
    /// decoder.
    unread: Result<Unread, NoPlace>,
    /// The shared state for a decoder that begins later. None: no decoder will.
    shared: Option<Arc<ProxyContext>>,
    kernel: Option<Arc<Splice>>,
    /// Whether the kernel may have gone on from the position in `unread`, for each direction.
    handed_over: Both<bool>,
}

/// The parts of a flow's first decoder.
pub(super) struct Begins {
    pub shared: Arc<ProxyContext>,
    pub flow: Arc<Flow>,
    /// The question that the flow's session has to decide.
    pub question: Option<Box<Question>>,
}

impl Reader {
    /// Makes the reader of a flow that begins. None: the flow will never be decoded.
    pub(super) fn new(begins: Option<Begins>) -> Self {
        Self {
            shared: begins.as_ref().map(|begins| begins.shared.clone()),
            decoder: None,
            begins,
            unread: Err(NoPlace::Handshake),
            kernel: None,
            handed_over: Both::default(),
        }
    }

    /// Notes that the kernel may carry the flow from now on.
    pub(super) fn set_enrolled(&mut self, kernel: Arc<Splice>) {
        self.kernel = Some(kernel);
    }

    /// Takes over the frame positions that another process has told the kernel, when it carried the
    /// flow to here. `shared`: set for a flow that may be decoded later.
    pub(super) fn begins_at(&mut self, places: &FlowPosition, shared: Option<Arc<ProxyContext>>) {
        self.shared = shared;
        self.unread = place::unread(places);
        self.handed_over = Both {
            to_database: true,
            to_client: true,
        };
    }

    pub(super) fn decoder(&mut self) -> Option<&mut Decoder> {
        if let Some(begins) = self.begins.take() {
            let Begins {
                shared,
                flow,
                question,
            } = begins;
            let question = question.map(|question| *question);
            self.decoder = Some(Box::new(Decoder::new(&shared, &flow, question)));
        }
        self.decoder.as_deref_mut()
    }

    /// Whether nobody needs to see the bytes that come.
    pub(super) fn is_off(&self) -> bool {
        self.decoder.is_none() && self.begins.is_none()
    }

    pub(super) fn turn(&mut self, way: Way) -> Turn {
        match &mut self.decoder {
            Some(decoder) => decoder.turn(way),
            None => Turn::Read,
        }
    }

    /// Reads a chunk before it is forwarded. `read`: the number of bytes of its direction that were
    /// read before it, counted as for the kernel ([`dataplane::AgentMoved`]).
    pub(super) fn chunk(&mut self, way: Way, read: u64, bytes: &[u8]) -> Chunk {
        self.catch_up(way, read);
        if let Some(decoder) = self.decoder() {
            return decoder.chunk(way, bytes);
        }
        if let Ok(unread) = &mut self.unread {
            place_of(unread, way).walk(bytes);
        }
        Chunk::Forward
    }

    /// Handles the end of a side. Returns the bytes of that side that were held back and are still
    /// to be forwarded.
    pub(super) fn end(&mut self, way: Way) -> Vec<u8> {
        match self.decoder() {
            Some(decoder) => decoder.end(way),
            None => Vec::new(),
        }
    }

    /// Applies the completions of requests and responses that wait.
    pub(super) fn hears(&mut self) {
        if let Some(decoder) = &mut self.decoder {
            decoder.hears();
        }
    }

    /// Tells the decoder that the flow has ended.
    pub(super) fn finish(&mut self) {
        if let Some(decoder) = &mut self.decoder {
            decoder.finish();
        }
    }

    pub(super) fn last_words(&mut self) -> Option<(Vec<u8>, CloseReason)> {
        self.decoder.as_mut()?.last_words()
    }

    /// Returns the last bytes for the client when a connection that the flow shares is lost.
    pub(super) fn lost(&mut self) -> Option<Vec<u8>> {
        self.decoder.as_mut()?.lost()
    }

    /// Takes the sign that both directions have to be polled again, because held-back bytes may
    /// pass now. Drops a decoder that has nothing more to learn.
    pub(super) fn let_go(&mut self) -> bool {
        let Some(decoder) = &mut self.decoder else {
            return false;
        };
        let let_go = decoder.let_go();
        let is_off = decoder.is_off();
        if is_off {
            self.unread = decoder.unread();
            self.decoder = None;
        }
        let_go || is_off
    }

    /// Returns the flow's frame positions for the kernel, which is told to carry it.
    pub(super) fn hand_over(&mut self) -> FlowPosition {
        self.handed_over = Both {
            to_database: true,
            to_client: true,
        };
        match &self.unread {
            Ok(unread) => place::to_kernel(unread),
            Err(_) => FlowPosition::UNKNOWN,
        }
    }

    /// Starts to decode the flow from its next frames on, as a mark says. The kernel does not carry
    /// the flow now. `read`: as for [`Self::chunk`], in each direction.
    pub(super) fn enrich(
        &mut self,
        flow: &Arc<Flow>,
        by: &RuleName,
        read: Both<u64>,
    ) -> Result<(), NoPlace> {
        let mut unread = match &self.decoder {
            Some(decoder) => decoder.unread()?,
            None => self.unread?,
        };
        for way in [Way::ToDatabase, Way::ToClient] {
            // The kernel's position may not be final, but a position that is lost is lost for good.
            let kernels = self.redirected(way, *read.of(way));
            let place = kernels.unwrap_or(*place_of(&mut unread, way));
            if !place.is_known() {
                return Err(NoPlace::Framing);
            }
        }
        let shared = self.shared.as_ref().ok_or(NoPlace::Handshake)?;
        flow.set_action(by, Action::Enrich);
        let decoder = self
            .decoder
            .get_or_insert_with(|| Box::new(Decoder::idle(shared, flow)));
        decoder.join(unread);
        Ok(())
    }

    /// Takes over the kernel's position where the kernel has gone on since the flow was handed
    /// over.
    fn catch_up(&mut self, way: Way, read: u64) {
        let kernels = self.redirected(way, read);
        let handed_over = std::mem::take(self.handed_over.of_mut(way));
        let (true, Some(place)) = (handed_over, kernels) else {
            return;
        };
        if let Some(decoder) = &mut self.decoder {
            decoder.begins_at(way, place);
        } else if let Ok(unread) = &mut self.unread {
            *place_of(unread, way) = place;
        }
    }

    /// Returns the kernel's position, if the kernel has redirected anything since `read` bytes were
    /// read.
    fn redirected(&self, way: Way, read: u64) -> Option<Place> {
        if !self.handed_over.of(way) {
            return None;
        }
        match self.kernel.as_ref()?.redirected() {
            Ok(kernels) => {
                let [to_database, to_client] = kernels;
                let kernels = Both {
                    to_database,
                    to_client,
                };
                let Redirected { since, place } = kernels.of(way);
                (*since == read).then(|| place::from_kernel(place))
            }
            Err(error) => {
                tracing::warn!(%error, "the kernel does not say where in a frame a flow is");
                Some(Place::UNKNOWN)
            }
        }
    }
}

/// A value for each direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Both<T> {
    pub to_database: T,
    pub to_client: T,
}

impl<T> Both<T> {
    pub(super) fn of(&self, way: Way) -> &T {
        match way {
            Way::ToDatabase => &self.to_database,
            Way::ToClient => &self.to_client,
        }
    }

    pub(super) fn of_mut(&mut self, way: Way) -> &mut T {
        match way {
            Way::ToDatabase => &mut self.to_database,
            Way::ToClient => &mut self.to_client,
        }
    }
}

fn place_of(unread: &mut Unread, way: Way) -> &mut Place {
    match way {
        Way::ToDatabase => &mut unread.requests,
        Way::ToClient => &mut unread.responses,
    }
}
