//! A document of keys, in a file or from a key server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| steps::fuzzed::keys(data));
