//! Readers that ask FIONREAD before they read, as nginx does.

use std::io::Write;

use super::*;
use crate::{common::asking::read_asking, keeper::host::no_keeper_is_left};

/// Answers of a reader's buffer, of several, and far more than may be past TCP.
const ANSWERS: [usize; 4] = [1 << 10, 100_000, 3_000_000, 16 << 20];

#[test]
fn a_reader_that_asks_first_gets_everything_on_either_side() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    for answer in ANSWERS {
        for is_client in [true, false] {
            let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
            exchange(&mut client, &mut server);
            let (reader, mut writer) = match is_client {
                true => (&client, &server),
                false => (&server, &client),
            };
            let sent = dataplane::probe_traffic::bytes(1, 0, answer);
            let read = thread::scope(|scope| {
                scope.spawn(|| writer.write_all(&sent).unwrap());
                read_asking(reader, answer)
            });
            assert!(read == sent, "{answer} {is_client}: other bytes");
            // It goes on, on whatever path, both ways.
            exchange(&mut client, &mut server);
        }
    }
    assert!(safer(&agent, "reader_stalled") > 0);
}

/// Connections that a nudge goes through, too: it takes a millisecond and more.
const OTHERS: usize = 4_000;

fn others(hosts: &Hosts) -> Vec<(TcpStream, TcpStream)> {
    let listener = listen(hosts, Family::V4);
    (0..OTHERS)
        .map(|_| pair(hosts, &listener, Family::V4))
        .collect()
}

/// The last of them leaves when a nudge has just been, and nobody is on the shortcut any more when the next is due.
#[test]
fn readers_that_leave_one_after_the_other_get_everything() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let _others = others(&hosts);
    let sent = dataplane::probe_traffic::bytes(1, 0, 100_000);
    for after in (80..140).step_by(10).map(Duration::from_millis) {
        let mut pairs = [(); 2].map(|()| pair(&hosts, &listener, Family::V4));
        for (client, server) in &mut pairs {
            exchange(client, server);
        }
        thread::scope(|scope| {
            for ((client, server), wait) in pairs.iter_mut().zip([Duration::ZERO, after]) {
                let sent = &sent;
                scope.spawn(move || {
                    thread::sleep(wait);
                    server.write_all(sent).unwrap();
                    assert!(read_asking(client, sent.len()) == *sent, "other bytes");
                });
            }
        });
    }
    assert!(safer(&agent, "reader_stalled") > 0);
}

/// For longer than looks go on after a spill.
const WITHOUT: Duration = Duration::from_millis(1_500);

#[test]
fn a_reader_that_asks_gets_everything_when_the_agent_has_descriptors_again() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    agent
        .wait_for_log("the keeper has the shortcut's sockets")
        .unwrap();
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    exchange(&mut client, &mut server);
    let told = || rustix::io::ioctl_fionread(&client).unwrap();
    without_descriptors(&agent, || {
        // In bulk, by TCP, and not read.
        server.write_all(&[1; 100_000]).unwrap();
        thread::sleep(WITHOUT);
        assert!(told() < 100_000);
    });
    eventually("FIONREAD tells all", || told() == 100_000);
    let log = agent.log();
    let is_failure = |line: &&str| line.contains("the upkeep of the shortcut fails");
    let failures: Vec<&str> = log.lines().filter(is_failure).collect();
    assert_eq!(failures.len(), 1, "{failures:#?}");
    assert!(failures[0].contains("os error 24"), "{failures:#?}");
}

/// The client's end is enrolled before anybody knows whether the database's will come.
#[test]
fn a_client_whose_database_does_not_come_leaves() {
    let hosts = Hosts::new();
    // Not beneath the cgroup that the agent is attached to.
    let unseen = hosts.listen(Distance::Here, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&unseen)]));
    let (client, mut server) = pair(&hosts, &unseen, Family::V4);
    server.write_all(&[1; 1000]).unwrap();
    let told = || rustix::io::ioctl_fionread(&client).unwrap();
    eventually("FIONREAD tells all", || told() == 1000);
    let flow = listed::flow_of(&agent, &client).unwrap();
    let why = flow["why"].as_str().unwrap();
    assert!(why.contains("only one end can take"), "{why}");
    assert!(read_asking(&client, 1000) == [1; 1000]);
}

