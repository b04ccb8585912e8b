//! Both directions of a flow, read from the copies that the kernel's meter makes of its packets.
//!
//! For any input: however bytes are cut into packets, sent again or overtaken, as much is told of them as if they were read
//! themselves, as long as no copy is lost; and the meter counts each byte once.

use std::sync::Arc;

use cql::{Completed, ErrorCode, FlowDecoder, Sink, Statement, Verdict};
use ebpf::abi;
use tap::{Direction, KernelFraming, Packet, TappedFlow};

use super::{
    flow::framed,
    kernel::{Meter, Record},
    script::{READY, Script, frame, startup},
};

/// Sequence numbers with which the directions begin: both wrap soon.
const BEGIN: [u32; 2] = [u32::MAX - 300, u32::MAX - 40];

/// How much is copied, by what steps need.
const TAPS: [u32; 4] = [
    abi::TAP_FRAMES,
    abi::TAP_BODIES,
    abi::TAP_DETAILS,
    abi::TAP_ANSWERS,
];

/// Statement, error, bytes of request and response, and stream.
type Exchange = (Arc<Statement>, Option<ErrorCode>, u64, u64, i16);

#[derive(Default)]
struct Told(Vec<Exchange>);

impl Sink for Told {
    fn completed(&mut self, completed: &Completed<'_>) {
        self.0.push((
            Arc::clone(completed.statement),
            completed.error,
            completed.request_bytes,
            completed.response_bytes,
            completed.stream.0,
        ));
    }

    fn anomaly(&mut self, _: cql::Anomaly) {}
}

/// A flow that is tapped, beside one that is read.
pub fn tap(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let Some(script) = Script::new(rest) else {
        return;
    };
    let (version, compression) = (script.version, script.compression);
    let is_framed = first & 0x80 == 0;
    let packet_bytes = 1 + usize::from(first >> 2 & 0x1F) * script.piece;
    let opening = [
        (true, 0, startup(version, compression)),
        (false, 0, frame(version | 0x80, 0, 0, READY, &[])),
    ];
    let runs = script.map(|run| {
        let bytes = match is_framed {
            true => framed(version, compression, &run),
            false => run.bytes.to_vec(),
        };
        (run.is_request, run.more, bytes)
    });

    let mut read = Told::default();
    let mut decoder = FlowDecoder::new(Default::default());
    let mut tapped_told = Told::default();
    let mut tapped = TappedFlow::new(Default::default());
    tapped.begin(Direction::Requests, BEGIN[0]);
    tapped.begin(Direction::Responses, BEGIN[1]);
    let mut meter = Meter::begin(TAPS[usize::from(first % 4)], BEGIN);
    let mut sent = [0_usize; 2];
    for (is_request, how, bytes) in opening.into_iter().chain(runs) {
        let verdict = match is_request {
            true => decoder.requests(0, &bytes, &mut read),
            false => decoder.responses(0, &bytes, &mut read),
        };
        let direction = usize::from(!is_request);
        let begin = BEGIN[direction].wrapping_add(sent[direction] as u32);
        sent[direction] += bytes.len();
        let offsets = (0..).step_by(packet_bytes);
        let packets = offsets.zip(bytes.chunks(packet_bytes));
        let mut packets: Vec<_> = packets
            .map(|(at, bytes)| (begin.wrapping_add(at), bytes))
            .collect();
        disturb(&mut packets, how, &bytes, begin);
        let mut passed = Passed {
            to: begin,
            beyond: Vec::new(),
        };
        for (seq, bytes) in packets {
            for record in meter.packet(is_request, seq, passed.to, bytes) {
                pass(&record, is_request, &mut tapped, &mut tapped_told);
            }
            passed.note(seq, bytes.len());
        }
        if verdict != Verdict::Continue {
            // Behind it nobody reads, and how much of the last bytes was is nobody's concern.
            break;
        }
        assert_eq!(tapped_told.0, read.0);
    }
    let counted = meter.counted();
    assert_eq!(counted.requests.bytes, sent[0] as u64);
    assert_eq!(counted.responses.bytes, sent[1] as u64);
    assert_eq!(
        (counted.requests.lost_bytes, counted.responses.lost_bytes),
        (0, 0)
    );
}

/// Up to where all bytes of a direction have passed, and packets that are beyond.
struct Passed {
    to: u32,
    beyond: Vec<(u32, usize)>,
}

impl Passed {
    fn note(&mut self, seq: u32, bytes: usize) {
        self.beyond.push((seq, bytes));
        // As often as one of them may be the next.
        for _ in 0..self.beyond.len() {
            for (seq, bytes) in &self.beyond {
                let end = seq.wrapping_add(*bytes as u32);
                let is_next = self.to.wrapping_sub(*seq).cast_signed() >= 0;
                if is_next && end.wrapping_sub(self.to).cast_signed() > 0 {
                    self.to = end;
                }
            }
        }
        let to = self.to;
        self.beyond
            .retain(|(seq, _)| seq.wrapping_sub(to).cast_signed() > 0);
    }
}

/// Packets of a run: one overtakes another, one comes twice, and one is sent again with others.
fn disturb<'b>(packets: &mut Vec<(u32, &'b [u8])>, how: u8, bytes: &'b [u8], begin: u32) {
    let at = usize::from(how >> 3) % packets.len().max(1);
    match how & 0x07 {
        1 if at + 1 < packets.len() => packets.swap(at, at + 1),
        2 if at < packets.len() => packets.insert(at, packets[at]),
        3 if at < packets.len() => packets.push(packets[at]),
        4 => packets.push((begin, bytes)),
        5 if !bytes.is_empty() => {
            let from = at % bytes.len();
            packets.push((begin.wrapping_add(from as u32), &bytes[from..]));
        }
        _ => {}
    }
}

fn pass(record: &Record, is_request: bool, to: &mut TappedFlow, told: &mut Told) {
    let Record { head, bytes } = record;
    assert_eq!(u32::from(head.kind), abi::TAP_BYTES);
    assert_eq!(head.is_request != 0, is_request);
    let direction = match is_request {
        true => Direction::Requests,
        false => Direction::Responses,
    };
    let packet = Packet {
        at_ns: head.at_ns,
        seq: head.seq,
        before: head.before,
        bytes,
        after: head.after,
        passed: head.passed,
        frame_at: (head.has_frame != 0).then_some(head.frame_at),
        framing: match u32::from(head.framing) {
            abi::FRAMING_FRAMES => KernelFraming::Frames,
            abi::FRAMING_SEGMENTS => KernelFraming::Segments,
            abi::FRAMING_SEGMENTS_LZ4 => KernelFraming::SegmentsLz4,
            _ => KernelFraming::Unsure,
        },
        missed: head.missed != 0,
    };
    to.packet(direction, &packet, told, None);
}
