//! Packets that the edge does not forward, at an address that the agent has: the agent relays them.

use std::net::TcpStream;

use nix::{libc, setsockopt_impl, sockopt_impl, sys::socket::setsockopt};
use sandbox::{Agent, run_in};
use socket2::{Domain, Socket, Type};

use super::FAMILIES;
use crate::common::{
    Family, PATIENCE,
    gateway::{self as hosts, Hosts, virtual_address},
    works,
};

sockopt_impl!(
    /// Behind the IPv4 header of each packet.
    Options,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_OPTIONS,
    u32
);
sockopt_impl!(
    /// A header of options for the destination in each packet.
    DestinationOptions,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_DSTOPTS,
    u64
);

/// No-operations.
const NOTHING4: u32 = 0x0101_0101;
/// Eight bytes, of which six are padding.
const NOTHING6: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];

/// Somebody's flows are read, so that the agent has the addresses; the rest is forwarded.
fn policy() -> String {
    let of = |family, name: &str, from: &str| {
        hosts::rule(
            &format!("read{name}"),
            family,
            "enrich",
            &format!("from = [\"{from}\"]"),
        ) + &hosts::rule(&format!("rest{name}"), family, "bypass", "")
    };
    of(Family::V4, "4", hosts::ENRICHED) + &of(Family::V6, "6", "fd00:2::7")
}

fn fate(agent: &Agent<'_>, fate: &str) -> f64 {
    let name = format!("underpass_edge_packets_total{{verdict=\"{fate}\"}}");
    agent.metric(&name).unwrap()
}

fn dial(hosts: &Hosts, family: Family, odd: impl FnOnce(&Socket) + Send) -> TcpStream {
    let to = virtual_address(family);
    let dial = || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        odd(&socket);
        socket.connect_timeout(&to.into(), PATIENCE).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.into()
    };
    run_in(Some(&hosts.clients), None, dial).unwrap()
}

fn expect_relayed(agent: &Agent<'_>, client: &mut TcpStream) {
    assert!(works(client));
    let own = client.local_addr().unwrap().to_string();
    let flows = agent.json("/flows").unwrap();
    let flow = flows
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["client"] == own);
    assert_eq!(flow.unwrap()["path"], "relay", "{flows}");
}

#[test]
fn clients_with_options_in_their_packets_are_relayed() {
    let hosts = Hosts::new();
    let agent = hosts.agent(&policy());
    for (family, cause) in FAMILIES.into_iter().zip(["ip_options", "extension_header"]) {
        let mut plain = dial(&hosts, family, |_| {});
        assert!(works(&mut plain));
        assert_eq!(agent.json("/flows").unwrap(), serde_json::json!([]));
        assert_eq!(fate(&agent, cause), 0.0);
        let mut client = dial(&hosts, family, |socket| match family {
            Family::V6 => {
                let nothing = u64::from_ne_bytes(NOTHING6);
                setsockopt(socket, DestinationOptions, &nothing).unwrap();
            }
            _ => setsockopt(socket, Options, &NOTHING4).unwrap(),
        });
        expect_relayed(&agent, &mut client);
        assert!(fate(&agent, cause) >= 1.0);
        drop(client);
        crate::common::eventually("its flow has ended", || {
            agent.json("/flows").unwrap() == serde_json::json!([])
        });
    }
}
