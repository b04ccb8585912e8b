//! In the steady state a frame allocates nothing, and whatever peers send, memory is bounded.

#[cfg(test)]
#[allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of it"
)]
mod support;

#[cfg(test)]
mod tests {
    use super::support::*;
    use cql::{Anomaly, Completed, FlowDecoder, Sink, Verdict};
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;
    use std::sync::Arc;

    /// The system's allocator, counting for each thread.
    struct Counting;

    thread_local! {
        static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
        static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
    }

    // SAFETY: hands every call on to the system's allocator unchanged. Counting touches a
    // thread-local without a destructor, which itself does not allocate.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            LIVE_BYTES.set(LIVE_BYTES.get().wrapping_add(layout.size()));
            // SAFETY: the caller's own promise.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // Threads may free what others allocated.
            LIVE_BYTES.set(LIVE_BYTES.get().wrapping_sub(layout.size()));
            // SAFETY: the caller's own promise.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static COUNTING: Counting = Counting;

    #[derive(Default)]
    struct Counter {
        completed: usize,
    }

    impl Sink for Counter {
        fn completed(&mut self, _: &Completed<'_>) {
            self.completed += 1;
        }

        fn anomaly(&mut self, anomaly: Anomaly) {
            panic!("{anomaly}");
        }
    }

    /// Allocations of a thousand rounds after the first few.
    fn allocations(version: u8, pieces: usize) -> usize {
        let mut decoder = FlowDecoder::new(Arc::default());
        let mut counter = Counter::default();
        let wrap = |frame: Vec<u8>| {
            if version < 5 {
                frame
            } else {
                segment(true, &frame)
            }
        };
        let request = |stream, opcode, body: &[u8]| wrap(frame(version, 0, stream, opcode, body));
        let response = |stream, body: &[u8]| wrap(frame(version | 0x80, 0, stream, RESULT, body));
        decoder.requests(0, &startup(version, &[]), &mut counter);
        decoder.responses(0, &frame(version | 0x80, 0, 0, READY, &[]), &mut counter);
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
            Child::Text("UPDATE t SET a = 1"),
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
        ALLOCATIONS.get() - before
    }

    #[test]
    fn no_allocations_in_the_steady_state() {
        for version in [3, 4, 5] {
            for pieces in [1, 7] {
                assert_eq!(
                    allocations(version, pieces),
                    0,
                    "v{version} in {pieces} pieces"
                );
            }
        }
    }

    /// What a decoder holds after peers did their worst: every stream taken, 20,000 different
    /// tables and prepared ids of the greatest length, and half a large frame in each direction.
    #[test]
    fn memory_is_bounded() {
        struct Ignore;
        impl Sink for Ignore {
            fn completed(&mut self, _: &Completed<'_>) {}
            fn anomaly(&mut self, _: Anomaly) {}
        }
        let store = Arc::new(cql::PreparedStatements::with_capacity(100));
        for version in [4, 5] {
            let before = LIVE_BYTES.get();
            let mut decoder = FlowDecoder::new(Arc::clone(&store));
            let part = |frame: &[u8]| {
                if version < 5 {
                    frame.to_vec()
                } else {
                    segment(false, frame)
                }
            };
            decoder.requests(0, &startup(version, &[]), &mut Ignore);
            decoder.responses(0, &frame(version | 0x80, 0, 0, READY, &[]), &mut Ignore);
            for i in 0..20_000 {
                let name = format!("{i:0>250}");
                let text = format!("SELECT a FROM \"{name}\".\"{name}\"");
                let id = name.as_bytes();
                let mut ask = |opcode, body: &[u8], answer: &[u8]| {
                    let request = part(&frame(version, 0, 1, opcode, body));
                    assert_eq!(
                        decoder.requests(0, &request, &mut Ignore),
                        Verdict::Continue
                    );
                    let response = part(&frame(version | 0x80, 0, 1, RESULT, answer));
                    assert_eq!(
                        decoder.responses(0, &response, &mut Ignore),
                        Verdict::Continue
                    );
                };
                ask(PREPARE, &prepare(version, &text, None), &prepared(id));
                ask(EXECUTE, &execute(id), &[0, 0, 0, 1]);
            }
            for stream in i16::MIN..=i16::MAX {
                let request = part(&frame(version, 0, stream, OPTIONS, &[]));
                decoder.requests(0, &request, &mut Ignore);
            }
            let mut large = frame(version, 0, 1, QUERY, &[0; 120_000]);
            large[5] = 0x0F;
            decoder.requests(0, &part(&large)[..110_000], &mut Ignore);
            large[0] |= 0x80;
            large[1] = 8;
            large[4] = RESULT;
            decoder.responses(0, &part(&large)[..110_000], &mut Ignore);
            let held = LIVE_BYTES.get().wrapping_sub(before);
            assert!(held < 4 << 20, "v{version} holds {held} bytes");
            drop(decoder);
        }
    }

    #[test]
    fn the_count_counts() {
        let before = ALLOCATIONS.get();
        drop(std::hint::black_box(Box::new(1)));
        assert_eq!(ALLOCATIONS.get() - before, 1);
    }
}
