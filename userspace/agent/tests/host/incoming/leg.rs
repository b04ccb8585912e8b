//! The dialled leg: whose address the database sees, and how its connection ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    socket::{setsockopt, sockopt::TcpRepair},
};
use socket2::{Domain, Socket, Type};

use super::hosts::*;
use crate::common::{Family, PATIENCE, accept, enrich, eventually, supported};

#[test]
fn an_enriched_client_is_decoded_and_the_database_sees_its_address_and_port() {
    let hosts = Hosts::new();
    let [any4, any6]: [IpAddr; 2] = ["0.0.0.0", "::"].map(|ip| ip.parse().unwrap());
    let cases = [
        (Family::V4, Family::V4.database()),
        (Family::V4, any4),
        (Family::V4, any6),
        (Family::V6, Family::V6.database()),
        (Family::V6, any6),
    ];
    let ports: Vec<u16> = (PORT..).take(cases.len()).collect();
    let listeners: Vec<TcpListener> = cases
        .iter()
        .zip(&ports)
        .map(|((_, at), port)| hosts.listen_at(SocketAddr::new(*at, *port)))
        .collect();
    let agent = hosts.agent(&enrich(&ports));
    for ((family, at), (listener, port)) in cases.into_iter().zip(listeners.iter().zip(ports)) {
        let dialled = SocketAddr::new(family.database(), port);
        let mut client = hosts.connect_to(dialled).unwrap();
        let (mut database, peer) = accept(listener);
        let seen = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        assert_eq!(seen, client.local_addr().unwrap(), "{family:?} at {at}");
        exchange(&mut client, &mut database);
        let flows = agent.json("/flows").unwrap();
        let all = flows.as_array().unwrap();
        let is_its = |f: &&serde_json::Value| f["client"] == seen.to_string();
        let flow = all.iter().find(is_its).unwrap();
        assert_eq!(flow["path"], "enrich", "{flows}");
        assert_eq!(flow["orig_dst"], dialled.to_string());
        assert_eq!(flow["pid"], serde_json::Value::Null);
    }
    assert_eq!(outcome(&agent, "intercepted"), cases.len() as f64);
}

#[test]
fn where_the_routing_cannot_be_had_the_database_sees_this_hosts_address() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Family::V4);
    let agent = hosts.agent(&enrich(&[PORT]));
    // Before the agent's, and astray: what the agent makes again does not help.
    let astray = ["rule", "add", "from", "127.86.0.16/28", "priority", "85"];
    let netns = &hosts.database.netns;
    netns
        .ip(&[astray.as_slice(), &["blackhole"]].concat())
        .unwrap();
    let mut client = hosts.connect(Family::V4).unwrap();
    let (mut database, peer) = accept(&listener);
    assert_eq!(peer.ip(), Family::V4.database());
    exchange(&mut client, &mut database);
    let lost = "underpass_client_addresses_lost_total{reason=\"no_answer\"}";
    assert_eq!(agent.metric(lost).unwrap(), 1.0);
}

#[test]
fn one_port_of_a_client_serves_two_databases_at_once_whatever_port_it_is() {
    let hosts = Hosts::new();
    let databases: [SocketAddr; 3] =
        ["192.0.2.2:9042", "192.0.2.3:9042", "192.0.2.2:9043"].map(|text| text.parse().unwrap());
    let listeners = databases.map(|at| hosts.listen_at(at));
    let agent = hosts.agent(&enrich(&[PORT, PORT + 1]));
    for port in [2_000_u16, 40_000] {
        let own = SocketAddr::new(Family::V4.app(), port);
        let mut pairs: Vec<_> = databases
            .iter()
            .zip(&listeners)
            .map(|(to, listener)| {
                let client = hosts.connect_from(&own.to_string(), *to).unwrap();
                let (database, peer) = accept(listener);
                assert_eq!(peer, own, "at {to}");
                (client, database)
            })
            .collect();
        for (client, database) in &mut pairs {
            exchange(client, database);
        }
    }
    let lost = agent.metrics().unwrap();
    let lost = lost
        .iter()
        .filter(|(name, _)| name.contains("addresses_lost"));
    assert_eq!(lost.map(|(_, n)| n).sum::<f64>(), 0.0);
}

#[test]
fn the_agents_own_address_is_dialled_from_where_the_file_says_so() {
    let hosts = Hosts::new();
    let listeners = FAMILIES.map(|family| hosts.listen(family));
    let incoming = "[[incoming]]\nclient_address = \"agent\"\n";
    let agent = hosts.agent_with(incoming, &enrich(&[PORT]));
    assert_eq!(hosts.routing(), "");
    for (family, listener) in FAMILIES.into_iter().zip(&listeners) {
        let mut client = hosts.connect(family).unwrap();
        let (mut database, peer) = accept(listener);
        assert_eq!(peer.ip(), family.database(), "{:?}", agent.metrics());
        exchange(&mut client, &mut database);
    }
}

