//! Messages between the agent and the keeper of its sockets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| proxy::fuzzed::keeper(data));
