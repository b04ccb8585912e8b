//! TCP through a gateway's edge, between namespaces.

use std::{
    io::{Read, Write},
    net::IpAddr,
};

use crate::{
    gateway::{Gateway, PATIENCE, VIP4, VIP6},
    interface, packets, policy, rule,
};
use dataplane::{
    Edge,
    edge::{EdgeError, EdgeVerdict, Forward, Guarded, Interface, Mode, WantedMode, maglev},
};
use policy::{Action, RuleName};
use sandbox::run_in;

const MIB: usize = 1 << 20;

fn both() -> [IpAddr; 2] {
    [VIP4, VIP6].map(|ip| ip.parse().unwrap())
}

/// Connections reach both backends, as Maglev's table says, and carry bytes both ways.
fn carries(gateway: &Gateway, edge: &Edge, gateways_own_address: bool) {
    for to in both() {
        let mut talks: Vec<_> = (0..40).map(|_| gateway.connect(to).unwrap()).collect();
        let rule = Gateway::policy()
            .rules
            .into_iter()
            .find(|r| r.backends[0].is_ipv4() == to.is_ipv4());
        let backends: Vec<_> = rule.unwrap().backends.iter().map(|b| (*b, 1)).collect();
        let table = maglev::Table::new(&backends).unwrap();
        for talk in &mut talks {
            let (client, vip) = (
                talk.stream.local_addr().unwrap(),
                talk.stream.peer_addr().unwrap(),
            );
            assert_eq!(
                usize::from(talk.backend - b'1'),
                table.choose(client, vip),
                "{client}"
            );
            talk.echo(1000);
        }
        let one = talks.iter().filter(|talk| talk.backend == b'1').count();
        assert!((5..=35).contains(&one), "{one} of 40");
        talks[0].echo(2 * MIB);
    }
    assert!(packets(edge, EdgeVerdict::ToBackend) > 0);
    let own = |ip: IpAddr| ip.to_string().ends_with("254");
    let peers = gateway.peers();
    let from_gateway = peers.iter().filter(|peer| own(peer.ip())).count();
    // Four have told the gateway its neighbours.
    let expected = if gateways_own_address { peers.len() } else { 4 };
    assert_eq!(from_gateway, expected, "{peers:?}");
    // Below the ports that the kernel gives to the gateway's own connections.
    let ports = peers
        .iter()
        .filter(|peer| own(peer.ip()) && peer.port() < 32_768);
    assert_eq!(ports.count() + 4, expected);
}

#[test]
fn snat_carries_tcp_in_the_driver() {
    let gateway = Gateway::new();
    let edge = gateway.open(Forward::Snat, WantedMode::Native);
    carries(&gateway, &edge, true);
}

#[test]
fn snat_carries_tcp_in_the_stack() {
    let gateway = Gateway::new();
    // The kernel redirects no packet from there that is larger than the next wire takes, which
    // those of a veth's peer are until the stack has cut them up.
    for host in gateway.backends.iter().chain([&gateway.client]) {
        host.ip(&["link", "set", "veth", "gso_max_segs", "1"])
            .unwrap();
    }
    let edge = gateway.open(Forward::Snat, WantedMode::Generic);
    carries(&gateway, &edge, true);
}

#[test]
fn direct_replies_carry_tcp_and_the_backend_sees_the_client() {
    let gateway = Gateway::new();
    gateway.share_virtual_addresses();
    let edge = gateway.open(Forward::Dsr, WantedMode::Native);
    carries(&gateway, &edge, false);
}

#[test]
fn a_change_of_backends_moves_no_connection_and_new_ones_follow_it() {
    for forward in [Forward::Snat, Forward::Dsr] {
        follows_a_change_of_backends(forward);
    }
}

/// One in which this way of forwarding works.
fn a_gateway(forward: Forward) -> Gateway {
    let gateway = Gateway::new();
    if forward == Forward::Dsr {
        gateway.share_virtual_addresses();
    }
    gateway
}

