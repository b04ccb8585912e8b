//! Flows on short legs that are edited, and marked while frames are on their way: up to the mark each frame arrives as
//! the edit makes it, and as it was sent from there on, once and in order, in each direction.

use std::{
    io::{ErrorKind, Read},
    net::{Shutdown, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::Instant,
};

use integrity::{CLIENTS_KEYSPACE, SERVERS_KEYSPACE};

use super::{
    enriched::{WAYS, begun_short, host, mark_by_id},
    flips::{Ends, in_pieces},
    spliced::write,
};
use crate::common::{
    PATIENCE, eventually,
    frames::{RESPONSE, RESULT, frame, query},
    ways::edit,
    wire::Host,
};

const VERSION: u8 = 4;
const HEADER: usize = 9;
const FLOWS: u8 = 4;

/// Requests of a flow that are on their way together.
const BATCH: i16 = 20;

/// Values are shorter than this, up to their numbers.
const VALUE: usize = 20_000;

/// Batches of all flows between two marks.
const BETWEEN: usize = 2 * FLOWS as usize;

/// Fates of a direction's frames.
#[derive(Default)]
struct Seen {
    edited: u64,
    as_sent: u64,
}

impl Seen {
    /// Reads a frame, which is as it was sent or that edit of it. False: the other side has ended before it.
    fn next(&mut self, from: &TcpStream, sent: &[u8], edited: &[u8]) -> bool {
        let Some(header) = take(from, HEADER) else {
            return false;
        };
        // Their lengths are in it.
        let is_edited = header == edited[..HEADER];
        let expected = if is_edited { edited } else { sent };
        assert_eq!(header, expected[..HEADER]);
        let body = take(from, expected.len() - HEADER).unwrap();
        assert!(body == expected[HEADER..], "other bytes");
        assert!(!is_edited || self.as_sent == 0, "it is edited again");
        match is_edited {
            true => self.edited += 1,
            false => self.as_sent += 1,
        }
        true
    }
}

/// Takes so many bytes from a socket that does not block. None: it has ended before them.
fn take(mut from: &TcpStream, count: usize) -> Option<Vec<u8>> {
    let (mut bytes, mut got) = (vec![0; count], 0);
    let deadline = Instant::now() + 3 * PATIENCE;
    while got < count {
        match from.read(&mut bytes[got..]) {
            Ok(0) if got == 0 => return None,
            Ok(0) => panic!("it ended after {got} of {count} bytes"),
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                thread::yield_now();
            }
            Err(e) => panic!("{e} after {got} of {count} bytes"),
        }
    }
    Some(bytes)
}

/// A value that no other flow, round or request has.
fn value(flow: u8, round: usize, stream: i16) -> String {
    let filler = char::from(b'a' + flow).to_string();
    let length = (round * 7919 + stream as usize * 104_729) % VALUE;
    format!("{round} {stream} {}", filler.repeat(length))
}

fn request(keyspace: &str, flow: u8, round: usize, stream: i16) -> Vec<u8> {
    let value = value(flow, round, stream);
    let text = format!("SELECT v FROM {keyspace}.t WHERE k = '{value}'");
    query(VERSION, stream, &text)
}

/// One row of one text.
fn answer(keyspace: &str, flow: u8, round: usize, stream: i16) -> Vec<u8> {
    let mut body: Vec<u8> = [2_i32, 1, 1]
        .into_iter()
        .flat_map(i32::to_be_bytes)
        .collect();
    for name in [keyspace, "t", "v"] {
        body.extend((name.len() as u16).to_be_bytes());
        body.extend(name.as_bytes());
    }
    let value = value(flow, round + 1, stream);
    body.extend([0, 0x0D]);
    body.extend(1_i32.to_be_bytes());
    body.extend((value.len() as i32).to_be_bytes());
    body.extend(value.as_bytes());
    frame(RESPONSE | VERSION, stream, RESULT, &body)
}

