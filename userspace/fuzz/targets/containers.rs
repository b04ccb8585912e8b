//! Lists and descriptions of Docker and of CRI.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| agent::fuzzed::containers(data));
