//! Random conversations, cut into packets at random: doubled, reordered, sent again with other boundaries, and
//! with some of the kernel's copies lost.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test"
)]

use cql::wire::segment;
use cql::{Anomaly, Completed, Compression, FlowDecoder, MAX_READ_BODY_BYTES, Sink, Verdict};
use proptest::prelude::*;
use tap::{Beside, Direction, Happened, KernelFraming, Packet, TappedFlow};

const HEADER: usize = 9;
/// How flows travel: the version, and the compression of its segments.
const KINDS: [(u8, Compression); 4] = [
    (3, Compression::None),
    (4, Compression::None),
    (5, Compression::None),
    (5, Compression::Lz4),
];
const QUERY: u8 = 7;
const RESULT: u8 = 8;

/// A request with its response: the table's number, sizes of both, and the error's code, if it is one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen(usize, u64, u64, Option<String>);

#[derive(Default)]
struct Recorder {
    seen: Vec<Seen>,
    anomalies: Vec<Anomaly>,
}

impl Sink for Recorder {
    fn completed(&mut self, completed: &Completed<'_>) {
        let Some(table) = completed.statement.table.as_deref() else {
            return;
        };
        let number = table.strip_prefix('t').unwrap().parse().unwrap();
        let error = completed.error.map(|code| format!("{code:?}"));
        self.seen.push(Seen(
            number,
            completed.request_bytes,
            completed.response_bytes,
            error,
        ));
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        self.anomalies.push(anomaly);
    }
}

fn frame(version: u8, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![version, 0];
    frame.extend(stream.to_be_bytes());
    frame.push(opcode);
    frame.extend((body.len() as u32).to_be_bytes());
    frame.extend(body);
    frame
}

/// Bytes of a run of frames, and where in them a frame, or a segment of whole frames, begins.
#[derive(Clone, Default)]
struct Run {
    bytes: Vec<u8>,
    begins: Vec<usize>,
    /// Ranges that the kernel does not copy.
    unread: Vec<(usize, usize)>,
}

/// A request and its response, by the request's number.
struct Exchange {
    number: usize,
    request: Vec<u8>,
    response: Vec<u8>,
    error: Option<String>,
}

/// The size of a body depends on the number alone, and no two have the same.
fn exchange(version: u8, number: usize, stream: i16, padding: usize) -> Exchange {
    let text = format!("SELECT a FROM t{number} {}", " ".repeat(number));
    let mut body = (text.len() as u32).to_be_bytes().to_vec();
    body.extend(text.as_bytes());
    body.extend([0, 1]);
    body.extend(vec![0; if version >= 5 { 4 } else { 1 }]);
    let is_error = number % 5 == 3;
    let mut answer = match is_error {
        true => [&0x1000_u32.to_be_bytes()[..], &[0, 0]].concat(),
        false => 1_u32.to_be_bytes().to_vec(),
    };
    let filled = padding * 64 + number;
    match number % 3 {
        // Segments with it do not become smaller.
        0 => answer.extend(noise(number, filled)),
        // Each of its bytes could be a frame's first.
        _ => answer.extend(vec![version | 0x80; filled]),
    }
    Exchange {
        number,
        request: frame(version, stream, QUERY, &body),
        response: frame(
            version | 0x80,
            stream,
            if is_error { 0 } else { RESULT },
            &answer,
        ),
        error: is_error.then(|| "Code(4096)".to_owned()),
    }
}

fn noise(seed: usize, bytes: usize) -> impl Iterator<Item = u8> {
    let mut dice = Dice(seed as u64 + 1);
    (0..bytes).map(move |_| dice.below(256) as u8)
}

impl Exchange {
    fn seen(&self) -> Seen {
        Seen(
            self.number,
            self.request.len() as u64,
            self.response.len() as u64,
            self.error.clone(),
        )
    }
}