fn follows_a_change_of_backends(forward: Forward) {
    let gateway = a_gateway(forward);
    let mut edge = gateway.open(forward, WantedMode::Native);
    let to = VIP4.parse().unwrap();
    let name = RuleName::new("v4");
    let backends = ["10.0.2.1:9042", "10.0.3.1:9042"].map(|b| b.parse().unwrap());
    edge.set_backends(&name, &[(backends[0], 1), (backends[1], 0)])
        .unwrap();
    let mut only_one: Vec<_> = (0..20).map(|_| gateway.connect(to).unwrap()).collect();
    assert!(only_one.iter().all(|talk| talk.backend == b'1'));
    edge.set_backends(&name, &[(backends[0], 0), (backends[1], 1)])
        .unwrap();
    for talk in &mut only_one {
        talk.echo(100);
    }
    let only_two: Vec<_> = (0..20).map(|_| gateway.connect(to).unwrap()).collect();
    assert!(only_two.iter().all(|talk| talk.backend == b'2'));
    // Nobody: the stack has them, which knows no such address.
    edge.set_backends(&name, &[(backends[0], 0), (backends[1], 0)])
        .unwrap();
    assert!(gateway.connect(to).is_err());
    assert!(packets(&edge, EdgeVerdict::NoBackend) > 0);
    only_one.iter_mut().for_each(|talk| talk.echo(100));
}

#[test]
fn a_restart_keeps_connections_and_a_deny_ends_them() {
    for forward in [Forward::Snat, Forward::Dsr] {
        survives_a_restart_and_not_a_deny(forward);
    }
}

fn survives_a_restart_and_not_a_deny(forward: Forward) {
    let gateway = a_gateway(forward);
    let edge = gateway.open(forward, WantedMode::Native);
    let mut talks: Vec<_> = both()
        .into_iter()
        .map(|to| gateway.connect(to).unwrap())
        .collect();
    drop(edge);
    // No agent.
    talks.iter_mut().for_each(|talk| talk.echo(10_000));
    talks.extend(both().map(|to| gateway.connect(to).unwrap()));
    let mut edge = gateway.open(forward, WantedMode::Native);
    talks.iter_mut().for_each(|talk| talk.echo(10_000));
    let counters = edge.counters().unwrap();
    assert_eq!(
        counters.packets_of(EdgeVerdict::TableFull) + counters.packets_of(EdgeVerdict::NoNeighbour),
        0
    );

    let mut denying = Gateway::policy();
    denying
        .rules
        .insert(0, rule("no", &["10.0.1.0/24"], &[], Action::Deny));
    edge.install(&denying).unwrap();
    let before = packets(&edge, EdgeVerdict::Denied);
    talks[0].stream.write_all(b"x").unwrap();
    let until = std::time::Instant::now() + PATIENCE;
    while packets(&edge, EdgeVerdict::Denied) == before {
        assert!(
            std::time::Instant::now() < until,
            "an established connection is not denied"
        );
        std::thread::yield_now();
    }
    talks[1].echo(10_000);
    edge.install(&policy(vec![])).unwrap();
    // TCP sends again what was dropped.
    let mut echoed = [0];
    talks[0].stream.read_exact(&mut echoed).unwrap();
}

