//! Requests that a shared connection takes on, and those that it does not.

use std::sync::atomic::Ordering::Relaxed;

use cassandra_protocol::compression::Compression;

use super::{
    ERROR, RESULT, became, ended,
    hostile::{WAITS, folds_at, peer},
    peer::{Peer, connect},
    scripted::{Does, Scripted, has, stream_of},
    shared, until_folded,
};
use crate::common::{
    eventually,
    frames::{RESPONSE, frame, query, void},
    world::{bombs, world},
};

/// Body of an answer that is larger than what is kept for a flow; and of one that is not.
const TOO_LARGE: usize = (16 << 20) + 1;
const LARGE: usize = 15 << 20;
/// More than may wait, each for an answer of these.
const HOARDERS: usize = 24;
/// All that waits, copies of what is just written, and what the agent has besides.
const MOST_HELD: usize = 160 << 20;
/// Receive buffer of a client that does not read.
const SMALL_BUFFER: usize = 64 << 10;

const READ: &str = "SELECT v FROM shop.orders WHERE id = 8";
const WRITE: &str = "INSERT INTO shop.orders (id, v) VALUES (8, 'x')";

/// Rows, so many bytes of them.
fn rows(stream: i16, bytes: usize) -> Vec<u8> {
    let body = [&2_i32.to_be_bytes()[..], &vec![0; bytes]].concat();
    frame(RESPONSE | 4, stream, RESULT, &body)
}

#[test]
fn answers_that_would_expand_pass_as_they_are() {
    /// Memory for the longest answer on its way, again and again: not for what it expands to.
    const MOST_MORE: usize = 16 << 20;
    for algorithm in [Compression::Lz4, Compression::Snappy] {
        world(|world| {
            let name = algorithm.as_str().unwrap();
            let bad = bombs(5).into_iter().filter(|(of, _)| *of == name);
            // As results, and as errors.
            let bad: Vec<Vec<u8>> = bad
                .flat_map(|(_, result)| {
                    let mut error = result.clone();
                    error[4] = ERROR;
                    [result, error]
                })
                .collect();
            let answers = bad.clone();
            let database = Scripted::start(world, move |number, asked| {
                let stream = stream_of(asked);
                let nth = (0..answers.len()).find(|nth| has(asked, &format!("id = {nth}0")));
                Does::Says(match nth {
                    Some(nth) if number > 0 => {
                        let mut bomb = answers[nth].clone();
                        bomb[2..4].copy_from_slice(&stream.to_be_bytes());
                        bomb
                    }
                    _ => void(4, stream),
                })
            });
            folds_at(world, database.addr, "");
            let stream = world.sandbox.client(|| connect(database.addr)).unwrap();
            let options = [("CQL_VERSION", "3.0.0"), ("COMPRESSION", name)];
            let mut peer = Peer::begin_as(stream, 4, &options);
            until_folded(world, &mut peer);
            let (before, held) = (became(world, "folded"), world.most_resident());
            for (nth, bomb) in bad.iter().enumerate() {
                let text = format!("SELECT v FROM shop.orders WHERE id = {nth}0");
                peer.send(&[query(4, 5, &text)]);
                assert!(peer.next().1 == *bomb, "{name} {nth}");
            }
            assert_eq!(became(world, "folded"), before + bad.len() as u64);
            let more = world.most_resident() - held;
            assert!(more < MOST_MORE, "{more}");
            drop(peer);
            database.ends();
        });
    }
}

#[test]
fn an_answer_that_is_too_large_comes_by_its_own_connection_and_one_of_a_write_ends_the_shared_one()
{
    world(|world| {
        let database = Scripted::start(world, |number, asked| {
            let stream = stream_of(asked);
            let is_large = number > 0 && has(asked, " 8") || has(asked, "(8");
            Does::Says(match is_large {
                true => rows(stream, TOO_LARGE),
                false => void(4, stream),
            })
        });
        folds_at(world, database.addr, "");
        let [mut reads, mut writes] = [(); 2].map(|()| peer(world, database.addr));
        for peer in [&mut reads, &mut writes] {
            until_folded(world, peer);
        }
        assert_eq!(reads.ask(&query(4, 3, READ)), (RESULT, vec![0, 0, 0, 1]));
        assert_eq!((became(world, "large_answer"), shared(world)), (1, 1));
        // It has been done, and is not asked again.
        writes.send(&[query(4, 3, WRITE)]);
        writes.sees_loss();
        assert_eq!(ended(world, "garbage"), 1);
        drop((reads, writes));
        database.ends();
    });
}

#[test]
fn what_nobody_takes_has_its_bound() {
    world(|world| {
        let database = Scripted::start(world, |number, asked| {
            let is_large = number > 0 && (has(asked, " 8") || has(asked, "(8"));
            Does::Says(match is_large {
                true => rows(stream_of(asked), LARGE),
                false => void(4, stream_of(asked)),
            })
        });
        folds_at(world, database.addr, "");
        let [mut reads, mut writes] = [(); 2].map(|()| peer(world, database.addr));
        let mut hoards = [(); HOARDERS].map(|()| peer(world, database.addr));
        for peer in hoards.iter_mut().chain([&mut reads, &mut writes]) {
            until_folded(world, peer);
        }
        let before = became(world, "folded");
        for hoards in &mut hoards {
            let socket = socket2::SockRef::from(&hoards.stream);
            socket.set_recv_buffer_size(SMALL_BUFFER).unwrap();
            hoards.send(&[query(4, 3, READ)]);
        }
        // They are answered in this order.
        eventually("all are asked", || {
            became(world, "folded") == before + HOARDERS as u64
        });
        eventually("there is no room for more", || {
            reads.ask(&query(4, 3, READ)).1.len() == 4
        });
        assert!(became(world, "large_answer") > 0);
        writes.send(&[query(4, 3, WRITE)]);
        writes.sees_loss();
        assert_eq!(became(world, "dropped"), 1);
        let most = world.most_resident();
        assert!(most < MOST_HELD, "{most}");
        // Whoever comes late has all of it, and then there is room.
        for hoards in &mut hoards {
            let length = hoards.next().1.len();
            assert!([9 + 4, 9 + 4 + LARGE].contains(&length), "{length}");
        }
        assert_eq!(reads.ask(&query(4, 3, READ)).1.len(), 4 + LARGE);
        drop((hoards, reads, writes));
        database.ends();
    });
}

#[test]
fn what_is_too_much_for_one_connection_goes_by_flows_own() {
    const CLIENTS: usize = 3;
    const EACH: usize = 500;
    /// Streams of a shared connection.
    const STREAMS: u64 = 1_024;
    world(|world| {
        let (database, came) = Scripted::silent_on(world, "id = 7");
        folds_at(world, database.addr, ", share = 1024");
        let mut clients = [(); CLIENTS].map(|()| peer(world, database.addr));
        for client in &mut clients {
            until_folded(world, client);
        }
        let before = became(world, "folded");
        let flood: Vec<_> = (0..EACH as i16).map(|n| query(4, n, WAITS)).collect();
        for client in &mut clients {
            client.send(&flood);
        }
        eventually("all of it has come", || {
            came.load(Relaxed) == CLIENTS * EACH
        });
        let (folded, full) = (became(world, "folded") - before, became(world, "full"));
        assert_eq!(folded + full, (CLIENTS * EACH) as u64);
        assert!((STREAMS - 1..=STREAMS).contains(&folded), "{folded}");
        drop(clients);
        database.ends();
    });
}
