//! Flows that are decoded and not decoded in turn, every few milliseconds, with frames of every size on
//! their way.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{
    enriched::{
        INCOMING_WAYS, WAYS, begun, begun_short, by_mark, counted, exchange, host, mark_by_id,
        nothing_odd, select, wire,
    },
    spliced::{read, write},
};
use crate::common::{
    frames::{RESPONSE, RESULT, frame, query, void},
    wire::{OPTIONS, SUPPORTED},
};

/// Each flow has as many for itself.
const STREAMS: i16 = 5_000;

/// Requests that are on their way together, with their responses. No other flow has the same.
fn batch(version: u8, flow: u8, round: usize) -> (Vec<u8>, Vec<u8>) {
    let stream = |n: i16| i16::from(flow) * STREAMS + n;
    let small = |n: i16| {
        let n = stream(n);
        (select(version, n, "t"), void(version, n))
    };
    let tiny = |n: i16| {
        let n = stream(n);
        let asked = frame(version, n, OPTIONS, &[]);
        (asked, frame(RESPONSE | version, n, SUPPORTED, &[0, 0]))
    };
    let large = |n: i16| {
        let n = stream(n);
        let value = char::from(b'a' + flow).to_string();
        let value = value.repeat(round * 7919 % 300_000);
        let text = format!("SELECT v FROM ks.t WHERE k = '{value}'");
        let rows = [
            &2_i32.to_be_bytes()[..],
            &vec![flow; round * 104_729 % 300_000],
        ]
        .concat();
        let rows = frame(RESPONSE | version, n, RESULT, &rows);
        (query(version, n, &text), rows)
    };
    let pairs: Vec<_> = match round % 4 {
        0 => (0..40).map(small).collect(),
        1 => (0..STREAMS).map(tiny).collect(),
        2 => vec![large(1), small(2), large(3), tiny(4)],
        _ => vec![small(1)],
    };
    let (requests, responses): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    (wire(version, &requests), wire(version, &responses))
}

/// How bytes are given to a socket: all at once, or in pieces that mind no frame.
pub(super) fn in_pieces(bytes: &[u8], round: usize) -> impl Iterator<Item = &[u8]> {
    let size = match round % 3 {
        0 => bytes.len(),
        1 => 1 + round * 31 % 1_500,
        _ => 40_000,
    };
    bytes.chunks(size.max(bytes.len() / 200 + 1))
}

/// A guard that makes both ends agree on their last batch, also when a mark did what it should not.
pub(super) struct Ends<'a>(pub(super) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn marks_that_flip_every_few_milliseconds_lose_nothing_and_find_nothing_odd() {
    const FLIPS: usize = 25;
    for way in WAYS.into_iter().chain(INCOMING_WAYS) {
        host(way, |host, operator| {
            // The legs of half of them are short when the first mark comes.
            let begun = [begun, begun_short, begun_short, begun];
            let flows = [0, 1, 2, 3].map(|n| (4 + n % 2, begun[usize::from(n)](host, 4 + n % 2)));
            let done = AtomicBool::new(false);
            let rounds = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for (flow, (version, c)) in (0..).zip(&flows) {
                    // The last batch is agreed on by both ends.
                    let (done, rounds, version) = (&done, &rounds, *version);
                    let last = AtomicUsize::new(usize::MAX);
                    let last = std::sync::Arc::new(last);
                    let servers = last.clone();
                    scope.spawn(move || {
                        for round in 0.. {
                            if done.load(Relaxed) {
                                last.store(round, Relaxed);
                            }
                            let (requests, responses) = batch(version, flow, round);
                            in_pieces(&requests, round).for_each(|p| write(&c.client, p));
                            read(&c.client, &responses);
                            rounds.fetch_add(1, Relaxed);
                            if last.load(Relaxed) == round {
                                return;
                            }
                        }
                    });
                    scope.spawn(move || {
                        for round in 0.. {
                            let (requests, responses) = batch(version, flow, round);
                            read(&c.server, &requests);
                            in_pieces(&responses, round + 1).for_each(|p| write(&c.server, p));
                            if servers.load(Relaxed) == round {
                                return;
                            }
                        }
                    });
                }
                let _done = Ends(&done);
                let ids: Vec<String> = flows
                    .iter()
                    .map(|(_, c)| host.flow(c)["id"].to_string())
                    .collect();
                for _ in 0..FLIPS {
                    for action in ["bypass", "enrich"] {
                        for id in &ids {
                            let marked = mark_by_id(operator, id, action);
                            assert_eq!(marked["result"], "changed", "{way}: {marked}");
                        }
                        let so_far = rounds.load(Relaxed);
                        let deadline = Instant::now() + Duration::from_millis(3);
                        while rounds.load(Relaxed) == so_far && Instant::now() < deadline {
                            std::thread::yield_now();
                        }
                    }
                }
            });
            nothing_odd(host);
            let seen: u64 = counted(host, "t").iter().map(|(_, count)| count).sum();
            assert!(seen > 0, "nothing was read between two marks");
            // They end enriched, and are read as ever.
            for (n, (version, mut c)) in flows.into_iter().enumerate() {
                let table = format!("after_{n}");
                (0..5).for_each(|_| exchange(&mut c, version, &table));
                assert_eq!(counted(host, &table), by_mark(5), "{way} v{version}");
                c.client.set_nonblocking(false).unwrap();
                c.server.set_nonblocking(false).unwrap();
                c.ends();
            }
            let spliced = "underpass_spliced_bytes_total{direction=\"to_client\"}";
            let spliced = host.agent.metric(spliced).unwrap();
            assert_eq!(spliced > 0.0, way != "off", "{spliced} bytes by {way}");
        });
    }
}
