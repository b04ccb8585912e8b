//! Flows without an agent, of which somebody takes care.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};

use sandbox::Agent;

use super::{ENGINES, host::*, mark};
use crate::common::traffic::PATIENCE;

/// A flow that rides, and whose agent is dead.
fn orphan<'a>(host: &'a Host, engine: &str) -> (Agent<'a>, TcpStream, TcpStream) {
    let mut agent = host.agent(engine);
    let (mut client, mut database) = host.pair();
    for end in [&client, &database] {
        end.set_nodelay(true).unwrap();
        end.set_nonblocking(true).unwrap();
    }
    database.set_read_timeout(Some(PATIENCE)).unwrap();
    ping_pong(&mut client, &mut database);
    until("it is kept", || kept(&agent) == 1.0);
    until("it rides", || {
        ping_pong(&mut client, &mut database);
        paths(&agent) == ["splice"]
    });
    agent.kill().unwrap();
    ping_pong(&mut client, &mut database);
    // Since it rides, it may.
    database.set_nonblocking(false).unwrap();
    (agent, client, database)
}

fn ping_pong(client: &mut TcpStream, database: &mut TcpStream) {
    (0..200).for_each(|_| exchange(client, database));
}

fn exchange(client: &mut TcpStream, database: &mut TcpStream) {
    let mut bytes = [0; 4];
    client.write_all(b"ping").unwrap();
    read_all(database, &mut bytes);
    assert_eq!(&bytes, b"ping");
    database.write_all(b"pong").unwrap();
    read_all(client, &mut bytes);
    assert_eq!(&bytes, b"pong");
}

