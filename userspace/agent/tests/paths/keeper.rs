//! Spliced flows outlive the agent: they go on when it is killed or stopped, somebody cares for
//! them, and the next agent adopts them.

mod cared;
pub mod host;

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use host::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sandbox::Agent;

use crate::common::traffic::{PATIENCE, Traffic};

const BINARY: &str = env!("CARGO_BIN_EXE_underpass");

const ENGINES: [&str; 2] = ["sender", "egress"];

fn flow_on(traffic: &[Traffic]) {
    traffic.iter().for_each(|t| t.flows_on(6 << 20));
}

#[test]
fn what_rides_goes_on_when_the_agent_is_killed() {
    for engine in ENGINES {
        let host = Host::new();
        let mut agent = host.agent(engine);
        let traffic = host.traffic(&agent, 4);
        agent.kill().unwrap();
        flow_on(&traffic);
        assert_eq!(keepers(&agent).len(), 1);
        for t in traffic {
            t.end();
        }
        no_keeper_is_left(&agent);
    }
}

#[test]
fn the_next_agent_adopts_them() {
    for engine in ENGINES {
        let host = Host::new();
        let mut agent = host.agent(engine);
        let traffic = host.traffic(&agent, 4);
        agent.kill().unwrap();
        agent.restart().unwrap();
        works(&agent);
        until("they are adopted", || flows(&agent).len() == 4);
        flow_on(&traffic);
        for flow in flows(&agent) {
            assert_eq!(flow["process"].as_str().unwrap().len(), 15, "{flow}");
            assert_eq!(flow["rule"], "rest", "{flow}");
            assert!(flow["why"].as_str().unwrap().contains("adopted"), "{flow}");
            assert!(flow["bytes_to_client"].as_u64().unwrap() > 0, "{flow}");
        }
        assert_eq!(agent.metric("underpass_adopted_flows_total").unwrap(), 4.0);
        assert_eq!(keepers(&agent).len(), 1);
        for t in traffic {
            t.end();
        }
        until("they have ended", || flows(&agent).is_empty());
        assert_eq!(kept(&agent), 0.0);
        agent.kill().unwrap();
        no_keeper_is_left(&agent);
    }
}

#[test]
fn a_keeper_that_takes_long_to_answer_is_asked_again() {
    // Longer than an agent waits for one answer.
    const SILENCE: Duration = Duration::from_secs(7);
    let host = Host::new();
    let mut agent = host.agent("auto");
    let traffic = host.traffic(&agent, 2);
    let keeper = nix::unistd::Pid::from_raw(keepers(&agent).remove(0) as i32);
    nix::sys::signal::kill(keeper, nix::sys::signal::Signal::SIGSTOP).unwrap();
    agent.kill().unwrap();
    agent.restart().unwrap();
    std::thread::sleep(SILENCE);
    nix::sys::signal::kill(keeper, nix::sys::signal::Signal::SIGCONT).unwrap();
    until("they are adopted", || flows(&agent).len() == 2);
    assert_eq!(keepers(&agent), [keeper.as_raw() as u32]);
    flow_on(&traffic);
    traffic.into_iter().for_each(Traffic::end);
    until("they have ended", || flows(&agent).is_empty());
}

#[test]
fn a_clean_stop_leaves_what_rides_to_the_keeper() {
    for engine in ENGINES {
        let host = Host::new();
        let mut agent = host.agent(engine);
        let traffic = host.traffic(&agent, 2);
        agent.stop().unwrap();
        flow_on(&traffic);
        agent.restart().unwrap();
        works(&agent);
        until("they are adopted", || flows(&agent).len() == 2);
        flow_on(&traffic);
        agent.stop().unwrap();
        for t in traffic {
            t.flows_on(1 << 20);
            t.end();
        }
        no_keeper_is_left(&agent);
    }
}

