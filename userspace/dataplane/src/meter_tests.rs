//! The meter passes every packet, and passes it unchanged.
//!
//! The programs are run on packets that no network would let through to them, as of one flow: good
//! ones, so that they read on, and between them corrupted, bent and random ones. (That they cannot write
//! to a packet is the kernel's rule for programs of their type; this holds it to that.)
//!
//! A copy says where one before it was lost.

use std::os::fd::AsFd;

use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, Map, MapData, RingBuf, of_maps::ArrayOfMaps},
    programs::CgroupSkb,
};
use ebpf::abi;

use super::HOOKS;
use crate::{
    maps,
    probe_traffic::Random,
    sys::{self, PodOf, Rings, bytes},
    tap::MIN_TAP_RING_BYTES,
};

const PACKETS: usize = 120_000;
/// A bad one that is taken for one from far ahead makes old news of the rest.
const PACKETS_OF_A_FLOW: usize = 300;
/// TEST_RUN wants packets as they come from Ethernet, and takes that off.
const ETHERNET: usize = 14;
const SYN: u8 = 2;
const ACK: u8 = 16;

fn one_in(random: &mut Random, n: usize) -> bool {
    random.below(n) == 0
}

fn noise(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.below(256) as u8).collect()
}

/// The two programs, and what they count.
struct Meter {
    ebpf: Ebpf,
    map: HashMap<MapData, u64, PodOf<abi::Meter>>,
}

impl Meter {
    fn load() -> Self {
        let mut loader = EbpfLoader::new();
        loader.override_global("meter_without_socket", &1_u32, true);
        let mut ebpf = loader.load(ebpf::OBJECT).unwrap();
        for (name, _) in HOOKS {
            let program: &mut CgroupSkb = ebpf.program_mut(name).unwrap().try_into().unwrap();
            program.load().unwrap();
        }
        let map: Map = ebpf.take_map("meters").unwrap();
        let map = map.try_into().unwrap();
        Self { ebpf, map }
    }

    fn pass(&self, hook: &str, packet: &[u8]) {
        let program: &CgroupSkb = self.ebpf.program(hook).unwrap().try_into().unwrap();
        // Neither what it was nor what it could have been made.
        let mut output = vec![0xa5; packet.len()];
        let fd = program.fd().unwrap().as_fd();
        let verdict = sys::run_program(fd, packet, &mut output).unwrap();
        assert_eq!(verdict, 1, "{hook}: {packet:02x?}");
        assert_eq!(output[ETHERNET..], packet[ETHERNET..], "{hook}");
    }

    fn read(&self) -> abi::Meter {
        let PodOf(meter) = self.map.get(&0, 0).unwrap();
        meter
    }
}

/// The shortest packet that TEST_RUN takes: it insists (as IP does, long before the hook) on Ethernet's
/// header and IP's.
fn shortest(packet: &[u8]) -> usize {
    match packet[12..ETHERNET] {
        [0x08, 0x00] => ETHERNET + 20,
        [0x86, 0xdd] => ETHERNET + 40,
        _ => ETHERNET + 1,
    }
}

/// The sender of one direction.
struct Sender {
    hook: &'static str,
    /// The direction bit of its frames.
    side: u8,
    seq: u32,
}

/// IPv4 or IPv6, and TCP: as good as they are asked for.
fn headers(random: &mut Random, seq: u32, flags: u8) -> Vec<u8> {
    let bad = |random: &mut Random| one_in(random, 100);
    let is_v4 = one_in(random, 2);
    let mut packet = vec![0; ETHERNET];
    let kind: u16 = if is_v4 { 0x0800 } else { 0x86dd };
    packet[12..].copy_from_slice(&kind.to_be_bytes());
    let begin = packet.len();
    if is_v4 {
        let words = if bad(random) { random.below(16) } else { 5 };
        packet.extend(noise(random, 20.max(4 * words)));
        packet[begin] = 0x40 | words as u8;
        packet[begin + 9] = if bad(random) {
            random.below(256) as u8
        } else {
            6
        };
    } else {
        packet.extend(noise(random, 40));
        packet[begin] = 0x60;
        packet[begin + 6] = 6;
        if bad(random) {
            // Hop by hop, routing, fragment, destination options, or none that there is.
            let next = [0, 43, 44, 60, 250][random.below(5)];
            packet[begin + 6] = next;
            let words = random.below(4);
            packet.extend(noise(random, 8 + 8 * words));
            packet[begin + 40] = if bad(random) { 0 } else { 6 };
            packet[begin + 41] = if bad(random) { 255 } else { words as u8 };
        }
    }
    let tcp = packet.len();
    packet.extend(noise(random, 20));
    packet[tcp + 4..tcp + 8].copy_from_slice(&seq.to_be_bytes());
    let words = if bad(random) { random.below(16) } else { 5 };
    packet[tcp + 12] = (words as u8) << 4;
    packet[tcp + 13] = flags;
    packet
}

