//! Bytes that are not what they should be: what reaches the other side, what is counted, and
//! that no other flow notices. `cql::Verdict` says which of them close a flow.

use std::{
    fs,
    io::{Read, Write},
    net::Shutdown,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::common::{
    self,
    frames::{QUERY, READY, RESPONSE, RESULT, frame, header, query, ready, segment, startup, void},
    host::{
        self, Host, Pair, on_a_host_with, passive, rest, with_and_without_a_pipeline as on_a_host,
    },
};

const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 1";
/// Time after which the agent holds back whatever it has not passed on.
const BEHIND: Duration = Duration::from_millis(300);
const OPTIONS: &[(&str, &str)] = &[("CQL_VERSION", "3.0.0")];

/// A flow past its handshake.
fn settled(host: &Host<'_>, version: u8) -> Pair {
    let mut pair = host.pair();
    pair.client_sends(&startup(version, OPTIONS));
    pair.server_sends(&ready(version));
    pair
}

/// A request and its response, and the end.
fn still_works(mut pair: Pair) {
    pair.client_sends(&query(4, 9, SELECT));
    pair.server_sends(&void(4, 9));
    pair.ends();
}

/// Nothing more arrives on either side, and both see FIN.
fn expect_cut(mut pair: Pair) {
    assert_eq!(rest(&mut pair.server), b"", "the database received");
    assert_eq!(rest(&mut pair.client), b"", "the client received");
}

/// A flow, as the operator sees it.
fn flow(host: &Host<'_>, pair: &Pair) -> Value {
    let client = pair.client.local_addr().unwrap().to_string();
    let flows = host.agent.json("/flows").unwrap();
    let mut flows = flows.as_array().unwrap().iter();
    flows
        .find(|flow| flow["client"] == client.as_str())
        .unwrap()
        .clone()
}

#[test]
fn a_malformed_body_passes_and_is_counted() {
    on_a_host(|host| {
        let mut pair = settled(host, 4);
        // A statement that claims to be longer than its frame.
        pair.client_sends(&frame(4, 1, QUERY, b"\0\0\x01\0SELECT"));
        pair.server_sends(&void(4, 1));
        still_works(pair);
        host.counts(&[
            ("anomalies", "malformed_body", 1),
            ("flows_closed", "both_ended", 1),
        ]);
    });
}

#[test]
fn a_truncated_frame_passes_and_is_counted() {
    on_a_host(|host| {
        let mut pair = settled(host, 4);
        let cut = &query(4, 1, SELECT)[..20];
        pair.client.write_all(cut).unwrap();
        // A pipeline may have waited for the rest of it.
        pair.client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut pair.server), cut);
        pair.server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut pair.client), b"");
        let ends = [
            ("anomalies", "truncated_frame", 1),
            ("flows_closed", "both_ended", 1),
        ];
        host.counts(&ends);
    });
}

#[test]
fn a_length_that_cannot_be_closes_the_flow() {
    on_a_host(|host| {
        for (n, length) in [-1, i32::MIN, (256 << 20) + 1].into_iter().enumerate() {
            let good = query(4, 1, SELECT);
            let mut pair = settled(host, 4);
            let bad = header(4, 2, QUERY, length);
            // In one write with a good frame, which arrives.
            pair.client
                .write_all(&[&good[..], &bad, b"body"].concat())
                .unwrap();
            assert_eq!(rest(&mut pair.server), good, "length {length}");
            expect_cut(pair);

            let mut pair = settled(host, 4);
            pair.client_sends(&good);
            let bad = header(RESPONSE | 4, 1, RESULT, length);
            pair.server.write_all(&bad).unwrap();
            expect_cut(pair);
            host.counts_lost("length", n as u64 + 1, n as u64 + 1);
        }
    });
}

