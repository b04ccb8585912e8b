//! Rules with `shortcut`: what shared connections exchange with a database on this host skips TCP.

use std::{
    collections::BTreeSet,
    sync::{Mutex, mpsc},
};

use cql_node::NodeOptions;
use sandbox::{MemoryCgroup, skip::skip};

use super::{
    FOLD, RESULT, SELECT, became, everybody,
    hostile::{WAITS, peer},
    long::passes_both_ways,
    peer::Peer,
    rule_with,
    scripted::{Does, Scripted, has, stream_of},
    shared, until_folded,
};
use crate::common::{
    eventually,
    frames::{query, void},
    world::{World, world, world_of},
};

pub(super) const LETS_DATABASE_IN: &str = "shortcut = \"database\"";

pub(super) fn short_legs(world: &World<'_>) -> usize {
    world.agent.metric("underpass_short_legs").unwrap() as usize
}

pub(super) fn long_legs(world: &World<'_>, reason: &str) -> usize {
    let sample = format!("underpass_long_legs_total{{reason=\"{reason}\"}}");
    world.agent.metric(&sample).unwrap() as usize
}

/// Messages of connections that skip TCP, by the way that they took.
fn messages(world: &World<'_>, way: &str) -> f64 {
    let sample = format!("underpass_shortcut_messages_total{{way=\"{way}\"}}");
    world.agent.metric(&sample).unwrap()
}

fn past_tcp(world: &World<'_>) -> f64 {
    messages(world, "shortcut")
}

#[test]
fn shared_connections_skip_tcp_where_the_rule_lets_the_database_in() {
    const ASKED: usize = 100;
    // The clients' sockets block.
    for (keys, is_short) in [
        ("", false),
        ("shortcut = \"client\"", false),
        (LETS_DATABASE_IN, true),
        ("shortcut = true", true),
    ] {
        world(|world| {
            rule_with(world, world.database.addr(), FOLD, keys);
            let mut peer = Peer::of(world, 4);
            until_folded(world, &mut peer);
            let (before, folded) = (past_tcp(world), became(world, "folded"));
            for _ in 0..ASKED {
                assert_eq!(peer.ask(&query(4, 1, SELECT)).0, RESULT);
            }
            assert_eq!(became(world, "folded") - folded, ASKED as u64, "{keys}");
            // Its own connection is idle: each request and each answer is one on the shared one.
            let expected = if is_short { 2 * ASKED } else { 0 };
            assert_eq!(past_tcp(world) - before, expected as f64, "{keys}");
            assert_eq!(short_legs(world), if is_short { 2 } else { 0 }, "{keys}");
            drop(peer);
            eventually("both have ended", || {
                (shared(world), short_legs(world)) == (0, 0)
            });
            if is_short {
                everybody(world, 4);
                everybody(world, 5);
            }
        });
    }
}

#[test]
fn what_is_long_passes_both_ways() {
    for version in [4, 5] {
        world_of(2, NodeOptions::default(), |world| {
            rule_with(world, world.database.addr(), FOLD, LETS_DATABASE_IN);
            passes_both_ways(world, world.database.addr(), version);
            let mut peer = Peer::of(world, version);
            until_folded(world, &mut peer);
            let before = past_tcp(world);
            assert_eq!(peer.ask(&query(version, 1, SELECT)).0, RESULT);
            // What was too long for it took TCP, and what follows does not.
            assert_eq!(past_tcp(world) - before, 2.0);
            assert!(messages(world, "bulk") > 0.0);
        });
    }
}

/// A flow stays in the pool of the rule that it had when it joined; one that joins under another shares with its like.
#[test]
fn flows_share_with_those_whose_rule_says_the_same() {
    world(|world| {
        let sets = |keys| rule_with(world, world.database.addr(), FOLD, keys);
        sets("");
        let mut long = Peer::of(world, 4);
        until_folded(world, &mut long);
        sets(LETS_DATABASE_IN);
        let mut short = Peer::of(world, 4);
        until_folded(world, &mut short);
        assert_eq!((shared(world), short_legs(world)), (2, 2));
        let before = past_tcp(world);
        until_folded(world, &mut long);
        assert_eq!(past_tcp(world), before);
        sets("");
        until_folded(world, &mut short);
        assert!(past_tcp(world) > before, "as it began");
        assert_eq!(shared(world), 2);
    });
}

/// A shared connection is more than one flow's: what a sockmap refuses takes TCP, where it waits.
#[test]
fn a_shared_connection_takes_tcp_where_its_database_has_no_memory() {
    let Some(memory) = MemoryCgroup::new().unwrap() else {
        let name = "a_shared_connection_takes_tcp_where_its_database_has_no_memory";
        return skip(name, "this host accounts no memory by cgroups of version 1");
    };
    // Without a limit nothing is charged.
    memory.limit_tcp(Some(1 << 30)).unwrap();
    world(|world| {
        let (reads_on, does_not_read) = mpsc::channel::<()>();
        let does_not_read = Mutex::new(does_not_read);
        let start = || {
            Scripted::start(world, move |_, asked| {
                if has(asked, "id = 7") {
                    let _ = does_not_read.lock().unwrap().recv();
                }
                Does::Says(void(4, stream_of(asked)))
            })
        };
        let database = memory.run(start).unwrap();
        rule_with(world, database.addr, FOLD, LETS_DATABASE_IN);
        let mut peer = peer(world, database.addr);
        until_folded(world, &mut peer);
        peer.send(&[query(4, 1, WAITS)]);
        let before = past_tcp(world);
        // Some requests find room.
        let limit = memory.tcp_bytes().unwrap() + (64 << 10);
        memory.limit_tcp(Some(limit)).unwrap();
        let without_memory = || {
            let sample = "underpass_legs_out_of_memory_total";
            world.agent.metric(sample).unwrap()
        };
        let asked = format!("SELECT v FROM shop.orders WHERE id = {}", "8".repeat(4_000));
        let mut streams = BTreeSet::from([1]);
        eventually("it takes TCP", || {
            let stream = streams.len() as i16 + 1;
            streams.insert(stream);
            peer.send(&[query(4, stream, &asked)]);
            without_memory() == 1.0
        });
        assert!(past_tcp(world) - before > 2.0);
        memory.limit_tcp(None).unwrap();
        reads_on.send(()).unwrap();
        let answered: BTreeSet<_> = streams.iter().map(|_| peer.next().0).collect();
        assert_eq!(answered, streams);
        until_folded(world, &mut peer);
        eventually("the flow's own leg is short yet", || {
            (shared(world), short_legs(world)) == (1, 1)
        });
        assert_eq!(without_memory(), 1.0);
        drop(peer);
        eventually("no leg is left", || short_legs(world) == 0);
        database.ends();
    });
}
