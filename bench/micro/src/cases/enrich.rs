//! Requests and their responses through a decoder into the agent's statistics: everything that
//! `enrich` does with bytes, without reading them, writing them, or the clock.

use std::hint::black_box;

use cql::{FlowDecoder, Sink, Verdict};

use super::{
    Case, Tally,
    flow::started,
    parts::{ID, SELECT},
    recorder::{Recorder, WithStats},
    wire::{self, CHUNK_BYTES, EXECUTE, Id, QUERY, RESPONSE, RESULT},
};

/// Operations in flight at once.
const PIPELINED: i16 = 32;
/// More than a flow has at hand.
const TABLES: u8 = 64;
/// The rows of more than 256 KiB.
const MANY_ROWS: usize = 1400;
/// The latency of an operation, in ns: always the same, so that it lands in the same bucket.
const LATENCY_NS: u64 = 100_000;

/// The chunks of requests and of responses.
struct Exchange {
    requests: Vec<Vec<u8>>,
    responses: Vec<Vec<u8>>,
    operations: u64,
}

impl Exchange {
    /// Makes one request in one chunk; the response in chunks as the agent reads them.
    fn one(version: u8, opcode: u8, request: &[u8], response: &[u8]) -> Self {
        let wrap = |frame: Vec<u8>| match version {
            5.. => wire::segment(true, &frame),
            _ => frame,
        };
        let response = wrap(wire::frame(version | RESPONSE, 1, RESULT, response));
        Self {
            requests: vec![wrap(wire::frame(version, 1, opcode, request))],
            responses: response.chunks(CHUNK_BYTES).map(<[u8]>::to_vec).collect(),
            operations: 1,
        }
    }

    fn fed_bytes(&self) -> usize {
        self.requests
            .iter()
            .chain(&self.responses)
            .map(Vec::len)
            .sum()
    }
}

/// A flow with the statistics that it fills.
struct Pipeline<S> {
    decoder: FlowDecoder,
    recorder: S,
    now_ns: u64,
}

impl<S: Sink + AsMut<Recorder>> Pipeline<S> {
    fn new(version: u8, mut recorder: S, prepared: &[(Id, String)]) -> Self {
        let decoder = started(version, &mut recorder, prepared);
        Self {
            decoder,
            recorder,
            now_ns: 0,
        }
    }

    fn pass(&mut self, exchange: &Exchange) {
        let mut odd = 0;
        for chunk in &exchange.requests {
            let chunk = black_box(chunk);
            let verdict = self
                .decoder
                .requests(self.now_ns, chunk, &mut self.recorder);
            odd += u64::from(verdict != Verdict::Continue);
        }
        self.now_ns += LATENCY_NS;
        for chunk in &exchange.responses {
            let chunk = black_box(chunk);
            let verdict = self
                .decoder
                .responses(self.now_ns, chunk, &mut self.recorder);
            odd += u64::from(verdict != Verdict::Continue);
        }
        self.recorder.as_mut().tally.odd += odd;
    }

    fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.recorder.as_mut().tally)
    }
}

pub(super) fn execute_v4() -> Case {
    case(4, &[], vec![execute(4)])
}

pub(super) fn execute_v5() -> Case {
    case(5, &[], vec![execute(5)])
}

fn execute(version: u8) -> Exchange {
    let request = wire::execute(version, &ID);
    Exchange::one(version, EXECUTE, &request, &wire::rows(1))
}

pub(super) fn query_v4() -> Case {
    let exchange = Exchange::one(4, QUERY, &wire::query(SELECT), &wire::rows(1));
    case(4, &[], vec![exchange])
}

pub(super) fn pipelined_v4() -> Case {
    let request = wire::execute(4, &ID);
    let row = wire::rows(1);
    let requests = (0..PIPELINED).flat_map(|stream| wire::frame(4, stream, EXECUTE, &request));
    let responses = (0..PIPELINED).flat_map(|s| wire::frame(4 | RESPONSE, s, RESULT, &row));
    let exchange = Exchange {
        requests: vec![requests.collect()],
        responses: vec![responses.collect()],
        operations: PIPELINED as u64,
    };
    case(4, &[], vec![exchange])
}

pub(super) fn many_tables_v4() -> Case {
    let (prepared, exchanges) = many_tables();
    case(4, &prepared, exchanges)
}

fn many_tables() -> (Vec<(Id, String)>, Vec<Exchange>) {
    let id = |table: u8| -> Id { [table; 16] };
    let row = wire::rows(1);
    let one = |table| Exchange::one(4, EXECUTE, &wire::execute(4, &id(table)), &row);
    let text = |table| format!("SELECT a FROM keyspace1.table{table} WHERE key = ?");
    (
        (0..TABLES).map(|table| (id(table), text(table))).collect(),
        (0..TABLES).map(one).collect(),
    )
}

