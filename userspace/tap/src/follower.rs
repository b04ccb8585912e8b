//! [`Follower`]: one direction of a flow, by TCP sequence number.

use std::collections::VecDeque;

use cql::wire::segment::SegmentHeader;

use crate::packet::{KernelFraming, Packet, distance};

/// Copied bytes that wait for what comes before them, in one direction, at most: a receive window of a fast
/// connection within a data centre. What waits beyond that means a gap.
pub const MAX_HELD_BYTES: usize = 1 << 20;

/// Packets that wait likewise: of a full window as many as there are in 1 MiB of the smallest MTU that
/// networks of databases have, 1,400 bytes.
pub const MAX_HELD_PACKETS: usize = 750;

/// The memory of a packet that waits, beside its bytes.
const HELD_PACKET_BYTES: usize = 64;

/// TCP's largest window. A packet that is further ahead of what has passed is none that a peer takes.
const MAX_WINDOW: i32 = 1 << 30;

/// A part of a direction, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The next bytes.
    Bytes(&'a [u8]),
    /// The next bytes, of which nobody has a copy.
    Skipped(u32),
    /// Bytes are missing, and how many is not known: nothing can be read before a frame begins.
    Gap,
    /// The next piece begins with a frame, or a segment of whole frames.
    Resumed(KernelFraming),
}

/// A piece, and when the packet that it was in passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told<'a> {
    /// By the kernel's monotonic clock, in ns.
    pub at_ns: u64,
    /// The piece.
    pub piece: Piece<'a>,
}

/// A direction's state.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The direction's first byte is not known: neither a SYN nor a frame's beginning was seen.
    Unbegun,
    /// The next byte has this sequence number.
    Follows(u32),
    /// Bytes are missing from this sequence number on.
    Lost(u32),
}

/// A packet that has come before its time.
#[derive(Debug)]
struct Held {
    at_ns: u64,
    seq: u32,
    before: u32,
    bytes: Box<[u8]>,
    after: u32,
    passed: u32,
    frame_at: Option<u32>,
    framing: KernelFraming,
}

/// One direction of a flow, made of packets as they come.
#[derive(Debug)]
pub struct Follower {
    state: State,
    /// In the order of their bytes.
    held: VecDeque<Held>,
    held_bytes: usize,
}

impl Default for Follower {
    fn default() -> Self {
        Self {
            state: State::Unbegun,
            held: VecDeque::new(),
            held_bytes: 0,
        }
    }
}

impl Follower {
    /// The direction begins with the byte of this sequence number.
    pub fn begin(&mut self, seq: u32) {
        self.forget_held();
        self.state = State::Follows(seq);
    }

    /// Reads nothing more before a frame begins: what follows is of no use to the caller. Tells nothing.
    pub fn lose(&mut self) {
        self.forget_held();
        if let State::Follows(next) = self.state {
            self.state = State::Lost(next);
        }
    }

    /// Whether it knows which byte comes next.
    pub fn follows(&self) -> bool {
        matches!(self.state, State::Follows(_))
    }

