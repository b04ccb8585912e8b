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
