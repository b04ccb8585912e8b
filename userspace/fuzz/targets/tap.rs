//! Both directions of a flow, through the kernel's meter and tap and the agent's reading of it, beside the decoder.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::tap(data));
