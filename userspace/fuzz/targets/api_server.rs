//! A list and a watch of a Kubernetes API server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| policy_source::fuzzed::api_server(data));
