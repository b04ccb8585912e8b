//! A client, a gateway and a backend with a router between each two, and some place on the way where
//! packets have to be smaller than at either end: whoever sends learns it, and bytes get through.

use std::{
    net::{IpAddr, TcpStream},
    process::Command,
};

use crate::{
    TestPins,
    gateway::{PATIENCE, Server, Talk, VIP4, VIP6},
    interface, packets, policy, rule,
};
use dataplane::{
    Edge,
    edge::{EdgeVerdict, Forward, Interface, WantedMode},
};
use policy::{Action, Policy};
use sandbox::{Netns, run_in};

const MIB: usize = 1 << 20;
/// At least as much as every wire takes that IPv6 travels on, and less than the others here.
const SMALL: &str = "1300";

/// Where packets have to be small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Narrow {
    /// Between the gateway and the backend's router: the gateway tells the client.
    Towards,
    /// Between the client's router and the gateway: the gateway tells the backend.
    Back,
    /// Behind the backend's router, which complains to the gateway about what the client has sent.
    Beyond,
    /// Behind the client's router, which complains to the virtual address.
    BeforeIt,
}

struct Path {
    client: Netns,
    left: Netns,
    gateway: Netns,
    right: Netns,
    backend: Netns,
    pins: TestPins,
    _receivers: Vec<(TestPins, Edge)>,
    _servers: [Server; 2],
}

impl Path {
    fn new() -> Self {
        let [client, left, gateway, right, backend] =
            std::array::from_fn(|_| Netns::new().unwrap());
        let link = |host: &Netns, n: u32, to: &Netns, name: &str| {
            let own = [format!("10.0.{n}.1/24"), format!("fd00:{n}::1/64")];
            let others = [format!("10.0.{n}.254/24"), format!("fd00:{n}::254/64")];
            host.join_as(&[&own[0], &own[1]], (to, name), &[&others[0], &others[1]])
                .unwrap();
            route(host, "default", "default", &format!("{n}"), "254");
        };
        link(&client, 1, &left, "client");
        link(&left, 2, &gateway, "left");
        link(&right, 3, &gateway, "right");
        link(&backend, 4, &right, "backend");
        route(&gateway, "10.0.1.0/24", "fd00:1::/64", "2", "1");
        route(&gateway, "10.0.4.0/24", "fd00:4::/64", "3", "1");
        for host in [&left, &gateway, &right] {
            host.sysctl("net.ipv4.ip_forward", "1").unwrap();
            host.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
        }
        let receivers = [&left, &right].map(|host| {
            run_in(Some(host), None, || {
                let pins = TestPins::new();
                let mut edge = pins.open();
                edge.guard(&[interface("veth", Forward::Off)]).unwrap();
                (pins, edge)
            })
            .unwrap()
        });
        let servers = ["0.0.0.0", "[::]"].map(|any| Server::start(&backend, any, b'1'));
        Self {
            client,
            left,
            gateway,
            right,
            backend,
            pins: TestPins::new(),
            _receivers: receivers.into(),
            _servers: servers,
        }
    }

    fn narrow(&self, place: Narrow) {
        let wire = |ends: [(&Netns, &str); 2]| {
            for (host, device) in ends {
                host.ip(&["link", "set", device, "mtu", SMALL]).unwrap();
            }
        };
        let beyond = |router: &Netns, n: u32, device: &str| {
            for to in [format!("10.0.{n}.1/32"), format!("fd00:{n}::1/128")] {
                router
                    .ip(&["route", "add", &to, "dev", device, "mtu", "lock", SMALL])
                    .unwrap();
            }
        };
        match place {
            Narrow::Towards => wire([(&self.gateway, "right"), (&self.right, "veth")]),
            Narrow::Back => wire([(&self.gateway, "left"), (&self.left, "veth")]),
            Narrow::Beyond => beyond(&self.right, 4, "backend"),
            Narrow::BeforeIt => beyond(&self.left, 1, "client"),
        }
    }

