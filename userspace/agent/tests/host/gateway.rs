//! Connections from other hosts to a virtual address on a gateway that the agent has to see.

mod also;
mod direct;
mod odd;

use std::io::{ErrorKind, Read, Write};

use dataplane::edge::maglev::Table;
use sandbox::Agent;

use crate::common::{
    self, Family, eventually, gateway as hosts,
    gateway::{ENRICHED, ENRICHED_TOO, Hosts, QUICK, both},
    works,
};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn outcome(agent: &Agent<'_>, rule: &str, outcome: &str) -> f64 {
    let name = format!("underpass_connections_total{{outcome=\"{outcome}\",rule=\"{rule}\"}}");
    agent.metric(&name).unwrap()
}

fn refused(hosts: &Hosts, family: Family) -> bool {
    let refused = hosts.connect(family).map(drop);
    refused.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[test]
fn an_enriched_client_is_decoded_and_flows_say_which_backend_it_has() {
    let hosts = Hosts::new();
    let agent = hosts.agent(&both("enrich", ""));
    for family in FAMILIES {
        let mut clients: Vec<_> = (0..24).map(|_| hosts.connect(family).unwrap()).collect();
        assert!(clients.iter_mut().all(works));
        let flows = agent.json("/flows").unwrap();
        let flows = flows.as_array().unwrap();
        let mut used = [0, 0];
        // Where the edge would forward them to.
        let table = Table::new(&hosts::backends(family).map(|at| (at, 1))).unwrap();
        for client in &clients {
            let own = client.local_addr().unwrap();
            let turn = table.choose(own, hosts::virtual_address(family));
            let own = own.to_string();
            let flow = flows.iter().find(|flow| flow["client"] == own).unwrap();
            assert_eq!(flow["path"], "enrich", "{flow}");
            assert_eq!(flow["orig_dst"], hosts::virtual_address(family).to_string());
            let backend = hosts::backends(family)
                .iter()
                .position(|at| flow["backend"] == at.to_string());
            assert_eq!(backend, Some(turn), "{flow}");
            used[turn] += 1;
        }
        // All on one side: once in eight million times.
        assert!(used.iter().all(|n| *n > 0), "{used:?}");
        for peer in hosts.peers(family) {
            assert_eq!(peer.ip(), hosts::own(family), "the dial is the gateway's");
        }
        assert_eq!(outcome(&agent, family_rule(family), "intercepted"), 24.0);
    }
    let decoded = "underpass_edge_connections_total{outcome=\"allowed\",rule=\"v4\"}";
    assert_eq!(agent.metric(decoded).unwrap(), 24.0);
}

fn family_rule(family: Family) -> &'static str {
    match family {
        Family::V6 => "v6",
        _ => "v4",
    }
}

#[test]
fn its_neighbours_are_forwarded_and_what_cannot_be_is_relayed() {
    let hosts = Hosts::new();
    // Of the gateway's ports towards a backend there are two.
    hosts.gateway_ports(2);
    let agent = hosts.agent(&format!(
        "{}{}",
        hosts::rule(
            "read",
            Family::V4,
            "enrich",
            &format!("from = [\"{ENRICHED}\"]")
        ),
        hosts::rule("rest", Family::V4, "bypass", ""),
    ));
    let mut read = hosts.connect_from(ENRICHED, Family::V4).unwrap();
    assert!(works(&mut read));
    // Two for each of two backends.
    let mut forwarded = Vec::new();
    let passed_up = "underpass_edge_connections_total{outcome=\"passed_up\",rule=\"rest\"}";
    eventually("the ports are taken", || {
        forwarded.push(hosts.connect(Family::V4).unwrap());
        agent.metric(passed_up).unwrap() == 1.0
    });
    assert!(works(&mut read) && forwarded.iter_mut().all(works));
    let flows = agent.json("/flows").unwrap();
    let flows = flows.as_array().unwrap();
    let path_of = |client: &std::net::TcpStream| {
        let own = client.local_addr().unwrap().to_string();
        let flow = flows.iter().find(|flow| flow["client"] == own);
        flow.map(|flow| flow["path"].as_str().unwrap().to_owned())
    };
    assert_eq!(path_of(&read).as_deref(), Some("enrich"));
    let (last, others) = forwarded.split_last().unwrap();
    assert_eq!(path_of(last).as_deref(), Some("relay"));
    assert!(others.iter().all(|client| path_of(client).is_none()));
    let no_port = "underpass_edge_packets_total{verdict=\"no_port\"}";
    assert!(agent.metric(no_port).unwrap() >= 1.0);
}

