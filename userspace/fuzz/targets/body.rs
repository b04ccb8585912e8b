//! Frames around any bodies, in all versions and compressions.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::body(data));
