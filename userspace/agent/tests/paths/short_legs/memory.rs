//! Applications whose memory cgroup has no room: a sockmap refuses what is sent to them, and TCP waits.

use sandbox::{MemoryCgroup, skip::skip};

use super::{SELECT, VERSION, begun_on, ends, exchange, lets_in, messages, short_legs, why, write};
use crate::common::{
    eventually,
    frames::query,
    wire::{Host, host, rows},
};

/// So much of what is past TCP may still be charged: some messages find room, and one does not.
const ROOM: u64 = 64 << 10;

/// More than any sockets of a test hold, and a limit: without one nothing is charged.
const ROOMY: u64 = 1 << 30;

fn without_memory(host: &Host<'_>) -> f64 {
    let sample = "underpass_legs_out_of_memory_total";
    host.agent.metric(sample).unwrap()
}

/// Sends messages of this size to a side that does not read until its leg takes TCP.
fn loses_nothing(host: &Host<'_>, memory: &MemoryCgroup, side: &str, size: usize) {
    memory.limit_tcp(Some(ROOMY)).unwrap();
    let c = host.connect_accounted(side, memory);
    let mut c = begun_on(c, false);
    exchange(&mut c);
    assert_eq!(short_legs(host), 2.0, "{}", why(host, &c));
    let before = without_memory(host);
    let past_tcp = || messages(host, "shortcut");
    let past_tcp_before = past_tcp();
    let limit = memory.tcp_bytes().unwrap() + ROOM;
    memory.limit_tcp(Some(limit)).unwrap();
    let (message, from) = match side {
        "client" => (rows(VERSION, 1), &c.server),
        _ => (query(VERSION, 1, SELECT), &c.client),
    };
    let message = message.repeat(size / message.len());
    let mut sent = Vec::new();
    eventually("it takes TCP", || {
        write(from, &message);
        sent.extend_from_slice(&message);
        without_memory(host) > before
    });
    // More than what was refused, and is sent again.
    assert!(past_tcp() - past_tcp_before > 2);
    let told = format!("{side}'s leg is long: the memory cgroup");
    assert!(why(host, &c).contains(&told), "{}", why(host, &c));
    // What went past TCP comes first, then the rest, and more.
    memory.limit_tcp(Some(ROOMY)).unwrap();
    write(from, &message);
    sent.extend_from_slice(&message);
    match side {
        "client" => c.client_gets(&sent),
        _ => c.server_gets(&sent),
    }
    (0..10).for_each(|_| exchange(&mut c));
    assert_eq!(without_memory(host), before + 1.0);
    eventually("the other leg is short yet", || short_legs(host) == 1.0);
    ends(host, c);
    memory.limit_tcp(None).unwrap();
}

#[test]
fn a_leg_takes_tcp_where_its_application_has_no_memory() {
    let Some(memory) = MemoryCgroup::new().unwrap() else {
        let name = "a_leg_takes_tcp_where_its_application_has_no_memory";
        return skip(name, "this host accounts no memory by cgroups of version 1");
    };
    host(|host| {
        host.policy(&lets_in("true"));
        // By the worker's outbox, and by a call of their own.
        for size in [8 << 10, 32 << 10] {
            for side in ["client", "database"] {
                loses_nothing(host, &memory, side, size);
            }
        }
    });
}
