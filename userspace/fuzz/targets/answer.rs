//! An answer of a database that the agent itself asks.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cql_client::fuzzed::answer(data));
