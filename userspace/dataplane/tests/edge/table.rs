//! The table of forwarded connections when it is small, or has let go of a part of one; the gateway's
//! ports when there are few.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use crate::{
    PASS, REDIRECT,
    frame::{ACK, SYN, Segment},
    lone::{CLIENT, DEVICE, VIP4, VIP6, forwarding, host, with_ports},
    packets, policy,
    read::read,
};
use aya::maps::{HashMap, Map, MapData};
use dataplane::{
    Edge,
    edge::{EdgeVerdict, Forward, WantedMode},
};
use policy::Policy;
use sandbox::stay_on_one_processor;

const SNAT: (Forward, WantedMode) = (Forward::Snat, WantedMode::Auto);

fn request(is_ipv4: bool, port: u16, flags: u8) -> Segment {
    let vip: SocketAddr = if is_ipv4 { VIP4 } else { VIP6 }.parse().unwrap();
    Segment::between(SocketAddr::new(host(CLIENT, is_ipv4), port), vip, flags)
}

fn action(edge: &mut Edge, segment: &Segment) -> u32 {
    edge.try_out(DEVICE, &segment.frame(), 1).unwrap().action
}

/// From where to where a segment is sent on.
fn sent(edge: &mut Edge, segment: &Segment) -> (SocketAddr, SocketAddr) {
    let tried = edge.try_out(DEVICE, &segment.frame(), 1).unwrap();
    assert_eq!(tried.action, REDIRECT, "{segment:?}");
    let read = read(&tried.frame).unwrap();
    (read.from, read.to)
}

/// A connection that both ends have said something on.
#[derive(Clone, Copy)]
struct Connection {
    is_ipv4: bool,
    port: u16,
    own: SocketAddr,
    backend: SocketAddr,
}

impl Connection {
    fn open(edge: &mut Edge, is_ipv4: bool, port: u16) -> Self {
        let (own, backend) = sent(edge, &request(is_ipv4, port, SYN));
        let opened = Self {
            is_ipv4,
            port,
            own,
            backend,
        };
        sent(edge, &Segment::between(backend, own, SYN | ACK));
        assert!(opened.asks(edge) && opened.answers(edge));
        opened
    }

    /// Whether what its client sends still goes where it went.
    fn asks(&self, edge: &mut Edge) -> bool {
        sent(edge, &request(self.is_ipv4, self.port, ACK)) == (self.own, self.backend)
    }

    fn answers(&self, edge: &mut Edge) -> bool {
        let answer = Segment::between(self.backend, self.own, ACK);
        let client = request(self.is_ipv4, self.port, ACK);
        sent(edge, &answer) == (client.to, client.from)
    }
}

/// The kernel's own table.
fn table(edge: &Edge) -> HashMap<MapData, [u8; 36], [u8; 64]> {
    let pin = MapData::from_pin(edge.pins().join("edge_flows")).unwrap();
    let map = Map::from_map_data(pin).unwrap();
    HashMap::try_from(map).unwrap()
}

/// As the kernel does to make room. Nothing that processors remember stays either.
fn forget(edge: &mut Edge, known: &Policy, is_half: impl Fn(SocketAddr) -> bool) {
    let mut table = table(edge);
    let keys: Vec<[u8; 36]> = table.keys().map(Result::unwrap).collect();
    let mut forgotten = 0;
    for key in keys {
        let port = u16::from_be_bytes([key[34], key[35]]);
        let ip: [u8; 16] = key[16..32].try_into().unwrap();
        let ip = std::net::Ipv6Addr::from(ip).to_canonical();
        if is_half(SocketAddr::new(ip, port)) {
            table.remove(&key).unwrap();
            forgotten += 1;
        }
    }
    assert_eq!(forgotten, 1);
    edge.install(known).unwrap();
}

