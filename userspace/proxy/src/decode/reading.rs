//! Decoding of bytes that pass, and following the frame position through bytes that are not decoded.

use cql::{FlowDecoder, NoPosition, Sink, Undecodable};
use flow::{CloseReason, Path};

use super::{Decoder, Reading};
use crate::{
    passing::{Direction, Passing, Verdict},
    recorder::{InDetail, InFrames, Nobody},
};

impl Decoder {
    /// Decodes these bytes as the client's side sees them. Nothing passes in their place.
    pub(super) fn read(&mut self, direction: Direction, bytes: &[u8]) -> Verdict {
        let decoder = match &mut self.reading {
            Reading::Decodes {
                decoder,
                stops: false,
            } => decoder,
            Reading::Decodes { .. } => {
                self.pass_unread(direction, bytes);
                self.stop();
                return Verdict::ALL;
            }
            Reading::Walks(_) => {
                self.pass_unread(direction, bytes);
                return Verdict::ALL;
            }
        };
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let recorder = &mut self.recorder;
        recorder.look_for_watchers(&self.flow);
        let followed = recorder.followed.take();
        let in_detail = followed.as_ref().is_some_and(|f| f.wants_details());
        if recorder.reads_details(in_detail) {
            decoder.forget_details();
        }
        let verdict = match followed {
            None => feed(decoder, direction, now_ns, bytes, recorder),
            Some(followed) if !in_detail => {
                let mut frames = InFrames(InDetail { recorder, followed });
                let verdict = feed(decoder, direction, now_ns, bytes, &mut frames);
                self.recorder.followed = Some(frames.0.followed);
                verdict
            }
            Some(followed) => {
                decoder.wants_texts(followed.wants_texts());
                decoder.wants_contexts(followed.wants_contexts());
                decoder.wants_values(followed.wants_values());
                decoder.wants_whole(followed.wants_whole());
                let mut followed = InDetail { recorder, followed };
                let verdict = feed(decoder, direction, now_ns, bytes, &mut followed);
                let mut followed = followed.followed;
                // The reporters may have no room for what the last responses made them write, and
                // are asked again only before the client is read.
                self.repoll |= direction == Direction::ToClient && followed.holds();
                self.recorder.followed = Some(followed);
                verdict
            }
        };
        match verdict {
            cql::Verdict::Continue => Verdict::ALL,
            cql::Verdict::Undecodable(reason) => {
                self.relay_from_here(reason);
                Verdict::ALL
            }
            cql::Verdict::Close { keep, reason } => Verdict {
                passing: Passing::First(keep),
                close: Some(CloseReason::Decoder(reason)),
            },
        }
    }

    /// Reads no more of a flow that cannot be decoded.
    fn relay_from_here(&mut self, reason: Undecodable) {
        let metrics = &self.recorder.shared.metrics;
        let counter = &metrics.flows.undecodable;
        counter.with_label_values(&[reason.as_str()]).inc();
        // The line at its end says how it travelled, and a metric why.
        tracing::debug!(flow = ?self.flow.id, %reason, "relayed from here on");
        self.flow.set_undecodable(reason.as_str());
        self.flow.travels(Path::Relay);
        self.reading = Reading::Walks(Err(NoPosition::Undecodable(reason)));
    }

    /// Follows the frame position through these bytes; nobody is told of what they say.
    pub(super) fn pass_unread(&mut self, direction: Direction, bytes: &[u8]) {
        match (&mut self.reading, direction) {
            (Reading::Decodes { decoder, .. }, Direction::ToDatabase) => {
                decoder.requests(0, bytes, &mut Nobody);
            }
            (Reading::Decodes { decoder, .. }, Direction::ToClient) => {
                decoder.responses(0, bytes, &mut Nobody);
            }
            (Reading::Walks(Ok(unread)), Direction::ToDatabase) => unread.requests.walk(bytes),
            (Reading::Walks(Ok(unread)), Direction::ToClient) => unread.responses.walk(bytes),
            (Reading::Walks(Err(_)), _) => {}
        }
    }
}

fn feed(
    decoder: &mut FlowDecoder,
    direction: Direction,
    now_ns: u64,
    bytes: &[u8],
    sink: &mut impl Sink,
) -> cql::Verdict {
    match direction {
        Direction::ToDatabase => decoder.requests(now_ns, bytes, sink),
        Direction::ToClient => decoder.responses(now_ns, bytes, sink),
    }
}
