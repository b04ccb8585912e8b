//! Records and levels by which hosts of a fleet share limits.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| policy_source::fuzzed::sharing(data));
