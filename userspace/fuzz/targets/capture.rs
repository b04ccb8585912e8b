//! A file of captured requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::capture(data));
