//! Databases behind a virtual address: who gets new connections, and what an application sees.

mod fleet;

mod peers;

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Instant,
};

use fleet::*;
use socket2::{SockAddr, SockRef};

use crate::common::*;

/// Enough that none of three is drawn less than ten times: once in 10^8 runs.
const MANY: usize = 120;

#[test]
fn connections_to_a_virtual_address_go_to_its_backends() {
    for family in FAMILIES {
        let fleet = Fleet::new(family);
        let agent = fleet.hosts.agent(&fleet.rule("bypass", ""));
        let clients = fleet.connect_many(MANY);
        for client in &clients {
            assert_eq!(
                fleet.hosts.client(|| client.peer_addr().unwrap()),
                fleet.dialled()
            );
            let original = fleet.hosts.client(|| match family {
                Family::V6 => SockRef::from(client).original_dst_v6(),
                _ => SockRef::from(client).original_dst_v4(),
            });
            let original = original.unwrap().as_socket().unwrap();
            assert_eq!(original, fleet.virtual_address());
        }
        let by_backend = fleet.count(&clients);
        assert!(by_backend.iter().all(|n| *n >= 10), "{by_backend:?}");
        let of_rule = "underpass_connections_total{outcome=\"balanced\",rule=\"r\"}";
        assert_eq!(agent.metric(of_rule).unwrap(), MANY as f64);
    }
}

#[test]
fn a_connect_that_does_not_block_goes_to_a_backend_as_well() {
    let fleet = Fleet::new(Family::V4);
    let _agent = fleet.hosts.agent(&fleet.rule("bypass", ""));
    fleet.hosts.client(|| {
        let socket = socket(Family::V4);
        socket.set_nonblocking(true).unwrap();
        let error = socket
            .connect(&SockAddr::from(fleet.dialled()))
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::libc::EINPROGRESS));
        eventually("connected", || socket.peer_addr().is_ok());
        let peer = socket.peer_addr().unwrap().as_socket();
        assert_eq!(peer, Some(fleet.dialled()));
        assert!(socket.take_error().unwrap().is_none());
    });
}

