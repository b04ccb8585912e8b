//! Random conversations: what is told does not depend on where they are cut, and no input panics.

use crate::support::conversation::{Run, conversation};
use crate::support::kind::{KINDS, Kind, kind};
use crate::support::*;
use cassandra_protocol::compression::Compression;
use cql::{Anomaly, Completed, Details, FlowDecoder, Sink, Verdict};
use proptest::prelude::*;
use proptest::sample::Index;

/// A flow of some kind, and what is said on it.
fn conversations() -> impl Strategy<Value = (Kind, Vec<Run>)> {
    prop::sample::select(KINDS.to_vec())
        .prop_flat_map(|kind| (Just(kind), conversation(kind.version)))
}

/// The bytes of one peer at a time, the handshake first.
fn sent(kind: Kind, runs: &[Run]) -> Vec<(bool, Vec<u8>)> {
    let sent = |run: &Run| (run.is_request, kind.wrap(&run.frames));
    kind.handshake()
        .into_iter()
        .chain(runs.iter().map(sent))
        .collect()
}

/// Feeds each run cut at `cuts`; gives what was told, and asserts that the flow goes on.
fn feed<S: Sink>(runs: &[(bool, Vec<u8>)], cuts: &[Index], recorder: &mut S) {
    let mut decoder = FlowDecoder::new(Default::default());
    for (is_request, bytes) in runs {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        for pair in places.windows(2) {
            let piece = &bytes[pair[0]..pair[1]];
            let verdict = match is_request {
                true => decoder.requests(0, piece, recorder),
                false => decoder.responses(0, piece, recorder),
            };
            assert_eq!(verdict, Verdict::Continue);
        }
    }
    decoder.requests_end(recorder);
    decoder.responses_end(recorder);
    assert_eq!(decoder.in_flight(), 0);
}

fn told(runs: &[(bool, Vec<u8>)], cuts: &[Index]) -> Vec<Told> {
    let mut recorder = Recorder::default();
    feed(runs, cuts, &mut recorder);
    recorder.told
}

/// The reports with details, and the same without.
#[derive(Debug, Default, PartialEq)]
struct Detailed(Recorder, Vec<Details>);

impl Sink for Detailed {
    const DETAILS: bool = true;

    fn completed(&mut self, completed: &Completed<'_>) {
        self.0.completed(completed);
    }

    fn detailed(&mut self, completed: &Completed<'_>, details: &Details) {
        self.1.push(details.clone());
        self.completed(completed);
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        self.0.anomaly(anomaly);
    }
}

