//! Both directions of a flow, as they are.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::frame(data));