    /// Takes a packet, and tells what can be told by it: of this one and of those that waited for it.
    pub fn push(&mut self, packet: &Packet<'_>, tell: &mut impl FnMut(Told<'_>)) {
        match self.state {
            State::Unbegun => {
                let Some(frame_at) = begins_at(packet) else {
                    return;
                };
                // Whether anything was before it, nobody knows.
                tell(Told {
                    at_ns: packet.at_ns,
                    piece: Piece::Gap,
                });
                self.resume(packet, frame_at, tell);
            }
            State::Lost(from) => self.look_for_frame(from, packet, tell),
            State::Follows(next) => {
                let ahead = distance(next, packet.seq);
                let is_near = (1..=MAX_WINDOW).contains(&ahead);
                // Bytes that have passed without a copy may be in this packet, sent again: the other direction has
                // gone on without them, so they are not told any more.
                if has_missed(next, packet) || is_near && !self.hold(next, packet) {
                    self.gap(next, packet, tell);
                } else if ahead <= 0 {
                    self.deliver(packet, tell);
                }
            }
        }
        self.deliver_held(tell);
    }

    /// Bytes are missing, which will not come any more.
    fn gap(&mut self, next: u32, packet: &Packet<'_>, tell: &mut impl FnMut(Told<'_>)) {
        self.lose();
        tell(Told {
            at_ns: packet.at_ns,
            piece: Piece::Gap,
        });
        self.look_for_frame(next, packet, tell);
    }

    /// Goes on with the frame that begins in this packet, if one does. Bytes are missing from `from` on.
    fn look_for_frame(&mut self, from: u32, packet: &Packet<'_>, tell: &mut impl FnMut(Told<'_>)) {
        // With what passes: a number that stays behind is ahead 2 GiB later.
        let from = match has_missed(from, packet) {
            true => packet.passed,
            false => from,
        };
        self.state = State::Lost(from);
        if let Some(frame_at) = begins_at(packet).filter(|at| distance(from, *at) >= 0) {
            self.resume(packet, frame_at, tell);
        }
    }

    /// Goes on with the frame that begins there, in this packet.
    fn resume(&mut self, packet: &Packet<'_>, frame_at: u32, tell: &mut impl FnMut(Told<'_>)) {
        self.state = State::Follows(frame_at);
        tell(Told {
            at_ns: packet.at_ns,
            piece: Piece::Resumed(packet.framing),
        });
        self.deliver(packet, tell);
    }

    /// Tells what is new of a packet that does not lie behind the next byte.
    fn deliver(&mut self, packet: &Packet<'_>, tell: &mut impl FnMut(Told<'_>)) {
        let State::Follows(next) = self.state else {
            return;
        };
        let seen = distance(packet.seq, next);
        let length = packet.length();
        let Some(seen) = u32::try_from(seen).ok().filter(|seen| *seen < length) else {
            return;
        };
        self.state = State::Follows(packet.seq.wrapping_add(length));
        let mut tell = |piece| {
            tell(Told {
                at_ns: packet.at_ns,
                piece,
            });
        };
        if seen < packet.before {
            tell(Piece::Skipped(packet.before - seen));
        }
        let of_bytes = seen.saturating_sub(packet.before) as usize;
        let bytes = packet.bytes.get(of_bytes..).unwrap_or_default();
        if !bytes.is_empty() {
            tell(Piece::Bytes(bytes));
        }
        let after = packet.after.min(length - seen);
        if after > 0 {
            tell(Piece::Skipped(after));
        }
    }

    /// Keeps a packet that has come before its time. False: there is no room.
    fn hold(&mut self, next: u32, packet: &Packet<'_>) -> bool {
        let bytes = packet.bytes.len() + HELD_PACKET_BYTES;
        if self.held.len() >= MAX_HELD_PACKETS || self.held_bytes + bytes > MAX_HELD_BYTES {
            return false;
        }
        let ahead = distance(next, packet.seq);
        let place = self
            .held
            .partition_point(|held| distance(next, held.seq) < ahead);
        // The same packet again, as a network that doubles packets sends it.
        let again = self.held.get(place).is_some_and(|held| {
            held.seq == packet.seq && held.as_packet().length() >= packet.length()
        });
        if again {
            return true;
        }
        self.held_bytes += bytes;
        let held = Held {
            at_ns: packet.at_ns,
            seq: packet.seq,
            before: packet.before,
            bytes: packet.bytes.into(),
            after: packet.after,
            passed: packet.passed,
            frame_at: packet.frame_at,
            framing: packet.framing,
        };
        self.held.insert(place, held);
        true
    }

    /// Tells what waited for what has come.
    fn deliver_held(&mut self, tell: &mut impl FnMut(Told<'_>)) {
        while let (State::Follows(next), Some(first)) = (self.state, self.held.front()) {
            if distance(next, first.seq) > 0 {
                return;
            }
            let Some(first) = self.held.pop_front() else {
                return;
            };
            self.held_bytes -= first.bytes.len() + HELD_PACKET_BYTES;
            self.deliver(&first.as_packet(), tell);
        }
        if self.held.is_empty() {
            self.held = VecDeque::new();
        }
    }

    fn forget_held(&mut self) {
        self.held = VecDeque::new();
        self.held_bytes = 0;
    }
}

/// Where reading can begin in this packet, if it can: its first frame, or segment of whole frames.
fn begins_at(packet: &Packet<'_>) -> Option<u32> {
    let frame_at = packet.frame_at?;
    let offset = u32::try_from(distance(packet.seq, frame_at)).ok()?;
    let of_bytes = offset.checked_sub(packet.before)? as usize;
    let bytes = packet.bytes.get(of_bytes..)?;
    let begins = match packet.framing {
        // The header says what the kernel does not see.
        KernelFraming::SegmentsLz4 => bytes.first_chunk().is_some_and(|raw| {
            SegmentHeader::read_lz4(raw).is_ok_and(|header| header.self_contained)
        }),
        // Where a frame begins that was not copied, its header cannot be read.
        _ => !bytes.is_empty(),
    };
    begins.then_some(frame_at)
}

/// Whether bytes from this one on have passed, and will not be told.
fn has_missed(next: u32, packet: &Packet<'_>) -> bool {
    packet.missed || distance(next, packet.passed) > 0
}

impl Held {
    fn as_packet(&self) -> Packet<'_> {
        Packet {
            at_ns: self.at_ns,
            seq: self.seq,
            before: self.before,
            bytes: &self.bytes,
            after: self.after,
            passed: self.passed,
            frame_at: self.frame_at,
            framing: self.framing,
            missed: false,
        }
    }
}

#[cfg(test)]
#[path = "follower_tests.rs"]
mod tests;