#[test]
fn a_flow_that_has_left_says_why() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    exchange(&mut client, &mut server);
    // In bulk, by TCP, and not read.
    server.write_all(&[1; 100_000]).unwrap();
    eventually("it has left", || safer(&agent, "reader_stalled") == 1);
    let told = || rustix::io::ioctl_fionread(&client).unwrap();
    eventually("FIONREAD tells all", || told() == 100_000);
    let flow = listed::flow_of(&agent, &client).unwrap();
    assert_eq!(flow["path"], "untouched", "{flow}");
    let why = flow["why"].as_str().unwrap();
    assert!(why.contains("it has left the shortcut for good"), "{why}");
    let before = bytes(&agent, "shortcut");
    client.read_exact(&mut [0; 100_000]).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(bytes(&agent, "shortcut"), before);
}

/// Edges that come by chance, as for room to write: each has such a reader read once, and it is never twice at one place.
#[test]
fn a_reader_that_hardly_reads_on_leaves() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    exchange(&mut client, &mut server);
    // In bulk, by TCP.
    server.write_all(&[1; 100_000]).unwrap();
    for reads in 1.. {
        client.read_exact(&mut [0; 100]).unwrap();
        if safer(&agent, "reader_stalled") == 1 {
            break;
        }
        assert!(reads < 100, "it is still in");
        thread::sleep(Duration::from_millis(30));
    }
}

/// A kill leaves the shortcut open for some seconds, a stop closes it.
#[test]
fn when_the_agent_has_gone_a_reader_that_asks_gets_everything_and_every_flow_leaves() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let hosts = Hosts::new();
        let listener = listen(&hosts, Family::V4);
        let mut agent = hosts.agent(&shortcut(&[port(&listener)]));
        let mut pairs = [(); 2].map(|()| pair(&hosts, &listener, Family::V4));
        for (client, server) in &mut pairs {
            exchange(client, server);
        }
        agent
            .wait_for_log("the keeper has the shortcut's sockets")
            .unwrap();
        match signal {
            Signal::SIGKILL => agent.kill().unwrap(),
            _ => assert!(agent.stop().unwrap().success()),
        }
        let [(asks, writer), (quiet, quiets)] = &mut pairs;
        let sent = dataplane::probe_traffic::bytes(1, 0, 3_000_000);
        let read = thread::scope(|scope| {
            scope.spawn(|| writer.write_all(&sent).unwrap());
            read_asking(asks, sent.len())
        });
        assert!(read == sent, "{signal}: other bytes");
        // Of a socket that is in a sockmap FIONREAD does not tell what came by TCP.
        quiets.write_all(&[1; 100_000]).unwrap();
        let told = || rustix::io::ioctl_fionread(&*quiet).unwrap();
        eventually("FIONREAD tells all", || told() == 100_000);
        quiet.read_exact(&mut [0; 100_000]).unwrap();
        exchange(quiet, quiets);
        exchange(asks, writer);
        // Nobody is left to be looked after, though both connections are open.
        no_keeper_is_left(&agent);
    }
}

/// An agent whose flows stay on the shortcut for so long when it says nothing.
fn agent_with_stay<'h>(hosts: &'h Hosts, listener: &TcpListener, stay_ms: u32) -> Agent<'h> {
    let hooks = format!("UNDERPASS_TEST_HOOKS=shortcut_stays_ms={stay_ms}");
    let agent = hosts.switched(&hooks, "", &shortcut(&[port(listener)]));
    agent
        .wait_for_log("the keeper has the shortcut's sockets")
        .unwrap();
    agent
}