#[test]
fn what_the_rule_does_not_hold_for_is_left_alone() {
    let fleet = Fleet::new(Family::V4);
    let _agent = fleet.hosts.agent(&fleet.rule("bypass", ""));
    let direct = fleet.backends[0];
    let peer = fleet
        .hosts
        .client(|| connect(Family::V4, direct).unwrap().peer_addr().unwrap());
    assert_eq!(peer, direct);
    let other_port: SocketAddr = "10.9.0.10:9043".parse().unwrap();
    let error = fleet
        .hosts
        .client(|| connect(Family::V4, other_port).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
}

#[test]
fn balancing_goes_on_without_the_agent_and_names_stay_over_agents() {
    let fleet = Fleet::new(Family::V4);
    let mut agent = fleet.hosts.agent(&fleet.rule("bypass", ""));
    let named = |client: &TcpStream| fleet.hosts.client(|| client.peer_addr().unwrap());
    let before = fleet.connect().unwrap();
    agent.kill().unwrap();
    let without = fleet.connect_many(MANY);
    let by_backend = fleet.count(&without);
    assert!(by_backend.iter().all(|n| *n >= 10), "{by_backend:?}");
    assert_eq!(named(&without[0]), fleet.dialled());
    assert_eq!(named(&before), fleet.dialled());
    agent.restart().unwrap();
    assert_eq!(named(&without[0]), fleet.dialled());
    assert_eq!(named(&before), fleet.dialled());
    assert_eq!(named(&fleet.connect().unwrap()), fleet.dialled());
    // Stopped on purpose, it leaves nothing.
    agent.stop().unwrap();
    assert_eq!(
        fleet.connect().unwrap_err().kind(),
        ErrorKind::NetworkUnreachable
    );
    assert!(!agent.pins().exists());
}

#[test]
fn a_mark_leaves_the_backends_to_the_rules() {
    let fleet = Fleet::new(Family::V4);
    let policy = fleet.rule("bypass", "");
    let agent = fleet.hosts.agent(&policy);
    let to = format!("to={}", fleet.virtual_address());
    let marked = Command::new(BINARY)
        .args(["mark", &to, "observe", "--control"])
        .arg(agent.control())
        .output()
        .unwrap();
    assert!(marked.status.success(), "{marked:?}");
    let mut client = fleet.connect().unwrap();
    assert_eq!(
        fleet.hosts.client(|| client.peer_addr().unwrap()),
        fleet.dialled()
    );
    assert!(works(&mut client));
    // The meter follows the socket, whatever its peer.
    let flows = agent.json("/flows").unwrap();
    assert_eq!(flows[0]["rule"], "mark-1");
    assert_eq!(flows[0]["action"], "observe");
    assert_eq!(flows[0]["orig_dst"], fleet.virtual_address().to_string());
    assert_eq!(flows[0]["requests"], 1);
    assert_eq!(flows[0]["responses"], 1);
}

#[test]
fn a_dead_backend_gets_no_new_connections_two_intervals_later_and_a_live_one_gets_its_back() {
    let fleet = Fleet::new(Family::V4);
    let agent = fleet.hosts.agent(&(fleet.rule("bypass", "") + QUICK));
    let dead = fleet.backends[0];
    eventually("checked", || view(&agent, dead)["checks_good"] != 0);
    let (_, mut to_others) = fleet.split(fleet.connect_many(20), 0);
    let died = Instant::now();
    fleet.kill(0);
    // Whoever dials it meanwhile is refused, as by any dead database.
    let mut refused = Vec::new();
    while died.elapsed() < 3 * INTERVAL {
        if let Err(error) = fleet.connect() {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            refused.push(died.elapsed());
        }
    }
    assert!(refused.iter().all(|at| *at < 2 * INTERVAL), "{refused:?}");
    assert!(!refused.is_empty());
    assert_eq!(state(&agent, dead), "down");
    assert_eq!(fleet.count(&fleet.connect_many(MANY))[0], 0);
    assert!(to_others.iter_mut().all(works));
    let up = format!("underpass_backend_up{{backend=\"{dead}\"}}");
    assert_eq!(agent.metric(&up).unwrap(), 0.0);
    agent.wait_for_log("backend is down").unwrap();

    fleet.revive(0);
    eventually("up again", || state(&agent, dead) == "up");
    assert!(fleet.count(&fleet.connect_many(MANY))[0] >= 10);
    assert_eq!(agent.metric(&up).unwrap(), 1.0);
}

#[test]
fn a_backend_that_accepts_and_says_nothing_is_dead_unless_it_need_not_speak() {
    let fleet = Fleet::new(Family::V6);
    let silent = fleet.hosts.listen(Distance::There, Family::V6);
    let silent = silent.local_addr().unwrap();
    let backends = [fleet.backends[1], silent];
    let policy = rule("bypass", &fleet.balanced(&backends, ""));
    let agent = fleet.hosts.agent(&(policy.clone() + QUICK));
    eventually("found out", || state(&agent, silent) == "down");
    let said = view(&agent, silent)["last_error"].to_string();
    assert!(said.contains("no answer in 80 ms"), "{said}");
    assert_eq!(fleet.count(&fleet.connect_many(30))[1], 30);
    // The file changes, and what is known of backends stays.
    agent
        .write_policy(&(policy + QUICK + "cql = false\n"))
        .unwrap();
    eventually("to accept is enough", || state(&agent, silent) == "up");
}

#[test]
fn an_operator_drains_takes_out_and_brings_back() {
    let fleet = Fleet::new(Family::V4);
    let policy = fleet.rule("bypass", "") + QUICK;
    let agent = fleet.hosts.agent(&policy);
    let backend = fleet.backends[2];
    let (mut before, _) = fleet.split(fleet.connect_many(MANY), 2);
    assert!(order(&agent, backend, "drain").contains("is draining"));
    assert_eq!(fleet.count(&fleet.connect_many(MANY))[2], 0);
    assert!(before.iter_mut().all(works));
    // A reload does not undo it.
    agent.write_policy(&format!("{policy}# changed\n")).unwrap();
    agent.wait_for_log("policy reloaded").unwrap();
    assert_eq!(state(&agent, backend), "draining");
    assert_eq!(fleet.count(&fleet.connect_many(MANY))[2], 0);
    assert!(order(&agent, backend, "down").contains("is down (ordered down)"));
    assert_eq!(fleet.count(&fleet.connect_many(MANY))[2], 0);
    assert!(order(&agent, backend, "up").contains("is up"));
    assert!(fleet.count(&fleet.connect_many(MANY))[2] >= 10);
    assert!(before.iter_mut().all(works));
    let admin = agent.admin().to_string();
    let list = |json: &[&str]| {
        let args = [&["backends", "--admin", &admin], json].concat();
        let listed = fleet
            .hosts
            .direct(|| Command::new(BINARY).args(args).output());
        String::from_utf8(listed.unwrap().stdout).unwrap()
    };
    let as_json: serde_json::Value = serde_json::from_str(&list(&["--json"])).unwrap();
    let listed = as_json.as_array().unwrap();
    let is_it = |listed: &serde_json::Value| listed["backend"] == backend.to_string();
    assert_eq!(listed.len(), 3, "{as_json}");
    assert!(listed.iter().any(is_it), "{as_json}");
    let listed = list(&[]);
    assert_eq!(listed.lines().count(), 4, "{listed}");
    assert!(listed.starts_with("BACKEND"), "{listed}");
    assert!(listed.contains(&backend.to_string()), "{listed}");
}

#[test]
fn without_a_live_backend_the_rule_says_what_happens() {
    for (fail, kind) in [
        ("open", ErrorKind::NetworkUnreachable),
        ("closed", ErrorKind::PermissionDenied),
    ] {
        let fleet = Fleet::new(Family::V4);
        let actions = ["bypass", "observe", "enrich"];
        let rules = actions.iter().zip(9001..).map(|(action, port)| {
            let keys = fleet.balanced(&fleet.backends, &format!("fail = \"{fail}\""));
            rule(action, &keys)
                .replace(":9042", &format!(":{port}"))
                .replace("\"r\"", &format!("\"{action}\""))
        });
        let agent = fleet.hosts.agent(&(rules.collect::<String>() + QUICK));
        (0..3).for_each(|backend| fleet.kill(backend));
        let is_down = |at: &SocketAddr| state(&agent, *at) == "down";
        eventually("all are down", || fleet.backends.iter().all(is_down));
        for (n, (action, port)) in actions.iter().zip(9001..).enumerate() {
            let to = SocketAddr::new(fleet.virtual_address().ip(), port);
            let error = fleet.hosts.client(|| connect(Family::V4, to).unwrap_err());
            assert_eq!(error.kind(), kind, "{action}, {fail}");
            let of = |metric: &str| agent.metric(metric).unwrap();
            let cause = "underpass_safer_path_total{cause=\"no_backend\"}";
            assert_eq!(of(cause), n as f64 + 1.0);
            let outcome = format!("outcome=\"failed_{fail}\",rule=\"{action}\"");
            assert_eq!(
                of(&format!("underpass_connections_total{{{outcome}}}")),
                1.0
            );
        }
    }
}

#[test]
fn enriched_flows_are_dialled_to_a_backend() {
    for family in FAMILIES {
        let fleet = Fleet::new(family);
        let agent = fleet.hosts.agent(&(fleet.rule("enrich", "") + QUICK));
        let mut clients = fleet.connect_many(60);
        assert!(clients.iter_mut().all(works));
        let client = &clients[0];
        assert_eq!(
            fleet.hosts.client(|| client.peer_addr().unwrap()),
            fleet.dialled()
        );
        // The database sees the client's own port.
        let by_backend = fleet.count(&clients);
        assert!(by_backend.iter().all(|n| *n >= 1), "{by_backend:?}");
        let flows = agent.json("/flows").unwrap();
        let flows = flows.as_array().unwrap();
        assert_eq!(flows.len(), 60);
        for flow in flows {
            assert_eq!(flow["orig_dst"], fleet.virtual_address().to_string());
            let backend: SocketAddr = flow["backend"].as_str().unwrap().parse().unwrap();
            assert!(fleet.backends.contains(&backend));
            assert_eq!(flow["path"], "enrich");
        }
        let seen = fleet
            .backends
            .iter()
            .map(|at| view(&agent, *at)["flows"].as_u64().unwrap());
        assert_eq!(seen.collect::<Vec<_>>(), by_backend.map(|n| n as u64));
    }
}

#[test]
fn a_dial_that_fails_counts_and_the_client_sees_it() {
    let fleet = Fleet::new(Family::V4);
    // Checks come too late for this test.
    let seldom = "[health]\ninterval = \"60s\"\n";
    let agent = fleet.hosts.agent(&(fleet.rule("enrich", "") + seldom));
    let dead = fleet.backends[1];
    let checked = |at: &SocketAddr| view(&agent, *at)["checks_good"] == 1;
    eventually("all are checked", || fleet.backends.iter().all(checked));
    fleet.kill(1);
    let mut refused = 0;
    eventually("dials have found out", || {
        if let Err(error) = fleet.connect() {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            refused += 1;
        }
        state(&agent, dead) == "down"
    });
    assert_eq!(refused, 2);
    assert_eq!(fleet.count(&fleet.connect_many(40))[1], 0);
    let said = view(&agent, dead)["last_error"].to_string();
    assert!(said.contains("dialled: "), "{said}");
}

#[test]
fn an_enriched_flow_goes_straight_to_a_backend_where_the_agent_is_away() {
    let fleet = Fleet::new(Family::V4);
    let mut agent = fleet
        .hosts
        .agent(&(fleet.rule("enrich", "fail = \"open\"\n") + QUICK));
    order(&agent, fleet.backends[0], "drain");
    agent.kill().unwrap();
    let mut clients = fleet.connect_many(MANY);
    let by_backend = fleet.count(&clients);
    // What was known last stands.
    assert_eq!(by_backend[0], 0);
    assert!(by_backend[1] >= 10 && by_backend[2] >= 10, "{by_backend:?}");
    assert!(clients.iter_mut().all(works));
    let client = &clients[0];
    assert_eq!(
        fleet.hosts.client(|| client.peer_addr().unwrap()),
        fleet.dialled()
    );
}

/// `error`: of a connection that is reset.
fn to_a_dead_backend(family: Family, action: &str, setting: &str, error: Option<ErrorKind>) {
    let fleet = Fleet::new(family);
    let policy = fleet.rule(action, QUICK);
    let agent = fleet
        .hosts
        .agent(&format!("{policy}established = \"{setting}\"\n"));
    let mut clients = fleet.connect_many(60);
    assert!(clients.iter_mut().all(works));
    let dead = fleet.backends[0];
    let direct = family.dialled(dead.ip(), dead.port());
    let mut direct = fleet.hosts.client(|| connect(family, direct).unwrap());
    let (mut of_first, mut others) = fleet.split(clients, 0);
    // It is alive, and to be treated as if it were not.
    order(&agent, dead, "down");
    match error {
        None => assert!(of_first.iter_mut().all(works)),
        Some(kind) => {
            for client in &mut of_first {
                assert_eq!(client.read(&mut [0]).unwrap_err().kind(), kind);
            }
        }
    }
    // Who dialled the backend itself is none of our business.
    assert!(works(&mut direct));
    assert!(others.iter_mut().all(works));
    if error.is_some() && action == "enrich" {
        let closed = "underpass_flows_closed_total{reason=\"backend_down\"}";
        assert_eq!(agent.metric(closed).unwrap(), of_first.len() as f64);
    }
}

#[test]
fn connections_of_a_dead_backend_are_left_alone() {
    to_a_dead_backend(Family::V4, "enrich", "leave", None);
    to_a_dead_backend(Family::V4, "bypass", "leave", None);
}

#[test]
fn connections_of_a_dead_backend_are_reset_where_the_file_says_so() {
    let reset = Some(ErrorKind::ConnectionReset);
    to_a_dead_backend(Family::V4, "enrich", "reset", reset);
    // What the kernel says of a socket that is destroyed.
    let aborted = Some(ErrorKind::ConnectionAborted);
    for family in FAMILIES {
        to_a_dead_backend(family, "bypass", "reset", aborted);
    }
}

#[test]
fn a_session_rule_leaves_the_backends_to_the_rules_behind_it() {
    let fleet = Fleet::new(Family::V4);
    let session = "[[rule]]\nname = \"s\"\nuser = [\"nobody\"]\naction = \"deny\"\nfail = \"closed\"\n\
                   to = [\":9042\"]\n";
    let agent = fleet
        .hosts
        .agent(&(session.to_owned() + &fleet.rule("bypass", QUICK)));
    let mut clients = fleet.connect_many(20);
    assert!(clients.iter_mut().all(works));
    let flows = agent.json("/flows").unwrap();
    assert_eq!(flows.as_array().unwrap().len(), 20);
    assert!(
        flows
            .as_array()
            .unwrap()
            .iter()
            .all(|flow| flow["backend"].is_string())
    );
}

struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_reload_under_load_loses_no_connection() {
    let fleet = Fleet::new(Family::V4);
    let two = |from: usize, action: &str| {
        rule(
            action,
            &fleet.balanced(&fleet.backends[from..from + 2], QUICK),
        )
    };
    let agent = fleet.hosts.agent(&two(0, "bypass"));
    let stop = AtomicBool::new(false);
    let connected = thread::scope(|scope| {
        // Also if this fails: the scope waits for whoever dials.
        let stops = Stops(&stop);
        let dialling = scope.spawn(|| {
            let mut connected = 0_u32;
            fleet.hosts.client(|| {
                while !stop.load(Relaxed) {
                    let mut client = connect(Family::V4, fleet.dialled()).unwrap();
                    assert!(works(&mut client));
                    connected += 1;
                }
            });
            connected
        });
        let reloads = "underpass_reloads_total{result=\"ok\"}";
        for n in 1..=20 {
            let action = if n % 3 == 0 { "observe" } else { "bypass" };
            agent.write_policy(&two(n % 2, action)).unwrap();
            agent.signal(nix::sys::signal::Signal::SIGHUP).unwrap();
            eventually("reloaded", || agent.metric(reloads).unwrap() >= n as f64);
        }
        drop(stops);
        dialling.join().unwrap()
    });
    assert!(connected > 50, "{connected}");
    // Every connection is counted, over all policies.
    let metrics = agent.metrics().unwrap();
    let counted = metrics
        .iter()
        .filter(|(name, _)| name.contains("outcome=\"balanced\",rule=\"r\""));
    assert_eq!(counted.map(|(_, n)| n).sum::<f64>(), f64::from(connected));
    // The one that stayed kept what was known of it.
    assert!(
        view(&agent, fleet.backends[1])["checks_good"]
            .as_u64()
            .unwrap()
            > 1
    );
}

#[test]
fn a_backend_that_comes_back_starts_slowly() {
    let fleet = Fleet::new(Family::V4);
    let slow = "[health]\ninterval = \"200ms\"\nslow_start = \"60m\"\n";
    let agent = fleet.hosts.agent(&(fleet.rule("bypass", "") + slow));
    order(&agent, fleet.backends[0], "drain");
    order(&agent, fleet.backends[0], "up");
    assert_eq!(view(&agent, fleet.backends[0])["weight"], 1);
    // Five lots of a thousand.
    let few = fleet.count(&fleet.connect_many(200))[0];
    assert!(few < 15, "{few}");
    let balanced = "underpass_connections_balanced_total{";
    let metrics = agent.metrics().unwrap();
    let counted = metrics
        .iter()
        .filter(|(name, _)| name.starts_with(balanced));
    assert_eq!(counted.map(|(_, n)| n).sum::<f64>(), 200.0);
}

#[test]
fn a_remembered_decision_goes_straight_to_a_backend() {
    let fleet = Fleet::new(Family::V4);
    let session = "[[rule]]\nname = \"s\"\nuser = [\"nobody\"]\naction = \"deny\"\nfail = \"closed\"\n\
                   to = [\":9042\"]\n";
    let rest = format!("remember = \"10m\"\n{QUICK}");
    let agent = fleet
        .hosts
        .agent(&(session.to_owned() + &fleet.rule("bypass", &rest)));
    let mut first = fleet.connect().unwrap();
    let startup = b"\x04\0\0\x01\x01\0\0\0\x16\0\x01\0\x0bCQL_VERSION\0\x053.0.0";
    first.write_all(startup).unwrap();
    first.read_exact(&mut [0; 9]).unwrap();
    eventually("remembered", || {
        agent.metric("underpass_remembered").unwrap() == 1.0
    });
    let later = fleet.connect_many(MANY);
    let by_backend = fleet.count(&later);
    assert!(by_backend.iter().all(|n| *n >= 10), "{by_backend:?}");
    assert_eq!(
        fleet.hosts.client(|| later[0].peer_addr().unwrap()),
        fleet.dialled()
    );
    assert_eq!(agent.json("/flows").unwrap().as_array().unwrap().len(), 1);
    let remembered = "underpass_connections_total{outcome=\"remembered\",rule=\"r\"}";
    assert_eq!(agent.metric(remembered).unwrap(), MANY as f64);
}

#[test]
fn processes_in_other_namespaces_are_balanced_as_well() {
    let fleet = Fleet::new(Family::V4);
    let _agent = fleet.hosts.agent(&fleet.rule("bypass", QUICK));
    let (netns, cgroup) = (&fleet.hosts.database, &fleet.hosts.app.cgroup);
    let dial = || {
        let mut client = connect(Family::V4, fleet.dialled()).unwrap();
        assert!(works(&mut client));
        client.peer_addr().unwrap()
    };
    let peer = sandbox::run_in(Some(netns), Some(cgroup), dial).unwrap();
    assert_eq!(peer, fleet.dialled());
}