#[test]
fn the_wrong_direction_closes_the_flow() {
    on_a_host(|host| {
        let mut pair = settled(host, 4);
        pair.client.write_all(&void(4, 1)).unwrap();
        expect_cut(pair);
        let mut pair = settled(host, 4);
        pair.server.write_all(&query(4, 1, SELECT)).unwrap();
        expect_cut(pair);
        host.counts_lost("direction", 1, 1);
    });
}

#[test]
fn another_version_in_the_middle_closes_the_flow() {
    on_a_host(|host| {
        let mut pair = settled(host, 4);
        pair.client.write_all(&query(3, 1, SELECT)).unwrap();
        expect_cut(pair);
        let mut pair = settled(host, 4);
        pair.client_sends(&query(4, 1, SELECT));
        pair.server.write_all(&void(3, 1)).unwrap();
        expect_cut(pair);
        host.counts_lost("version_changed", 1, 1);
    });
}

#[test]
fn an_unknown_opcode_passes_and_is_counted() {
    on_a_host(|host| {
        let mut pair = settled(host, 4);
        pair.client_sends(&frame(4, 1, 0x3F, b"?"));
        pair.server_sends(&frame(RESPONSE | 4, 1, 0x3E, b"!"));
        still_works(pair);
        host.counts(&[
            ("anomalies", "unknown_opcode", 2),
            ("flows_closed", "both_ended", 1),
        ]);
    });
}

#[test]
fn a_response_without_a_request_passes_and_is_counted() {
    on_a_host(|host| {
        let mut pair = settled(host, 4);
        pair.server_sends(&void(4, 77));
        still_works(pair);
        host.counts(&[
            ("anomalies", "unknown_stream", 1),
            ("flows_closed", "both_ended", 1),
        ]);
    });
}

#[test]
fn a_segment_with_a_wrong_checksum_closes_the_flow() {
    on_a_host(|host| {
        let good = segment(&query(5, 1, SELECT));
        let payload_at = 6;
        for at in [0, 5, payload_at, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let mut pair = settled(host, 5);
            pair.client.write_all(&[&good[..], &bad].concat()).unwrap();
            assert_eq!(rest(&mut pair.server), good, "damaged at {at}");
            expect_cut(pair);
        }
        let mut pair = settled(host, 5);
        pair.client_sends(&good);
        let mut bad = segment(&void(5, 1));
        bad[payload_at] ^= 1;
        pair.server.write_all(&bad).unwrap();
        expect_cut(pair);
        host.counts_lost("segment_crc", 4, 1);
    });
}

#[test]
fn a_damaged_segment_in_pieces_never_arrives_whole() {
    on_a_host(|host| {
        let mut bad = segment(&query(5, 1, SELECT));
        *bad.last_mut().unwrap() ^= 1;
        let (front, back) = bad.split_at(bad.len() - 4);
        let mut pair = settled(host, 5);
        pair.client.write_all(front).unwrap();
        thread::sleep(BEHIND);
        pair.client.write_all(back).unwrap();
        // A pipeline waits for all of it.
        let arrived = rest(&mut pair.server);
        assert!(arrived == front || arrived.is_empty(), "{arrived:?}");
        expect_cut(pair);
        host.counts(&[("flows_closed", "segment_crc", 1)]);
    });
}

#[test]
fn a_segment_without_whole_frames_closes_the_flow() {
    on_a_host(|host| {
        let mut pair = settled(host, 5);
        let whole = query(5, 1, SELECT);
        let bad = segment(&whole[..whole.len() - 1]);
        pair.client.write_all(&bad).unwrap();
        expect_cut(pair);
        host.counts(&[("flows_closed", "segment_length", 1)]);
    });
}

