//! Backends that have the virtual address themselves, and answer clients directly.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};

use sandbox::Agent;

use super::FAMILIES;
use crate::common::{
    self, eventually,
    gateway::{self as hosts, Hosts, QUICK, backends, both},
    works,
};

fn packets(agent: &Agent<'_>, verdict: &str) -> f64 {
    let name = format!("underpass_edge_packets_total{{verdict=\"{verdict}\"}}");
    agent.metric(&name).unwrap()
}

fn connect_to_both(hosts: &Hosts) -> Vec<TcpStream> {
    let clients = FAMILIES.map(|family| hosts.connect(family).unwrap());
    clients.into()
}

#[test]
fn orders_and_files_move_new_connections_and_no_established_one() {
    let hosts = Hosts::new();
    let _databases = hosts.share_virtual_addresses();
    let agent = hosts.agent_direct(&both("bypass", ""), QUICK);
    let mut established = connect_to_both(&hosts);
    assert!(established.iter_mut().all(works));
    let before = packets(&agent, "to_backend");
    assert!(before > 0.0 && packets(&agent, "to_client") == 0.0);
    for family in FAMILIES {
        let [first, second] = backends(family);
        hosts::order(&agent, first, "drain");
        assert!(works(&mut hosts.connect(family).unwrap()));
        hosts::order(&agent, second, "drain");
        eventually("no backend takes connections", || {
            hosts.connect(family).is_err()
        });
        assert!(established.iter_mut().all(works));
        hosts::order(&agent, second, "up");
        eventually("one does", || hosts.connect(family).is_ok());
    }
    assert!(packets(&agent, "no_backend") >= 2.0);
    // A file that forwards nothing any more, and one that does again.
    let xdp = |policy: &str| {
        let file = format!("{}{policy}{QUICK}", hosts::XDP.replace("snat", "dsr"));
        agent.write_policy(&file).unwrap();
    };
    xdp("");
    eventually("the rules are gone", || {
        FAMILIES
            .iter()
            .all(|family| hosts.connect(*family).is_err())
    });
    assert!(
        established.iter_mut().all(works),
        "what is forwarded goes on"
    );
    xdp(&both("bypass", ""));
    eventually("they are back", || {
        FAMILIES.iter().all(|family| hosts.connect(*family).is_ok())
    });
    assert!(established.iter_mut().all(works));
}

#[test]
fn clients_of_a_dead_backend_are_told_if_the_file_says_so() {
    let hosts = Hosts::new();
    let _databases = hosts.share_virtual_addresses();
    let health = format!("{QUICK}established = \"reset\"\n");
    let agent = hosts.agent_direct(&both("bypass", ""), &health);
    let mut clients = connect_to_both(&hosts);
    assert!(clients.iter_mut().all(works));
    let netns = &hosts.gateway.netns;
    netns.ip(&["link", "set", "databases", "down"]).unwrap();
    for client in &mut clients {
        client.set_nonblocking(true).unwrap();
        eventually("its connection is reset", || {
            // A packet that comes too early is lost with the wire; TCP sends it again.
            let wrote = client.write_all(&common::options(1));
            let done = wrote.and_then(|()| client.read(&mut [0; 256]));
            done.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
        });
    }
    assert!(packets(&agent, "reset") >= 2.0);
}
