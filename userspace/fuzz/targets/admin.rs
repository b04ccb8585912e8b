//! A query of the admin interface, and the name by which it is asked.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| agent::fuzzed::admin(data));
