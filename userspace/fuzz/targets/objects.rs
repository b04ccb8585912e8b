//! Policies that are objects of Kubernetes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| agent::fuzzed::objects(data));
