//! Messages between an agent that runs and one that takes over.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| agent::fuzzed::handover(data));
