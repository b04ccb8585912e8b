//! A gateway on whose one interface everybody is: packets are tried out, and go nowhere.

use std::net::{IpAddr, SocketAddr};

use dataplane::{
    Edge,
    edge::{Forward, Interface, WantedMode},
};
use policy::{Action, Policy, Rule};
use sandbox::{Netns, run_in};

use super::{TestPins, interface, policy, rule};

pub const DEVICE: &str = "one";
pub const VIP4: &str = "10.9.0.10:9042";
pub const VIP6: &str = "[fd00:9::10]:9042";
/// The gateway's own.
pub const OWN4: &str = "10.0.0.254";
pub const OWN6: &str = "fd00::254";
/// Number of the client, whose MAC the gateway knows: `02:00:00:00:00:NN`.
pub const CLIENT: u8 = 1;
pub const ROUTER: u8 = 2;
const FIRST_BACKEND: u8 = 100;

pub fn host(number: u8, is_ipv4: bool) -> IpAddr {
    match is_ipv4 {
        true => format!("10.0.0.{number}").parse().unwrap(),
        false => format!("fd00::{number:x}").parse().unwrap(),
    }
}

/// Rules that forward to so many backends, one for each family.
pub fn forwarding(backends: u8) -> Vec<Rule> {
    [(VIP4, true), (VIP6, false)]
        .map(|(vip, is_ipv4)| {
            let mut rule = rule(vip.split(':').next().unwrap(), &[], &[vip], Action::Bypass);
            let hosts = (0..backends).map(|n| host(FIRST_BACKEND + n, is_ipv4));
            rule.backends = hosts.map(|ip| SocketAddr::new(ip, 9042)).collect();
            rule
        })
        .into()
}

/// Runs `body` with an edge that forwards, of so many connections, by these rules.
pub fn with_gateway(
    how: (Forward, WantedMode),
    connections: u32,
    rules: Vec<Rule>,
    body: impl FnOnce(&mut Edge) + Send,
) {
    with_ports(None, how, connections, rules, body);
}

/// Opens a gateway that has so many ports towards each backend.
pub fn with_ports(
    ports: Option<u16>,
    (forward, mode): (Forward, WantedMode),
    connections: u32,
    rules: Vec<Rule>,
    body: impl FnOnce(&mut Edge) + Send,
) {
    let known: Policy = policy(rules);
    let (gateway, _other) = gateway_of(&known);
    if let Some(ports) = ports {
        let kernels = format!("{} 60999", 1024 + ports);
        let name = "net.ipv4.ip_local_port_range";
        gateway.sysctl(name, &kernels).unwrap();
    }
    run_in(Some(&gateway), None, || {
        let pins = TestPins::new();
        let mut edge = Edge::open(&pins.0, connections).unwrap();
        edge.install(&known).unwrap();
        edge.guard(&[Interface {
            mode,
            ..interface(DEVICE, forward)
        }])
        .unwrap();
        body(&mut edge);
    })
    .unwrap();
}

/// The gateway, which knows everybody's MAC, and who is at the other end of its wire.
pub fn gateway_of(known: &Policy) -> (Netns, Netns) {
    let (gateway, other) = (Netns::new().unwrap(), Netns::new().unwrap());
    // It would solicit routers, which are packets, too.
    other
        .sysctl("net.ipv6.conf.default.disable_ipv6", "1")
        .unwrap();
    let own = [format!("{OWN4}/24"), format!("{OWN6}/64")];
    other
        .join_as(&[], (&gateway, DEVICE), &[&own[0], &own[1]])
        .unwrap();
    gateway.sysctl("net.ipv4.ip_forward", "1").unwrap();
    gateway.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    let backends = known
        .rules
        .iter()
        .flat_map(|rule| &rule.backends)
        .map(|b| b.ip());
    let others = [CLIENT, ROUTER]
        .into_iter()
        .flat_map(|n| [host(n, true), host(n, false)]);
    for ip in backends.chain(others) {
        let last = match ip {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(v6) => v6.octets()[15],
        };
        let mac = format!("02:00:00:00:00:{last:02x}");
        gateway
            .ip(&[
                "neigh",
                "replace",
                &ip.to_string(),
                "lladdr",
                &mac,
                "dev",
                DEVICE,
            ])
            .unwrap();
    }
    // Where clients beyond the router are.
    let via = host(ROUTER, true).to_string();
    gateway
        .ip(&["route", "add", "11.0.0.0/8", "via", &via])
        .unwrap();
    (gateway, other)
}
