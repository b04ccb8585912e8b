//! Flows that another agent hands over.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| proxy::fuzzed::handed(data));