/// Flows ride, and wait to be sent to a keeper that has not begun.
#[test]
fn a_clean_stop_waits_for_a_keeper_that_has_just_been_started() {
    let host = Host::new();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("agent");
    let switch = "UNDERPASS_TEST_HOOKS=keeper_late_ms=5000";
    sandbox::program::switched(&script, BINARY, switch).unwrap();
    let mut agent = host.agent_that_has_no_keeper_yet(&script, "auto");
    let traffic = host.traffic(&agent, 2);
    let log = agent.log();
    assert!(!log.contains("keeper started"), "it has begun: {log}");
    agent.stop().unwrap();
    let log = agent.log();
    assert!(!log.contains("end with this agent"), "{log}");
    flow_on(&traffic);
    for t in traffic {
        t.end();
    }
    no_keeper_is_left(&agent);
}

/// The keeper's log has no folder, at first.
#[test]
fn a_keeper_that_cannot_start_is_started_later() {
    let host = Host::new();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("agent");
    let logs = folder.path().join("logs");
    let switch = format!("UNDERPASS_TEST_HOOKS=keeper_log={}/log", logs.display());
    sandbox::program::switched(&script, BINARY, &switch).unwrap();
    let mut agent = host.agent_that_has_no_keeper_yet(&script, "auto");
    agent.wait_for_log("no keeper can be had").unwrap();
    assert_eq!(keepers(&agent).len(), 0);
    std::fs::create_dir(&logs).unwrap();
    agent.wait_for_log("keeper started").unwrap();
    let traffic = host.traffic(&agent, 2);
    agent.kill().unwrap();
    flow_on(&traffic);
    for t in traffic {
        t.end();
    }
    no_keeper_is_left(&agent);
}

/// An agent that is stopped while it starts its keeper says nothing to it.
#[test]
fn a_keeper_whose_agent_says_nothing_ends_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    let (agents, keepers) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    drop(agents);
    let ended = Command::new(BINARY)
        .args(["keep", "--control"])
        .arg(folder.path().join("control"))
        .stdin(Stdio::from(keepers))
        .output()
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "its socket");
}

#[test]
fn agents_that_die_again_and_again_lose_nothing() {
    let host = Host::new();
    let mut agent = host.agent("auto");
    let traffic = host.traffic(&agent, 3);
    for _ in 0..5 {
        agent.kill().unwrap();
        traffic.iter().for_each(|t| t.flows_on(1 << 20));
        agent.restart().unwrap();
        works(&agent);
        until("they are adopted", || flows(&agent).len() == 3);
        they_ride(&agent);
        traffic.iter().for_each(|t| t.flows_on(1 << 20));
        assert_eq!(keepers(&agent).len(), 1);
    }
    for t in traffic {
        t.end();
    }
    until("they have ended", || flows(&agent).is_empty());
}