/// `segments`: their compression, where there are any.
fn run(frames: &[&[u8]], segments: Option<Compression>) -> Run {
    let mut run = Run::default();
    let largest = (1 << 17) - 1;
    for frame in frames {
        let at = run.bytes.len();
        run.begins.push(at);
        let Some(compression) = segments else {
            run.bytes.extend(*frame);
            let read = HEADER + MAX_READ_BODY_BYTES;
            if frame.len() > read {
                run.unread.push((at + read, at + frame.len()));
            }
            continue;
        };
        if frame.len() <= largest {
            segment::encode(compression, frame, true, &mut run.bytes);
            continue;
        }
        for part in frame.chunks(largest) {
            // Where frames begin in what is compressed the kernel does not know: any segment could be one.
            if compression == Compression::Lz4 {
                run.begins.push(run.bytes.len());
            }
            segment::encode(compression, part, false, &mut run.bytes);
        }
    }
    run
}

/// A small generator of numbers: what a case does follows from its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % most.max(1)
    }
}

/// One direction as the kernel sees it.
struct Side {
    direction: Direction,
    first_seq: u32,
    bytes: Vec<u8>,
    begins: Vec<usize>,
    unread: Vec<(usize, usize)>,
    /// Everything before it has arrived.
    received: usize,
    /// Ranges beyond that have arrived.
    beyond: Vec<(usize, usize)>,
    framing: KernelFraming,
    /// The kernel says with the next copy that one was lost.
    missed: bool,
}

/// The treatment that packets get.
#[derive(Clone, Copy)]
struct Network {
    reorders: bool,
    /// In percent of the kernel's copies.
    loses: usize,
    /// The kernel says that copies were lost.
    says_so: bool,
    /// Bytes that are sent at once come in several packets.
    cuts: bool,
}

impl Side {
    fn new(direction: Direction, first_seq: u32) -> Self {
        Self {
            direction,
            first_seq,
            bytes: Vec::new(),
            begins: Vec::new(),
            unread: Vec::new(),
            received: 0,
            beyond: Vec::new(),
            framing: KernelFraming::Frames,
            missed: false,
        }
    }

    fn seq(&self, at: usize) -> u32 {
        self.first_seq.wrapping_add(at as u32)
    }

    fn append(&mut self, run: &Run) -> usize {
        let base = self.bytes.len();
        self.bytes.extend(&run.bytes);
        self.begins.extend(run.begins.iter().map(|at| base + at));
        let unread = run.unread.iter().map(|(from, to)| (base + from, base + to));
        self.unread.extend(unread);
        base
    }

    /// Packets of what was appended last, as they arrive.
    fn packets(&self, base: usize, network: Network, dice: &mut Dice) -> Vec<(usize, usize)> {
        let mut cuts = vec![base];
        if !network.cuts {
            return vec![(base, self.bytes.len())];
        }
        let most = [3, 40, 1500, 9000, 60_000][dice.below(5)].max((self.bytes.len() - base) / 300);
        while *cuts.last().unwrap() < self.bytes.len() {
            let next = cuts.last().unwrap() + 1 + dice.below(most);
            cuts.push(next.min(self.bytes.len()));
        }
        let mut packets: Vec<_> = cuts.windows(2).map(|cut| (cut[0], cut[1])).collect();
        if network.reorders && packets.len() > 1 {
            for at in 0..packets.len() - 1 {
                if dice.below(4) == 0 {
                    let with = (at + 1 + dice.below(5)).min(packets.len() - 1);
                    packets.swap(at, with);
                }
            }
            // Sent again, with other boundaries; some of it from before this run.
            for _ in 0..packets.len() / 4 {
                let from = dice.below(self.bytes.len());
                let to = (from + 1 + dice.below(most * 2)).min(self.bytes.len());
                // No byte arrives before it was sent: TCP sends again what it has sent.
                let place = dice.below(packets.len() + 1);
                let sent = packets[..place].iter().map(|packet| packet.1).max();
                let sent = sent.unwrap_or(base);
                if from < sent {
                    packets.insert(place, (from, to.min(sent)));
                }
            }
        }
        packets
    }

