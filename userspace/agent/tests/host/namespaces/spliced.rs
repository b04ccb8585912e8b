//! Flows of other namespaces that the kernel carries.

use std::{
    net::{TcpListener, TcpStream},
    time::Duration,
};

use integrity::{Choices, Cql, Options, Plan, Server, drive};
use sandbox::{Agent, Sandbox, run_in};

use super::{
    call,
    container::{Container, PORT},
    served, start,
};
use crate::common::{Family, accept, connect, enrich, eventually, traffic::Traffic};

const ENGINES: [&str; 2] = ["sender", "egress"];
const DRIVER: &str = "underpass-integrity";
const NEVER_BLOCKS: [&str; 2] = ["epoll-edge", "epoll-level"];

/// Known violation: FIONREAD of a socket in a sockmap leaves out the bytes in TCP's queue.
const COST: &str = "fionread";

/// Tests run side by side, on whatever machine there is.
const LOADED: Duration = Duration::from_secs(5);
const MORE: u64 = 2 << 20;

/// On a machine under load a canary may run out of time, and its engine is not used.
const ATTEMPTS: usize = 5;

fn splicing<'a>(host: &'a Sandbox, engine: &str, policy: &str) -> Agent<'a> {
    for _ in 0..ATTEMPTS {
        let agent = start(host, &format!("splice = \"{engine}\""), policy);
        if works(&agent, engine) {
            return agent;
        }
    }
    panic!("the engine {engine} does not work here")
}

/// Whether it does, once it has been tried out.
fn works(agent: &Agent<'_>, engine: &str) -> bool {
    let name = format!("underpass_path_available{{path=\"splice_{engine}\"");
    let mut tried = None;
    eventually("the engine is tried out", || {
        let metrics = agent.metrics().unwrap();
        let mut samples = metrics.iter().filter(|(n, _)| n.starts_with(&name));
        tried = samples.next().map(|(_, works)| *works > 0.0);
        tried.is_some()
    });
    tried == Some(true)
}

#[test]
fn every_byte_arrives_by_either_engine() {
    let policy = format!(
        "[[rule]]\nname = \"r\"\nto = [\":{PORT}\"]\ndriver = [\"{DRIVER}\"]\naction = \"bypass\"\n\
         [[rule]]\nname = \"rest\"\nto = [\":{PORT}\"]\naction = \"enrich\"\n"
    );
    for engine in ENGINES {
        let host = Sandbox::new().unwrap();
        // Both clients and both databases have the same addresses.
        let containers = [Container::new(&host), Container::new(&host)];
        let agent = splicing(&host, engine, &policy);
        containers.iter().for_each(|each| call(&agent, each));
        let plan = |container: &Container<'_>| Plan {
            choices: Choices::named(&NEVER_BLOCKS).unwrap(),
            bytes: 96 << 20,
            connection_max: 8 << 20,
            connections: (1, 16),
            hang_limit: LOADED,
            cql: Some(Cql {
                drivers: vec![DRIVER.into()],
                ..Cql::default()
            }),
            ..Plan::new(container.database())
        };
        let driven = |container: &Container<'_>| {
            let serve = || {
                let listener = TcpListener::bind(container.database()).unwrap();
                let options = Options {
                    never_blocks: true,
                    ..Options::default()
                };
                Server::start_with(listener, options).unwrap()
            };
            let server = run_in(Some(&container.netns), None, serve).unwrap();
            let report = container.client(|| drive(&plan(container)));
            drop(server);
            report
        };
        let reports = std::thread::scope(|scope| {
            let both = containers.each_ref().map(|c| scope.spawn(|| driven(c)));
            both.map(|one| one.join().unwrap())
        });
        for report in reports {
            assert!(report.passed(&[COST.into()]), "{engine}: {report}");
        }
        let lost = agent.metric("underpass_safer_path_total{cause=\"splice_position_lost\"}");
        assert_eq!(lost.unwrap(), 0.0, "{engine}");
        for direction in ["to_database", "to_client"] {
            let name = format!("underpass_spliced_bytes_total{{direction=\"{direction}\"}}");
            assert!(agent.metric(&name).unwrap() > 0.0, "{engine} {direction}");
        }
    }
}

fn pair(container: &Container<'_>, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = container.client(|| connect(Family::V4, container.database()));
    (client.unwrap(), accept(listener).0)
}

/// All of them, and none comes back any more: one that does ends with the agent.
fn ride(agent: &Agent<'_>, containers: &[&Container<'_>]) {
    let (mut before, mut looks) = (-1.0, 0);
    eventually("they ride, and are kept", || {
        let handovers = agent.metric("underpass_handovers_total").unwrap();
        let kept = agent.metric("underpass_kept_flows").unwrap();
        let flows = agent.json("/flows").unwrap();
        let flows = flows.as_array().unwrap();
        let are_there = containers.iter().all(|container| {
            let netns = container.inode().to_string();
            let mut its = flows.iter().filter(|flow| flow["netns"] == *netns);
            its.any(|flow| flow["path"] == "splice")
        });
        let stays = are_there && flows.len() == containers.len();
        let stays = stays && kept == containers.len() as f64 && handovers == before;
        looks = if stays { looks + 1 } else { 0 };
        before = handovers;
        looks > 15
    });
}

#[test]
fn what_rides_goes_on_when_the_agent_is_killed_and_the_next_adopts_it() {
    for engine in ENGINES {
        let host = Sandbox::new().unwrap();
        let containers = [Container::new(&host), Container::new(&host)];
        // One end of it goes when the other end's namespace does.
        let netns = &containers[0].netns;
        netns.join_as(&[], (&host.netns, "canary"), &[]).unwrap();
        // What is no CQL is not decoded, and spliced.
        let mut agent = splicing(&host, engine, &enrich(&[PORT]));
        agent.wait_for_log("keeper").unwrap();
        containers.iter().for_each(|each| call(&agent, each));
        let there = containers.each_ref();
        let traffic: Vec<Traffic> = (0..)
            .zip(there)
            .map(|(seed, container)| {
                let listener = container.listen(container.database().ip());
                let (client, database) = pair(container, &listener);
                let named = client.peer_addr().unwrap();
                assert_eq!(named, container.database());
                Traffic::begin(client, database, seed)
            })
            .collect();
        ride(&agent, &there);
        agent.kill().unwrap();
        traffic.iter().for_each(|t| t.flows_on(MORE));
        let adopts = (0..ATTEMPTS).any(|_| {
            agent.restart().unwrap();
            let works = works(&agent, engine);
            if !works {
                agent.kill().unwrap();
            }
            works
        });
        assert!(adopts, "the engine {engine} does not work here");
        traffic.iter().for_each(|t| t.flows_on(MORE));
        ride(&agent, &there);
        // Nobody has called yet: they are carried where no outpost is.
        assert_eq!(served(&agent), [0; 0]);
        traffic.into_iter().for_each(Traffic::end);
        eventually("they have ended", || {
            agent.json("/flows").unwrap() == serde_json::json!([])
        });
        drop(containers);
        eventually("neither agent nor keeper keeps the namespace", || {
            host.netns.ip(&["link", "show", "canary"]).is_err()
        });
    }
}