#[test]
fn an_adopted_flow_is_marked_like_any_other() {
    let host = Host::new();
    let mut agent = host.agent("auto");
    let traffic = host.traffic(&agent, 3);
    agent.kill().unwrap();
    agent.restart().unwrap();
    works(&agent);
    until("they are adopted", || flows(&agent).len() == 3);
    let denied = flows(&agent).remove(0);
    let number = denied["id"].to_string();
    assert!(mark(&agent, &number, "deny").contains("changed"));
    until("it is closed", || flows(&agent).len() == 2);
    let ended = |t: &Traffic| t.has_ended();
    until("both its ends see that", || {
        traffic.iter().filter(|t| ended(t)).count() == 1
    });
    let (closed, open): (Vec<_>, Vec<_>) = traffic.into_iter().partition(ended);
    closed.into_iter().for_each(Traffic::sees_the_end);
    flow_on(&open);
    let process = flows(&agent).remove(0)["process"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(mark(&agent, &format!("process={process}"), "deny").contains("changed"));
    open.into_iter().for_each(Traffic::sees_the_end);
    until("they are closed", || flows(&agent).is_empty());
}

fn mark(agent: &Agent<'_>, target: &str, action: &str) -> String {
    let output = Command::new(BINARY)
        .args(["mark", target, action, "--control"])
        .arg(agent.control())
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// The agent's version is what the script says.
fn of_version(script: &Path, version: &str) {
    let switch = format!("UNDERPASS_TEST_HOOKS=version={version}");
    sandbox::program::switched(script, BINARY, &switch).unwrap();
}

#[test]
fn an_agent_of_another_version_leaves_flows_to_their_keeper() {
    let host = Host::new();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("agent");
    of_version(&script, "one");
    let mut agent = host.agent_as(&script, "auto");
    let before = host.traffic(&agent, 2);
    agent.kill().unwrap();
    of_version(&script, "two");
    agent.restart().unwrap();
    works(&agent);
    agent.wait_for_log("keeper started").unwrap();
    let after = host.traffic(&agent, 2);
    assert_eq!(keepers(&agent).len(), 2);
    flow_on(&before);
    assert_eq!(flows(&agent).len(), 2);
    let doctor = Command::new(&script)
        .args(["doctor", "--config"])
        .arg(agent.file())
        .output();
    let seen = String::from_utf8(doctor.unwrap().stdout).unwrap();
    assert!(seen.contains("holds 2 flows for the agent"), "{seen}");
    assert!(seen.contains("cares for 2 flows until they end"), "{seen}");
    before.into_iter().for_each(Traffic::end);
    until("the keeper of the first version has ended", || {
        keepers(&agent).len() == 1
    });
    flow_on(&after);
    // And back again: those of the second version stay, too.
    agent.kill().unwrap();
    of_version(&script, "one");
    agent.restart().unwrap();
    works(&agent);
    flow_on(&after);
    assert!(flows(&agent).is_empty());
    after.into_iter().for_each(Traffic::end);
    until("the keeper of the second version has ended", || {
        keepers(&agent).len() == 1
    });
}

#[test]
fn detach_ends_the_keeper_and_its_flows() {
    let host = Host::new();
    let mut agent = host.agent("auto");
    let traffic = host.traffic(&agent, 2);
    let refused = detach(&agent);
    assert!(refused.contains("stop it first"), "{refused}");
    traffic.iter().for_each(|t| t.flows_on(1 << 20));
    agent.kill().unwrap();
    let said = detach(&agent);
    assert!(said.contains("2 flows"), "{said}");
    traffic.into_iter().for_each(Traffic::sees_the_end);
    no_keeper_is_left(&agent);
}

fn detach(agent: &Agent<'_>) -> String {
    let output = Command::new(BINARY)
        .args(["detach", "--pins"])
        .arg(agent.pins())
        .arg("--control")
        .arg(agent.control())
        .output()
        .unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

fn kill_keeper(agent: &Agent<'_>) {
    let keeper = keepers(agent).remove(0) as i32;
    let keeper = nix::unistd::Pid::from_raw(keeper);
    nix::sys::signal::kill(keeper, nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[test]
fn when_a_keeper_dies_another_one_gets_its_flows() {
    const FLOWS: usize = 2;
    let host = Host::new();
    let mut agent = host.agent("auto");
    let traffic = host.traffic(&agent, FLOWS as u64);
    // The first agent's own flows, and those that the second one has adopted.
    for deaths in 1..=2 {
        kill_keeper(&agent);
        let ended = "underpass_keepers_ended_total";
        until("it is missed", || agent.metric(ended).unwrap() == 1.0);
        flow_on(&traffic);
        until("another one has the flows", || kept(&agent) == FLOWS as f64);
        they_ride(&agent);
        assert_eq!(keepers(&agent).len(), 1, "after death {deaths}");
        agent.kill().unwrap();
        flow_on(&traffic);
        agent.restart().unwrap();
        works(&agent);
        until("they are adopted", || flows(&agent).len() == FLOWS);
        flow_on(&traffic);
        they_ride(&agent);
    }
    for flow in flows(&agent) {
        assert!(flow["bytes_to_client"].as_u64().unwrap() > 0, "{flow}");
    }
    traffic.into_iter().for_each(Traffic::end);
    until("they have ended", || flows(&agent).is_empty());
    agent.kill().unwrap();
    no_keeper_is_left(&agent);
}

#[test]
fn flows_do_not_need_the_keeper_while_the_agent_lives() {
    let (host, folder) = (Host::new(), tempfile::tempdir().unwrap());
    let (mut agent, traffic) = without_keeper(&host, folder.path());
    flow_on(&traffic);
    let (client, database) = host.pair();
    let further = Traffic::begin(client, database, 9);
    let counted = "underpass_not_kept_flows_total{reason=\"no_keeper\"}";
    until("a further flow is not kept", || {
        agent.metric(counted).unwrap() == 1.0
    });
    further.end();
    traffic.into_iter().for_each(Traffic::end);
    agent.kill().unwrap();
}

/// Starts an agent with two flows whose keeper has died. No other one can be started: its log has no folder any more.
fn without_keeper<'h>(host: &'h Host, folder: &Path) -> (Agent<'h>, Vec<Traffic>) {
    let (script, logs) = (folder.join("agent"), folder.join("logs"));
    std::fs::create_dir(&logs).unwrap();
    let switch = format!("UNDERPASS_TEST_HOOKS=keeper_log={}/log", logs.display());
    sandbox::program::switched(&script, BINARY, &switch).unwrap();
    let agent = host.agent_as(&script, "auto");
    let traffic = host.traffic(&agent, 2);
    std::fs::remove_dir_all(&logs).unwrap();
    kill_keeper(&agent);
    until("it is missed", || kept(&agent) == 0.0);
    (agent, traffic)
}

/// Longer than an agent drains at least.
const DRAINS: Duration = Duration::from_secs(4);

#[test]
fn flows_whose_keeper_has_died_stay_with_their_agent_when_another_one_takes_over() {
    let (host, folder) = (Host::new(), tempfile::tempdir().unwrap());
    let (mut agent, traffic) = without_keeper(&host, folder.path());
    let mut former = agent.take_over("").unwrap();
    assert!(former.ends_within(DRAINS).is_err(), "it has ended");
    flow_on(&traffic);
    traffic.into_iter().for_each(Traffic::end);
    let log = former.ends_within(PATIENCE).unwrap();
    assert!(log.contains("why=Drained"), "{log}");
}

#[test]
fn a_keeper_that_does_not_run_delays_nothing() {
    let host = Host::new();
    let agent = host.agent("auto");
    let mut traffic = host.traffic(&agent, 2);
    let keeper = nix::unistd::Pid::from_raw(keepers(&agent).remove(0) as i32);
    nix::sys::signal::kill(keeper, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let denied = traffic.remove(0);
    denied.flows_on(1 << 20);
    let port = denied.client_port().to_string();
    let mut listed = flows(&agent).into_iter();
    let flow = listed.find(|f| f["client"].as_str().unwrap().ends_with(&port));
    assert!(mark(&agent, &flow.unwrap()["id"].to_string(), "deny").contains("changed"));
    denied.sees_the_end();
    traffic.into_iter().for_each(Traffic::end);
    until("both have ended", || flows(&agent).is_empty());
    nix::sys::signal::kill(keeper, nix::sys::signal::Signal::SIGCONT).unwrap();
}

#[test]
fn at_whatever_moment_an_agent_dies_no_byte_is_wrong() {
    let host = Host::new();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("agent");
    // Taken back and handed over again as often, by agents and keepers alike.
    sandbox::program::switched(&script, BINARY, "UNDERPASS_TEST_HOOKS=recall_ms=10").unwrap();
    for engine in ENGINES {
        let mut agent = host.agent_as(&script, engine);
        let (mut survived, mut ended) = (0, 0);
        for round in 0..4 {
            let mut traffic: Vec<Traffic> = (0..4)
                .map(|seed| {
                    let (client, database) = host.pair();
                    Traffic::begin(client, database, round * 4 + seed)
                })
                .collect();
            traffic.iter().for_each(|t| t.flows_on(1 << 20));
            agent.kill().unwrap();
            agent.restart().unwrap();
            works(&agent);
            // Who was not riding was reset; who was goes on, with whoever carries it.
            for t in traffic.drain(..) {
                match t.goes_on(2 << 20) {
                    true => {
                        t.end();
                        survived += 1;
                    }
                    false => {
                        t.sees_the_end();
                        ended += 1;
                    }
                }
            }
        }
        println!("{engine}: {survived} went on, {ended} were reset");
        assert_eq!(survived + ended, 16);
    }
}

#[test]
fn without_the_splice_there_is_no_keeper() {
    let host = Host::new();
    let settings = "splice = \"off\"";
    let (netns, cgroup) = (Some(&host.sandbox.netns), &host.sandbox.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, settings, &host.policy()).unwrap();
    let (client, database) = host.pair();
    let traffic = Traffic::begin(client, database, 1);
    traffic.flows_on(1 << 20);
    assert!(keepers(&agent).is_empty());
    traffic.end();
}