    /// Returns the kernel's copy of a packet that arrives.
    fn arrives(&mut self, from: usize, to: usize) -> Packet<'_> {
        let passed = self.received;
        let is_in_order = from <= self.received && self.received < to;
        let begins = self.begins.iter().copied();
        let frame_at = begins
            .filter(|at| is_in_order && *at >= passed.max(from) && *at < to)
            .min();
        self.beyond.push((from, to));
        while let Some(at) = self
            .beyond
            .iter()
            .position(|(from, _)| *from <= self.received)
        {
            let (_, to) = self.beyond.swap_remove(at);
            self.received = self.received.max(to);
        }
        let (mut before, mut after) = (0, 0);
        for (unread, end) in &self.unread {
            if *unread <= from && from < *end {
                before = end.min(&to) - from;
            } else if *unread < to && to <= *end {
                after = to - unread;
            }
        }
        Packet {
            at_ns: 1,
            seq: self.seq(from),
            before: before as u32,
            bytes: &self.bytes[from + before..to - after],
            after: after as u32,
            passed: self.seq(passed),
            frame_at: frame_at.map(|at| self.seq(at)),
            framing: self.framing,
            missed: std::mem::take(&mut self.missed),
        }
    }
}

/// A conversation that is decoded inline and from copies.
struct Case {
    version: u8,
    /// Compression of segments.
    compression: Compression,
    network: Network,
    dice: Dice,
    inline: FlowDecoder,
    inline_sink: Recorder,
    tapped: TappedFlow,
    sink: Recorder,
    requests: Side,
    responses: Side,
    lost: usize,
    sent: Vec<Seen>,
    beside: Shown,
}

/// A reader beside the decoder. None: a byte that was not copied.
#[derive(Default)]
struct Shown {
    requests: Vec<Option<u8>>,
    responses: Vec<Option<u8>>,
    happened: Vec<Happened>,
}

impl Shown {
    fn of(&mut self, direction: Direction) -> &mut Vec<Option<u8>> {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Responses => &mut self.responses,
        }
    }
}

impl Beside for Shown {
    fn bytes(&mut self, direction: Direction, _: u64, bytes: &[u8]) {
        self.of(direction).extend(bytes.iter().copied().map(Some));
    }

    fn skipped(&mut self, direction: Direction, bytes: usize) {
        let shown = self.of(direction);
        shown.resize(shown.len() + bytes, None);
    }

    fn happened(&mut self, what: Happened) {
        self.happened.push(what);
    }
}

/// Whether these are the bytes, but for those that were not copied.
fn are_of(shown: &[Option<u8>], bytes: &[u8]) -> bool {
    let mut pairs = shown.iter().zip(bytes);
    shown.len() == bytes.len()
        && pairs.all(|(shown, byte)| shown.is_none_or(|shown| shown == *byte))
}

impl Case {
    fn new((version, compression): (u8, Compression), seed: u64, network: Network) -> Self {
        let mut dice = Dice(seed | 1);
        let near_the_wrap = |dice: &mut Dice| u32::MAX - dice.below(100_000) as u32;
        let requests = Side::new(Direction::Requests, near_the_wrap(&mut dice));
        let responses = Side::new(Direction::Responses, near_the_wrap(&mut dice));
        let mut tapped = TappedFlow::new(Default::default());
        tapped.begin(Direction::Requests, requests.first_seq);
        tapped.begin(Direction::Responses, responses.first_seq);
        Self {
            version,
            compression,
            network,
            dice,
            inline: FlowDecoder::new(Default::default()),
            inline_sink: Recorder::default(),
            tapped,
            sink: Recorder::default(),
            requests,
            responses,
            lost: 0,
            sent: Vec::new(),
            beside: Shown::default(),
        }
    }

