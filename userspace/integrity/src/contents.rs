//! Contents of a connection: what its script has both ends send, and what arrives of that.

use super::{
    check::{Checker, Owner},
    dice::Dice,
    frames::{Content, Frames, Sizes},
    front::Message,
    hello::Hello,
    script::{REQUEST, RESPONSE, Script},
    stream::{Direction, Stream},
};

/// Bytes of a direction that arrive: as many as were sent, unless frames are edited on their way.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Arrival {
    pub(super) bytes: u64,
    pub(super) edited_frames: u64,
}

impl Script {
    /// Bytes that are sent.
    pub(super) fn total(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Up => self.up,
            Direction::Down => self.down,
        }
    }

    /// Bytes and edited frames that arrive.
    pub(super) fn arrives(&self, direction: Direction) -> Arrival {
        match direction {
            Direction::Up => self.arrives_up,
            Direction::Down => self.arrives_down,
        }
    }

    /// Counts what arrives of all that is sent.
    pub(super) fn arrival(&self, direction: Direction) -> Arrival {
        match self.frames(direction, true) {
            Some(frames) if self.hello.is_edited => {
                let (edited_frames, bytes) = frames.count();
                Arrival {
                    bytes,
                    edited_frames,
                }
            }
            _ => Arrival {
                bytes: self.total(direction),
                edited_frames: 0,
            },
        }
    }

    /// Messages of this direction.
    pub(super) fn message(&self, direction: Direction) -> Message {
        match direction {
            _ if !self.hello.is_edited => Message::Bare(direction),
            Direction::Up => Message::Query,
            // Who edits answers does so where it knows what was asked.
            Direction::Down if self.in_turns() => Message::Rows,
            Direction::Down => Message::Event,
        }
    }

    /// Content of this direction, as it is sent.
    pub(super) fn content(&self, direction: Direction) -> Content {
        self.content_of(direction, false)
    }

    fn content_of(&self, direction: Direction, has_arrived: bool) -> Content {
        let Hello {
            seed, connection, ..
        } = self.hello;
        let stream = Stream::new(seed, connection, direction);
        Content::new(stream, self.frames(direction, has_arrived))
    }

    fn frames(&self, direction: Direction, has_arrived: bool) -> Option<Frames> {
        let Hello {
            seed, connection, ..
        } = self.hello;
        let sizes = match direction {
            _ if !self.in_turns() => Sizes::Random(self.hello.chunk_max),
            Direction::Up => Sizes::Fixed(REQUEST),
            Direction::Down => Sizes::Fixed(RESPONSE),
        };
        self.hello.cql.then(|| {
            let own = Dice::new(&[seed, connection, 2]).next();
            let frames = Frames::new(own, direction, sizes, self.total(direction));
            frames.with(self.message(direction), has_arrived)
        })
    }

    /// Holds what comes this way against it.
    pub(super) fn checker(&self, direction: Direction) -> Checker {
        let owner = Owner {
            seed: self.hello.seed,
            connection: self.hello.connection,
            direction,
        };
        let content = self.content_of(direction, true);
        Checker::new(owner, content, self.arrives(direction).bytes)
    }
}
