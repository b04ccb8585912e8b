//! Rows: all that is said on a flow, and how it ends.

use cassandra_protocol::compression::Compression;

use super::*;
use crate::compressed::{Kind, kind};

/// More than the steps read of it, and than the ring holds.
const LARGE_BYTES: i32 = 64 << 20;

/// A body of many segments, twice of which fits in the ring, however short the packets are.
const LONG_BYTES: usize = 1 << 20;

const UPDATE: &str = "UPDATE shop.orders SET v = ? WHERE id = 7";

const STREAMS: u16 = 1 << 15;
/// Requests at once that TCP sends in one long packet, if it does: a few times.
const IN_A_PACKET: i16 = 11_000;
const PACKETS: usize = 3;
/// Long requests ahead of them, until when TCP sends as much at once.
const WARM_UPS: usize = 8;
/// Answers at once: a journal has room for as many lines.
pub const AT_ONCE: usize = 1_024;

/// So many bytes of a frame have passed when its connection is reset.
const CUT_AT: usize = 20;

/// One side, in the middle of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Resets {
    Client,
    Database,
}

/// All that is said on a flow.
pub struct Talk {
    pub kind: Kind,
    /// Bytes to the database, and then bytes to the client; and how many requests are answered then.
    pub turns: Vec<([Vec<u8>; 2], usize)>,
    /// Requests and responses.
    pub frames: [u64; 2],
    pub resets: Option<(Resets, Vec<u8>)>,
}

impl Talk {
    fn begin(kind: Kind) -> Self {
        let mut options = vec![("CQL_VERSION", "3.0.0")];
        options.extend(kind.compression.as_str().map(|name| ("COMPRESSION", name)));
        let first = [startup(kind.version, &options), ready(kind.version)];
        Self {
            kind,
            turns: vec![(first, 1)],
            frames: [1, 1],
            resets: None,
        }
    }

    fn turn(&mut self, asked: &[Vec<u8>], answered: &[Vec<u8>]) {
        let sent = |frames: &[Vec<u8>]| {
            let sent = frames.iter().map(|frame| self.kind.sent(frame));
            sent.collect::<Vec<_>>().concat()
        };
        self.turns
            .push(([sent(asked), sent(answered)], answered.len()));
        self.frames[0] += asked.len() as u64;
        self.frames[1] += answered.len() as u64;
    }

    /// Every kind of request, an answer and a request that are not read to their ends, and requests that are answered in
    /// another order than asked.
    fn everything(kind: Kind) -> Self {
        let v = kind.version;
        let mut talk = Self::begin(kind);
        let long = format!("{SELECT} /*{}*/", " ".repeat(80_000));
        let delete = "DELETE FROM shop.orders WHERE id = 'secret'";
        for (asked, answered) in [
            (prepare(v, 1, UPDATE), prepared(v, 1)),
            (execute(v, 1), rows(v, 1, 3)),
            (execute(v, 2), error(v, 2, 0x1100)),
            (query(v, 1, SELECT), rows(v, 1, 25_000)),
            (query(v, 1, &long), void(v, 1)),
            (batch(v, 1, delete), void(v, 1)),
        ] {
            talk.turn(&[asked], &[answered]);
        }
        let asked = [0, 1, 2, 3, 4].map(|stream| query(v, stream, SELECT));
        let answered = [4, 2, 0, 3, 1].map(|stream| rows(v, stream, 1 + i32::from(stream)));
        talk.turn(&asked, &answered);
        talk
    }

    fn large(kind: Kind) -> Self {
        let mut talk = Self::begin(kind);
        let v = kind.version;
        for count in [1, LARGE_BYTES / 4, 2] {
            talk.turn(&[query(v, 1, SELECT)], &[rows(v, 1, count)]);
        }
        talk
    }