fn frame(version: u8, stream: usize, opcode: u8, body: usize) -> Vec<u8> {
    let [_, _, high, low] = (stream as u32).to_be_bytes();
    let mut frame = vec![version, 0, high, low, opcode];
    frame.extend_from_slice(&(body as u32).to_be_bytes());
    frame.resize(frame.len() + body, 4);
    frame
}

/// Frames, or a segment with a checksum of chance, or no CQL at all.
fn payload(random: &mut Random, version: u8) -> Vec<u8> {
    if one_in(random, 20) {
        let count = random.below(300);
        return noise(random, count);
    }
    let mut bytes = Vec::new();
    for _ in 0..=random.below(6) {
        let (stream, opcode) = (random.below(700), random.below(18) as u8);
        let body = [0, 20, 300][random.below(3)];
        bytes.extend(frame(version, stream, opcode, random.below(body + 1)));
    }
    bytes
}

impl Sender {
    /// In order, again, or ahead of its time; whole, corrupted or bent.
    fn send(&mut self, meter: &Meter, random: &mut Random, payload: &[u8], can_be_bad: bool) {
        let seq = match random.below(if can_be_bad { 2_000 } else { 1 }) {
            1 => random.below(1 << 31) as u32 * 2,
            2..100 => self.seq.wrapping_sub(random.below(3_000) as u32),
            100..200 => self.seq.wrapping_add(random.below(3_000) as u32),
            _ => self.seq,
        };
        if seq == self.seq {
            self.seq = self.seq.wrapping_add(payload.len() as u32);
        }
        let mut packet = headers(random, seq, ACK);
        packet.extend_from_slice(payload);
        if can_be_bad && one_in(random, 40) {
            let shortest = shortest(&packet);
            packet.truncate(shortest + random.below(packet.len() - shortest));
        }
        if can_be_bad && one_in(random, 40) {
            let at = ETHERNET + random.below(packet.len() - ETHERNET);
            packet[at] = random.below(256) as u8;
        }
        meter.pass(self.hook, &packet);
    }
}

#[test]
fn every_packet_passes_as_it_was() {
    let meter = Meter::load();
    let mut random = Random::new(11);
    let (mut frames, mut segments, mut gaps) = ([0; 2], 0, 0);
    for flow in 0..PACKETS / PACKETS_OF_A_FLOW {
        let mut senders = [("meter_requests", 0), ("meter_answers", 0x80)].map(|(hook, side)| {
            let seq = random.below(1 << 31) as u32 * 2;
            Sender { hook, side, seq }
        });
        // Until one gets through: headers may be bad.
        let is_begun = || {
            meter
                .map
                .get(&0, 0)
                .is_ok_and(|PodOf(m)| m.requests.frames == 0)
        };
        for sender in &mut senders {
            for _ in 0..20 {
                let syn = headers(&mut random, sender.seq, SYN);
                meter.pass(sender.hook, &syn);
            }
            sender.seq = sender.seq.wrapping_add(1);
        }
        assert!(is_begun());
        let version = [4, 5][flow % 2];
        for (sender, opcode) in senders.iter_mut().zip([1, 2]) {
            let first = frame(sender.side | version, 0, opcode, 0);
            sender.send(&meter, &mut random, &first, false);
        }
        for _ in 0..PACKETS_OF_A_FLOW {
            let sender = &mut senders[random.below(2)];
            let payload = payload(&mut random, sender.side | version);
            sender.send(&meter, &mut random, &payload, true);
        }
        let read = meter.read();
        for (total, side) in frames.iter_mut().zip([read.requests, read.responses]) {
            *total += side.frames;
            segments += side.segments;
            gaps += side.gaps;
        }
    }
    // They were read, not only let by.
    assert!(frames[0] > 10_000 && frames[1] > 10_000, "{frames:?}");
    assert!(segments > 0 && gaps > 100, "{segments} {gaps}");
}