/// Asks batch by batch. Sends no more behind the last one, whose answers come after that end.
fn ask(client: &TcpStream, flow: u8, done: &AtomicBool, rounds: &AtomicUsize) -> Seen {
    let (mut seen, mut round) = (Seen::default(), 0);
    loop {
        let is_last = done.load(Relaxed);
        let requests = (0..BATCH).flat_map(|n| request(CLIENTS_KEYSPACE, flow, round, n));
        let requests: Vec<u8> = requests.collect();
        in_pieces(&requests, round).for_each(|piece| write(client, piece));
        if is_last {
            client.shutdown(Shutdown::Write).unwrap();
        }
        for n in 0..BATCH {
            let [sent, edited] =
                [SERVERS_KEYSPACE, CLIENTS_KEYSPACE].map(|name| answer(name, flow, round, n));
            assert!(seen.next(client, &sent, &edited), "it ended at {n}");
        }
        rounds.fetch_add(1, Relaxed);
        if is_last {
            assert_eq!(take(client, 1), None);
            return seen;
        }
        round += 1;
    }
}

/// Answers each batch once all of it has come.
fn respond(server: &TcpStream, flow: u8) -> Seen {
    let (mut seen, mut round) = (Seen::default(), 0);
    loop {
        for n in 0..BATCH {
            let [sent, edited] =
                [CLIENTS_KEYSPACE, SERVERS_KEYSPACE].map(|name| request(name, flow, round, n));
            if !seen.next(server, &sent, &edited) {
                assert_eq!(n, 0, "it ended within a batch");
                server.shutdown(Shutdown::Write).unwrap();
                return seen;
            }
        }
        let answers = (0..BATCH).flat_map(|n| answer(SERVERS_KEYSPACE, flow, round, n));
        let answers: Vec<u8> = answers.collect();
        in_pieces(&answers, round + 1).for_each(|piece| write(server, piece));
        round += 1;
    }
}

fn short_legs(host: &Host<'_>) -> f64 {
    host.agent.metric("underpass_short_legs").unwrap()
}

fn changed(host: &Host<'_>) -> u64 {
    let labels = "outcome=\"changed\",reason=\"\",rule=\"r\",transform=\"rewrite\"";
    host.metric("transforms", labels)
}

#[test]
fn edits_end_with_the_mark_and_nothing_is_lost_or_doubled() {
    for way in WAYS {
        host(way, |host, operator| {
            for (sides, legs) in [("\"client\"", 1), ("\"database\"", 1), ("true", 2)] {
                let rule = "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\n";
                host.policy(&format!("{rule}shortcut = {sides}\n{}", edit()));
                let before = changed(host);
                let flows: Vec<_> = (0..FLOWS).map(|_| begun_short(host, VERSION)).collect();
                let ids = flows.iter().map(|c| host.flow(c)["id"].to_string());
                let ids: Vec<String> = ids.collect();
                eventually("the legs are short", || {
                    short_legs(host) == f64::from(legs * FLOWS)
                });
                let (done, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
                let go_by = || {
                    let enough = rounds.load(Relaxed) + BETWEEN;
                    eventually("batches pass", || rounds.load(Relaxed) >= enough);
                };
                let seen = thread::scope(|scope| {
                    let (done, rounds) = (&done, &rounds);
                    let ends = (0..).zip(&flows).flat_map(|(flow, c)| {
                        let client = scope.spawn(move || ask(&c.client, flow, done, rounds));
                        let server = scope.spawn(move || respond(&c.server, flow));
                        [client, server]
                    });
                    let ends: Vec<_> = ends.collect();
                    let over = Ends(done);
                    go_by();
                    for action in ["bypass", "enrich", "bypass", "enrich"] {
                        for id in &ids {
                            let marked = mark_by_id(operator, id, action);
                            assert_eq!(marked["result"], "changed", "{way}: {marked}");
                        }
                        go_by();
                    }
                    drop(over);
                    let seen = ends.into_iter().map(|end| end.join().unwrap());
                    seen.collect::<Vec<_>>()
                });
                assert!(seen.iter().all(|seen| seen.as_sent > 0), "{way}, {sides}");
                // The clients' answers, and the databases' requests.
                let edited = [0, 1].map(|side| {
                    let seen = seen.iter().skip(side).step_by(2);
                    seen.map(|seen| seen.edited).sum::<u64>()
                });
                assert!(edited.iter().all(|edited| *edited > 0), "{way}, {sides}");
                let all = edited.iter().sum::<u64>();
                assert_eq!(changed(host) - before, all, "{way}, {sides}");
                drop(flows);
                eventually("no leg is left", || short_legs(host) == 0.0);
            }
        });
    }
}
