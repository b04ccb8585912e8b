//! Bytes that are not what they should be: what reaches the other side, what is counted, and
//! that no other flow notices. `cql::Verdict` says which of them close a flow.

mod damage;
mod no_text;
mod order;
mod relayed;

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
