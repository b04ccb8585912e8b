//! A frame, as the edge's program sees it, beside a library that reads packets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::edge(data));
