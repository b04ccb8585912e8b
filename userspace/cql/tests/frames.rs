//! Frames, for a sink that asks for them.

use crate::support::kind::*;
use crate::support::*;
use cql::{
    Anomaly, Completed, Details, FlowDecoder, Frame, MAX_FRAME_BODY_BYTES, Opcode, Sink, Verdict,
};

/// Direction, version, stream, opcode, and the body as far as it was told.
type Told = (bool, u8, i16, Option<Opcode>, Vec<u8>);

/// `D`: it asks for details, too.
struct Frames<const D: bool> {
    told: Vec<Told>,
    bodies: bool,
}

impl<const D: bool> Sink for Frames<D> {
    const DETAILS: bool = D;
    const FRAMES: bool = true;

    fn completed(&mut self, _: &Completed<'_>) {
        assert!(!D);
    }
    fn detailed(&mut self, _: &Completed<'_>, _: &Details) {
        assert!(D);
    }
    fn anomaly(&mut self, anomaly: Anomaly) {
        assert_eq!(anomaly, Anomaly::UnknownOpcode);
    }
    fn frame(&mut self, frame: &Frame<'_>) {
        self.told.push((
            frame.is_request,
            frame.version,
            frame.stream.0,
            frame.opcode,
            frame.body.to_vec(),
        ));
    }
    fn wants_bodies(&self) -> bool {
        self.bodies
    }
}

/// A query of some kilobytes, its answer, an event, and an opcode that there is none of.
fn sent(kind: Kind) -> (Vec<Told>, Vec<(bool, Vec<u8>)>) {
    let version = kind.version;
    let text = table(1).repeat(200);
    let bodies = [
        (true, 5, QUERY, Some(Opcode::Query), ask(version, &text)),
        (false, 5, RESULT, Some(Opcode::Result), vec![0, 0, 0, 1]),
        (
            false,
            -1,
            EVENT,
            Some(Opcode::Event),
            string("STATUS_CHANGE"),
        ),
        (true, 6, 0x20, None, b"what is this".to_vec()),
    ];
    let mut told = Vec::new();
    let mut bytes = Vec::new();
    for (is_request, stream, code, opcode, body) in bodies {
        let direction = if is_request { 0 } else { 0x80 };
        bytes.push((is_request, kind.sent(direction, stream, code, &body)));
        let shown = body[..body.len().min(MAX_FRAME_BODY_BYTES)].to_vec();
        told.push((is_request, version, stream, opcode, shown));
    }
    (told, bytes)
}

fn told<const D: bool>(kind: Kind, chunk: usize, bodies: bool) -> Vec<Told> {
    let mut decoder = FlowDecoder::new(Default::default());
    let mut frames: Frames<D> = Frames {
        told: Vec::new(),
        bodies,
    };
    let shaken = kind.handshake().into_iter();
    for (is_request, bytes) in shaken.chain(sent(kind).1) {
        for piece in bytes.chunks(chunk) {
            let verdict = match is_request {
                true => decoder.requests(0, piece, &mut frames),
                false => decoder.responses(0, piece, &mut frames),
            };
            assert_eq!(verdict, Verdict::Continue);
        }
    }
    let opcodes: Vec<_> = frames.told[..2].iter().map(|told| told.3).collect();
    assert_eq!(opcodes, [Some(Opcode::Startup), Some(Opcode::Ready)]);
    frames.told.split_off(2)
}

#[test]
fn each_frame_is_told_once_with_the_beginning_of_its_body() {
    for kind in KINDS {
        let expected = sent(kind).0;
        assert_eq!(expected[0].4.len(), MAX_FRAME_BODY_BYTES);
        for chunk in [1, 7, usize::MAX] {
            assert_eq!(
                told::<false>(kind, chunk, true),
                expected,
                "{kind:?} {chunk}"
            );
            assert_eq!(
                told::<true>(kind, chunk, true),
                expected,
                "{kind:?} {chunk}"
            );
        }
    }
}

#[test]
fn without_bodies_headers_are_all_that_is_sure() {
    for kind in KINDS {
        let headers = |told: Vec<Told>| -> Vec<_> {
            told.into_iter()
                .map(|told| (told.0, told.2, told.3))
                .collect()
        };
        let expected = headers(sent(kind).0);
        assert_eq!(headers(told::<false>(kind, 3, false)), expected);
        assert_eq!(headers(told::<true>(kind, 3, false)), expected);
    }
}
