//! Flows of clients on other hosts that outlive the agent.

use std::{net::TcpListener, path::Path};

use sandbox::Agent;

use super::hosts::*;
use crate::common::{BINARY, Family, accept, eventually, traffic::Traffic};

const MORE: u64 = 2 << 20;

fn agent(hosts: &Hosts) -> Agent<'_> {
    // What is no CQL is not decoded, and spliced.
    let policy = INCOMING.to_owned() + &crate::common::enrich(&[PORT]);
    let agent = hosts.splicing(Path::new(BINARY), ENGINE, &policy);
    agent.wait_for_log("keeper").unwrap();
    agent
}

/// Traffic that the kernel carries, and a keeper holds.
fn traffic(hosts: &Hosts, agent: &Agent<'_>, listener: &TcpListener, count: u64) -> Vec<Traffic> {
    let traffic: Vec<Traffic> = (0..count)
        .map(|seed| {
            let client = hosts.connect(Family::V4).unwrap();
            let (database, peer) = accept(listener);
            assert_eq!(peer, client.local_addr().unwrap());
            Traffic::begin(client, database, seed)
        })
        .collect();
    ride(agent, count as usize);
    traffic
}

/// All of them, and none comes back any more: one that does ends with the agent.
fn ride(agent: &Agent<'_>, count: usize) {
    let (mut before, mut looks) = (-1.0, 0);
    eventually("they ride, and are kept", || {
        let handovers = agent.metric("underpass_handovers_total").unwrap();
        let kept = agent.metric("underpass_kept_flows").unwrap();
        let flows = agent.json("/flows").unwrap();
        let flows = flows.as_array().unwrap();
        let ride = flows.len() == count && flows.iter().all(|flow| flow["path"] == "splice");
        let stays = ride && kept == count as f64 && handovers == before;
        looks = if stays { looks + 1 } else { 0 };
        before = handovers;
        looks > 15
    });
}

/// Another agent, which adopts as many: one whose canary runs out of time leaves them to the keeper.
fn next_adopts(agent: &mut Agent<'_>, count: usize) {
    for _ in 0..ATTEMPTS {
        agent.restart().unwrap();
        if works(agent, ENGINE) {
            return expect_adopted(agent, count);
        }
        agent.kill().unwrap();
    }
    panic!("the engine {ENGINE} does not work here")
}

fn expect_adopted(agent: &Agent<'_>, count: usize) {
    eventually("they are adopted", || {
        let flows = agent.json("/flows").unwrap();
        let flows = flows.as_array().unwrap();
        let adopted = |flow: &&serde_json::Value| {
            let why = flow["why"].as_str().unwrap();
            why.contains("adopted") && flow["pid"].is_null()
        };
        flows.iter().filter(adopted).count() == count
    });
}

#[test]
fn what_rides_goes_on_when_the_agent_is_killed_and_the_next_adopts_it() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Family::V4);
    let mut agent = agent(&hosts);
    let traffic = traffic(&hosts, &agent, &listener, 3);
    agent.kill().unwrap();
    traffic.iter().for_each(|t| t.flows_on(MORE));
    next_adopts(&mut agent, 3);
    traffic.iter().for_each(|t| t.flows_on(MORE));
    ride(&agent, 3);
    traffic.into_iter().for_each(Traffic::end);
    eventually("they have ended", || {
        agent.json("/flows").unwrap() == serde_json::json!([])
    });
}

#[test]
fn a_clean_stop_leaves_what_rides_and_its_routing_until_it_has_ended() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Family::V4);
    let mut agent = agent(&hosts);
    let traffic = traffic(&hosts, &agent, &listener, 2);
    agent.stop().unwrap();
    assert_ne!(hosts.routing(), "");
    traffic.iter().for_each(|t| t.flows_on(MORE));
    next_adopts(&mut agent, 2);
    ride(&agent, 2);
    traffic.into_iter().for_each(Traffic::end);
    eventually("they have ended", || {
        agent.json("/flows").unwrap() == serde_json::json!([])
    });
    agent.stop().unwrap();
    assert_eq!(hosts.routing(), "");
}