#[test]
fn a_half_that_was_let_go_of_is_made_again_by_the_other() {
    let known = policy(forwarding(2));
    with_ports(None, SNAT, 1024, forwarding(2), |edge| {
        for is_ipv4 in [true, false] {
            let it = Connection::open(edge, is_ipv4, 40_000);
            let vip = request(is_ipv4, 40_000, ACK).to;
            for round in 0..2 {
                forget(edge, &known, |to| to == it.own);
                assert!(it.asks(edge) && it.answers(edge), "the reply's, {round}");
                forget(edge, &known, |to| to == vip);
                assert!(it.answers(edge) && it.asks(edge), "the request's, {round}");
            }
            forget(edge, &known, |to| to == vip);
            forget(edge, &known, |to| to == it.own);
            // Nobody knows it any more.
            assert_eq!(action(edge, &request(is_ipv4, 40_000, ACK)), PASS);
        }
    });
}

#[test]
fn a_connection_whose_port_is_anothers_is_over() {
    let known = policy(forwarding(1));
    with_ports(Some(1), SNAT, 1024, forwarding(1), |edge| {
        let first = Connection::open(edge, true, 40_000);
        let second = request(true, 40_001, SYN);
        assert_eq!(action(edge, &second), PASS, "there is one port");
        assert_eq!(packets(edge, EdgeVerdict::NoPort), 1);
        forget(edge, &known, |to| to == first.own);
        let second = Connection::open(edge, true, 40_001);
        assert_eq!(second.own, first.own);
        for _ in 0..3 {
            assert_eq!(action(edge, &request(true, 40_000, ACK)), PASS);
            assert!(second.asks(edge) && second.answers(edge));
        }
    });
}

#[test]
fn every_port_is_used_before_there_is_none() {
    const PORTS: u16 = 16;
    with_ports(Some(PORTS), SNAT, 1024, forwarding(1), |edge| {
        let mut taken: Vec<u16> = (0..PORTS)
            .map(|n| Connection::open(edge, true, 40_000 + n).own.port())
            .collect();
        taken.sort_unstable();
        assert_eq!(taken, (1024..1024 + PORTS).collect::<Vec<_>>());
        assert_eq!(action(edge, &request(true, 41_000, SYN)), PASS);
        assert_eq!(packets(edge, EdgeVerdict::NoPort), 1);
    });
}

#[test]
fn a_flood_of_new_connections_drives_out_none_that_is_in_use() {
    const ROOM: u32 = 1024;
    /// The table is full of others after eight rounds, a third of a second: within that a connection
    /// is heard of, if it is in use.
    const AT_ONCE: u32 = ROOM / 8;
    const ROUND: Duration = Duration::from_millis(40);
    const ROUNDS: u32 = 48;
    with_ports(None, SNAT, ROOM, forwarding(2), |edge| {
        // What is remembered is one processor's.
        stay_on_one_processor().unwrap();
        let all: Vec<Connection> = (0..8)
            .map(|n| Connection::open(edge, n % 2 == 0, 40_000 + n))
            .collect();
        let mut opened = 0_u32;
        for _ in 0..ROUNDS {
            let began = Instant::now();
            for _ in 0..AT_ONCE {
                opened += 1;
                let [_, a, b, c] = opened.to_be_bytes();
                let from = SocketAddr::from(([11, a, b, c], 50_000));
                let syn = Segment {
                    from,
                    ..request(true, 0, SYN)
                };
                // Backends answer: both halves are in use for a moment.
                let (own, backend) = sent(edge, &syn);
                sent(edge, &Segment::between(backend, own, SYN | ACK));
            }
            for it in &all {
                assert!(it.asks(edge) && it.answers(edge), "after {opened}");
            }
            thread::sleep(ROUND.saturating_sub(began.elapsed()));
        }
        let entries = table(edge).keys().count();
        assert!(entries <= 2 * ROOM as usize, "{entries}");
    });
}

#[test]
fn the_smallest_table_has_room_for_the_newest() {
    with_ports(None, SNAT, 1, forwarding(1), |edge| {
        for n in 0..64 {
            Connection::open(edge, n % 2 == 0, 40_000 + n);
        }
        assert_eq!(packets(edge, EdgeVerdict::TableFull), 0);
        assert!(table(edge).keys().count() <= 2);
    });
}
