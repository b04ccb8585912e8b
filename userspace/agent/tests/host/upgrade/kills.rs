//! One of two agents dies while a flow goes from the one to the other.

use super::{DRAINED, Host, log_in};
use crate::common::*;

/// An agent that dies at this step, when another one takes over from it.
fn dying(host: &Host, step: &str, body: impl FnOnce(sandbox::Agent<'_>)) {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("underpass");
    let switch = format!("UNDERPASS_TEST_HOOKS=strict_calls=true,dies_at={step}");
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
        dying(&host, step, |mut agent| {
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