/// With what is no text in place of each `~`.
fn spoiled(mut frame: Vec<u8>) -> Vec<u8> {
    for byte in frame.iter_mut().filter(|byte| **byte == b'~') {
        *byte = 0xFF;
    }
    frame
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

/// Requests of a client of this version behind its STARTUP, none of them text.
fn asks_without_text(version: u8) -> Vec<Vec<u8>> {
    const TEXT: &str = "SELECT v~ FROM shop.orders WHERE id = 'S3CRET'";
    const LITERAL: &str = "SELECT v FROM shop.orders WHERE id = 'S3CRET~'";
    let texts = [TEXT, LITERAL].map(str::as_bytes);
    let v5 = |bytes: &'static [u8]| if version < 5 { &[][..] } else { bytes };
    let mut all = vec![frame(version, 1, 0x0F, &long(b"\0ann~\0P4SSWORD"))];
    all.extend([TEXT, LITERAL].map(|text| query(version, 1, text)));
    all.extend(texts.map(|text| frame(version, 1, 0x09, &[&long(text), v5(&[0; 4])].concat())));
    // An UNLOGGED one, at ONE.
    let behind = [&[0, 0, 0, 1, 0], v5(&[0; 3])].concat();
    let batch = |text| [&[1, 0, 1, 0][..], &long(text), &behind].concat();
    all.extend(texts.map(|text| frame(version, 1, 0x0D, &batch(text))));
    if version == 5 {
        let keyspace = [0, 1, 0, 0, 0, 0x80, 0, 5, b's', b'h', b'o', b'p', b'~'];
        let body = [&long(SELECT.as_bytes())[..], &keyspace].concat();
        all.push(frame(version, 1, QUERY, &body));
    }
    all.into_iter().map(spoiled).collect()
}

#[test]
fn what_is_no_text_passes_and_what_is_told_of_it_is() {
    for shows in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut steps = passive(folder.path());
        if !shows {
            steps = steps.replace(", values = true, bytes = 4096", "");
            steps = steps.replace(", statement = true", "");
        }
        let steps = steps.replace("\"debug\"", "\"debug\", per_second = 100000");
        let told = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        on_a_host_with(&steps, |host| {
            let mut requests = 0;
            for version in [3, 4, 5] {
                let mut pair = host.pair();
                let options = [OPTIONS[0], ("APPLICATION_NAME", "billing~")];
                pair.client_sends(&spoiled(startup(version, &options)));
                pair.server_sends(&frame(RESPONSE | version, 0, 0x03, b"\0\x01x"));
                let wrap = |frame: Vec<u8>| if version < 5 { frame } else { segment(&frame) };
                for asked in asks_without_text(version) {
                    let answer = match asked[4] {
                        0x0F => frame(RESPONSE | version, 1, 0x10, &[255; 4]),
                        _ => void(version, 1),
                    };
                    pair.client_sends(&wrap(asked));
                    pair.server_sends(&wrap(answer));
                    requests += 1;
                }
                pair.ends();
                host.goes_on();
            }
            common::eventually("all is written", || {
                told("audit").lines().count() >= requests + 3 && !told("slow").is_empty()
            });
            let tables = ["/statements", "/statements/top", "/metrics"];
            let tables = tables.map(|path| host.agent.get(path).unwrap());
            assert!(!(tables.concat() + &host.agent.log()).contains("S3CRET"));
        });
        for name in ["slow", "audit", "debug"] {
            let told = told(name);
            for line in told.lines() {
                let read = serde_json::from_str::<Value>(line);
                assert!(read.is_ok_and(|line| line.is_object()), "{name}: {line}");
            }
            let hex = |text: &str| text.bytes().map(|b| format!("{b:02x}")).collect::<String>();
            let has = |text: &str| told.contains(text) || told.contains(&hex(text));
            assert!(!told.is_empty() && !has("P4SSWORD"), "{name}: {told}");
            // Whoever wants bodies has them.
            assert_eq!(has("S3CRET"), shows && name == "debug", "{name}: {told}");
        }
    }
}

