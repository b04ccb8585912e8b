//! A handshake between two peers that say anything.
//!
//! For any input: what passes is what was said, never more; and what is learned, and how far it
//! passes, is the same however it is cut.

use super::memory::most_held;
use super::script::{READY, Script, frame, segment, startup};
use cql::{Handshake, Session, Step, Unknowable};

/// The most bytes that a handshake may hold, as for a decoder.
const MAX_HELD_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
struct Lane {
    held: Vec<u8>,
    passed: usize,
}

/// The outcome of a handshake.
type Outcome = (Session, Option<Unknowable>, usize, usize);

/// A handshake of two peers.
pub fn handshake(data: &[u8]) {
    let Some(script) = Script::new(data) else {
        return;
    };
    let (version, started, piece) = (script.version, script.started, script.piece);
    let opening = startup(version, script.compression);
    let runs: Vec<(bool, Vec<u8>)> = script
        .map(|run| {
            let direction = if run.is_request { 0 } else { 0x80 };
            let well_formed = || {
                let (opcode, stream) = (run.more & 0x1F, i16::from(run.more >> 5));
                frame(
                    version | direction,
                    run.choice & 0x0F,
                    stream,
                    opcode,
                    run.bytes,
                )
            };
            let bytes = match run.choice & 0x60 {
                0 => run.bytes.to_vec(),
                0x20 => segment(true, &well_formed()),
                _ => well_formed(),
            };
            (run.is_request, bytes)
        })
        .collect();
    let opening = [
        (true, opening),
        (false, frame(version | 0x80, 0, 0, READY, &[])),
    ];
    let opening = match started {
        true => &opening[..],
        false => &[],
    };
    let whole = converse(opening, &runs, usize::MAX);
    assert_eq!(converse(opening, &runs, piece), whole);
    let held = most_held(|| {
        converse(opening, &runs, piece);
    });
    assert!(held < MAX_HELD_BYTES, "{held} bytes");
}

fn converse(opening: &[(bool, Vec<u8>)], runs: &[(bool, Vec<u8>)], piece: usize) -> Outcome {
    let mut handshake = Handshake::new(Default::default());
    let (mut requests, mut responses) = (Lane::default(), Lane::default());
    for (is_request, bytes) in opening.iter().chain(runs) {
        for piece in bytes.chunks(piece) {
            match is_request {
                true => {
                    requests.held.extend(piece);
                    while requests.look(|held| handshake.requests(held)) {}
                }
                false => {
                    responses.held.extend(piece);
                    while responses.look(|held| handshake.responses(held)) {}
                }
            }
        }
        // What one peer said may let the other's words pass: at the end of a run, for it may tell
        // of more than one thing, and the one that is seen first counts.
        while responses.look(|held| handshake.responses(held))
            || requests.look(|held| handshake.requests(held))
        {}
    }
    _ = handshake.refusal("no");
    (
        handshake.session().clone(),
        handshake.over(),
        requests.passed,
        responses.passed,
    )
}

impl Lane {
    /// True if something passed.
    fn look(&mut self, mut step: impl FnMut(&[u8]) -> Step) -> bool {
        let (Step::Pass(pass) | Step::Told(pass)) = step(&self.held) else {
            return false;
        };
        assert!((1..=self.held.len()).contains(&pass));
        self.held.drain(..pass);
        self.passed += pass;
        true
    }
}
