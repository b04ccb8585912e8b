//! Generated requests through a pipeline to an in-memory database, beside the same ones to another.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::pipeline(data));