/// A flow that begins with `first` is relayed, whatever follows.
fn relayed(host: &Host<'_>, first: &[u8]) {
    let mut pair = host.pair();
    pair.client_sends(first);
    pair.server_sends(b"whatever the database says");
    pair.client_sends(b"and \xFF\0 the client");
    assert_eq!(flow(host, &pair)["path"], "relay");
    pair.ends();
}

#[test]
fn an_unknown_version_is_relayed() {
    on_a_host(|host| {
        for version in [1, 2, 6, 0x41] {
            relayed(host, &frame(version, 0, 0x05, &[]));
        }
        let mut beta = startup(5, OPTIONS);
        beta[1] = 0x10; // the flag USE_BETA
        relayed(host, &beta);
        host.counts(&[
            ("undecodable_flows", "version", 5),
            ("flows_closed", "both_ended", 5),
        ]);
    });
}

#[test]
fn tls_is_relayed() {
    on_a_host(|host| {
        // The head of a record with a ClientHello (RFC 8446 §5.1, §4).
        let mut hello = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3];
        hello.extend((0..506).map(|n| n as u8));
        relayed(host, &hello);
        host.counts(&[
            ("undecodable_flows", "tls", 1),
            ("flows_closed", "both_ended", 1),
        ]);
    });
}

#[test]
fn what_is_not_cql_is_relayed() {
    let first_frames: &[&[u8]] = &[
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\0",
        b"\xFF\xFE\xFD",
        &void(4, 0),              // a response, from the client
        &header(4, 0, QUERY, -1), // a length that cannot be
        &frame(4, 0, 0x3F, b""),  // an opcode that does not exist
    ];
    on_a_host(|host| {
        for first in first_frames {
            relayed(host, first);
        }
        let n = first_frames.len() as u64;
        host.counts(&[
            ("undecodable_flows", "not_cql", n),
            ("flows_closed", "both_ended", n),
        ]);
    });
}

#[test]
fn segments_that_are_compressed_in_no_known_way_are_relayed() {
    on_a_host(|host| {
        let mut pair = host.pair();
        pair.client_sends(&startup(
            5,
            &[("CQL_VERSION", "3.0.0"), ("COMPRESSION", "snappy")],
        ));
        pair.server_sends(&ready(5));
        pair.client_sends(b"compressed");
        assert_eq!(flow(host, &pair)["path"], "relay");
        pair.ends();
        let reason = ("undecodable_flows", "segment_compression", 1);
        host.counts(&[reason, ("flows_closed", "both_ended", 1)]);
    });
}

/// Good frames have to arrive before the flow is closed, also at a database that is behind.
#[test]
fn a_slow_database_gets_every_good_frame_before_a_bad_one() {
    /// Flows, each with its bad frame at another place around the one where buffers are full.
    const PLACES: usize = 4;
    on_a_host(|host| {
        let good = query(4, 1, &"x".repeat(32 << 10));
        let room = frames_until_stopped(host, &good);
        for place in room.saturating_sub(PLACES)..room {
            let mut pair = settled(host, 4);
            for n in 0..place {
                pair.client.write_all(&good).unwrap();
                assert!(has_passed(host, &pair, (n + 1) * good.len()), "frame {n}");
            }
            let bad = header(4, 2, QUERY, -1);
            pair.client.write_all(&[&good[..], &bad].concat()).unwrap();
            thread::sleep(BEHIND);
            let arrived = rest(&mut pair.server).len();
            assert_eq!(arrived, (place + 1) * good.len(), "{place} frames, and one");
            expect_cut(pair);
        }
    });
}

/// Bytes behind a bad frame are thrown away; both sides see FIN, not a reset that could
/// overtake what was good.
#[test]
fn what_follows_a_bad_frame_is_thrown_away() {
    on_a_host(|host| {
        let good = query(4, 1, SELECT);
        let mut pair = settled(host, 4);
        // More than one chunk, less than the buffers on the way.
        let behind = vec![0; 200 << 10];
        let bad = header(4, 2, QUERY, i32::MIN);
        let bytes = [&good[..], &bad, &behind].concat();
        pair.client.write_all(&bytes).unwrap();
        assert_eq!(rest(&mut pair.server), good);
        let end = pair.client.read(&mut [0; 1]);
        assert_eq!(end.map_err(|e| e.kind()), Ok(0), "the client sees FIN");
        host.counts(&[("flows_closed", "length", 1)]);
    });
}