pub(super) fn large_rows_v4() -> Case {
    let request = wire::execute(4, &ID);
    let exchange = Exchange::one(4, EXECUTE, &request, &wire::rows(MANY_ROWS));
    case(4, &[], vec![exchange])
}

/// Makes the case of EXECUTE under a rule with `stats`.
pub(super) fn execute_with_stats_v4() -> Case {
    case_of(WithStats::new().ok(), 4, &[], vec![execute(4)])
}

pub(super) fn query_with_stats_v4() -> Case {
    let exchange = Exchange::one(4, QUERY, &wire::query(SELECT), &wire::rows(1));
    case_of(WithStats::new().ok(), 4, &[], vec![exchange])
}

fn case(version: u8, prepared: &[(Id, String)], exchanges: Vec<Exchange>) -> Case {
    case_of(Recorder::new().ok(), version, prepared, exchanges)
}

fn case_of<S: Sink + AsMut<Recorder> + 'static>(
    sink: Option<S>,
    version: u8,
    prepared: &[(Id, String)],
    exchanges: Vec<Exchange>,
) -> Case {
    let fed_bytes = exchanges.iter().map(Exchange::fed_bytes).sum();
    let operations = exchanges.iter().map(|exchange| exchange.operations).sum();
    // Segments are not part of a frame's size: six bytes before it and four behind.
    let segment_bytes = if version >= 5 { 2 * 10 * operations } else { 0 };
    let expected = Tally {
        elements: operations,
        bytes: fed_bytes as u64 - segment_bytes,
        odd: 0,
    };
    let mut pipeline = sink.map(|sink| Pipeline::new(version, sink, prepared));
    if let Some(pipeline) = &mut pipeline {
        let tally = &mut pipeline.recorder.as_mut().tally;
        tally.elements = 0;
        tally.bytes = 0;
    }
    Case::new(fed_bytes, expected, move || {
        // Without metrics there is nothing to tally, which is not what is expected.
        let Some(pipeline) = &mut pipeline else {
            return Tally::default();
        };
        for exchange in &exchanges {
            pipeline.pass(exchange);
        }
        pipeline.take_tally()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_after_their_statements() {
        let mut pipeline = Pipeline::new(5, Recorder::new().unwrap(), &[]);
        for _ in 0..3 {
            pipeline.pass(&execute(5));
        }
        let rows = pipeline.recorder.rows();
        let row = |kind: &str| {
            let all = rows.as_array().unwrap().iter();
            let mut of_kind = all.filter(|row| row["kind"] == kind);
            of_kind.next().cloned().unwrap()
        };
        assert_eq!(row("insert")["count"], 3);
        assert_eq!(row("insert")["keyspace"], "keyspace1");
        assert_eq!(row("insert")["table"], "standard1");
        assert_eq!(row("prepare")["count"], 1);
        assert_eq!(pipeline.take_tally().odd, 0);
    }

    #[test]
    fn statistics_are_filled() {
        let mut pipeline = Pipeline::new(4, WithStats::new().unwrap(), &[]);
        for _ in 0..3 {
            pipeline.pass(&execute(4));
        }
        let rows = pipeline.recorder.as_mut().rows();
        let mut rows = rows.as_array().unwrap().iter();
        let inserts = rows.find(|row| row["kind"] == "insert").unwrap();
        assert_eq!(inserts["rows"], 3, "{inserts}");
        let levels = inserts["consistency"].as_object().unwrap();
        assert!(levels.values().all(|count| count == 3) && levels.len() == 1);
    }

    #[test]
    fn many_tables_are_many_rows() {
        let (prepared, exchanges) = many_tables();
        let mut pipeline = Pipeline::new(4, Recorder::new().unwrap(), &prepared);
        for exchange in &exchanges {
            pipeline.pass(exchange);
        }
        let rows = pipeline.recorder.rows();
        let selects = rows.as_array().unwrap().iter();
        let selects = selects.filter(|row| row["kind"] == "select" && row["count"] == 1);
        assert_eq!(selects.count(), usize::from(TABLES));
    }

    #[test]
    fn large_rows_take_several_chunks() {
        let row = wire::rows(MANY_ROWS);
        let exchange = Exchange::one(4, EXECUTE, &wire::execute(4, &ID), &row);
        assert!(row.len() >= 256 << 10 && exchange.responses.len() >= 4);
    }
}