#[test]
fn where_no_backend_takes_connections_they_are_refused() {
    let hosts = Hosts::new();
    let agent = hosts.agent(&both("enrich", ""));
    let mut established = hosts.connect(Family::V4).unwrap();
    for at in hosts::backends(Family::V4) {
        hosts::order(&agent, at, "drain");
    }
    assert!(refused(&hosts, Family::V4));
    assert_eq!(outcome(&agent, "v4", "failed_closed"), 1.0);
    let cause = "underpass_safer_path_total{cause=\"no_backend\"}";
    assert_eq!(agent.metric(cause).unwrap(), 1.0);
    assert!(works(&mut established));
    hosts::order(&agent, hosts::backends(Family::V4)[0], "up");
    assert!(works(&mut hosts.connect(Family::V4).unwrap()));
}

#[test]
fn a_backend_that_refuses_resets_its_client_and_is_avoided() {
    let hosts = Hosts::new();
    // No check comes while this lasts.
    let agent = hosts.agent_with(&both("enrich", ""), "[health]\ninterval = \"60s\"\n");
    eventually("the first checks are over", || {
        let views = agent.json("/backends").unwrap();
        let mut views = views.as_array().unwrap().iter();
        views.all(|view| view["checks_good"].as_u64().unwrap_or(1) > 0)
    });
    hosts.kill(0);
    let mut failed = 0;
    // Each time it fails the backend is suspected; after two it is out.
    for _ in 0..64 {
        let client = hosts.connect(Family::V4);
        failed += usize::from(!client.is_ok_and(|mut client| works(&mut client)));
    }
    assert!((1..=2).contains(&failed), "{failed}");
    assert!(works(&mut hosts.connect(Family::V4).unwrap()));
}

#[test]
fn clients_of_a_backend_that_dies_in_silence_are_told_if_the_file_says_so() {
    let hosts = Hosts::new();
    let health = format!("{QUICK}established = \"reset\"\n");
    let agent = hosts.agent_with(&both("bypass", ""), &health);
    let mut clients: Vec<_> = FAMILIES
        .iter()
        .map(|f| hosts.connect(*f).unwrap())
        .collect();
    assert!(clients.iter_mut().all(works));
    let netns = &hosts.gateway.netns;
    netns.ip(&["link", "set", "databases", "down"]).unwrap();
    for client in &mut clients {
        eventually("its connection is reset", || {
            // A packet that comes too early is lost with the wire; TCP sends it again.
            let wrote = client.write_all(&common::options(1));
            client.set_nonblocking(true).unwrap();
            let done = wrote.and_then(|()| client.read(&mut [0; 256]));
            done.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
        });
    }
    let told = agent
        .metric("underpass_edge_packets_total{verdict=\"reset\"}")
        .unwrap();
    assert!(told >= 2.0, "{told}");
    assert!(agent.log().contains("forwarded connections given up"));
}

#[test]
fn a_session_rule_has_the_agent_see_who_would_be_forwarded() {
    let hosts = Hosts::new();
    let asks = "[[rule]]\nname = \"asks\"\nto = [\"10.9.0.10:9042\"]\nuser = [\"reports\"]\n\
                action = \"deny\"\n";
    let policy = asks.to_owned() + &hosts::rule("rest", Family::V4, "bypass", "");
    let agent = hosts.agent(&policy);
    let mut client = hosts.connect(Family::V4).unwrap();
    assert!(works(&mut client));
    let flows = agent.json("/flows").unwrap();
    let flow = &flows.as_array().unwrap()[0];
    assert_eq!(flow["client"], client.local_addr().unwrap().to_string());
    let backends = hosts::backends(Family::V4).map(|at| at.to_string());
    let backend = flow["backend"].as_str().unwrap();
    assert!(backends.iter().any(|at| at == backend), "{flow}");
}

