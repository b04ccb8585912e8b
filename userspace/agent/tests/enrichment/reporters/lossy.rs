//! Tapped flows whose packets come twice, late, or on two processors at once: all that passes is read once, and each request
//! has its own response.

use std::net::TcpStream;

use cassandra_protocol::compression::Compression as Codec;
use dataplane::probe_traffic::Random;
use sandbox::{Agent, Faults, stay_on_one_processor};
use socket2::SockRef;

use super::*;
use crate::common::{Distance, Family, Hosts, PATIENCE, accept, connect};

const BAD: Faults = Faults {
    lost: 10,
    doubled: 10,
    held: 20,
    late: 10,
};
/// Requests that are asked at once, each on a stream of its own.
const STREAMS: i16 = 16;
const TURNS: u64 = 40;

/// Connections by IP version, protocol version, compression, and how packets are cut.
const ROWS: [(Family, u8, Option<Codec>, Link); 4] = [
    (Family::V4, 4, None, Link::Large),
    (Family::V6, 5, None, Link::Small),
    (Family::V6, 4, Some(Codec::Lz4), Link::Jumbo),
    (Family::V4, 5, Some(Codec::Lz4), Link::Large),
];

/// How a sender's host cuts what TCP gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// Packets of up to 64 KiB (GSO), at an MTU of 1,500 bytes.
    Large,
    /// Packets of 1,500 bytes.
    Small,
    /// Packets of 9,000 bytes.
    Jumbo,
}

impl Link {
    fn options(self) -> [&'static str; 4] {
        match self {
            Self::Large => ["mtu", "1500", "gso_max_segs", "65535"],
            Self::Small => ["mtu", "1500", "gso_max_segs", "1"],
            Self::Jumbo => ["mtu", "9000", "gso_max_segs", "1"],
        }
    }
}

/// The rows of the response on a stream: another number on each.
fn rows_on(stream: i16) -> i32 {
    100 * (1 + i32::from(stream))
}

/// Sends, in pieces that end anywhere, and has the other side see every byte.
fn send(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8], random: &mut Random) {
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut rest = bytes;
            while !rest.is_empty() {
                let most = [40, 3_000, 100_000][random.below(3)];
                let (piece, next) = rest.split_at((1 + random.below(most)).min(rest.len()));
                from.write_all(piece).unwrap();
                rest = next;
            }
        });
        let mut received = vec![0; bytes.len()];
        to.read_exact(&mut received).unwrap();
        assert!(received == bytes, "TCP did not heal it");
    });
}

/// Asks on all streams at once, and is answered in another order.
fn turn(c: &Conversation, version: u8, codec: Option<Codec>, random: &mut Random) {
    let asked = (0..STREAMS).map(|stream| {
        let padding = " ".repeat(random.below(3_000));
        let text = format!("SELECT v FROM shop.t{stream} /*{padding}*/");
        framed(version, codec, &query(version, stream, &text))
    });
    let asked = asked.collect::<Vec<_>>().concat();
    let answered = (0..STREAMS).rev();
    let answered =
        answered.map(|stream| framed(version, codec, &rows(version, stream, rows_on(stream))));
    let answered = answered.collect::<Vec<_>>().concat();
    send(&c.client, &c.server, &asked, random);
    send(&c.server, &c.client, &answered, random);
}

fn all_are_counted(agent: &Agent<'_>) {
    let selects = || {
        let list = agent.json("/statements").unwrap();
        let rows = list.as_array().unwrap().iter().cloned();
        rows.filter(|row| row["kind"] == "select")
            .collect::<Vec<Value>>()
    };
    let count = |row: &Value| row["count"].as_u64().unwrap();
    eventually("all are counted", || {
        selects().iter().map(count).sum::<u64>() >= TURNS * STREAMS as u64
    });
    for row in selects() {
        let table = row["table"].as_str().unwrap();
        let stream = table.strip_prefix('t').unwrap().parse().unwrap();
        assert_eq!(row["count"], TURNS, "{row}");
        assert_eq!(row["rows"], TURNS * rows_on(stream) as u64, "{row}");
    }
    let gaps = agent.metric("underpass_tap_gaps_total{rule=\"r\"}");
    assert_eq!(gaps.unwrap_or(0.0), 0.0);
}

