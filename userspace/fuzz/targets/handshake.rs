//! A handshake of two peers that say anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::handshake(data));