/// IPv6's extension headers that are read: hop by hop, routing, fragment, destination options.
const EXTENSIONS: [u8; 4] = [0, 43, 44, 60];
/// Chains of them.
const CHAINS: usize = 20_000;

/// A chain of extension headers before TCP, and the first one's kind: most of them good.
fn chain(random: &mut Random) -> (u8, Vec<u8>) {
    let (mut next, mut bytes) = (6, Vec::new());
    for _ in 0..random.below(7) {
        let words = match random.below(40) {
            0 if bytes.is_empty() => 255,
            n => n % 4,
        };
        let mut kind = EXTENSIONS[random.below(4)];
        let mut header = noise(random, 8 + 8 * words);
        header[..2].copy_from_slice(&[next, words as u8]);
        if kind == 44 {
            header.truncate(8);
            header[2..4].copy_from_slice(&[0, random.below(4) as u8 * 2]);
            if one_in(random, 10) {
                let part = [0x0100, 8, 1][random.below(3)];
                header[2..4].copy_from_slice(&u16::to_be_bytes(part));
            }
        }
        if one_in(random, 60) {
            kind = [51, 59, 250][random.below(3)];
        }
        bytes.splice(..0, header);
        next = kind;
    }
    (next, bytes)
}

/// The plain reading of where TCP's header is in an IPv6 packet.
fn tcp_at(ip: &[u8]) -> Option<usize> {
    let (mut next, mut at) = (ip[6], 40);
    for _ in 0..5 {
        let header = ip.get(at..at + 4)?;
        at += match next {
            6 => break,
            44 if header[2] == 0 && header[3] & 0xf9 == 0 => 8,
            0 | 43 | 60 => 8 + 8 * usize::from(header[1]),
            _ => return None,
        };
        next = header[0];
    }
    (next == 6).then_some(at)
}

/// An IPv6 packet with these headers between IP's and TCP's.
fn extended((first, chain): &(u8, Vec<u8>), seq: u32, flags: u8) -> Vec<u8> {
    let mut packet = [&[0; 12][..], &[0x86, 0xdd, 0x60], &[0; 39]].concat();
    packet[ETHERNET + 6] = *first;
    packet.extend(chain);
    let tcp = packet.len();
    packet.extend([0; 20]);
    packet[tcp + 4..tcp + 8].copy_from_slice(&seq.to_be_bytes());
    packet[tcp + 12..tcp + 14].copy_from_slice(&[5 << 4, flags]);
    packet
}

#[test]
fn what_is_behind_extension_headers_is_read_and_nothing_else() {
    let meter = Meter::load();
    let mut random = Random::new(13);
    let (mut seq, mut read, mut longest) = (1, 0, 0);
    meter.pass("meter_requests", &extended(&(6, Vec::new()), 0, SYN));
    for _ in 0..CHAINS {
        let chain = chain(&mut random);
        let mut packet = extended(&chain, seq, ACK);
        let is_read = tcp_at(&packet[ETHERNET..]) == Some(40 + chain.1.len());
        let asked = frame(4, random.below(700), 7, random.below(20));
        packet.extend(&asked);
        meter.pass("meter_requests", &packet);
        if is_read {
            read += 1;
            seq += asked.len() as u32;
            longest = longest.max(chain.1.len());
        }
        let requests = meter.read().requests;
        assert_eq!((requests.frames, requests.gaps), (read, 0), "{chain:02x?}");
    }
    let unread = CHAINS as u64 - read;
    assert!(
        read > 10_000 && unread > 3_000 && longest > 2_048,
        "{read} {unread} {longest}"
    );
}

