//! Every byte arrives, whatever the path: once, in order, unharmed, and in time.

mod deaths;
mod readers;

use std::{net::TcpListener, path::Path, time::Duration};

use integrity::{Choices, Cql, Helper, Options, Plan, Report, Server, child, drive};
use sandbox::{Agent, Sandbox};

use crate::common::eventually;

/// Tests run side by side, on whatever machine there is.
const LOADED: Duration = Duration::from_secs(5);

/// Played by the helper; by itself it does nothing.
#[test]
fn an_end_that_is_killed() {
    child().unwrap();
}

/// Drives 128 MiB over flows that a rule with this action holds for.
fn over(action: &str, cql: bool) -> Report {
    let helper = Helper::test("integrity::an_end_that_is_killed").unwrap();
    let sandbox = Sandbox::new().unwrap();
    let options = Options {
        helper: Some(helper.clone()),
        ..Options::default()
    };
    let server = sandbox
        .server(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            Server::start_with(listener, options).unwrap()
        })
        .unwrap();
    let policy = format!(
        "[[rule]]\nname = \"r\"\nto = [\":{}\"]\naction = \"{action}\"\n[default]\naction = \"bypass\"\n",
        server.addr().port()
    );
    let binary = Path::new(env!("CARGO_BIN_EXE_underpass"));
    let agent = Agent::start(binary, Some(&sandbox.netns), &sandbox.cgroup, "", &policy).unwrap();
    let plan = Plan {
        bytes: 128 << 20,
        connection_max: 8 << 20,
        hang_limit: LOADED,
        helper: Some(helper),
        cql: cql.then(Cql::default),
        ..Plan::new(server.addr())
    };
    let report = sandbox.client(|| drive(&plan)).unwrap();
    let outcome = match action {
        "enrich" => "intercepted",
        _ => "untouched",
    };
    let counted = agent
        .metric(&format!(
            "underpass_connections_total{{outcome=\"{outcome}\",rule=\"r\"}}"
        ))
        .unwrap();
    // One more fetches what the server has found.
    assert_eq!(counted, (report.connections + 1) as f64);
    report
}

#[test]
fn untouched_flows() {
    for action in ["bypass", "observe"] {
        for cql in [false, true] {
            let report = over(action, cql);
            assert!(report.passed(&[]), "{action}: {report}");
        }
    }
}

#[test]
fn enriched_flows() {
    let report = over("enrich", true);
    assert!(report.passed(&[]), "{report}");
}

#[test]
fn relayed_flows() {
    let report = over("enrich", false);
    assert!(report.passed(&[]), "{report}");
}

/// Both ends are the agent's to see.
#[test]
fn flows_on_the_shortcut() {
    past_tcp("bypass", None);
}

/// Both ends exchange with the agent what they have to say past TCP.
#[test]
fn flows_with_short_legs() {
    past_tcp("enrich", Some(Cql::default()));
}

/// Drives 384 MiB past TCP, some of it by ends that are killed or reset. They wait by epoll, as drivers and databases do: what
/// differs for ends that block is in docs/decisions/0005-shortcut.md.
fn past_tcp(action: &str, cql: Option<Cql>) {
    let helper = Helper::test("integrity::an_end_that_is_killed").unwrap();
    let sandbox = Sandbox::new().unwrap();
    let options = Options {
        helper: Some(helper.clone()),
        never_blocks: cql.is_some(),
        ..Options::default()
    };
    let start = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Server::start_with(listener, options).unwrap()
    };
    // The shortcut needs both ends beneath the agent's cgroup.
    let server = match action {
        "bypass" => sandbox.client(start),
        _ => sandbox.server(start),
    };
    let server = server.unwrap();
    let policy = format!(
        "[[rule]]\nname = \"r\"\nto = [\":{}\"]\naction = \"{action}\"\nshortcut = true\n",
        server.addr().port()
    );
    let binary = Path::new(env!("CARGO_BIN_EXE_underpass"));
    let agent = Agent::start(binary, Some(&sandbox.netns), &sandbox.cgroup, "", &policy).unwrap();
    agent.wait_for_log("path works path=\"shortcut\"").unwrap();
    let plan = Plan {
        choices: Choices::named(&crate::common::ways::PAST_TCP).unwrap(),
        bytes: 384 << 20,
        connection_max: 8 << 20,
        connections: (1, 64),
        hang_limit: LOADED,
        helper: Some(helper),
        cql,
        ..Plan::new(server.addr())
    };
    let report = sandbox.client(|| drive(&plan)).unwrap();
    // It leaves out bytes that took TCP.
    assert!(report.passed(&["fionread".into()]), "{report}");
    for ends in [
        "client-killed",
        "server-killed",
        "client-reset",
        "server-reset",
        "close-unread",
    ] {
        assert!(report.behaviours.contains_key(ends), "{ends}: {report}");
    }
    let taken = agent.metric("underpass_shortcut_bytes_total{way=\"shortcut\"}");
    assert!(taken.unwrap() > (64 << 20) as f64);
    eventually("no leg is left", || {
        agent.metric("underpass_short_legs").unwrap() == 0.0
    });
}
