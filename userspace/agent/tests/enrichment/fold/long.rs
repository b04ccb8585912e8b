//! Requests and answers that are longer than sockets take at once.

use std::{net::SocketAddr, thread};

use super::{RESULT, became, peer_at, select, until_folded};
use crate::common::{frames::query, world::World};

const LONG_BYTES: usize = 3 << 20;
/// Each is as long as may be shared, and all together more than sockets take at once.
const WRITES: usize = 60;
const WRITE_BYTES: usize = 60_000;
const READS: usize = 8;

/// Long requests and long answers pass at once, over the shared connection to the database that is reached at this address.
pub(super) fn passes_both_ways(world: &World<'_>, to: SocketAddr, version: u8) {
    let mut reads = peer_at(world, to, version);
    let mut writes = peer_at(world, to, version);
    until_folded(world, &mut reads);
    until_folded(world, &mut writes);
    let long = "x".repeat(LONG_BYTES);
    let text = format!("INSERT INTO shop.orders (id, v) VALUES (1000, '{long}')");
    assert_eq!(reads.ask(&query(version, 1, &text)).0, RESULT);
    assert_eq!(became(world, "large"), 1);
    let before = became(world, "folded");
    thread::scope(|scope| {
        scope.spawn(|| {
            let all: Vec<_> = (0..WRITES)
                .map(|id| query(version, id as i16, &write(id, WRITE_BYTES)))
                .collect();
            writes.send(&all);
            for _ in 0..WRITES {
                assert_eq!(writes.next().1[4], RESULT);
            }
        });
        let all: Vec<_> = (0..READS)
            .map(|n| query(version, n as i16, &select(1000)))
            .collect();
        reads.send(&all);
        for _ in 0..READS {
            assert!(value(&reads.next().1[9..]) == long, "another value");
        }
    });
    for id in 0..WRITES {
        let (_, body) = reads.ask(&query(version, 1, &select(id)));
        assert!(value(&body) == text_of(id, WRITE_BYTES), "{id}");
    }
    let folded = became(world, "folded") - before;
    assert_eq!(folded, (2 * WRITES + READS) as u64);
}

/// A different one for each.
fn text_of(id: usize, bytes: usize) -> String {
    format!("{id} ").repeat(bytes).chars().take(bytes).collect()
}

fn write(id: usize, bytes: usize) -> String {
    let text = text_of(id, bytes);
    format!("INSERT INTO shop.orders (id, v) VALUES ({id}, '{text}')")
}

/// Second column of the only row.
fn value(body: &[u8]) -> String {
    let rows = cql_edit::Page::read(body).unwrap().rows;
    String::from_utf8(rows[0][1].unwrap().to_vec()).unwrap()
}
