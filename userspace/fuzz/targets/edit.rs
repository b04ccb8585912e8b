//! Both directions of a flow through steps that change, refuse, encrypt, or have wait.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::edit(data));
