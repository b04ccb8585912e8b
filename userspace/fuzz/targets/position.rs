//! One direction, walked over by the kernel's code and by the decoder's.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::position(data));
