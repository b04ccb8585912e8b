//! A flow from its READY on, and everything that its sink is told.

use cql::{Anomaly, Answered, Asked, Completed, Details, ErrorCode, FlowDecoder, Sink, Verdict};

use crate::support::*;

/// Everything that was told.
#[derive(Debug, Default, PartialEq)]
pub struct Detailed {
    pub told: Vec<(String, Option<ErrorCode>, Details)>,
    pub unanswered: Vec<(String, u64, Details)>,
    pub anomalies: Vec<Anomaly>,
}

impl Sink for Detailed {
    const DETAILS: bool = true;

    fn completed(&mut self, _: &Completed<'_>) {
        panic!("told without details");
    }

    fn detailed(&mut self, completed: &Completed<'_>, details: &Details) {
        let kind = completed.statement.kind.to_string();
        self.told.push((kind, completed.error, details.clone()));
    }

    fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
        let kind = request.statement.kind.to_string();
        self.unanswered
            .push((kind, request.latency_ns, details.clone()));
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        self.anomalies.push(anomaly);
    }
}

pub struct Flow {
    pub decoder: FlowDecoder,
    pub sink: Detailed,
    version: u8,
    pub piece: usize,
}

impl Flow {
    pub fn new(version: u8) -> Self {
        Self {
            decoder: FlowDecoder::new(Default::default()),
            sink: Detailed::default(),
            version,
            piece: usize::MAX,
        }
    }

    pub fn started(version: u8) -> Self {
        let mut flow = Self::new(version);
        flow.feed(true, &startup(version, &[]));
        flow.feed(false, &frame(version | 0x80, 0, 0, READY, &[]));
        flow.sink.told.clear();
        flow
    }

    pub fn feed(&mut self, is_request: bool, bytes: &[u8]) {
        for piece in bytes.chunks(self.piece) {
            let verdict = match is_request {
                true => self.decoder.requests(0, piece, &mut self.sink),
                false => self.decoder.responses(0, piece, &mut self.sink),
            };
            assert_eq!(verdict, Verdict::Continue);
        }
    }

    pub fn request(&mut self, flags: u8, stream: i16, opcode: u8, body: &[u8]) {
        self.feed(
            true,
            &self.wrap(frame(self.version, flags, stream, opcode, body)),
        );
    }

    pub fn response(&mut self, flags: u8, stream: i16, opcode: u8, body: &[u8]) {
        let frame = frame(self.version | 0x80, flags, stream, opcode, body);
        self.feed(false, &self.wrap(frame));
    }

    pub fn wrap(&self, frame: Vec<u8>) -> Vec<u8> {
        match self.version {
            5 if frame.len() < 1 << 17 => segment(true, &frame),
            5 => frame
                .chunks((1 << 17) - 1)
                .flat_map(|part| segment(false, part))
                .collect(),
            _ => frame,
        }
    }

    /// A request and an empty result.
    pub fn ask(&mut self, opcode: u8, body: &[u8]) -> Asked {
        self.request(0, 1, opcode, body);
        self.response(0, 1, RESULT, &1_i32.to_be_bytes());
        self.sink.told.pop().unwrap().2.asked
    }

    /// A response to some request.
    pub fn answer(&mut self, flags: u8, opcode: u8, body: &[u8]) -> Answered {
        self.request(0, 1, OPTIONS, &[]);
        self.response(flags, 1, opcode, body);
        self.sink.told.pop().unwrap().2.answered
    }
}
