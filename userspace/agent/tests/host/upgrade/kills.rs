//! One of two agents dies while a flow goes from the one to the other, or is told to stop while another one takes over.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    DRAINED, Host,
    handed::{has_token, of_node},
    hangs::is_stopped,
    is_anybody_of, log_in, refusal, underpass,
};
use crate::common::*;

/// An agent with this hook, from which another one may take over.
pub(super) fn hooked(host: &Host, hook: &str, body: impl FnOnce(sandbox::Agent<'_>)) {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("underpass");
    let switch = format!("UNDERPASS_TEST_HOOKS=strict_calls=true,{hook}");
    sandbox::program::switched(&binary, BINARY, &switch).unwrap();
    body(host.agent_of(&binary, ""));
}

#[test]
fn a_flow_stays_where_it_is_when_the_other_agent_dies_as_it_takes_it() {
    let host = Host::new();
    let mut agent = host.agent("");
    let mut client = host.dial();
    log_in(&mut client);
    let _former = agent.take_over("dies_at=takes").unwrap();
    agent.wait_for_log("killed, for a test").unwrap();
    for _ in 0..100 {
        assert!(works(&mut client));
    }
    agent.restart().unwrap();
    host.serves();
    assert!(works(&mut client));
}

#[test]
fn a_flow_ends_with_the_agent_that_has_it() {
    // The one before dies with the flow, or has just taken leave of it.
    for (step, lives) in [("hands", false), ("handed_one", true)] {
        let host = Host::new();
        hooked(&host, &format!("dies_at={step}"), |mut agent| {
            let mut client = host.dial();
            log_in(&mut client);
            let _former = agent.take_over("").unwrap();
            eventually("it is alone", || {
                agent.json("/agent").unwrap()["before"].is_null()
            });
            assert_eq!(works(&mut client), lives, "{step}");
            host.serves();
            let taken = agent.metric("underpass_taken_over_flows_total").unwrap();
            assert_eq!(taken, f64::from(u8::from(lives)), "{step}");
        });
    }
    // The other one has taken it.
    let host = Host::new();
    let mut agent = host.agent("");
    let mut client = host.dial();
    log_in(&mut client);
    let mut former = agent.take_over("dies_at=took").unwrap();
    agent.wait_for_log("killed, for a test").unwrap();
    assert!(!works(&mut client));
    agent.restart().unwrap();
    host.serves();
    former.ends_within(DRAINED).unwrap();
}

#[test]
fn tokens_stay_with_an_agent_whose_successor_dies_before_it_hears_of_them() {
    let throttle = "{ transform = \"throttle\", rate = 0.001, burst = 5, mode = \"overloaded\" }";
    let host = of_node(&format!("pipeline = [{throttle}]\n"), None);
    hooked(&host, "hangs_at=gave,dies_at=said", |mut agent| {
        let mut client = host.dial();
        log_in(&mut client);
        assert!(has_token(&mut client));
        let old = Pid::from_raw(agent.pid() as i32);
        let said = refusal(&mut agent, "");
        assert!(said.contains("killed, for a test"), "{said}");
        eventually("the old one is about to drain", || is_stopped(old));
        kill(old, Signal::SIGCONT).unwrap();
        agent.wait_for_log("taken over is gone").unwrap();
        let tokens = [(); 5].map(|()| has_token(&mut client));
        assert_eq!(tokens, [true, true, true, true, false]);
    });
}

#[test]
fn an_agent_that_is_told_to_stop_while_another_one_takes_over_leaves_it_the_connections() {
    for step in ["welcomed", "went", "told", "gave"] {
        let host = Host::new();
        hooked(&host, &format!("told_at={step}"), |mut agent| {
            let mut former = agent.take_over("").unwrap();
            host.serves();
            let log = former.ends_within(DRAINED).unwrap();
            assert!(log.contains("why=Told"), "{step}: {log}");
            eventually("it is alone", || {
                agent.json("/agent").unwrap()["before"].is_null()
            });
            host.serves();
            let pins = std::fs::read_dir(agent.pins()).unwrap();
            assert_eq!(pins.count(), 1, "{step}");
            assert!(agent.stop().unwrap().success());
            assert!(!agent.pins().exists());
        });
    }
}

#[test]
fn an_agent_that_is_told_to_stop_before_it_has_taken_over_leaves_the_other_one_the_connections() {
    let host = Host::new();
    let mut agent = host.agent("");
    let said = refusal(&mut agent, "told_at=attached");
    assert!(
        said.contains("SIGTERM has come before it has taken over"),
        "{said}"
    );
    eventually("the old one has seen it", || super::failed(&agent) == 1.0);
    host.serves();
    agent.take_over("").unwrap().ends_within(DRAINED).unwrap();
}

#[test]
fn a_stop_of_the_service_stops_both_agents() {
    for step in ["went", "gave"] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("notify");
        let _manager = crate::service_manager::Manager::at(&socket);
        let host = Host::new();
        let hook = format!("told_at={step} NOTIFY_SOCKET={}", socket.display());
        hooked(&host, &hook, |mut agent| {
            // The other one is told before it is ready, or behind that.
            let _former = agent.take_over("");
            let file = agent.file();
            eventually("both have ended", || !is_anybody_of(&file));
            let pins = std::fs::read_dir(agent.pins()).map_or(0, Iterator::count);
            assert_eq!(pins, 0, "{step}");
        });
    }
}

#[test]
fn the_command_says_when_no_agent_is_left() {
    let host = Host::new();
    hooked(&host, "told_at=welcomed,dies_at=taken", |mut agent| {
        let control = agent.control();
        let arguments = ["upgrade", "--control", control.to_str().unwrap()];
        let output = underpass(&host, &arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains("the one that ran has ended, too"),
            "{said}"
        );
        assert!(agent.stop().unwrap().success());
        assert!(!agent.pins().exists());
    });
}
