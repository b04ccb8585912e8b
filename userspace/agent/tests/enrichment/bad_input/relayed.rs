//! Flows that are not read, because nothing in them can be: they are relayed.

use super::*;

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
        host.counts(&[
            ("undecodable_flows", "version", 4),
            ("flows_closed", "both_ended", 4),
        ]);
    });
}

/// v5 was a beta version before Cassandra 4, and had no segments. Later servers ignore the flag.
#[test]
fn v5_with_the_beta_flag_is_read_where_it_has_segments() {
    let with_flag = |mut frame: Vec<u8>| {
        frame[1] = 0x10; // USE_BETA
        frame
    };
    on_a_host(|host| {
        for in_segments in [false, true] {
            let mut pair = host.pair();
            pair.client_sends(&with_flag(startup(5, OPTIONS)));
            pair.server_sends(&ready(5));
            let asks = with_flag(query(5, 1, "SELECT v FROM shop.beta"));
            let answers = void(5, 1);
            let sent = [&asks, &answers].map(|frame| match in_segments {
                true => segment(frame),
                false => frame.clone(),
            });
            pair.client_sends(&sent[0]);
            pair.server_sends(&sent[1]);
            let path = if in_segments { "enrich" } else { "relay" };
            assert_eq!(flow(host, &pair)["path"], path);
            pair.ends();
        }
        host.counts(&[
            ("undecodable_flows", "version", 1),
            ("flows_closed", "both_ended", 2),
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