    fn policy() -> Policy {
        let rules = [
            ("v4", VIP4.to_owned(), "10.0.4.1:9042"),
            ("v6", format!("[{VIP6}]"), "[fd00:4::1]:9042"),
        ];
        let rules = rules.map(|(name, vip, backend)| {
            let mut rule = rule(name, &[], &[&format!("{vip}:9042")], Action::Bypass);
            rule.backends = vec![backend.parse().unwrap()];
            rule
        });
        policy(rules.into())
    }

    fn open(&self, mode: WantedMode) -> Edge {
        run_in(Some(&self.gateway), None, || {
            let mut edge = self.pins.open();
            edge.install(&Self::policy()).unwrap();
            let interfaces = ["left", "right"].map(|name| Interface {
                mode,
                ..interface(name, Forward::Snat)
            });
            edge.guard(&interfaces).unwrap();
            for rule in Self::policy().rules {
                // A health check would have.
                TcpStream::connect_timeout(&rule.backends[0], PATIENCE).unwrap();
            }
            edge
        })
        .unwrap()
    }
}

fn route(host: &Netns, v4: &str, v6: &str, n: &str, last: &str) {
    let via = [format!("10.0.{n}.{last}"), format!("fd00:{n}::{last}")];
    host.ip(&["route", "add", v4, "via", &via[0]]).unwrap();
    host.ip(&["-6", "route", "add", v6, "via", &via[1]])
        .unwrap();
}

/// What a host has learnt about packets to somebody.
fn route_to(host: &Netns, to: &str) -> String {
    let get = || Command::new("ip").args(["route", "get", to]).output();
    let shown = run_in(Some(host), None, get).unwrap().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

/// Bytes both ways, and who was told what.
fn carries(place: Narrow, mode: WantedMode) {
    let path = Path::new();
    path.narrow(place);
    if mode == WantedMode::Generic {
        // As in forward.rs: what a peer has left to be cut up is too large everywhere.
        for host in [&path.left, &path.right] {
            host.ip(&["link", "set", "veth", "gso_max_segs", "1"])
                .unwrap();
        }
    }
    let edge = path.open(mode);
    for (vip, own) in [(VIP4, "10.0.3.254"), (VIP6, "fd00:3::254")] {
        let (before, errors) = (
            packets(&edge, EdgeVerdict::TooBig),
            packets(&edge, EdgeVerdict::IcmpError),
        );
        let to: IpAddr = vip.parse().unwrap();
        let mut talk = Talk::connect(&path.client, to).unwrap();
        talk.echo(MIB);
        let small = format!("mtu {SMALL}");
        let sender = match place {
            Narrow::Towards | Narrow::Beyond => route_to(&path.client, vip),
            Narrow::Back | Narrow::BeforeIt => route_to(&path.backend, own),
        };
        assert!(sender.contains(&small), "{place:?}: {sender}");
        let told = packets(&edge, EdgeVerdict::TooBig) - before;
        let sent_on = packets(&edge, EdgeVerdict::IcmpError) - errors;
        let by_the_gateway = matches!(place, Narrow::Towards | Narrow::Back);
        assert_eq!(
            (told > 0, sent_on > 0),
            (by_the_gateway, !by_the_gateway),
            "{place:?}, {vip}: {told} told, {sent_on} sent on"
        );
    }
}

#[test]
fn bytes_get_through_where_the_gateways_own_wires_take_less() {
    for mode in [WantedMode::Native, WantedMode::Generic] {
        carries(Narrow::Towards, mode);
        carries(Narrow::Back, mode);
    }
}

#[test]
fn bytes_get_through_where_routers_wires_take_less() {
    for mode in [WantedMode::Native, WantedMode::Generic] {
        carries(Narrow::Beyond, mode);
        carries(Narrow::BeforeIt, mode);
    }
}
