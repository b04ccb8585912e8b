//! Packets that the edge does not forward, at an address that the agent has: the agent relays them.

use std::net::TcpStream;

use sandbox::{Agent, run_in};
use socket2::{Domain, Socket, Type};

use super::FAMILIES;
use crate::common::{
    Family, PATIENCE,
    gateway::{self as hosts, Hosts, virtual_address},
    ip_options, works,
};

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
        let mut client = dial(&hosts, family, |socket| ip_options::set(socket, family));
        expect_relayed(&agent, &mut client);
        assert!(fate(&agent, cause) >= 1.0);
        drop(client);
        crate::common::eventually("its flow has ended", || {
            agent.json("/flows").unwrap() == serde_json::json!([])
        });
    }
}