    fn pass(&mut self, is_request: bool, run: &Run) {
        let verdict = match is_request {
            true => self.inline.requests(1, &run.bytes, &mut self.inline_sink),
            false => self.inline.responses(1, &run.bytes, &mut self.inline_sink),
        };
        assert_eq!(verdict, Verdict::Continue);
        let side = match is_request {
            true => &mut self.requests,
            false => &mut self.responses,
        };
        let base = side.append(run);
        // A packet that leaves this host does not overtake another.
        for (from, to) in side.packets(base, self.network, &mut self.dice) {
            let direction = side.direction;
            let packet = side.arrives(from, to);
            if self.dice.below(100) < self.network.loses {
                self.lost += 1;
                side.missed = self.network.says_so;
                continue;
            }
            self.tapped
                .packet(direction, &packet, &mut self.sink, Some(&mut self.beside));
        }
        assert_eq!(side.received, side.bytes.len());
    }

    fn handshake(&mut self) {
        let mut startup = [&[0, 1, 0, 11][..], b"CQL_VERSION", &[0, 5], b"3.0.0"].concat();
        if self.compression == Compression::Lz4 {
            startup[1] = 2;
            startup.extend([&[0, 11][..], b"COMPRESSION", &[0, 3], b"lz4"].concat());
        }
        let startup = frame(self.version, 0, 1, &startup);
        let ready = frame(self.version | 0x80, 0, 2, &[]);
        self.pass(true, &run(&[&startup], None));
        self.pass(false, &run(&[&ready], None));
        let framing = match (self.version, self.compression) {
            (..5, _) => return,
            (_, Compression::None) => KernelFraming::Segments,
            _ => KernelFraming::SegmentsLz4,
        };
        self.requests.framing = framing;
        self.responses.framing = framing;
    }

    /// Rounds of requests on few streams, each answered in another order than asked.
    fn rounds(&mut self, rounds: usize, padding: &[usize]) {
        let mut number = self.sent.len();
        for _ in 0..rounds {
            let count = 1 + self.dice.below(6);
            let mut exchanges: Vec<_> = (0..count)
                .map(|stream| {
                    number += 1;
                    let padding = padding[number % padding.len()];
                    exchange(self.version, number, stream as i16, padding)
                })
                .collect();
            let segments = (self.version == 5).then_some(self.compression);
            let frames: Vec<_> = exchanges.iter().map(|e| &e.request[..]).collect();
            self.pass(true, &run(&frames, segments));
            for at in (1..exchanges.len()).rev() {
                exchanges.swap(at, self.dice.below(at + 1));
            }
            let frames: Vec<_> = exchanges.iter().map(|e| &e.response[..]).collect();
            self.pass(false, &run(&frames, segments));
            self.sent.extend(exchanges.iter().map(Exchange::seen));
        }
    }
}