    /// A long value, and a long answer. The kernel copies a body whole where its frame goes on in further segments.
    fn long(kind: Kind) -> Self {
        let mut talk = Self::begin(kind);
        let v = kind.version;
        let value = vec![b'x'; LONG_BYTES];
        for (asked, answered) in [
            (prepare(v, 1, UPDATE), prepared(v, 1)),
            (
                execute_with(v, 1, &value),
                rows(v, 1, LONG_BYTES as i32 / 4),
            ),
            (execute(v, 1), rows(v, 1, 2)),
        ] {
            talk.turn(&[asked], &[answered]);
        }
        talk
    }

    /// All streams are in flight at once.
    fn streams(kind: Kind) -> Self {
        let mut talk = Self::begin(kind);
        let streams: Vec<i16> = (0..STREAMS).map(u16::cast_signed).collect();
        for some in streams.chunks(AT_ONCE) {
            let asked: Vec<_> = some
                .iter()
                .map(|n| query(kind.version, *n, SELECT))
                .collect();
            talk.turn(&asked, &[]);
        }
        for some in streams.rchunks(AT_ONCE) {
            let answered = some.iter().rev().map(|n| rows(kind.version, *n, 1));
            talk.turn(&[], &answered.collect::<Vec<_>>());
        }
        talk
    }

    /// More requests in a packet than fit into 64 KiB.
    fn packed(kind: Kind) -> Self {
        let mut talk = Self::begin(kind);
        let v = kind.version;
        talk.turn(&[prepare(v, 1, UPDATE)], &[prepared(v, 1)]);
        let value = vec![b'x'; LONG_BYTES];
        for _ in 0..WARM_UPS {
            talk.turn(&[execute_with(v, 1, &value)], &[void(v, 1)]);
        }
        let streams = Vec::from_iter(0..IN_A_PACKET);
        let asked: Vec<_> = streams.iter().map(|n| query(v, *n, "")).collect();
        for _ in 0..PACKETS {
            talk.turn(&asked, &[]);
            for some in streams.chunks(AT_ONCE) {
                let answered = some.iter().map(|n| void(v, *n));
                talk.turn(&[], &answered.collect::<Vec<_>>());
            }
        }
        talk
    }

    /// A request is out when one side resets, in the middle of a frame.
    fn reset(kind: Kind, by: Resets) -> Self {
        let mut talk = Self::begin(kind);
        let v = kind.version;
        talk.turn(&[query(v, 1, SELECT)], &[rows(v, 1, 2)]);
        talk.turn(&[query(v, 2, SELECT)], &[]);
        let frame = match by {
            Resets::Client => query(v, 3, SELECT),
            Resets::Database => rows(v, 2, 100),
        };
        let sent = kind.sent(&frame);
        talk.resets = Some((by, sent[..CUT_AT].to_vec()));
        talk
    }

    /// Whether the kernel sees each frame: what is in compressed segments it does not.
    pub fn is_counted(&self) -> bool {
        self.kind.version < 5 || !self.kind.compression.is_compressed()
    }
}

const PLAIN: Kind = kind(4, Compression::None);
const SEGMENTS: Kind = kind(5, Compression::None);
const SEGMENTS_LZ4: Kind = kind(5, Compression::Lz4);

pub fn talks(place: Place) -> Vec<Talk> {
    let kinds = [
        PLAIN,
        kind(3, Compression::Snappy),
        kind(4, Compression::Lz4),
        kind(4, Compression::Snappy),
        SEGMENTS,
        SEGMENTS_LZ4,
    ];
    let mut talks: Vec<_> = kinds.map(Talk::everything).into();
    talks.extend([Talk::large(PLAIN), Talk::long(SEGMENTS)]);
    talks.extend([Resets::Client, Resets::Database].map(|by| Talk::reset(PLAIN, by)));
    if place == Place::Big {
        talks.push(Talk::packed(PLAIN));
    }
    if place == Place::Loopback {
        talks.extend([Talk::large(SEGMENTS_LZ4), Talk::streams(PLAIN)]);
        for by in [Resets::Client, Resets::Database] {
            talks.extend([SEGMENTS, SEGMENTS_LZ4].map(|kind| Talk::reset(kind, by)));
        }
    }
    talks
}
