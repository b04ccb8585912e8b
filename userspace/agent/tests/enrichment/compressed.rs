//! Compressed flows: what is said on them is counted as on any other, and passes byte for byte; and what is
//! compressed wrongly harms nobody else.

use std::{collections::BTreeMap, io::Write};

use cassandra_protocol::{
    compression::Compression,
    crc::{crc24, crc32},
    frame::frame_encoder::{FrameEncoder, Lz4FrameEncoder, UncompressedFrameEncoder},
};

use crate::common::{
    frames::{self, QUERY, frame, query, ready, startup, void},
    host::{Host, Pair, rest, with_and_without_a_pipeline as on_a_host},
};

/// More than a segment holds.
const LARGE_BYTES: usize = 300_000;

/// How a flow travels.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub version: u8,
    pub compression: Compression,
}

const KINDS: [Kind; 4] = [
    kind(3, Compression::Snappy),
    kind(4, Compression::Lz4),
    kind(4, Compression::Snappy),
    kind(5, Compression::Lz4),
];

pub const fn kind(version: u8, compression: Compression) -> Kind {
    Kind {
        version,
        compression,
    }
}

impl Kind {
    /// A flow past its handshake.
    fn settled(self, host: &Host<'_>) -> Pair {
        let mut pair = host.pair();
        let name = self.compression.as_str().unwrap();
        let options = [("CQL_VERSION", "3.0.0"), ("COMPRESSION", name)];
        pair.client_sends(&startup(self.version, &options));
        pair.server_sends(&ready(self.version));
        pair
    }

    /// A frame as a peer sends it.
    pub fn sent(self, frame: &[u8]) -> Vec<u8> {
        match (self.version, self.compression) {
            (5, Compression::None) => segments::<UncompressedFrameEncoder>(frame),
            (5, _) => segments::<Lz4FrameEncoder>(frame),
            (_, Compression::None) => frame.to_vec(),
            _ => {
                let (header, body) = frame.split_at(9);
                let small = self.compression.encode(body).unwrap();
                let stream = i16::from_be_bytes([header[2], header[3]]);
                let mut sent = frames::frame(header[0], stream, header[4], &small);
                sent[1] = 1;
                sent
            }
        }
    }

    fn table(self) -> String {
        format!("v{}_{}", self.version, self.compression.as_str().unwrap())
    }
}

/// A frame in one segment, or in as many as it needs.
fn segments<E: FrameEncoder + Default>(frame: &[u8]) -> Vec<u8> {
    let mut encoder = E::default();
    if encoder.can_fit(frame.len()) {
        encoder.add_envelope(frame.to_vec());
        return encoder.finalize_self_contained().to_vec();
    }
    let (mut sent, mut rest) = (Vec::new(), frame);
    while !rest.is_empty() {
        let mut encoder = E::default();
        let (taken, segment) = encoder.finalize_non_self_contained(rest);
        sent.extend(segment);
        rest = &rest[taken..];
    }
    sent
}

/// How often each table was read.
fn selects(host: &Host<'_>) -> BTreeMap<String, u64> {
    let rows = host.agent.json("/statements").unwrap();
    let rows = rows.as_array().unwrap().iter();
    let rows = rows.filter(|row| row["kind"] == "select" && row["keyspace"] == "shop");
    rows.map(|row| {
        let table = row["table"].as_str().unwrap().to_owned();
        (table, row["count"].as_u64().unwrap())
    })
    .collect()
}

#[test]
fn what_is_said_in_compressed_frames_is_counted() {
    on_a_host(|host| {
        for kind in KINDS {
            let mut pair = kind.settled(host);
            let table = kind.table();
            for (stream, spaces) in [(1, 0), (2, 500), (3, LARGE_BYTES), (4, 0)] {
                let text = format!(
                    "SELECT v FROM shop.{table} WHERE id = 1{}",
                    " ".repeat(spaces)
                );
                pair.client_sends(&kind.sent(&query(kind.version, stream, &text)));
                pair.server_sends(&kind.sent(&void(kind.version, stream)));
            }
            pair.ends();
        }
        let expected = KINDS.map(|kind| (kind.table(), 4));
        assert_eq!(selects(host), expected.into());
        host.counts(&[("flows_closed", "both_ended", KINDS.len() as u64)]);
    });
}

#[test]
fn a_body_that_is_none_passes_and_is_counted() {
    on_a_host(|host| {
        for kind in KINDS.into_iter().filter(|kind| kind.version < 5) {
            let mut pair = kind.settled(host);
            // Of LZ4, a bomb: 2 GiB.
            let mut bad = frame(
                kind.version,
                1,
                QUERY,
                &[0x7F, 0xFF, 0xFF, 0xFF, 0x1F, 0, 1, 0],
            );
            bad[1] = 1;
            pair.client_sends(&bad);
            pair.server_sends(&kind.sent(&void(kind.version, 1)));
            let text = format!("SELECT v FROM shop.{}", kind.table());
            pair.client_sends(&kind.sent(&query(kind.version, 2, &text)));
            pair.server_sends(&kind.sent(&void(kind.version, 2)));
            pair.ends();
            assert_eq!(selects(host)[&kind.table()], 1);
        }
        host.counts(&[
            ("anomalies", "compressed_body", 3),
            ("flows_closed", "both_ended", 3),
        ]);
    });
}

#[test]
fn a_segment_that_does_not_become_what_it_says_closes_the_flow() {
    let kind = kind(5, Compression::Lz4);
    on_a_host(|host| {
        let mut pair = kind.settled(host);
        let good = kind.sent(&query(5, 1, "SELECT v FROM shop.orders"));
        // 16 bytes that are no LZ4, said to become 131,071, with checksums that fit.
        let carried = [0xFF; 16];
        let word = 16_u64 | 0x1_FFFF << 17 | 1 << 34;
        let mut bad = word.to_le_bytes()[..5].to_vec();
        bad.extend_from_slice(&(crc24(&bad) as u32).to_le_bytes()[..3]);
        bad.extend(carried);
        bad.extend(crc32(&carried).to_le_bytes());
        pair.client.write_all(&[&good[..], &bad].concat()).unwrap();
        assert_eq!(rest(&mut pair.server), good);
        assert_eq!(rest(&mut pair.client), b"");
        host.counts(&[("flows_closed", "segment_compression", 1)]);
    });
}
