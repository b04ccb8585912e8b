//! In the steady state a frame allocates nothing, and whatever peers send, memory is bounded.

#[cfg(test)]
#[allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of it"
)]
mod support;

#[cfg(test)]
#[path = "support/counting.rs"]
mod counting;

/// The benchmark's cases, and the agent's way to count.
#[cfg(test)]
#[path = "../benches/frames/cases.rs"]
#[allow(
    dead_code,
    clippy::allow_attributes,
    reason = "the benchmark uses all of it"
)]
mod cases;
#[cfg(test)]
#[path = "../benches/frames/stats.rs"]
mod stats;

#[cfg(test)]
mod tests {
    use super::cases::{CASES, Case, FRAME_BYTES, Flow, OPERATIONS};
    use super::counting::{ALLOCATIONS, Counting, LIVE_BYTES};
    use super::support::kind::{KINDS, Kind, kind};
    use super::support::*;
    use cassandra_protocol::compression::Compression;
    use cql::{Anomaly, Completed, Details, FlowDecoder, Sink, Verdict};
    use std::sync::Arc;

    #[global_allocator]
    static COUNTING: Counting = Counting;

    /// A sink that counts, and asks for details or not.
    #[derive(Default)]
    struct Counter<const DETAILS: bool> {
        completed: usize,
        known: usize,
        fingerprints: usize,
    }

    impl<const DETAILS: bool> Sink for Counter<DETAILS> {
        const DETAILS: bool = DETAILS;

        fn detailed(&mut self, completed: &Completed<'_>, details: &Details) {
            self.known += usize::from(details.asked.parameters.is_some());
            self.fingerprints += usize::from(details.asked.fingerprint.is_some());
            self.completed(completed);
        }

        fn completed(&mut self, _: &Completed<'_>) {
            self.completed += 1;
        }

        fn anomaly(&mut self, anomaly: Anomaly) {
            panic!("{anomaly}");
        }
    }

    /// Allocations of a thousand rounds after the first few.
    fn allocations<const DETAILS: bool>(kind: Kind, pieces: usize) -> usize {
        let version = kind.version;
        let mut decoder = FlowDecoder::new(Default::default());
        let mut counter = Counter::<DETAILS>::default();
        let wrap = |frame: Vec<u8>| kind.wrap(&[frame]);
        let request = |stream, opcode, body: &[u8]| wrap(frame(version, 0, stream, opcode, body));
        let response = |stream, body: &[u8]| wrap(frame(version | 0x80, 0, stream, RESULT, body));
        let [(_, startup), (_, ready)] = kind.handshake();
        decoder.requests(0, &startup, &mut counter);
        decoder.responses(0, &ready, &mut counter);
        let select = prepare(version, "SELECT a FROM ks.t WHERE a = ?", None);
        decoder.requests(0, &request(1, PREPARE, &select), &mut counter);
        decoder.responses(
            0,
            &response(1, &prepared(b"0123456789abcdef")),
            &mut counter,
        );

        let insert = query(version, "INSERT INTO Ks.Tbl (a) VALUES ('x')", None);
        let children = [
            Child::Id(b"0123456789abcdef"),
            Child::Text("UPDATE t SET a = 1 WHERE k = 2"),
        ];
        let requests = [
            request(1, EXECUTE, &execute(b"0123456789abcdef")),
            request(2, QUERY, &insert),
            request(3, BATCH, &batch(version, &children, None)),
            request(4, PREPARE, &select),
        ]
        .concat();
        let rows = [&[0, 0, 0, 2][..], &[7; 1000]].concat();
        let responses = [
            response(3, &rows),
            response(1, &rows),
            response(4, &prepared(b"0123456789abcdef")),
            response(2, &[0, 0, 0, 1]),
        ]
        .concat();
        let mut before = 0;
        for round in 0..1010 {
            if round == 10 {
                before = ALLOCATIONS.get();
            }
            for piece in requests.chunks(requests.len().div_ceil(pieces)) {
                assert_eq!(decoder.requests(0, piece, &mut counter), Verdict::Continue);
            }
            for piece in responses.chunks(responses.len().div_ceil(pieces)) {
                assert_eq!(decoder.responses(0, piece, &mut counter), Verdict::Continue);
            }
        }
        assert_eq!(counter.completed, 2 + 4 * 1010);
        // v5's EXECUTE of these tests has no id of its metadata.
        let known = if version < 5 { 3 } else { 2 };
        assert_eq!(counter.known, if DETAILS { known * 1010 } else { 0 });
        let fingerprints = if DETAILS { 4 * 1010 + 1 } else { 0 };
        assert_eq!(counter.fingerprints, fingerprints);
        ALLOCATIONS.get() - before
    }

    #[test]
    fn no_allocations_in_the_steady_state() {
        for kind in KINDS {
            for pieces in [1, 7] {
                let which = format!("{kind:?} in {pieces} pieces");
                assert_eq!(allocations::<false>(kind, pieces), 0, "{which}");
                assert_eq!(allocations::<true>(kind, pieces), 0, "{which}, details");
            }
        }
    }