fn paddings() -> impl Strategy<Value = Vec<usize>> {
    // In units of 64 bytes: now and then more than is read of a body.
    let padding = prop_oneof![12 => 0..3_usize, 2 => 100..200_usize, 1 => 1100..4000_usize];
    prop::collection::vec(padding, 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The tap tells what is told inline, in the same order, whatever the network does to packets.
    #[test]
    fn what_comes_whole_is_told_as_inline(
        kind in prop::sample::select(&KINDS[..]),
        seed in any::<u64>(),
        padding in paddings(),
    ) {
        let network = Network { reorders: true, loses: 0, says_so: false, cuts: true };
        let mut case = Case::new(kind, seed, network);
        case.handshake();
        case.rounds(6, &padding);
        prop_assert_eq!(&case.sink.seen, &case.inline_sink.seen);
        prop_assert_eq!(&case.sink.anomalies, &case.inline_sink.anomalies);
        prop_assert_eq!(case.sink.seen.len(), case.sent.len());
        prop_assert_eq!(case.tapped.counts(), tap::Counts::default());
        prop_assert_eq!(case.tapped.stopped(), None);
        prop_assert!(are_of(&case.beside.requests, &case.requests.bytes));
        prop_assert!(are_of(&case.beside.responses, &case.responses.bytes));
        prop_assert_eq!(&case.beside.happened, &Vec::new());
    }

    /// Lost copies hide only their own requests; no request is given another's response,
    /// and reading goes on.
    #[test]
    fn loss_leaves_gaps_and_no_wrong_pair(
        kind in prop::sample::select(&KINDS[..]),
        seed in any::<u64>(),
        padding in paddings(),
        loses in 1..60_usize,
        reorders in any::<bool>(),
        says_so in any::<bool>(),
        begins_late in any::<bool>(),
    ) {
        let network = Network { reorders, loses: 0, says_so, cuts: true };
        let mut case = Case::new(kind, seed, network);
        if begins_late {
            // Nothing of its beginning is known: neither where it begins, nor what was agreed on.
            case.network.loses = 100;
            case.tapped = TappedFlow::new(Default::default());
        }
        case.handshake();
        case.network.loses = loses;
        case.rounds(8, &padding);
        for seen in &case.sink.seen {
            prop_assert!(case.sent.contains(seen), "{:?} was never sent so", seen);
        }
        let told = case.sink.seen.len();
        prop_assert!(told <= case.sent.len());
        if case.lost == 0 && !begins_late {
            prop_assert_eq!(told, case.sent.len());
        }
        let missing = case.sent.len() - told;
        // Nothing is lost any more: from the second round on everything is told. The header of a segment of LZ4 has to lie in
        // one packet for that.
        let network = Network { reorders: false, loses: 0, ..network };
        case.network = Network { cuts: kind.1 == Compression::None, ..network };
        case.rounds(2, &[0]);
        case.network = network;
        // The packet behind it shows what is missing.
        prop_assert!(missing == 0 || begins_late || case.tapped.counts().gaps > 0);
        let told = case.sink.seen.len();
        case.rounds(3, &padding);
        prop_assert_eq!(case.tapped.stopped(), None);
        let sent = case.sent.len();
        let since = sent - 1..sent;
        for seen in &case.sent[since] {
            prop_assert!(case.sink.seen[told..].contains(seen), "{:?} is not told", seen);
        }
    }
}

/// A request is told, or counted as abandoned, also where bytes were missed while it passed.
#[test]
fn no_request_gets_lost_beside_a_gap() {
    let [first, second, third] = [0, 1, 2].map(|n| exchange(4, n, n as i16, 0));
    let foreign = exchange(4, 3, 9, 0).response;
    for cut in 0..=second.request.len() {
        let mut flow = TappedFlow::new(Default::default());
        let mut recorder = Recorder::default();
        let mut next = [100, 200];
        let (begins, goes_on) = second.request.split_at(cut);
        for (direction, bytes, is_frame) in [
            (Direction::Requests, first.request.as_slice(), true),
            (Direction::Requests, begins, true),
            // What was before it has not been seen.
            (Direction::Responses, &foreign, true),
            (Direction::Requests, goes_on, false),
            (Direction::Responses, &second.response, true),
            (Direction::Requests, &third.request, true),
            (Direction::Responses, &third.response, true),
        ] {
            let seq = &mut next[usize::from(direction == Direction::Responses)];
            let packet = Packet {
                at_ns: 1,
                seq: *seq,
                before: 0,
                bytes,
                after: 0,
                passed: *seq,
                frame_at: is_frame.then_some(*seq),
                framing: KernelFraming::Frames,
                missed: false,
            };
            *seq += bytes.len() as u32;
            flow.packet(direction, &packet, &mut recorder, None);
        }
        let abandoned = flow.counts().abandoned;
        assert_eq!(abandoned, 1 + u64::from(cut > 0), "{cut}");
        assert_eq!(recorder.seen.len() as u64 + abandoned, 3, "{cut}");
    }
}