/// A bridge's driver runs no programs.
#[test]
fn one_that_cannot_has_the_others_forward_in_the_stack_too() {
    let gateway = Gateway::new();
    for args in [
        "link add bridge0 type bridge",
        "link set two master bridge0",
        "addr del 10.0.3.254/24 dev two",
        "addr add 10.0.3.254/24 dev bridge0",
        "link set bridge0 up",
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        gateway.gateway.ip(&args).unwrap();
    }
    let own = |mode: WantedMode, forward: Forward| Interface {
        mode,
        ..interface("client", forward)
    };
    let bridge = |mode: WantedMode| Interface {
        mode,
        ..interface("bridge0", Forward::Snat)
    };
    run_in(Some(&gateway.gateway), None, || {
        let mut edge = gateway.pins.open();
        edge.install(&Gateway::policy()).unwrap();
        let modes = |guarded: &[Guarded]| guarded.iter().map(|g| g.mode).collect::<Vec<_>>();
        // What does not forward is as it can.
        let guarded = edge.guard(&[
            own(WantedMode::Auto, Forward::Off),
            bridge(WantedMode::Auto),
        ]);
        assert_eq!(modes(&guarded.unwrap()), [Mode::Native, Mode::Generic]);
        // Were it to forward as it is, frames would be lost.
        let both = [
            own(WantedMode::Auto, Forward::Snat),
            bridge(WantedMode::Auto),
        ];
        let said = dataplane::edge::examine(&gateway.pins.0, &both);
        assert!(
            said[0].detail.contains("native, and bridge0 generic"),
            "{said:?}"
        );
        let said =
            dataplane::edge::examine(&gateway.pins.0, &[own(WantedMode::Auto, Forward::Off)]);
        assert_eq!(said[0].detail, "native");
        let unlike = edge.guard(&[
            own(WantedMode::Native, Forward::Snat),
            bridge(WantedMode::Generic),
        ]);
        assert!(
            matches!(unlike, Err(EdgeError::Unlike { .. })),
            "{unlike:?}"
        );
        let cannot = edge.guard(&[
            own(WantedMode::Native, Forward::Snat),
            bridge(WantedMode::Auto),
        ]);
        assert!(
            matches!(cannot, Err(EdgeError::Attach { .. })),
            "{cannot:?}"
        );
        let guarded = edge.guard(&both).unwrap();
        assert_eq!(modes(&guarded), [Mode::Generic; 2]);
        let why = guarded[0].not_native.as_deref().unwrap();
        assert!(why.starts_with("bridge0 cannot"), "{why}");
        let only_two = [("10.0.2.1:9042", 0), ("10.0.3.1:9042", 1)];
        let only_two = only_two.map(|(at, weight)| (at.parse().unwrap(), weight));
        edge.set_backends(&RuleName::new("v4"), &only_two).unwrap();
        std::net::TcpStream::connect_timeout(&only_two[1].0, PATIENCE).unwrap();
    })
    .unwrap();
    let mut talk = gateway.connect(VIP4.parse().unwrap()).unwrap();
    assert_eq!(talk.backend, b'2');
    talk.echo(1000);
}

#[test]
fn clients_of_a_backend_that_is_given_up_are_told_at_their_next_packet() {
    for (forward, mode) in [
        (Forward::Snat, WantedMode::Native),
        (Forward::Snat, WantedMode::Generic),
        (Forward::Dsr, WantedMode::Native),
        (Forward::Dsr, WantedMode::Generic),
    ] {
        let gateway = a_gateway(forward);
        let mut edge = gateway.open(forward, mode);
        let connect = |to: IpAddr| gateway.connect(to).unwrap();
        let mut talks: Vec<_> = both()
            .into_iter()
            .flat_map(|to| (0..12).map(move |_| to))
            .map(connect)
            .collect();
        for talk in &mut talks {
            talk.echo(100);
        }
        let given_up: usize = ["10.0.2.1:9042", "[fd00:2::1]:9042"]
            .iter()
            .map(|backend| edge.reset(backend.parse().unwrap()).unwrap())
            .sum();
        let of_it = talks.iter().filter(|talk| talk.backend == b'1').count();
        assert_eq!(given_up, of_it);
        for talk in &mut talks {
            if talk.backend != b'1' {
                talk.echo(100);
                continue;
            }
            // An acknowledgement that was still to be sent may have been the next packet.
            let wrote = talk.stream.write_all(b"x");
            let told = wrote.and_then(|()| talk.stream.read(&mut [0]));
            assert_eq!(
                told.unwrap_err().kind(),
                std::io::ErrorKind::ConnectionReset
            );
        }
        assert!(packets(&edge, EdgeVerdict::Reset) >= of_it as u64);
        // It may be alive all the same.
        for to in both() {
            (0..12).for_each(|_| connect(to).echo(10));
        }
    }
}