/// How many frames it takes until the buffers to a database that does not read are full, so
/// that the agent holds a part of the last one back.
fn frames_until_stopped(host: &Host<'_>, good: &[u8]) -> usize {
    let mut pair = settled(host, 4);
    let mut frames = 0;
    loop {
        pair.client.write_all(good).unwrap();
        frames += 1;
        if !has_passed(host, &pair, frames * good.len()) {
            return frames;
        }
    }
}

/// Whether the agent has written so much behind the handshake.
fn has_passed(host: &Host<'_>, pair: &Pair, bytes: usize) -> bool {
    let wanted = (startup(4, OPTIONS).len() + bytes) as u64;
    let deadline = Instant::now() + BEHIND;
    while Instant::now() < deadline {
        if flow(host, pair)["bytes_to_database"] == wanted {
            return true;
        }
        thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Damaged streams: each side receives a beginning of what the other sent, and nothing else.
#[test]
fn random_damage_never_alters_what_passes() {
    host::on_a_host(|host| damaged(host, true));
}

/// Damaged streams through steps that have statements prepared again which nobody has seen
/// prepared, and answer those requests.
#[test]
fn random_damage_through_a_pipeline_is_nobody_elses_trouble() {
    let folder = tempfile::tempdir().unwrap();
    on_a_host_with(&passive(folder.path()), |host| damaged(host, false));
}

/// `exact`: nothing is answered in the database's place.
fn damaged(host: &Host<'_>, exact: bool) {
    const FLOWS: u64 = 300;
    for seed in 1..=FLOWS {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let version = 3 + random.below(3) as u8;
        let (mut up, mut down) = conversation(version);
        for _ in 0..=random.below(3) {
            let side = if random.below(2) == 0 {
                &mut up
            } else {
                &mut down
            };
            let at = random.below(side.len());
            side[at] = random.below(256) as u8;
        }
        let mut pair = host.pair();
        let (mut to_send_up, mut to_send_down) = (&up[..], &down[..]);
        while !to_send_up.is_empty() || !to_send_down.is_empty() {
            let (to_send, stream) = match random.below(2) {
                0 => (&mut to_send_up, &mut pair.client),
                _ => (&mut to_send_down, &mut pair.server),
            };
            let (now, later) = to_send.split_at(to_send.len().min(random.below(200)));
            // The flow may be closed by now.
            let _ = stream.write_all(now);
            *to_send = later;
        }
        let _ = pair.client.shutdown(Shutdown::Write);
        let _ = pair.server.shutdown(Shutdown::Write);
        for (stream, sent) in [(&mut pair.server, &up), (&mut pair.client, &down)] {
            let mut arrived = Vec::new();
            // A reset ends it as well.
            let _ = stream.read_to_end(&mut arrived);
            assert!(!exact || sent.starts_with(&arrived), "seed {seed}");
        }
    }
    common::eventually("all flows end", || host.flows() == 0);
}

/// A handshake and some requests; what the client and what the database sends.
fn conversation(version: u8) -> (Vec<u8>, Vec<u8>) {
    let (mut up, mut down) = (startup(version, OPTIONS), ready(version));
    for stream in 0..20 {
        let (request, response) = (query(version, stream, SELECT), void(version, stream));
        let seal = |frame: Vec<u8>| if version < 5 { frame } else { segment(&frame) };
        up.extend(seal(request));
        down.extend(seal(response));
    }
    assert_eq!(down[4], READY);
    (up, down)
}

/// xorshift64*: a seed is a run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }
}
