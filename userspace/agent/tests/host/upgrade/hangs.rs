//! One of two agents hangs while the other one takes over.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use socket2::{Domain, Socket, Type};

use super::{
    DRAINED, Host, agents_of,
    handed::{TAKEN, has_token, of_node},
    kills::hooked,
    log_in,
};
use crate::common::*;

/// The time in which an agent that may take connections does.
const SETTLED: Duration = Duration::from_secs(1);

/// A connection takes milliseconds, and an agent that hangs is waited for for seconds.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Longer than an agent has for an answer.
const LONG: Duration = Duration::from_secs(3);

/// Clients, each with tokens of its own: so many that what is told of them does not fit into a socket.
const CLIENTS: u16 = 3000;

/// Whether a process is stopped by a signal.
pub(super) fn is_stopped(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which is in parentheses and may hold any.
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[test]
fn connections_are_taken_while_the_agent_before_hangs() {
    let host = Host::new();
    hooked(&host, "hangs_at=went", |mut agent| {
        let old = Pid::from_raw(agent.pid() as i32);
        thread::scope(|scope| {
            let takes_over = scope.spawn(|| agent.take_over("").unwrap());
            eventually("the old one hangs", || is_stopped(old));
            thread::sleep(SETTLED);
            let begun = Instant::now();
            host.serves();
            let took = begun.elapsed();
            kill(old, Signal::SIGCONT).unwrap();
            assert!(took < AT_ONCE, "{took:?}");
            let log = takes_over.join().unwrap().ends_within(DRAINED).unwrap();
            assert!(log.contains("why=Drained"), "{log}");
        });
        host.serves();
    });
}

/// A client with this address, logged in.
fn client_at(host: &Host, address: Ipv4Addr) -> TcpStream {
    let dialled = host.sandbox.client(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((address, 0)).into())?;
        socket.connect(&host.node.addr().into())?;
        std::io::Result::Ok(TcpStream::from(socket))
    });
    let mut client = dialled.unwrap().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    log_in(&mut client);
    client
}

#[test]
fn flows_are_handed_over_once_the_other_agent_listens() {
    let throttle = "{ transform = \"throttle\", rate = 0.001, burst = 3, per = \"client\", mode = \"overloaded\" }";
    let host = of_node(&format!("pipeline = [{throttle}]\n"), None);
    let mut agent = host.agent("");
    let mut client = client_at(&host, Ipv4Addr::new(127, 1, 0, 1));
    assert!(has_token(&mut client));
    for number in 0..CLIENTS {
        let [high, low] = number.to_be_bytes();
        assert!(has_token(&mut client_at(
            &host,
            Ipv4Addr::new(127, 2, high, low)
        )));
    }
    let (file, old) = (agent.file(), Pid::from_raw(agent.pid() as i32));
    let other = || agents_of(&file).into_iter().find(|pid| *pid != old);
    thread::scope(|scope| {
        let takes_over = scope.spawn(|| agent.take_over("hangs_at=handed").unwrap());
        eventually("the other one hangs", || other().is_some_and(is_stopped));
        thread::sleep(LONG);
        kill(other().unwrap(), Signal::SIGCONT).unwrap();
        let log = takes_over.join().unwrap().ends_within(DRAINED).unwrap();
        assert!(log.contains("does not listen"), "{log}");
        assert!(log.contains("why=Drained"), "{log}");
    });
    assert_eq!(agent.metric(TAKEN).unwrap(), 1.0);
    // Three have a token in all.
    let tokens = [(); 4].map(|()| has_token(&mut client));
    assert_eq!(tokens, [true, true, false, false]);
    let last = Ipv4Addr::from([127, 2, 0, 0]);
    let tokens = [(); 4].map(|()| has_token(&mut client_at(&host, last)));
    assert_eq!(tokens, [true, true, false, false], "{last}");
}
