//! Databases that lose shared connections, say what they were not asked, or nothing; and clients that flood.

use std::{
    io::{ErrorKind, Read},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use cassandra_protocol::compression::Compression as Codec;

use super::{
    FOLD, RESULT, became, ended,
    peer::{Peer, connect},
    peer_at, rule, rule_with,
    scripted::{Does, Scripted, has, stream_of},
    shared,
    short::{LETS_DATABASE_IN, short_legs},
    until_folded,
};
use crate::common::{
    eventually,
    frames::{QUERY, READY, RESPONSE, frame, query, void},
    world::{AUTH_RESPONSE, AUTH_SUCCESS, EXECUTE, PREPARE, World, plain, short, world},
};

const OPTIONS: u8 = 0x05;
const REGISTER: u8 = 0x0B;
const EVENT: u8 = 0x0C;
const BATCH: u8 = 0x0D;

pub(super) fn peer(world: &World<'_>, to: SocketAddr) -> Peer {
    peer_at(world, to, 4)
}

pub(super) fn folds_at(world: &World<'_>, to: SocketAddr, settings: &str) {
    rule(world, to, &format!("{{ transform = \"fold\"{settings} }}"));
}

pub(super) const WAITS: &str = "SELECT v FROM shop.orders WHERE id = 7";

/// A shared connection is lost in this way, when it is asked something to end it: whoever waits is, too. Whether it takes TCP
/// or not.
fn expect_lost(why: &str, ends: impl Fn(&[u8]) -> Does + Clone + Send + Sync + 'static) {
    for keys in ["", LETS_DATABASE_IN] {
        expect_lost_with(keys, why, ends.clone());
    }
}

fn expect_lost_with(keys: &str, why: &str, ends: impl Fn(&[u8]) -> Does + Send + Sync + 'static) {
    world(|world| {
        let database = Scripted::start(world, move |_, asked| {
            if has(asked, "id = 7") {
                return Does::Nothing;
            }
            match has(asked, "id = 8") {
                true => ends(asked),
                false => Does::Says(void(4, stream_of(asked))),
            }
        });
        rule_with(world, database.addr, FOLD, keys);
        let [mut waits, mut ends, mut stands_by] = [(); 3].map(|()| peer(world, database.addr));
        for peer in [&mut waits, &mut ends, &mut stands_by] {
            until_folded(world, peer);
        }
        let short = if keys.is_empty() { 0 } else { 4 };
        assert_eq!(short_legs(world), short, "theirs, and the shared one");
        let before = became(world, "folded");
        waits.send(&[query(4, 3, WAITS)]);
        eventually("one waits", || became(world, "folded") > before);
        ends.send(&[query(4, 3, "SELECT v FROM shop.orders WHERE id = 8")]);
        waits.sees_loss();
        ends.sees_loss();
        eventually("it is counted", || ended(world, why) == 1);
        let closed = "underpass_flows_closed_total{reason=\"shared_lost\"}";
        eventually("both are closed for it", || {
            world.agent.metric(closed).unwrap() == 2.0
        });
        // Who had nothing out goes on, and has another one soon.
        assert_eq!(
            stands_by
                .ask(&query(4, 1, "SELECT v FROM shop.orders WHERE id = 1"))
                .0,
            RESULT
        );
        until_folded(world, &mut stands_by);
        assert_eq!(shared(world), 1);
        drop(stands_by);
        eventually("no leg is left", || short_legs(world) == 0);
        database.ends();
    });
}

#[test]
fn who_waits_on_a_connection_that_ends_is_lost_with_it() {
    expect_lost("closed", |_| Does::Ends);
}

#[test]
fn an_answer_on_a_stream_that_nobody_asked_on_ends_it() {
    expect_lost("garbage", |asked| {
        Does::Says(void(4, stream_of(asked) + 100))
    });
}

#[test]
fn an_answer_that_is_none_ends_it() {
    expect_lost("garbage", |_| Does::Says(vec![0xFF; 64]));
}

#[test]
fn an_answer_in_another_version_ends_it() {
    expect_lost("garbage", |asked| Does::Says(void(3, stream_of(asked))));
}

#[test]
fn an_answer_that_moves_the_connection_ends_it() {
    let moved = [&3_i32.to_be_bytes()[..], &short(b"elsewhere")].concat();
    expect_lost("garbage", move |asked| {
        Does::Says(frame(RESPONSE | 4, stream_of(asked), RESULT, &moved))
    });
}

#[test]
fn what_is_never_answered_waits_alone() {
    world(|world| {
        let (database, _) = Scripted::silent_on(world, "id = 7");
        folds_at(world, database.addr, "");
        let [mut waits, mut other] = [(); 2].map(|()| peer(world, database.addr));
        for peer in [&mut waits, &mut other] {
            until_folded(world, peer);
        }
        waits.send(&[query(4, 3, WAITS)]);
        for _ in 0..100 {
            assert_eq!(
                waits
                    .ask(&query(4, 1, "SELECT v FROM shop.orders WHERE id = 1"))
                    .0,
                RESULT
            );
            assert_eq!(
                other
                    .ask(&query(4, 1, "SELECT v FROM shop.orders WHERE id = 1"))
                    .0,
                RESULT
            );
        }
        // It goes with its flow, and the connection with the last.
        drop(waits);
        assert_eq!(
            other
                .ask(&query(4, 1, "SELECT v FROM shop.orders WHERE id = 1"))
                .0,
            RESULT
        );
        drop(other);
        eventually("nobody has it", || shared(world) == 0);
        database.ends();
    });
}

#[test]
fn a_flood_takes_its_share_and_no_more() {
    world(|world| {
        let (database, floods) = Scripted::silent_on(world, "id = 7");
        folds_at(world, database.addr, ", share = 16");
        let [mut floods_it, mut other] = [(); 2].map(|()| peer(world, database.addr));
        for peer in [&mut floods_it, &mut other] {
            until_folded(world, peer);
        }
        let before = became(world, "folded");
        let flood: Vec<_> = (0..900).map(|stream| query(4, stream, WAITS)).collect();
        floods_it.send(&flood);
        eventually("all of it has come", || floods.load(Relaxed) == 900);
        assert_eq!(became(world, "folded"), before + 16);
        assert_eq!(became(world, "share"), 900 - 16);
        assert_eq!(
            other
                .ask(&query(4, 1, "SELECT v FROM shop.orders WHERE id = 1"))
                .0,
            RESULT
        );
        assert_eq!(became(world, "folded"), before + 17);
        drop((floods_it, other));
        database.ends();
    });
}

#[test]
fn a_node_that_does_not_know_a_statement_is_not_the_last_word() {
    world(|world| {
        let shared_one = Arc::new(AtomicUsize::new(usize::MAX));
        let found = shared_one.clone();
        let database = Scripted::start(world, move |number, asked| {
            let stream = stream_of(asked);
            match asked[4] {
                PREPARE => {
                    let nothing = [0; 12];
                    let body = [&4_i32.to_be_bytes()[..], &short(b"id"), &nothing, &nothing];
                    Does::Says(frame(RESPONSE | 4, stream, RESULT, &body.concat()))
                }
                // The shared one begins after those of both flows.
                EXECUTE if number >= 2 => {
                    found.store(number, Relaxed);
                    let body = [&0x2500_u32.to_be_bytes()[..], &short(b"no"), &short(b"id")];
                    Does::Says(frame(RESPONSE | 4, stream, 0, &body.concat()))
                }
                _ => Does::Says(void(4, stream)),
            }
        });
        folds_at(world, database.addr, "");
        let [mut one, mut other] = [(); 2].map(|()| peer(world, database.addr));
        let text = "SELECT v FROM shop.orders WHERE id = 1";
        let body = [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
        assert_eq!(one.ask(&frame(4, 2, PREPARE, &body)).0, RESULT);
        until_folded(world, &mut one);
        until_folded(world, &mut other);
        let execute = frame(4, 3, EXECUTE, &[&short(b"id")[..], &[0, 1, 0]].concat());
        for peer in [&mut one, &mut other] {
            assert_eq!(peer.ask(&execute).0, RESULT, "its own knows it");
        }
        assert_ne!(
            shared_one.load(Relaxed),
            usize::MAX,
            "the shared one was asked"
        );
        assert_eq!(became(world, "unprepared"), 2);
        drop((one, other));
        database.ends();
    });
}

#[test]
fn a_database_that_takes_no_shared_connection_is_asked_as_ever() {
    world(|world| {
        // In a keyspace, which others may not use.
        let database = Scripted::start(world, |number, asked| match (number, has(asked, "USE")) {
            (0, true) => {
                let body = [&3_i32.to_be_bytes()[..], &short(b"shop")].concat();
                Does::Says(frame(RESPONSE | 4, stream_of(asked), RESULT, &body))
            }
            (0, false) => Does::Says(void(4, stream_of(asked))),
            _ => Does::Ends,
        });
        folds_at(world, database.addr, "");
        let mut one = peer(world, database.addr);
        assert_eq!(one.ask(&query(4, 1, "USE shop")).0, RESULT);
        eventually("it was tried twice", || {
            let (opcode, _) = one.ask(&query(4, 1, "SELECT v FROM orders WHERE id = 1"));
            assert_eq!(opcode, RESULT);
            ended(world, "refused") >= 2
        });
        assert_eq!((became(world, "folded"), shared(world)), (0, 0));
        assert!(became(world, "away") > 1);
        drop(one);
        database.ends();
    });
}

#[test]
fn a_second_log_in_leaves_for_good() {
    world(|world| {
        let database = Scripted::start(world, |_, asked| match asked[4] {
            AUTH_RESPONSE => Does::Says(frame(RESPONSE | 4, stream_of(asked), AUTH_SUCCESS, &[])),
            _ => Does::Says(void(4, stream_of(asked))),
        });
        folds_at(world, database.addr, "");
        let mut peer = peer(world, database.addr);
        until_folded(world, &mut peer);
        // No database asks for one now; who it is from here on is not known.
        let again = frame(4, 3, AUTH_RESPONSE, &plain("", "a", "b"));
        assert_eq!(peer.ask(&again).0, AUTH_SUCCESS);
        let (before, handshake) = (became(world, "folded"), became(world, "handshake"));
        for _ in 0..3 {
            assert_eq!(peer.ask(&query(4, 1, WAITS)).0, RESULT);
        }
        assert_eq!(became(world, "folded"), before);
        assert_eq!(became(world, "handshake"), handshake + 3);
        let flows = world.agent.json("/flows").unwrap().to_string();
        let why = "shares no connection: its handshake cannot be repeated";
        assert!(flows.contains(why), "{flows}");
        let said = "a connection shares none with others: its handshake";
        assert_eq!(world.agent.log().matches(said).count(), 1);
        eventually("its place is free", || shared(world) == 0);
        drop(peer);
        database.ends();
    });
}

#[test]
fn events_are_for_who_has_registered() {
    world(|world| {
        let registered = Arc::new(Mutex::new(Vec::new()));
        let seen = registered.clone();
        let event = [&short(b"STATUS_CHANGE")[..], &short(b"UP")].concat();
        let event = frame(RESPONSE | 4, -1, EVENT, &event);
        let says = event.clone();
        let database = Scripted::start(world, move |number, asked| {
            let stream = stream_of(asked);
            match asked[4] {
                REGISTER => {
                    seen.lock().unwrap().push(number);
                    let ready = frame(RESPONSE | 4, stream, READY, &[]);
                    Does::Says([ready, says.clone()].concat())
                }
                _ => Does::Says(void(4, stream)),
            }
        });
        folds_at(world, database.addr, "");
        let [mut registers, mut other] = [(); 2].map(|()| peer(world, database.addr));
        for peer in [&mut registers, &mut other] {
            until_folded(world, peer);
        }
        assert_eq!(shared(world), 1);
        let wants = [&[0, 1][..], &short(b"STATUS_CHANGE")].concat();
        assert_eq!(registers.ask(&frame(4, 3, REGISTER, &wants)).0, READY);
        assert_eq!(registers.next(), (-1, event));
        // Its own was the first; the shared one is that of both.
        assert_eq!(*registered.lock().unwrap(), [0]);
        let before = became(world, "folded");
        for peer in [&mut registers, &mut other] {
            assert_eq!(peer.ask(&query(4, 5, WAITS)), (RESULT, vec![0, 0, 0, 1]));
        }
        assert_eq!(became(world, "folded"), before + 2);
        // Nor has it come behind that.
        let mut left = [0; 1];
        other.stream.set_nonblocking(true).unwrap();
        let none = other.stream.read(&mut left).map_err(|e| e.kind());
        assert_eq!(none, Err(ErrorKind::WouldBlock));
        drop((registers, other));
        database.ends();
    });
}

#[test]
fn what_cannot_be_read_goes_by_a_flows_own() {
    /// A text, an id and a batch that claim to be longer than their frames.
    const MALFORMED: [(u8, &[u8]); 3] = [
        (QUERY, b"\0\0\x01\0SELECT"),
        (EXECUTE, b"\0\x10id"),
        (BATCH, b"\0\0\x02\0\0\0\0\x01!"),
    ];
    world(|world| {
        let came = Arc::new(Mutex::new(Vec::new()));
        let seen = came.clone();
        let database = Scripted::start(world, move |number, asked| {
            seen.lock().unwrap().push((number, asked.to_vec()));
            Does::Says(void(4, stream_of(asked)))
        });
        folds_at(world, database.addr, "");
        let [mut sends, mut other] = [(); 2].map(|()| peer(world, database.addr));
        for peer in [&mut sends, &mut other] {
            until_folded(world, peer);
        }
        for (opcode, body) in MALFORMED {
            let malformed = frame(4, 3, opcode, body);
            came.lock().unwrap().clear();
            assert_eq!(sends.ask(&malformed).0, RESULT);
            // The first connection is its own.
            assert_eq!(*came.lock().unwrap(), [(0, malformed)]);
        }
        let before = became(world, "folded");
        assert_eq!(other.ask(&query(4, 1, WAITS)).0, RESULT);
        assert_eq!((became(world, "folded"), shared(world)), (before + 1, 1));
        drop((sends, other));
        database.ends();
    });
}

#[test]
fn what_is_compressed_passes_as_it_is() {
    for (name, codec) in [("lz4", Codec::Lz4), ("snappy", Codec::Snappy)] {
        world(|world| {
            let asks = move |asked: &[u8]| codec.decode(asked[9..].to_vec()).unwrap();
            let says = move |stream: i16, opcode: u8, body: &[u8]| {
                let mut answer = frame(RESPONSE | 4, stream, opcode, &codec.encode(body).unwrap());
                answer[1] = 1;
                Does::Says(answer)
            };
            let database = Scripted::start(world, move |number, asked| {
                assert_eq!(asked[1], 1, "compressed, as its client has sent it");
                let text = asks(asked);
                let stream = stream_of(asked);
                match (number, has(&text, "id = 9")) {
                    // The shared one does not know it.
                    (1.., true) => {
                        let body = [&0x2500_u32.to_be_bytes()[..], &short(b"no"), &short(b"id")];
                        says(stream, 0, &body.concat())
                    }
                    _ => says(stream, RESULT, &1_i32.to_be_bytes()),
                }
            });
            folds_at(world, database.addr, "");
            let stream = world.sandbox.client(|| connect(database.addr)).unwrap();
            let options = [("CQL_VERSION", "3.0.0"), ("COMPRESSION", name)];
            let mut peer = Peer::begin_as(stream, 4, &options);
            let mut ask = |id: u8| {
                let plain = query(4, 5, &format!("SELECT v FROM shop.orders WHERE id = {id}"));
                let mut asked = frame(4, 5, plain[4], &codec.encode(&plain[9..]).unwrap());
                asked[1] = 1;
                peer.send(&[asked]);
                peer.next().1
            };
            let expected = match says(5, RESULT, &1_i32.to_be_bytes()) {
                Does::Says(bytes) => bytes,
                Does::Nothing | Does::Ends => unreachable!("it says something"),
            };
            eventually("a request is folded", || {
                assert_eq!(ask(1), expected);
                became(world, "folded") > 0
            });
            assert_eq!(ask(9), expected, "its own connection knows it");
            assert_eq!(became(world, "unprepared"), 1);
            drop(peer);
            database.ends();
        });
    }
}

#[test]
fn who_leaves_still_has_what_is_under_way() {
    world(|world| {
        let late = Arc::new(AtomicBool::new(false));
        let says = late.clone();
        let database = Scripted::start(world, move |_, asked| {
            let stream = stream_of(asked);
            if has(asked, "USE") {
                let body = [&3_i32.to_be_bytes()[..], &short(b"shop")].concat();
                return Does::Says(frame(RESPONSE | 4, stream, RESULT, &body));
            }
            while has(asked, "id = 7") && !says.load(Relaxed) {
                thread::sleep(Duration::from_millis(5));
            }
            Does::Says(void(4, stream))
        });
        folds_at(world, database.addr, "");
        let mut one = peer(world, database.addr);
        until_folded(world, &mut one);
        let before = became(world, "folded");
        one.send(&[query(4, 3, WAITS)]);
        eventually("it is under way", || became(world, "folded") > before);
        assert_eq!(one.ask(&query(4, 1, "USE shop")).0, RESULT);
        // With this it leaves those of no keyspace, of whom it was the last.
        assert_eq!(
            one.ask(&query(4, 1, "SELECT v FROM orders WHERE id = 1")).0,
            RESULT
        );
        late.store(true, Relaxed);
        assert_eq!(one.next().0, 3);
        eventually("that connection has ended", || ended(world, "unused") == 1);
        drop(one);
        database.ends();
    });
}

#[test]
fn a_flow_that_moves_unseen_or_is_not_understood_leaves() {
    world(|world| {
        let database = Scripted::start(world, |_, asked| {
            let stream = stream_of(asked);
            let (opcode, body) = match asked[4] {
                EXECUTE => (RESULT, [&3_i32.to_be_bytes()[..], &short(b"shop")].concat()),
                _ if has(asked, "id = 9") => (
                    0,
                    [&0x000A_i32.to_be_bytes()[..], &short(b"what?")].concat(),
                ),
                _ => (RESULT, 1_i32.to_be_bytes().to_vec()),
            };
            Does::Says(frame(RESPONSE | 4, stream, opcode, &body))
        });
        folds_at(world, database.addr, "");
        let [mut moves, mut mistaken] = [(); 2].map(|()| peer(world, database.addr));
        until_folded(world, &mut moves);
        until_folded(world, &mut mistaken);
        // Of which nobody here knows that it is a USE.
        let execute = frame(4, 3, EXECUTE, &[&short(b"id")[..], &[0, 1, 0]].concat());
        assert_eq!(moves.ask(&execute).0, RESULT);
        assert_eq!(
            mistaken.ask(&query(4, 1, "SELECT v FROM t WHERE id = 9")).0,
            0
        );
        let before = became(world, "folded");
        assert_eq!(moves.ask(&query(4, 1, WAITS)).0, RESULT);
        assert_eq!(mistaken.ask(&query(4, 1, WAITS)).0, RESULT);
        // What no database takes goes by one's own.
        let mut other = peer(world, database.addr);
        let mut odd = query(4, 1, WAITS);
        odd[9 + 4 + WAITS.len() + 1] = 0x77;
        assert_eq!(other.ask(&odd).0, RESULT);
        assert_eq!(became(world, "folded"), before);
        assert_eq!((became(world, "keyspace"), became(world, "barred")), (1, 1));
        drop((moves, mistaken, other));
        database.ends();
    });
}

#[test]
fn a_database_that_says_nothing_any_more_is_lost() {
    /// Limit for noticing a silent database: it is asked after 5 s, within 10, and then has 5 more.
    const SILENT: Duration = Duration::from_secs(60);
    world(|world| {
        let database = Scripted::start(world, |_, asked| {
            match asked[4] == OPTIONS || has(asked, "id = 7") {
                true => Does::Nothing,
                false => Does::Says(void(4, stream_of(asked))),
            }
        });
        folds_at(world, database.addr, "");
        let mut waits = peer(world, database.addr);
        until_folded(world, &mut waits);
        let before = became(world, "folded");
        waits.send(&[query(4, 3, WAITS)]);
        eventually("it waits", || became(world, "folded") > before);
        waits.stream.set_read_timeout(Some(SILENT)).unwrap();
        waits.sees_loss();
        eventually("it is counted", || ended(world, "silent") == 1);
        database.ends();
    });
}
