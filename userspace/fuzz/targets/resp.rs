//! Replies of Redis, and what was kept there.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| steps::fuzzed::resp(data));