/// An agent starts for each row, and what is lost is sent again a fifth of a second later: it takes seconds.
#[test]
fn what_the_network_does_to_packets_is_healed() {
    stay_on_one_processor().unwrap();
    let (hosts, wire) = Hosts::with_wire(1);
    for (family, version, codec, link) in ROWS {
        wire.set([Faults::default(); 2]);
        for netns in [&hosts.app.netns, &hosts.database] {
            let set = ["link", "set", "veth"];
            netns.ip(&[&set[..], &link.options()].concat()).unwrap();
        }
        wire.set([BAD, BAD]);
        let listener = hosts.listen(Distance::There, family);
        let to = listener.local_addr().unwrap();
        let rules = policy(
            "fail = \"open\"\npath = \"tap\"",
            "{ transform = \"stats\" }",
        );
        let agent = hosts.agent(&rules.replace("PORT", &to.port().to_string()));
        let client = hosts.client(|| connect(family, to).unwrap());
        let mut c = Conversation {
            client,
            server: accept(&listener).0,
            in_segments: false,
        };
        for end in [&c.client, &c.server] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(3 * PATIENCE)).unwrap();
        }
        let options = [("CQL_VERSION", "3.0.0"), ("COMPRESSION", "lz4")];
        c.client_sends(&startup(
            version,
            &options[..1 + usize::from(codec.is_some())],
        ));
        c.server_sends(&ready(version));
        let mut random = Random::new(9);
        for _ in 0..TURNS {
            turn(&c, version, codec, &mut random);
        }
        all_are_counted(&agent);
        // It ends in the middle of a frame.
        c.client
            .write_all(&framed(version, codec, &query(version, 1, SELECT))[..20])
            .unwrap();
        SockRef::from(&c.client)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(c);
        eventually("its end is told", || {
            agent.metric("underpass_tap_flows").unwrap() == 0.0
        });
    }
    let happened = wire.carried();
    assert!(
        happened
            .iter()
            .all(|way| way.lost > 0 && way.held > 0 && way.late > 0),
        "{happened:?}"
    );
}

/// Answers of a burst, each of so many rows: no more than the ring holds.
const BURST: i16 = 4_000;
const BURST_ROWS: i32 = 2_000;
const BURST_PIECE_BYTES: usize = 128 << 10;
const BURSTS: u64 = 50;
const BURST_RING_BYTES: u32 = 1 << 26;

/// Packets leave where the database sends, and where its acknowledgements come in. A loopback takes each in on the same
/// processor, so two of them read packets of one direction, and each waits until the other one has made its copy.
#[test]
fn a_burst_that_two_processors_take_in_is_copied_whole() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let to = listener.local_addr().unwrap();
    let settings = format!("tap_ring_bytes = {BURST_RING_BYTES}\ntap_cpu = \"100%\"\n");
    let rules = policy("path = \"tap\"", "{ transform = \"stats\" }");
    let rules = rules.replace("PORT", &to.port().to_string());
    let agent = hosts.agent_with(&settings, &rules);
    let client = hosts.client(|| connect(Family::V4, to).unwrap());
    let server = accept(&listener).0;
    for end in [&client, &server] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    let mut random = Random::new(9);
    let asked: Vec<u8> = (0..BURST).flat_map(|n| query(4, n, SELECT)).collect();
    let answered: Vec<u8> = (0..BURST).flat_map(|n| rows(4, n, BURST_ROWS)).collect();
    for burst in 1..=BURSTS {
        send(&client, &server, &asked, &mut random);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut pieces = answered.chunks(BURST_PIECE_BYTES);
                pieces.all(|piece| (&server).write_all(piece).is_ok())
            });
            (&client).read_exact(&mut vec![0; answered.len()]).unwrap();
        });
        eventually("all are counted", || {
            let list = agent.json("/statements").unwrap();
            let row = list.as_array().unwrap().first().cloned();
            row.is_some_and(|row| row["count"] == burst * BURST as u64)
        });
    }
    for lost in ["tap_gaps_total", "tap_abandoned_total", "observed_uncopied"] {
        let samples = agent.metrics().unwrap();
        let samples = samples.iter().filter(|(name, _)| name.contains(lost));
        assert_eq!(samples.map(|(_, count)| count).sum::<f64>(), 0.0, "{lost}");
    }
}