impl Detailed {
    /// Without STARTUP, which asks for compression or not; and without how many bytes were sent where
    /// those are compressed: a body is as long as it was sent, and segments are not counted.
    fn comparable(mut self, version: u8) -> Self {
        self.0.told.remove(0);
        if !self.1.is_empty() {
            self.1.remove(0);
        }
        self.0.latencies_ns.clear();
        if version >= 5 {
            return self;
        }
        for told in &mut self.0.told {
            if let Told::Completed(_, _, _, request, response) = told {
                (*request, *response) = (0, 0);
            }
        }
        for details in &mut self.1 {
            details.asked.body_bytes = 0;
            details.answered.body_bytes = 0;
        }
        self
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn cuts_change_nothing(
        (kind, runs) in conversations(),
        cuts in prop::collection::vec(any::<Index>(), 0..40),
    ) {
        let runs = sent(kind, &runs);
        let whole = told(&runs, &[]);
        prop_assert!(whole.len() > 1);
        prop_assert!(!whole.contains(&Told::Anomaly(Anomaly::UnknownStream)));
        prop_assert_eq!(told(&runs, &cuts), whole, "{:?}", kind);
    }

    /// Reports of a compressed flow are those of the same flow without compression.
    #[test]
    fn compression_changes_nothing(
        (kind, runs) in conversations(),
        cuts in prop::collection::vec(any::<Index>(), 0..10),
    ) {
        let plain = Kind { compression: Compression::None, ..kind };
        let in_detail = |kind, cuts: &[Index]| {
            let mut detailed = Detailed::default();
            feed(&sent(kind, &runs), cuts, &mut detailed);
            detailed.comparable(kind.version)
        };
        prop_assert_eq!(in_detail(kind, &cuts), in_detail(plain, &[]), "{:?}", kind);
        let without = |kind, cuts: &[Index]| {
            let mut detailed = Detailed::default();
            feed(&sent(kind, &runs), cuts, &mut detailed.0);
            detailed.comparable(kind.version)
        };
        prop_assert_eq!(without(kind, &cuts), without(plain, &[]), "{:?}", kind);
    }

    /// Requests and responses on the wire at the same time, each in pieces.
    #[test]
    fn interleaved_directions_change_nothing(
        version in 3..6_u8,
        pieces in prop::collection::vec((any::<bool>(), 1..60_usize), 1..80),
    ) {
        let mut flow = Flow::started(version);
        let kind = kind(version, Compression::None);
        let select = |stream| format!("SELECT a FROM ks.t{stream}");
        let earlier: Vec<_> = (0..8)
            .map(|s| frame(version, 0, s, QUERY, &query(version, &select(s), None)))
            .collect();
        let later: Vec<_> = (8..16)
            .map(|s| frame(version, 0, s, QUERY, &query(version, &select(s), None)))
            .collect();
        let answers: Vec<_> =
            (0..8).map(|s| frame(version | 0x80, 0, s, RESULT, &[0, 0, 0, 1])).collect();
        flow.requests(&kind.wrap(&earlier));
        let (asks, answers) = (kind.wrap(&later), kind.wrap(&answers));
        let (mut asks, mut answers) = (&asks[..], &answers[..]);
        for (ask, len) in pieces.into_iter().chain([(true, 10_000), (false, 10_000)]) {
            let from = if ask { &mut asks } else { &mut answers };
            let (piece, rest) = from.split_at(len.min(from.len()));
            *from = rest;
            if ask { flow.requests(piece) } else { flow.responses(piece) }
        }
        let expected: Vec<_> = (0..8).map(|s| format!("select ks t{s}")).collect();
        prop_assert_eq!(flow.recorder.statements(), expected);
        prop_assert_eq!(flow.recorder.anomalies(), []);
        prop_assert_eq!(flow.decoder.in_flight(), 8);
    }

    #[test]
    fn survives_garbage(
        version in 3..6_u8,
        started: bool,
        chunks in prop::collection::vec((any::<bool>(), any::<Vec<u8>>()), 0..20),
    ) {
        let mut flow = if started { Flow::started(version) } else { Flow::new(version) };
        for (requests, bytes) in chunks {
            let Flow { decoder, recorder, .. } = &mut flow;
            let verdict = match requests {
                true => decoder.requests(0, &bytes, recorder),
                false => decoder.responses(0, &bytes, recorder),
            };
            if let Verdict::Close { keep, .. } = verdict {
                prop_assert!(keep <= bytes.len());
            }
        }
        flow.decoder.requests_end(&mut flow.recorder);
        flow.decoder.responses_end(&mut flow.recorder);
    }

    /// Well-formed frames around garbage bodies, so that every body reader gets some; and the
    /// same told at any cut.
    #[test]
    fn survives_garbage_bodies(
        kind in prop::sample::select(KINDS.to_vec()),
        frames in prop::collection::vec(
            (any::<bool>(), 0..4_i16, 0..17_u8, 0..32_u8, any::<Vec<u8>>()), 1..30,
        ),
        piece in 1..50_usize,
    ) {
        let tell = |piece: usize| {
            let mut flow = Flow::of(kind);
            for (is_request, stream, opcode, flags, body) in &frames {
                let direction = if *is_request { 0 } else { 0x80 };
                let frame =
                    frame(kind.version | direction, *flags, *stream, *opcode, body);
                // A flag that says so does not make it compressed.
                let bytes = match kind.version {
                    5 => kind.wrap(&[frame]),
                    _ => frame,
                };
                for piece in bytes.chunks(piece) {
                    if *is_request { flow.requests(piece) } else { flow.responses(piece) }
                }
            }
            flow.recorder.told
        };
        prop_assert_eq!(tell(piece), tell(usize::MAX));
    }

    /// A conversation with one byte changed ends in some verdict, never in a panic.
    #[test]
    fn survives_a_changed_byte(
        (kind, runs) in conversations(),
        place: Index,
        byte: u8,
    ) {
        let mut recorder = Recorder::default();
        let mut decoder = FlowDecoder::new(Default::default());
        let runs = sent(kind, &runs);
        let run_at = place.index(runs.len());
        for (at, (is_request, mut bytes)) in runs.into_iter().enumerate() {
            if at == run_at {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            match is_request {
                true => decoder.requests(0, &bytes, &mut recorder),
                false => decoder.responses(0, &bytes, &mut recorder),
            };
        }
    }
}
