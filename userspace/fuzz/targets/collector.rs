//! A collector's answer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| steps::fuzzed::collector(data));