#[test]
fn hundreds_of_flows_are_kept_if_not_at_once() {
    const FLOWS: usize = 400;
    let host = Host::new();
    let mut agent = host.agent("auto");
    let keeper = nix::unistd::Pid::from_raw(keepers(&agent).remove(0) as i32);
    nix::sys::signal::kill(keeper, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let mut pairs: Vec<_> = (0..FLOWS)
        .map(|_| {
            let (mut client, mut database) = host.pair();
            for end in [&client, &database] {
                end.set_nonblocking(true).unwrap();
            }
            exchange(&mut client, &mut database);
            (client, database)
        })
        .collect();
    let mut exchange_all = || pairs.iter_mut().for_each(|(c, d)| exchange(c, d));
    until("the keeper is behind", || {
        exchange_all();
        let counted = "underpass_not_kept_flows_total{reason=\"busy\"}";
        agent.metric(counted).unwrap() > 0.0
    });
    nix::sys::signal::kill(keeper, nix::sys::signal::Signal::SIGCONT).unwrap();
    until("all are kept", || kept(&agent) == FLOWS as f64);
    they_ride(&agent);
    agent.kill().unwrap();
    (0..3).for_each(|_| exchange_all());
    agent.restart().unwrap();
    works(&agent);
    until("all are adopted", || flows(&agent).len() == FLOWS);
    (0..3).for_each(|_| exchange_all());
    drop(pairs);
    until("all have ended", || flows(&agent).is_empty());
    assert_eq!(kept(&agent), 0.0);
}

fn read_all(from: &mut TcpStream, mut into: &mut [u8]) {
    let deadline = Instant::now() + PATIENCE;
    while !into.is_empty() {
        match from.read(into) {
            Ok(0) => panic!("{} bytes are missing", into.len()),
            Ok(n) => into = &mut into[n..],
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock);
                assert!(
                    Instant::now() < deadline,
                    "{} bytes do not come",
                    into.len()
                );
                thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

#[test]
fn the_client_keeps_the_names_that_it_knows() {
    let host = Host::new();
    let (agent, client, database) = orphan(&host, "auto");
    assert_eq!(client.peer_addr().unwrap(), host.to());
    assert_eq!(client.local_addr().unwrap(), database.peer_addr().unwrap());
    drop((client, database));
    no_keeper_is_left(&agent);
}

#[test]
fn somebody_cares_for_a_flow_whose_client_stops_reading() {
    for engine in ENGINES {
        let host = Host::new();
        let (agent, mut client, mut database) = orphan(&host, engine);
        let sent: Vec<u8> = (0..24_u32 << 20).map(|n| (n % 65_521) as u8).collect();
        let expected = sent.clone();
        let mut writing = database.try_clone().unwrap();
        let writer = thread::spawn(move || writing.write_all(&sent).unwrap());
        // The database is stopped before all of it has gone.
        thread::sleep(Duration::from_millis(300));
        assert!(!writer.is_finished(), "{engine}: nobody stops the database");
        let mut got = vec![0; expected.len()];
        read_all(&mut client, &mut got);
        assert!(got == expected, "{engine}: bytes were changed");
        writer.join().unwrap();
        ping_pong(&mut client, &mut database);
        drop((client, database));
        no_keeper_is_left(&agent);
    }
}

#[test]
fn a_mark_that_denies_reaches_a_flow_that_is_adopted_later() {
    let host = Host::new();
    let (mut agent, mut client, database) = orphan(&host, "auto");
    // Its client does not read, so it does not ride, and the keeper does not give it away.
    let writer = thread::spawn(move || {
        let mut database = database;
        database.write_all(&vec![1; 24 << 20])?;
        database.read(&mut [0; 1]).map(drop)
    });
    thread::sleep(Duration::from_millis(300));
    agent.restart().unwrap();
    works(&agent);
    assert!(flows(&agent).is_empty());
    let target = format!("to=:{}", host.to().port());
    let marked = mark(&agent, &target, "deny");
    assert!(marked.contains("0 changed"), "{marked}");
    let mut bytes = vec![0; 1 << 20];
    until("it is reset", || match client.read(&mut bytes) {
        Ok(n) => n == 0,
        Err(e) => e.kind() == ErrorKind::ConnectionReset,
    });
    assert!(writer.join().unwrap().is_err(), "the database saw no reset");
    assert_eq!(agent.metric("underpass_adopted_flows_total").unwrap(), 1.0);
    until("nothing of it is left", || {
        flows(&agent).is_empty() && kept(&agent) == 0.0
    });
}

#[test]
fn somebody_passes_ends_on() {
    for engine in ENGINES {
        let host = Host::new();
        let (agent, mut client, mut database) = orphan(&host, engine);
        client.write_all(b"last words").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut words = [0; 10];
        read_all(&mut database, &mut words);
        assert_eq!(&words, b"last words", "{engine}");
        until("the database sees the end", || {
            matches!(database.read(&mut words), Ok(0))
        });
        database.write_all(b"answer").unwrap();
        drop(database);
        let mut answer = [0; 6];
        read_all(&mut client, &mut answer);
        assert_eq!(&answer, b"answer");
        until("the client sees the end", || {
            matches!(client.read(&mut answer), Ok(0))
        });
        no_keeper_is_left(&agent);
    }
}

#[test]
fn somebody_passes_resets_on() {
    for engine in ENGINES {
        for client_dies in [true, false] {
            let host = Host::new();
            let (agent, client, database) = orphan(&host, engine);
            // In a sockmap a recv(2) that blocks may return EAGAIN.
            database.set_nonblocking(true).unwrap();
            let (dies, mut lives) = match client_dies {
                true => (client, database),
                false => (database, client),
            };
            nix::sys::socket::setsockopt(
                &dies,
                nix::sys::socket::sockopt::Linger,
                &nix::libc::linger {
                    l_onoff: 1,
                    l_linger: 0,
                },
            )
            .unwrap();
            drop(dies);
            until("the other side sees it", || match lives.read(&mut [0; 8]) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => false,
                Err(e) => e.kind() == ErrorKind::ConnectionReset,
                Ok(n) => panic!("{engine}: {n} bytes instead of a reset"),
            });
            no_keeper_is_left(&agent);
        }
    }
}
