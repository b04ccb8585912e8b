//! A policy file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| agent::fuzzed::config(data));
