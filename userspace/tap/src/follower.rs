//! [`Follower`]: one direction of a flow, by TCP sequence number.

use std::collections::VecDeque;

use crate::packet::{KernelFraming, Packet, distance};

/// Copied bytes that wait for what comes before them, in one direction, at most: a receive window of a fast
/// connection within a data centre. What waits beyond that means a gap.
pub const MAX_HELD_BYTES: usize = 1 << 20;

/// Packets that wait likewise: of a full window as many as there are in 1 MiB of the smallest MTU that
/// networks of databases have, 1,400 bytes.
pub const MAX_HELD_PACKETS: usize = 750;

/// The memory of a packet that waits, beside its bytes.
const HELD_PACKET_BYTES: usize = 64;

/// TCP's largest window. A packet that is further ahead is none of this connection's.
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
                let Some(frame_at) = packet.frame_at else {
                    return;
                };
                // Whether anything was before it, nobody knows.
                tell(Told {
                    at_ns: packet.at_ns,
                    piece: Piece::Gap,
                });
                self.resume(packet, frame_at, tell);
            }
            State::Lost(from) => {
                let frame_at = packet.frame_at.filter(|at| distance(from, *at) >= 0);
                let Some(frame_at) = frame_at else {
                    return;
                };
                self.resume(packet, frame_at, tell);
            }
            State::Follows(next) => {
                let ahead = distance(next, packet.seq);
                if ahead > MAX_WINDOW {
                    return;
                }
                // Bytes that have passed without a copy may be in this packet, sent again: the other direction has
                // gone on without them, so they are not told any more.
                if distance(next, packet.passed) > 0 || ahead > 0 && !self.hold(next, packet) {
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
        let frame_at = packet.frame_at.filter(|at| distance(next, *at) >= 0);
        if let Some(frame_at) = frame_at {
            self.resume(packet, frame_at, tell);
        }
    }

    /// Goes on with the frame that begins there, in this packet.
    fn resume(&mut self, packet: &Packet<'_>, frame_at: u32, tell: &mut impl FnMut(Told<'_>)) {
        let offset = distance(packet.seq, frame_at);
        let copied = packet.before..packet.length().saturating_sub(packet.after);
        // Where a frame begins that was not copied, its header cannot be read.
        if !u32::try_from(offset).is_ok_and(|offset| copied.contains(&offset)) {
            return;
        }
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet that passes when all before it has.
    fn packet(seq: u32, bytes: &[u8]) -> Packet<'_> {
        Packet {
            at_ns: 1,
            seq,
            before: 0,
            bytes,
            after: 0,
            passed: seq,
            frame_at: None,
            framing: KernelFraming::Frames,
        }
    }

    /// Pushes a packet, and returns the pieces that a follower tells, as text.
    fn told(follower: &mut Follower, packet: &Packet<'_>) -> String {
        let mut told = String::new();
        follower.push(packet, &mut |Told { piece, .. }| match piece {
            Piece::Bytes(bytes) => told += &String::from_utf8_lossy(bytes),
            Piece::Skipped(bytes) => told += &format!("<{bytes}>"),
            Piece::Gap => told += "|gap|",
            Piece::Resumed(_) => told += "|on|",
        });
        told
    }

    fn begun(at: u32) -> Follower {
        let mut follower = Follower::default();
        follower.begin(at);
        follower
    }

    #[test]
    fn bytes_that_were_seen_are_not_told_again_whatever_the_boundaries() {
        let mut follower = begun(u32::MAX - 2);
        assert_eq!(told(&mut follower, &packet(u32::MAX - 2, b"abcd")), "abcd");
        assert_eq!(told(&mut follower, &packet(u32::MAX - 2, b"abcd")), "");
        // Sent again with more behind it, and the number has wrapped.
        assert_eq!(told(&mut follower, &packet(u32::MAX, b"cdef")), "ef");
        assert_eq!(told(&mut follower, &packet(3, b"gh")), "gh");
    }

    #[test]
    fn a_hole_is_waited_for_as_long_as_it_may_be_filled() {
        let mut follower = begun(100);
        let mut ahead = packet(103, b"de");
        ahead.passed = 100;
        assert_eq!(told(&mut follower, &ahead), "");
        assert_eq!(told(&mut follower, &ahead), "", "again");
        (ahead.seq, ahead.bytes) = (105, b"f");
        assert_eq!(told(&mut follower, &ahead), "");
        assert_eq!(told(&mut follower, &packet(100, b"abc")), "abcdef");
        assert_eq!(follower.held_bytes, 0);
    }

    #[test]
    fn a_hole_that_has_passed_is_a_gap_until_a_frame_begins() {
        let mut follower = begun(100);
        let mut behind = packet(110, b"middle");
        behind.passed = 110;
        assert_eq!(told(&mut follower, &behind), "|gap|");
        assert_eq!(told(&mut follower, &packet(100, b"late")), "");
        let mut frame = packet(116, b"restnew");
        frame.frame_at = Some(120);
        assert_eq!(told(&mut follower, &frame), "|on|new");
        assert_eq!(told(&mut follower, &packet(123, b"er")), "er");
        // A frame that began before what is missing is none to go on with.
        let mut behind = packet(130, b"x");
        (behind.passed, behind.frame_at) = (130, Some(90));
        assert_eq!(told(&mut follower, &behind), "|gap|");
    }

    #[test]
    fn bytes_without_a_copy_that_are_sent_again_are_none_to_go_on_with() {
        let mut again = packet(110, b"again");
        again.passed = 125;
        assert_eq!(told(&mut begun(110), &again), "|gap|");
        // Nor is what has waited for them.
        let mut waits = packet(112, b"waits");
        waits.passed = 110;
        let mut follower = begun(110);
        assert_eq!(told(&mut follower, &waits), "");
        (again.bytes, again.passed) = (b"ag", 117);
        assert_eq!(told(&mut follower, &again), "|gap|");
        // A frame behind them is.
        again = packet(115, b"xx12345frame");
        (again.passed, again.frame_at) = (117, Some(122));
        assert_eq!(told(&mut follower, &again), "|on|frame");
    }

    #[test]
    fn the_packet_that_shows_a_gap_may_be_read_itself() {
        let mut follower = begun(100);
        let mut behind = packet(110, b"frame");
        (behind.passed, behind.frame_at) = (105, Some(110));
        assert_eq!(told(&mut follower, &behind), "|gap||on|frame");
    }

    #[test]
    fn bytes_that_were_not_copied_are_told_by_their_number() {
        let mut follower = begun(10);
        let mut long = packet(10, b"ab");
        (long.before, long.after) = (3, 4);
        assert_eq!(told(&mut follower, &long), "<3>ab<4>");
        let mut again = packet(10, b"");
        again.before = 12;
        assert_eq!(told(&mut follower, &again), "<3>");
        let mut partly = packet(20, b"");
        partly.after = 7;
        assert_eq!(told(&mut follower, &partly), "<5>");
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut follower = begun(0);
        let chunk = [0; 4096];
        let mut at = 1;
        let mut gap = String::new();
        let ahead = |seq, bytes| Packet {
            passed: 0,
            ..packet(seq, bytes)
        };
        while gap.is_empty() {
            gap = told(&mut follower, &ahead(at, &chunk));
            at += 4096;
            assert!(follower.held_bytes <= MAX_HELD_BYTES);
        }
        assert_eq!(gap, "|gap|");
        assert!(at > 900_000 && follower.held.is_empty() && !follower.follows());
        let mut follower = begun(0);
        let mut held = 0;
        while told(&mut follower, &ahead(2 + 2 * held, b"x")).is_empty() {
            held += 1;
        }
        assert_eq!(held as usize, MAX_HELD_PACKETS);
    }

    #[test]
    fn a_packet_of_another_connection_changes_nothing() {
        let mut follower = begun(0);
        assert_eq!(told(&mut follower, &packet(0x5000_0000, b"x")), "");
        assert!(follower.held.is_empty());
        assert_eq!(told(&mut follower, &packet(0, b"a")), "a");
    }
}