    /// Memory of a decoder is bounded after peers did their worst: every stream taken, 20,000 different
    /// tables and prepared ids of the greatest length, and half a large frame in each direction.
    #[test]
    fn memory_is_bounded() {
        most_held(4 << 20, &mut Ignore::<false>);
        // As many details as requests, and a count for each stream on which more than one is out: four
        // bytes, and one of the table's own.
        let counts = 5 << 16;
        most_held((8 << 20) + counts, &mut Ignore::<true>);
    }

    struct Ignore<const DETAILS: bool>;

    impl<const DETAILS: bool> Sink for Ignore<DETAILS> {
        const DETAILS: bool = DETAILS;
        fn completed(&mut self, _: &Completed<'_>) {}
        fn anomaly(&mut self, _: Anomaly) {}
    }

    fn most_held<S: Sink>(bound: usize, sink: &mut S) {
        let store = Arc::new(cql::PreparedStatements::with_capacity(100));
        for kind in [
            kind(4, Compression::None),
            kind(4, Compression::Lz4),
            kind(4, Compression::Snappy),
            kind(5, Compression::None),
            kind(5, Compression::Lz4),
        ] {
            let version = kind.version;
            let before = LIVE_BYTES.get();
            let mut decoder = FlowDecoder::new(store.at(cql::Database::default()));
            let part = |frame: &[u8]| match version {
                5 => kind.part(frame),
                _ => kind.wrap(&[frame.to_vec()]),
            };
            let [(_, startup), (_, ready)] = kind.handshake();
            decoder.requests(0, &startup, sink);
            decoder.responses(0, &ready, sink);
            // How much is remembered does not depend on how it came.
            let names = match kind.compression {
                Compression::None => 20_000,
                _ => 500,
            };
            for i in 0..names {
                let name = format!("{i:0>250}");
                let text = format!("SELECT a FROM \"{name}\".\"{name}\"");
                let id = name.as_bytes();
                let mut ask = |opcode, body: &[u8], answer: &[u8]| {
                    let request = part(&frame(version, 0, 1, opcode, body));
                    assert_eq!(decoder.requests(0, &request, sink), Verdict::Continue);
                    let response = part(&frame(version | 0x80, 0, 1, RESULT, answer));
                    assert_eq!(decoder.responses(0, &response, sink), Verdict::Continue);
                };
                ask(PREPARE, &prepare(version, &text, None), &prepared(id));
                ask(EXECUTE, &execute(id), &[0, 0, 0, 1]);
            }
            for stream in i16::MIN..=i16::MAX {
                let request = part(&frame(version, 0, stream, OPTIONS, &[]));
                decoder.requests(0, &request, sink);
            }
            // A part that becomes much, and behind it one of which nothing can be made yet.
            let mut noise = 1_u32;
            let noise = std::iter::repeat_with(|| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (noise >> 24) as u8
            });
            let zeros = if version < 5 { 0 } else { 110_000 };
            let body = std::iter::repeat_n(0, zeros).chain(noise.take(120_000));
            let is_compressed = version < 5 && kind.compression != Compression::None;
            let (flag, body) = (u8::from(is_compressed), body.collect::<Vec<u8>>());
            let half = |direction: u8, flags, opcode| {
                let mut large = frame(version | direction, flag | flags, 1, opcode, &body);
                large[5] = 0x0F;
                let bytes = match version {
                    5 => [kind.part(&large[..zeros]), kind.part(&large[zeros..])].concat(),
                    _ => large,
                };
                bytes[..bytes.len() - 10_000].to_vec()
            };
            let request = half(0, 0, QUERY);
            assert_eq!(decoder.requests(0, &request, sink), Verdict::Continue);
            let response = half(0x80, 8, RESULT);
            assert_eq!(decoder.responses(0, &response, sink), Verdict::Continue);
            let held = LIVE_BYTES.get().wrapping_sub(before);
            assert!(held < bound, "{kind:?} holds {held} bytes");
            drop(decoder);
        }
    }

    /// With statistics as the agent keeps them, too.
    #[test]
    fn no_allocations_where_it_is_counted() {
        fn allocations<const DETAILS: bool>(case: Case) -> usize {
            let mut flow = Flow::<DETAILS>::new(case);
            let rounds = |flow: &mut Flow<DETAILS>, n| {
                for _ in 0..n {
                    assert_eq!(flow.round(), OPERATIONS as u64, "{}", case.name);
                }
            };
            rounds(&mut flow, 10);
            let before = ALLOCATIONS.get();
            rounds(&mut flow, 100);
            let allocations = ALLOCATIONS.get() - before;
            let (bytes, rows) = flow.sums();
            let operations = 110 * OPERATIONS as u64;
            assert_eq!(rows, if DETAILS { operations } else { 0 });
            if case.is_plain() {
                assert_eq!(bytes, 2 * FRAME_BYTES as u64 * operations);
            }
            allocations
        }
        for case in CASES {
            let allocations = match case.details {
                true => allocations::<true>(case),
                false => allocations::<false>(case),
            };
            assert_eq!(allocations, 0, "{}", case.name);
        }
    }

    #[test]
    fn the_count_counts() {
        let before = ALLOCATIONS.get();
        drop(std::hint::black_box(Box::new(1)));
        assert_eq!(ALLOCATIONS.get() - before, 1);
    }
}