#[test]
fn an_agent_that_is_gone_takes_nobody_and_the_next_one_does() {
    let hosts = Hosts::new();
    let read = |name: &str, from: &str, fail: &str| {
        let rest = format!("from = [\"{from}\"]\nfail = \"{fail}\"");
        hosts::rule(name, Family::V4, "enrich", &rest)
    };
    let rules = [
        read("open", ENRICHED, "open"),
        read("closed", ENRICHED_TOO, "closed"),
        hosts::rule("rest", Family::V4, "bypass", ""),
    ];
    let mut agent = hosts.agent(&rules.concat());
    let is_read = |from| hosts.connect_from(from, Family::V4);
    for from in [ENRICHED, ENRICHED_TOO] {
        assert!(works(&mut is_read(from).unwrap()));
    }
    agent.kill().unwrap();
    for from in [ENRICHED, ENRICHED_TOO] {
        let error = is_read(from).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
    assert!(works(&mut hosts.connect(Family::V4).unwrap()), "forwarded");
    agent.restart().unwrap();
    assert!(works(&mut is_read(ENRICHED).unwrap()));
    assert_eq!(hosts.taken(), ["10.9.0.10"]);
    assert!(agent.stop().unwrap().success());
    assert_eq!(hosts.taken(), [""; 0]);
    assert!(works(&mut hosts.connect(Family::V4).unwrap()), "forwarded");
    agent.restart().unwrap();
    agent.kill().unwrap();
    assert_eq!(hosts.taken(), ["10.9.0.10"]);
    hosts.detach(&agent);
    assert_eq!(hosts.taken(), [""; 0]);
}

#[test]
fn addresses_are_taken_and_left_as_the_file_says() {
    let hosts = Hosts::new();
    // Somebody else's.
    hosts
        .gateway
        .netns
        .ip(&["route", "add", "local", "10.9.0.99", "dev", "lo"])
        .unwrap();
    let before = hosts.local_routes();
    let agent = hosts.agent(&both("bypass", ""));
    assert_eq!(hosts.local_routes(), before, "nothing has to be seen");
    let mut forwarded = hosts.connect(Family::V4).unwrap();
    assert!(works(&mut forwarded));

    hosts.write(&agent, &both("enrich", ""));
    eventually("they are taken", || hosts.taken().len() == 2);
    for family in FAMILIES {
        eventually("and seen", || {
            let mut client = hosts.connect(family).unwrap();
            works(&mut client) && !agent.json("/flows").unwrap().as_array().unwrap().is_empty()
        });
    }
    assert!(works(&mut forwarded), "what is forwarded goes on");

    // What was removed is made again.
    let netns = &hosts.gateway.netns;
    netns
        .ip(&[
            "route",
            "del",
            "local",
            "10.9.0.10",
            "dev",
            "lo",
            "table",
            "local",
        ])
        .unwrap();
    eventually("it is there again", || hosts.taken().len() == 2);

    hosts.write(&agent, &both("bypass", ""));
    eventually("they are left", || hosts.local_routes() == before);
    assert!(works(&mut hosts.connect(Family::V4).unwrap()));
    assert!(works(&mut forwarded));
    hosts.write(&agent, &both("enrich", ""));
    eventually("and taken once more", || {
        hosts.taken().len() == 2 && works(&mut hosts.connect(Family::V6).unwrap())
    });
}

#[test]
fn an_address_has_as_many_connections_as_its_rule_lets_it_have() {
    let hosts = Hosts::new();
    let limit = "from = [\"0.0.0.0/0\"]\nlimit = { connections = 2, per = \"address\" }";
    let agent = hosts.agent(&hosts::rule("v4", Family::V4, "enrich", limit));
    let mut clients = [0, 1].map(|_| hosts.connect(Family::V4).unwrap());
    assert!(refused(&hosts, Family::V4));
    assert_eq!(outcome(&agent, "v4", "denied"), 1.0);
    assert_eq!(common::cause(&agent, "client_limit"), 1.0);
    assert!(clients.iter_mut().all(works));
    assert!(works(
        &mut hosts.connect_from(ENRICHED, Family::V4).unwrap()
    ));
    drop(clients);
    eventually("there is room", || hosts.connect(Family::V4).is_ok());
}
