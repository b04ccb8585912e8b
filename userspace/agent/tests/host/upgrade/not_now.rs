//! Flows that the agent that takes over does not take at once stay with the one before, go on there, and go over later.

use std::{io::Write, net::TcpStream, thread, time::Duration};

use cql_node::Delays;
use nix::sys::signal::Signal;
use rustix::{process::Uid, thread::set_thread_res_uid};

use super::{
    DRAINED, Host,
    handed::{TAKEN, of_node, whole},
};
use crate::common::*;

/// The time that the database takes for an answer: longer than a flow is held, and than another agent takes to begin on a busy machine.
const SLOW: Duration = Duration::from_secs(5);

const CLIENTS: u8 = 8;

/// Answers that come so late have waited for the other agent.
const LATE: Duration = Duration::from_secs(8);

fn slow(steps: &str) -> Host {
    let delays = Delays {
        seed: 1,
        least: SLOW,
        tail: Duration::ZERO,
    };
    of_node(steps, Some(delays))
}

fn logged_in(host: &Host) -> TcpStream {
    let mut client = host.dial();
    super::log_in(&mut client);
    client
}

/// Logged in, by a process of a user who is not root.
fn of_a_user(host: &Host) -> TcpStream {
    let dialled = host.sandbox.client(|| {
        let uid = Uid::from_raw(4242);
        set_thread_res_uid(Some(uid), Some(uid), Some(uid))?;
        TcpStream::connect(host.node.addr())
    });
    let mut client = dialled.unwrap().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    super::log_in(&mut client);
    client
}

fn ask(client: &mut TcpStream, stream: u8) {
    let text = "SELECT c FROM shop.paged WHERE p = 1";
    client
        .write_all(&frames::query(4, stream.into(), text))
        .unwrap();
}

fn takes_answer(client: &mut TcpStream, stream: u8) {
    let answer = whole(client);
    assert_eq!((answer[3], answer[4]), (stream, frames::RESULT));
}

#[test]
fn an_agent_that_hangs_holds_one_flow_up_and_no_other() {
    let host = slow("pipeline = [{ transform = \"stats\" }]\n");
    let mut agent = host.agent("");
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| logged_in(&host)).collect();
    clients.iter_mut().for_each(|client| ask(client, 1));
    let mut former = agent.take_over("").unwrap();
    agent.signal(Signal::SIGSTOP).unwrap();
    for client in &mut clients {
        takes_answer(client, 1);
        ask(client, 2);
    }
    // Nobody knows whether the other agent has read that one: it alone waits.
    let mut waits = Vec::new();
    for mut client in clients {
        client.set_read_timeout(Some(LATE)).unwrap();
        match client.peek(&mut [0]) {
            Ok(_) => takes_answer(&mut client, 2),
            Err(_) => waits.push(client),
        }
    }
    assert!(waits.len() <= 1, "{} flows wait", waits.len());
    agent.signal(Signal::SIGCONT).unwrap();
    for mut client in waits {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        takes_answer(&mut client, 2);
    }
    let log = former.ends_within(DRAINED).unwrap();
    assert!(log.contains("why=Drained"), "{log}");
}

#[test]
fn flows_are_taken_when_their_user_has_room() {
    let host = slow("pipeline = [{ transform = \"stats\" }]\n");
    // Four flows of a user in a cgroup.
    let settings = "max_flows = 16\nuser_share = 0.5";
    let mut agent = host.agent(settings);
    let mut busy: Vec<TcpStream> = (0..2).map(|_| of_a_user(&host)).collect();
    busy.iter_mut().for_each(|client| ask(client, 1));
    let mut former = agent.take_over("").unwrap();
    let newer: Vec<TcpStream> = (0..4).map(|_| of_a_user(&host)).collect();
    for client in &mut busy {
        takes_answer(client, 1);
    }
    // They are asked to come, in vain, and go on where they are.
    thread::sleep(Duration::from_secs(1));
    assert_eq!(agent.metric(TAKEN).unwrap(), 0.0);
    let told = agent.json("/agent").unwrap();
    assert_eq!(told["before"]["flows"], 2, "{told}");
    drop(newer);
    eventually("there is room", || agent.metric(TAKEN).unwrap() == 2.0);
    let log = former.ends_within(DRAINED).unwrap();
    assert!(log.contains("why=Drained"), "{log}");
    for client in &mut busy {
        ask(client, 2);
    }
    for client in &mut busy {
        takes_answer(client, 2);
    }
}
