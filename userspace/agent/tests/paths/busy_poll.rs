//! Busy polling: a worker looks for what comes soon, where the file does not forbid it.

use crate::common::{
    eventually,
    frames::{query, ready, startup, void},
    wire::{Host, host_with},
};

const VERSION: u8 = 4;
const POLICY: &str = "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\n";

/// Short waits of the worker that it did not simply sleep.
fn short_waits(host: &Host<'_>) -> u64 {
    let of = |outcome| host.metric("busy_polls", &format!("outcome=\"{outcome}\""));
    ["came", "in_vain", "wanted"].into_iter().map(of).sum()
}

#[test]
fn a_worker_looks_for_what_comes_soon_unless_it_is_told_to_sleep() {
    for (setting, looks) in [("busy_poll = true", true), ("busy_poll = false", false)] {
        host_with(setting, |host| {
            host.policy(POLICY);
            let mut c = host.connect();
            c.client_sends(&startup(VERSION, &[("CQL_VERSION", "3.0.0")]));
            c.server_sends(&ready(VERSION));
            let mut has_looked = || {
                for _ in 0..100 {
                    c.client_sends(&query(VERSION, 1, "SELECT v FROM ks.t"));
                    c.server_sends(&void(VERSION, 1));
                }
                short_waits(host) > 0
            };
            match looks {
                true => eventually("a wait is short", has_looked),
                false => assert!(!has_looked()),
            }
            c.ends();
        });
    }
}