/// The keeper sees that the agent, which lives and has its sockets, does not say so any more.
#[test]
fn while_the_agent_does_not_run_a_reader_that_asks_gets_everything_and_other_flows_stay() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = agent_with_stay(&hosts, &listener, 500);
    let mut pairs = [(); 3].map(|()| pair(&hosts, &listener, Family::V4));
    for (client, server) in &mut pairs {
        exchange(client, server);
    }
    agent.signal(Signal::SIGSTOP).unwrap();
    let [(asks, writer), (asked, client), (quiet, quiets)] = &mut pairs;
    let sent = dataplane::probe_traffic::bytes(1, 0, 3_000_000);
    for (reader, to) in [(asks, writer), (client, asked)] {
        let read = thread::scope(|scope| {
            scope.spawn(|| to.write_all(&sent).unwrap());
            read_asking(reader, sent.len())
        });
        assert!(read == sent, "other bytes");
        exchange(reader, to);
    }
    agent.signal(Signal::SIGCONT).unwrap();
    eventually("a flow that did not wait takes the shortcut again", || {
        let before = messages(&agent, "shortcut");
        exchange(quiet, quiets);
        messages(&agent, "shortcut") > before
    });
}

/// The agent has let a reader out, and is killed or stopped before the next nudge is due.
#[test]
fn a_reader_that_has_left_before_the_agent_goes_gets_everything() {
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let hosts = Hosts::new();
        let listener = listen(&hosts, Family::V4);
        let agent = agent_with_stay(&hosts, &listener, 500);
        let _others = others(&hosts);
        let mut pairs = [(); 2].map(|()| pair(&hosts, &listener, Family::V4));
        for (client, server) in &mut pairs {
            exchange(client, server);
        }
        let sent = dataplane::probe_traffic::bytes(1, 0, 100_000);
        let [first, last] = &pairs;
        let reads = |(client, server): &(TcpStream, TcpStream), wait| {
            thread::sleep(wait);
            let mut server = server;
            server.write_all(&sent).unwrap();
            assert!(read_asking(client, sent.len()) == sent, "other bytes");
        };
        thread::scope(|scope| {
            scope.spawn(|| reads(first, Duration::ZERO));
            let lasts = scope.spawn(|| reads(last, Duration::from_millis(100)));
            // In the sockmap it is told nothing of what came by TCP.
            while !lasts.is_finished() && rustix::io::ioctl_fionread(&last.0).unwrap() == 0 {
                thread::yield_now();
            }
            agent.signal(signal).unwrap();
        });
        // One that does not run does not stop.
        agent.signal(Signal::SIGCONT).unwrap();
    }
}

/// The keeper takes the agent for one that does not run, though it does: between two of its looks.
#[test]
fn two_that_look_at_a_time_lose_no_byte() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = agent_with_stay(&hosts, &listener, 60);
    let sent = dataplane::probe_traffic::bytes(1, 0, 1 << 20);
    thread::scope(|scope| {
        for worker in 0..4 {
            let (hosts, listener, sent) = (&hosts, &listener, &sent);
            scope.spawn(move || {
                let mut random = Random::new(worker);
                for _ in 0..10 {
                    let (client, server) = pair(hosts, listener, Family::V4);
                    let writes = |mut to: &TcpStream, mut random: Random| {
                        let mut at = 0;
                        while at < sent.len() {
                            let n = (1 + random.below(100_000)).min(sent.len() - at);
                            to.write_all(&sent[at..at + n]).unwrap();
                            at += n;
                            thread::sleep(Duration::from_millis(random.below(30) as u64));
                        }
                    };
                    let random = Random::new(1 + random.below(1 << 20) as u64);
                    let read = thread::scope(|scope| {
                        scope.spawn(|| writes(&server, random));
                        read_asking(&client, sent.len())
                    });
                    assert!(read == *sent, "other bytes");
                }
            });
        }
    });
    assert!(safer(&agent, "reader_stalled") > 0);
    assert!(bytes(&agent, "shortcut") > 0);
}