#[test]
fn bytes_that_are_no_packet_pass_as_they_were() {
    let meter = Meter::load();
    let mut random = Random::new(12);
    for _ in 0..PACKETS / 4 {
        let mut bytes = vec![0; ETHERNET];
        let kinds: [u16; 3] = [0x0800, 0x86dd, 0x0806];
        bytes[12..].copy_from_slice(&kinds[random.below(3)].to_be_bytes());
        let count = shortest(&bytes) - ETHERNET + random.below(200);
        bytes.extend(noise(&mut random, count));
        bytes[ETHERNET] = [0x45, 0x4f, 0x40, 0x60, bytes[ETHERNET]][random.below(5)];
        meter.pass(HOOKS[random.below(2)].0, &bytes);
    }
}

/// The copies of a flow that has begun, in the smallest rings.
struct Copies {
    copied: Rings,
    _rings: ArrayOfMaps<MapData, RingBuf<MapData>>,
}

impl Copies {
    /// `count`: 1, or 2 with one for what the first has no room for.
    fn of(meter: &mut Meter, count: u32) -> Self {
        let mut rings: ArrayOfMaps<MapData, RingBuf<MapData>> =
            maps::take(&mut meter.ebpf, "tap_rings").unwrap();
        let made = (0..count).map(|number| {
            let fd = sys::make_ring(MIN_TAP_RING_BYTES).unwrap();
            let ring = (fd.try_clone().unwrap(), MIN_TAP_RING_BYTES);
            let entered = RingBuf::try_from(maps::map(fd).unwrap()).unwrap();
            for slot in 0..abi::TAP_SLOTS {
                let index = number * abi::TAP_SLOTS + slot;
                rings.set(index, &entered, 0).unwrap();
            }
            ring
        });
        let copied = Rings::new(made.collect()).unwrap();
        let mut begun = meter.read();
        begun.connect.taps = abi::TAP_FRAMES as u8;
        meter.map.insert(0_u64, PodOf(begun), 0).unwrap();
        Self {
            copied,
            _rings: rings,
        }
    }

    /// Takes the records that are there. Returns of each whether it says that something was missed before it.
    fn take(&mut self) -> Vec<bool> {
        let (mut missed, mut places) = (Vec::new(), Vec::new());
        self.copied.drain(u64::MAX, |record| {
            let record: abi::TapRecord = bytes::read(record).unwrap();
            assert_eq!(u32::from(record.kind), abi::TAP_BYTES);
            missed.push(record.missed != 0);
            places.push(record.seq);
        });
        assert!(places.is_sorted(), "{places:?}");
        missed
    }
}

#[test]
fn the_next_record_behind_a_loss_says_so_and_no_other_does() {
    // A packet that is copied before it is read, and one behind that.
    for body in [20, 1_000] {
        let [one, two] = [1, 2].map(|rings| told_before_and_behind_a_loss(body, rings));
        assert!(one > 10 && two == 2 * one, "{body}: {one} {two}");
    }
}

/// Fills rings by requests. Returns how many there was room for.
fn told_before_and_behind_a_loss(body: usize, rings: u32) -> usize {
    let plain = (6, Vec::new());
    let mut meter = Meter::load();
    for (hook, _) in HOOKS {
        meter.pass(hook, &extended(&plain, 0, SYN));
    }
    let mut copies = Copies::of(&mut meter, rings);
    let request = frame(4, 1, 7, body);
    let mut seq = 1;
    let mut ask = || {
        let packet = [extended(&plain, seq, ACK), request.clone()].concat();
        meter.pass("meter_requests", &packet);
        seq += request.len() as u32;
    };
    ask();
    assert_eq!(copies.take(), [false], "{body}");

    let lost = || meter.read().requests.lost_frames;
    let most = (rings * MIN_TAP_RING_BYTES) as usize / body;
    let asked = (0..most).take_while(|_| {
        ask();
        lost() == 0
    });
    let copied = asked.count();
    assert_eq!(lost(), 1, "{body}: {rings} rings are full");
    assert_eq!(copies.take(), vec![false; copied], "{body}");

    // The other direction has lost nothing.
    let answer = [extended(&plain, 1, ACK), frame(0x84, 1, 8, body)].concat();
    meter.pass("meter_answers", &answer);
    assert_eq!(copies.take(), [false], "{body}");
    for missed in [true, false] {
        ask();
        assert_eq!(copies.take(), [missed], "{body}");
    }
    assert_eq!(meter.read().requests.lost_bytes, request.len() as u64);
    copied
}
