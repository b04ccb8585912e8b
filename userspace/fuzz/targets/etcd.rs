//! A policy in etcd, and the statuses of hosts.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| policy_source::fuzzed::etcd(data));
