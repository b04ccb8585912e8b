//! An answer of a name server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| names::fuzzed::dns(data));
