//! Who sees what passes of a flow: a decoder, or nobody.
//!
//! Of a flow that nobody sees it is known all the same where in its frames it is, as long as that
//! could be known, so that it can be decoded from its next frame on ([`Reader::enrich`]). Bytes
//! that the agent relays are walked here; those that the kernel redirects, there, from the place
//! that it is given ([`Reader::hand_over`]) when the flow is handed over.
//!
//! **How a place comes back**: with the first byte of a direction that is read after a hand-over.
//! The kernel let that byte pass after the last one that it redirected (in the near application's
//! socket, or in the agent's that leads to the far one, under that socket's lock), and redirects none before it is told that this
//! byte was read; so its place is that right before this byte, and final. It was not final when the
//! order was withdrawn: a `send()` of the client's that had read the order before may redirect its
//! message later, but not after it let one pass. A hand-over that follows without a byte in between
//! names the same count of bytes read, by which the kernel knows that its own place is the later.

use std::sync::Arc;

use cql::{NoPlace, Place, Unread};
use dataplane::{Places, Redirected, Splice};
use policy::{Action, RuleName};

use super::{
    Shared,
    chunk::{Chunk, Turn, Way},
    decode::Decoder,
    place,
    session::Question,
};
use crate::flows::Flow;

/// See the module.
pub(super) struct Reader {
    /// None where nobody needs to see the bytes; then it takes no room.
    decoder: Option<Box<Decoder>>,
    /// A decoder is needed from the first byte on, and not made before: thousands of flows that have
    /// nothing to say yet would leave holes in the heap when theirs go.
    begins: Option<Begins>,
    /// Without a decoder: where the flow is, as far as the agent has walked.
    unread: Result<Unread, NoPlace>,
    /// What a decoder needs that begins later. None: none does.
    shared: Option<Arc<Shared>>,
    kernel: Option<Arc<Splice>>,
    /// The kernel may have gone on from the place in `unread`.
    handed_over: Both<bool>,
}

/// What a flow's first decoder is made of.
pub(super) struct Begins {
    pub shared: Arc<Shared>,
    pub flow: Arc<Flow>,
    /// What its session has to decide.
    pub question: Option<Box<Question>>,
}

impl Reader {
    /// Of a flow that begins. None: it will never be decoded.
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

    /// From now on the kernel may carry it.
    pub(super) fn is_enrolled(&mut self, kernel: Arc<Splice>) {
        self.kernel = Some(kernel);
    }

    /// Another process has carried it to here, and told the kernel of these places. `shared`: as for
    /// a flow that may be decoded later.
    pub(super) fn begins_at(&mut self, places: &Places, shared: Option<Arc<Shared>>) {
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

    /// Nobody needs to see what comes.
    pub(super) fn is_off(&self) -> bool {
        self.decoder.is_none() && self.begins.is_none()
    }

    pub(super) fn turn(&mut self, way: Way) -> Turn {
        match &mut self.decoder {
            Some(decoder) => decoder.turn(way),
            None => Turn::Read,
        }
    }

    /// Sees a chunk before it is forwarded. `read`: how many bytes of its direction were read
    /// before it, counted as for the kernel ([`dataplane::Position`]).
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

    /// A side has ended; what of it was held back is to be forwarded yet.
    pub(super) fn end(&mut self, way: Way) -> Vec<u8> {
        match self.decoder() {
            Some(decoder) => decoder.end(way),
            None => Vec::new(),
        }
    }

    /// Does what was said of what waits.
    pub(super) fn hears(&mut self) {
        if let Some(decoder) = &mut self.decoder {
            decoder.hears();
        }
    }

    /// The flow has ended.
    pub(super) fn is_over(&mut self) {
        if let Some(decoder) = &mut self.decoder {
            decoder.is_gone();
        }
    }

    pub(super) fn last_words(&mut self) -> Option<(Vec<u8>, &'static str)> {
        self.decoder.as_mut()?.last_words()
    }

    /// What the client is still told, where a connection that the flow shares is lost.
    pub(super) fn lost(&mut self) -> Option<Vec<u8>> {
        self.decoder.as_mut()?.lost()
    }

    /// Whether both directions are to be polled again: what one held back may pass now. A decoder
    /// that has nothing more to learn goes.
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

    /// Where the flow is when the kernel is told to carry it.
    pub(super) fn hand_over(&mut self) -> Places {
        self.handed_over = Both {
            to_database: true,
            to_client: true,
        };
        match &self.unread {
            Ok(unread) => place::to_kernel(unread),
            Err(_) => Places::UNKNOWN,
        }
    }

    /// Has it decoded from its next frames on, as a mark says; the kernel does not carry it now.
    /// `read`: as for [`Self::chunk`], in each direction.
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
            // It may not be final, but what is lost is lost for good.
            let kernels = self.redirected(way, *read.of(way));
            let place = kernels.unwrap_or(*place_of(&mut unread, way));
            if !place.is_known() {
                return Err(NoPlace::Framing);
            }
        }
        let shared = self.shared.as_ref().ok_or(NoPlace::Handshake)?;
        flow.is_by(by, Action::Enrich);
        let decoder = self
            .decoder
            .get_or_insert_with(|| Box::new(Decoder::idle(shared, flow)));
        decoder.join(unread);
        Ok(())
    }

    /// Takes the kernel's place where it has gone on since the flow was handed over.
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

    /// Where the kernel has got to, if it has redirected anything since `read` bytes were read.
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

/// One for each direction.
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
