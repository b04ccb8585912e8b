//! One direction, packet by packet.

use super::*;

use cql::{Compression, wire::segment};

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
        missed: false,
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

/// A segment of LZ4 around a few frames, or around a part of one.
fn lz4(self_contained: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    segment::encode(Compression::Lz4, &[5; 90], self_contained, &mut bytes);
    bytes
}

#[test]
fn of_compressed_segments_one_of_whole_frames_is_gone_on_with() {
    let (part, whole) = (lz4(false), lz4(true));
    let mut broken = whole.clone();
    broken[0] ^= 1;
    let cut = &whole[..segment::LZ4_HEADER_BYTES - 1];
    let at = |seq, bytes| Packet {
        frame_at: Some(seq),
        framing: KernelFraming::SegmentsLz4,
        ..packet(seq, bytes)
    };
    let mut lost = begun(100);
    lost.lose();
    // That something was before it is told once.
    for (mut follower, gap) in [(lost, ""), (Follower::default(), "|gap|")] {
        for bytes in [&part[..], &broken, cut] {
            assert_eq!(told(&mut follower, &at(200, bytes)), "");
            assert!(!follower.follows());
        }
        let text = String::from_utf8_lossy(&whole);
        let on = format!("{gap}|on|{text}");
        assert_eq!(told(&mut follower, &at(200, &whole)), on);
        assert!(follower.follows());
    }
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

/// Such a packet is sent by one who guesses the ports: it comes by here before TCP drops it.
#[test]
fn a_packet_that_no_peer_takes_changes_nothing() {
    for seq in [0x5000_0000, 1 << 31, u32::MAX - 0x5000_0000] {
        let mut follower = begun(0);
        let foreign = Packet {
            passed: 0,
            ..packet(seq, b"x")
        };
        assert_eq!(told(&mut follower, &foreign), "", "{seq}");
        assert!(follower.held.is_empty());
        assert_eq!(told(&mut follower, &packet(0, b"a")), "a");
    }
}

/// The packet behind so many bytes without a copy. Half of such numbers look like earlier ones.
fn behind(next: u32, missed: u64, bytes: &[u8]) -> Packet<'_> {
    Packet {
        missed: true,
        ..packet(next.wrapping_add(missed as u32), bytes)
    }
}

fn loss_is_told(next: u32, missed: u64) {
    let frame = |packet: Packet<'static>| Packet {
        frame_at: Some(packet.seq),
        ..packet
    };
    let after = |packet: &Packet<'_>| packet.seq.wrapping_add(packet.length());
    let shows = frame(behind(next, missed, b"frame"));
    let mut follower = begun(next);
    assert_eq!(told(&mut follower, &shows), "|gap||on|frame", "{missed}");
    assert_eq!(told(&mut follower, &packet(after(&shows), b"er")), "er");
    // The gap is told before a frame begins, and goes on for as long again.
    let shows = behind(next, missed, b"middle");
    let mut follower = begun(next);
    assert_eq!(told(&mut follower, &shows), "|gap|", "{missed}");
    let again = frame(behind(after(&shows), missed, b"frame"));
    assert_eq!(told(&mut follower, &again), "|on|frame", "{missed}");
    // So does that of which the reader itself wanted no more.
    let mut follower = begun(next);
    follower.lose();
    assert_eq!(
        told(&mut follower, &frame(behind(next, missed, b"frame"))),
        "|on|frame"
    );
}

#[test]
fn loss_is_told_however_much_it_is() {
    const GIB: u64 = 1 << 30;
    for around in [0, GIB, 2 * GIB, 3 * GIB, 4 * GIB, 6 * GIB, 8 * GIB, 1 << 40] {
        for missed in around.saturating_sub(2)..around + 3 {
            for next in [0, 1 << 31, u32::MAX] {
                loss_is_told(next, missed);
            }
        }
    }
}

/// Also by who does not say it, as long as numbers show it.
#[test]
fn what_has_passed_shows_a_gap_of_less_than_half_of_all_numbers() {
    for missed in [1, MAX_WINDOW as u32, MAX_WINDOW as u32 + 1, i32::MAX as u32] {
        let behind = packet(7_u32.wrapping_add(missed), b"x");
        assert_eq!(told(&mut begun(7), &behind), "|gap|", "{missed}");
    }
}

/// A body that nobody can read, longer than there are numbers.
#[test]
fn a_frame_is_found_behind_any_number_of_bytes_that_were_no_frame() {
    let mut follower = begun(0);
    follower.lose();
    for part in 0..6_u32 {
        let mut passing = packet(part << 29, b"body");
        assert_eq!(told(&mut follower, &passing), "");
        passing.frame_at = Some((part << 29).wrapping_sub(1));
        assert_eq!(told(&mut follower, &passing), "", "what has passed before");
    }
    let mut frame = packet(6 << 29, b"frame");
    frame.frame_at = Some(frame.seq);
    assert_eq!(told(&mut follower, &frame), "|on|frame");
}

proptest::proptest! {
    #[test]
    fn loss_of_any_size_is_told(next: u32, missed: u64) {
        loss_is_told(next, missed);
    }
}
