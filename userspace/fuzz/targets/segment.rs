//! Segments of v5, with checksums that fit or not.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::segment(data));