#[test]
fn ends_and_resets_pass_both_ways() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Family::V4);
    let _agent = hosts.agent(&enrich(&[PORT]));
    let connected = || {
        let client = hosts.connect(Family::V4).unwrap();
        (client, accept(&listener).0)
    };
    let (mut client, mut database) = connected();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(end(&mut database), 0);
    database.write_all(&supported(1)).unwrap();
    drop(database);
    assert_eq!(end(&mut client), supported(1).len());
    let (mut client, database) = connected();
    database.shutdown(Shutdown::Write).unwrap();
    assert_eq!(end(&mut client), 0);
    let reset = |stream: TcpStream| {
        let socket = Socket::from(stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    };
    let (client, mut database) = connected();
    reset(client);
    let error = database.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let (mut client, database) = connected();
    reset(database);
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// A database's end of a connection of which nothing is left at the other one.
fn left_alone(own: SocketAddr, client: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(own), Type::STREAM, None).unwrap();
    setsockopt(&socket, TcpRepair, &1).unwrap();
    match own {
        SocketAddr::V4(_) => socket.set_freebind_v4(true),
        SocketAddr::V6(_) => socket.set_freebind_v6(true),
    }
    .unwrap();
    socket.bind(&own.into()).unwrap();
    // Without a handshake: it is taken for one that was repaired.
    socket.connect(&client.into()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    setsockopt(&socket, TcpRepair, &0).unwrap();
    socket.into()
}

#[test]
fn a_database_that_missed_a_reset_is_told_again() {
    let hosts = Hosts::new();
    let _agent = hosts.agent(&enrich(&[PORT]));
    for (family, own) in [
        (Family::V4, "127.86.0.16:7000"),
        (Family::V4, "127.86.0.31:7000"),
        (Family::V6, "[fd75:6e64:6572:7061::10]:7000"),
    ] {
        let client = SocketAddr::new(family.app(), 5555);
        let left = || left_alone(own.parse().unwrap(), client);
        let mut database = hosts.database.server(left).unwrap();
        let told = database.read(&mut [0]).map_err(|e| e.kind());
        assert_eq!(told, Err(ErrorKind::ConnectionReset), "{own}");
    }
}

/// Takes every port at which the agent may listen for itself, but for so many.
fn leave_ports(hosts: &Hosts, left: u16) -> Vec<Socket> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let take = || {
        let ports = 512..=1023 - left;
        let taken = ports.map(|port| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let at = SocketAddr::from(([127, 86, 0, 1], port));
            socket.bind(&at.into()).unwrap();
            socket
        });
        taken.collect()
    };
    hosts.database.server(take).unwrap()
}

#[test]
fn without_a_listener_for_strays_clients_are_served_and_it_is_had_as_soon_as_it_can_be() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Family::V4);
    // For what this host opens itself, and for what others do.
    let taken = leave_ports(&hosts, 2);
    let agent = hosts.agent(&enrich(&[PORT]));
    let log = agent.log();
    let advice = "needs a TCP port of 127.86.0.1 from 512 to 1023";
    let said = log.lines().filter(|line| line.contains(advice));
    assert!(said.clone().all(|line| line.contains("WARN")), "{log}");
    assert_eq!(said.count(), 1, "{log}");
    let mut client = hosts.connect(Family::V4).unwrap();
    let (mut database, peer) = accept(&listener);
    assert_eq!(peer, client.local_addr().unwrap());
    exchange(&mut client, &mut database);

    let unanswered = "underpass_safer_path_total{cause=\"stray_unanswered\"}";
    assert_eq!(agent.metric(unanswered).unwrap(), 0.0);
    let left = |own: &str| {
        let client = SocketAddr::new(Family::V4.app(), 5555);
        let left = || left_alone(own.parse().unwrap(), client);
        hosts.database.server(left).unwrap()
    };
    let asks = left("127.86.0.16:7000");
    eventually("it asks, and nobody answers", || {
        agent.metric(unanswered).unwrap() > 0.0
    });
    assert_eq!(asks.take_error().unwrap().map(|e| e.kind()), None);
    drop(taken);
    agent.wait_for_log("has its listener for strays").unwrap();
    let told = left("127.86.0.17:7000").read(&mut [0]);
    assert_eq!(told.map_err(|e| e.kind()), Err(ErrorKind::ConnectionReset));
}

#[test]
fn many_clients_at_once_are_each_served_under_their_own_address() {
    const CLIENTS: usize = 400;
    let hosts = Hosts::new();
    let at = SocketAddr::new(Family::V4.database(), PORT);
    let bind = || TcpListener::bind(at).unwrap();
    let listener = hosts.database.client(bind).unwrap();
    let agent = hosts.agent(&enrich(&[PORT]));
    let seen = std::thread::scope(|scope| {
        let database = scope.spawn(|| {
            let mut open = Vec::new();
            for _ in 0..CLIENTS {
                let (mut stream, peer) = accept(&listener);
                stream.write_all(peer.to_string().as_bytes()).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                open.push(stream);
            }
            open.len()
        });
        let dial_some = |_| {
            let clients = (0..CLIENTS / 4).map(|_| hosts.connect(Family::V4).unwrap());
            clients.collect::<Vec<_>>()
        };
        let threads = [0, 1, 2, 3].map(|n| scope.spawn(move || dial_some(n)));
        for client in threads.into_iter().flat_map(|t| t.join().unwrap()) {
            let mut client = client;
            let mut says = String::new();
            client.read_to_string(&mut says).unwrap();
            assert_eq!(says, client.local_addr().unwrap().to_string());
        }
        database.join().unwrap()
    });
    assert_eq!(seen, CLIENTS);
    assert_eq!(outcome(&agent, "intercepted"), CLIENTS as f64);
    eventually("all have ended", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });
}
