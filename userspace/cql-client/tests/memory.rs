//! An answer takes a fixed multiple of its own bytes, and not what it declares.

#[cfg(test)]
mod tests {
    use std::{
        alloc::{GlobalAlloc, Layout, System},
        cell::Cell,
        time::{Duration, Instant},
    };

    use cassandra_protocol::frame::Version;
    use cql::Compression;
    use cql_client::{Conversation, Request};

    /// The system's allocator; for each thread it counts the bytes in use, and the most that there have been.
    struct Counting;

    thread_local! {
        static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
        static PEAK_BYTES: Cell<usize> = const { Cell::new(0) };
    }

    // SAFETY: hands every call on to the system's allocator unchanged. Counting touches thread-locals without a
    // destructor, which themselves do not allocate.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            LIVE_BYTES.set(LIVE_BYTES.get().wrapping_add(layout.size()));
            PEAK_BYTES.set(PEAK_BYTES.get().max(LIVE_BYTES.get()));
            // SAFETY: the caller's own promise.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            LIVE_BYTES.set(LIVE_BYTES.get().wrapping_sub(layout.size()));
            // SAFETY: the caller's own promise.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static COUNTING: Counting = Counting;

    fn ints(ints: &[i32]) -> Vec<u8> {
        ints.iter().flat_map(|int| int.to_be_bytes()).collect()
    }

    fn frame(opcode: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let head = [0x84, flags, 0, 0, opcode];
        [&head[..], &(body.len() as u32).to_be_bytes(), body].concat()
    }

    const RESULT: u8 = 8;
    const SUPPORTED: u8 = 6;

    /// The most bytes in use while an answer is read in every way there is.
    fn peak(compression: Compression, said: &[u8]) -> usize {
        let before = LIVE_BYTES.get();
        PEAK_BYTES.set(before);
        for kind in 0..3 {
            let mut conversation = Conversation::new(Version::V4, compression, 1 << 20);
            conversation.ask(&Request::Options, Instant::now() + Duration::from_secs(1));
            for piece in said.chunks(4096) {
                if let Ok(Some(answer)) = conversation.receive(piece) {
                    match kind {
                        0 => drop(answer.rows()),
                        1 => drop(answer.prepared()),
                        _ => drop(answer.supported()),
                    }
                    break;
                }
            }
        }
        PEAK_BYTES.get() - before
    }

    #[test]
    fn bombs_take_no_memory() {
        const SOME: usize = 64 << 10;
        let name = |kind: &[u8]| {
            let names = b"\0\x02ks\0\x01t\0\x01c";
            [&ints(&[2, 1, 1])[..], names, kind].concat()
        };
        let columns = [&ints(&[4])[..], b"\0\x01x", &ints(&[0, i32::MAX, i32::MAX])].concat();
        for (compression, said) in [
            (
                Compression::None,
                frame(RESULT, 0, &ints(&[2, 4, 0, i32::MAX])),
            ),
            (
                Compression::None,
                frame(RESULT, 0, &ints(&[2, 4, 1, i32::MAX])),
            ),
            (
                Compression::None,
                frame(RESULT, 0, &name(&[0, 0x31, 0x7F, 0xFF])),
            ),
            (Compression::None, frame(RESULT, 0, &columns)),
            (Compression::None, frame(SUPPORTED, 0, &[0x7F, 0xFF])),
            (Compression::None, frame(SUPPORTED, 0, &[0xFF, 0xFF])),
            // Bodies that say that they become 256 MiB, or the most there is.
            (Compression::Lz4, frame(RESULT, 1, &[0x10, 0, 0, 0, 0])),
            (Compression::Lz4, frame(RESULT, 1, &[0xFF; 64])),
            (
                Compression::Snappy,
                frame(RESULT, 1, &[0x80, 0x80, 0x80, 0x80, 1]),
            ),
            // Frames that do not come.
            (
                Compression::None,
                [0x84, 0, 0, 0, 8, 0x0F, 0xFF, 0xFF, 0xFF].to_vec(),
            ),
        ] {
            let peak = peak(compression, &said);
            assert!(peak <= SOME + 16 * said.len(), "{peak} bytes for {said:x?}");
        }
    }

    #[test]
    fn the_largest_answer_takes_a_multiple_of_its_size() {
        // Empty cells are those of which most go into an answer.
        let cells = 1 << 17;
        let body = [ints(&[2, 4, 1, cells]), vec![0; 4 << 17]].concat();
        let said = frame(RESULT, 0, &body);
        let peak = peak(Compression::None, &said);
        // In the reader, as the body, as lists of cells and as rows.
        assert!(peak <= 64 * said.len(), "{peak} bytes for {}", said.len());
    }

    #[test]
    fn noise_takes_a_multiple_of_its_size() {
        let mut state = 1_u64;
        for _ in 0..2_000 {
            let mut body = ints(&[2]);
            body.extend(
                std::iter::repeat_with(|| {
                    // Knuth's, whose upper bits are as good as random.
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    // Mostly zeros, so that counts are small and bodies are read far.
                    if state >> 62 == 0 {
                        (state >> 56) as u8
                    } else {
                        0
                    }
                })
                .take(300),
            );
            let said = frame(RESULT, 0, &body);
            let peak = peak(Compression::None, &said);
            assert!(
                peak <= (64 << 10) + 64 * said.len(),
                "{peak} bytes for {said:x?}"
            );
        }
    }
}
