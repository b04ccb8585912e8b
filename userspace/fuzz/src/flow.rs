//! Both directions of a flow through a decoder.
//!
//! For any input: the same is told however it is cut, the same outcomes whether or not details are
//! asked for, and what is held does not depend on what a peer declares.

use super::memory::most_held;
use super::script::{
    Compression, READY, Run, Script, frame as cql_frame, lz4_segment, segment as cql_segment,
    startup,
};
use cql::{Anomaly, Completed, Details, ErrorCode, FlowDecoder, Sink, Statement, Verdict};
use std::mem::discriminant;
use std::sync::Arc;

/// More than a decoder holds after some kilobytes of anything: two segments, two prefixes, the
/// statements and ids that fit in the input.
const MAX_HELD_BYTES: usize = 1 << 20;

#[derive(Debug, PartialEq)]
enum Told {
    Completed(Arc<Statement>, Option<ErrorCode>, u64, u64, i16),
    Anomaly(Anomaly),
}

#[derive(Default)]
struct Recorder<const DETAILS: bool> {
    told: Vec<Told>,
    details: Vec<Details>,
}

impl<const DETAILS: bool> Sink for Recorder<DETAILS> {
    const DETAILS: bool = DETAILS;

    fn completed(&mut self, completed: &Completed<'_>) {
        self.told.push(Told::Completed(
            Arc::clone(completed.statement),
            completed.error,
            completed.request_bytes,
            completed.response_bytes,
            completed.stream.0,
        ));
    }

    fn detailed(&mut self, completed: &Completed<'_>, details: &Details) {
        assert_eq!(
            u64::from(details.asked.body_bytes) + 9,
            completed.request_bytes
        );
        assert_eq!(
            u64::from(details.answered.body_bytes) + 9,
            completed.response_bytes
        );
        self.details.push(details.clone());
        self.completed(completed);
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        self.told.push(Told::Anomaly(anomaly));
    }
}

struct Ignore;

impl Sink for Ignore {
    fn completed(&mut self, _: &Completed<'_>) {}
    fn anomaly(&mut self, _: Anomaly) {}
}

/// Frames as they are, in any state.
pub fn frame(data: &[u8]) {
    let Some(script) = Script::new(data) else {
        return;
    };
    check(script, |_, run| run.bytes.to_vec());
}

/// Segments: with checksums that fit, or as they are.
pub fn segment(data: &[u8]) {
    let Some(script) = Script::new(data) else {
        return;
    };
    let script = Script {
        version: 5,
        started: true,
        ..script
    };
    let compression = script.compression;
    check(script, |_, run| {
        let whole = run.choice & 0x01 != 0;
        match (run.choice & 0x03, compression) {
            (0, _) => run.bytes.to_vec(),
            // Not compressed, or said to become so much.
            (_, Compression::Lz4) => lz4_segment(whole, u32::from(run.more) * 16, run.bytes),
            _ => cql_segment(whole, run.bytes),
        }
    });
}

/// Frames that are well formed around any bodies.
pub fn body(data: &[u8]) {
    let Some(script) = Script::new(data) else {
        return;
    };
    let script = Script {
        started: true,
        ..script
    };
    let compression = script.compression;
    check(script, |version, run| framed(version, compression, run));
}

/// A frame that is well formed around a body.
pub fn framed(version: u8, compression: Compression, run: &Run<'_>) -> Vec<u8> {
    // Compressed well, or just said to be.
    let is_stored = version < 5 && run.choice & 0x21 == 0x21;
    let body = match is_stored {
        true => compression.stored(run.bytes),
        false => run.bytes.to_vec(),
    };
    let direction = if run.is_request { 0 } else { 0x80 };
    let (opcode, stream) = (run.more & 0x1F, i16::from(run.more >> 5));
    let frame = cql_frame(
        version | direction,
        run.choice & 0x1F,
        stream,
        opcode,
        &body,
    );
    match (version, compression) {
        (5, Compression::Lz4) => lz4_segment(true, 0, &frame),
        (5, _) => cql_segment(true, &frame),
        _ => frame,
    }
}

fn check(script: Script<'_>, wrap: impl Fn(u8, &Run<'_>) -> Vec<u8>) {
    let (version, started, piece) = (script.version, script.started, script.piece);
    let compression = script.compression;
    let opening = startup(version, compression);
    let opening = started.then_some(&opening[..]);
    let runs: Vec<(bool, Vec<u8>)> = script
        .map(|run| (run.is_request, wrap(version, &run)))
        .collect();
    let feed = |piece, sink: &mut Recorder<false>| feed(version, opening, &runs, piece, sink);
    let mut whole = Recorder::default();
    let whole_verdict = feed(usize::MAX, &mut whole);
    let mut cut = Recorder::default();
    let cut_verdict = feed(piece, &mut cut);
    assert_eq!(cut.told, whole.told);
    assert_eq!(discriminant(&cut_verdict), discriminant(&whole_verdict));

    let in_detail = |piece| {
        let mut sink = Recorder::<true>::default();
        self::feed(version, opening, &runs, piece, &mut sink);
        sink
    };
    let (whole_detailed, cut_detailed) = (in_detail(usize::MAX), in_detail(piece));
    assert_eq!(cut_detailed.told, whole_detailed.told);
    assert_eq!(cut_detailed.details, whole_detailed.details);
    let outcomes = |told| outcomes(told, compression);
    assert_eq!(outcomes(&whole_detailed.told), outcomes(&whole.told));

    let held = most_held(|| {
        self::feed(version, opening, &runs, piece, &mut Ignore);
    });
    assert!(held < MAX_HELD_BYTES, "{held} bytes");
}

/// The outcomes that do not depend on how much of a body is read. More is read for details, so a request
/// that is answered before it ends is not known by then, and more of a compressed body can turn out not to
/// be what it says.
fn outcomes(told: &[Told], compression: Compression) -> Vec<(Option<ErrorCode>, u64, u64, i16)> {
    let outcome = |told: &Told| match told {
        Told::Completed(_, error, request, response, stream) => {
            let error = match compression {
                Compression::None => *error,
                _ => error.map(|_| ErrorCode::Unreadable),
            };
            Some((error, *request, *response, *stream))
        }
        Told::Anomaly(_) => None,
    };
    told.iter().filter_map(outcome).collect()
}

fn feed<S: Sink>(
    version: u8,
    opening: Option<&[u8]>,
    runs: &[(bool, Vec<u8>)],
    piece: usize,
    sink: &mut S,
) -> Verdict {
    let mut decoder = FlowDecoder::new(Default::default());
    if let Some(startup) = opening {
        decoder.requests(0, startup, sink);
        decoder.responses(0, &cql_frame(version | 0x80, 0, 0, READY, &[]), sink);
    }
    for (is_request, bytes) in runs {
        for piece in bytes.chunks(piece) {
            let verdict = match is_request {
                true => decoder.requests(0, piece, sink),
                false => decoder.responses(0, piece, sink),
            };
            if let Verdict::Close { keep, .. } = verdict {
                assert!(keep <= piece.len());
            }
            if verdict != Verdict::Continue {
                // And so it remains.
                assert_eq!(
                    discriminant(&decoder.requests(0, b"x", sink)),
                    discriminant(&verdict)
                );
                return verdict;
            }
        }
    }
    decoder.requests_end(sink);
    decoder.responses_end(sink);
    Verdict::Continue
}
