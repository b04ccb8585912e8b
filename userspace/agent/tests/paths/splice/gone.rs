//! Sockets that close between the decision and the enrolment: the flow is refused, ends, and leaves nothing.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use sandbox::{Agent, Sandbox};
use socket2::SockRef;

use super::{DRIVER, LOADED, agent_as, listener, pair, read_now, switched};
use crate::common::{
    eventually,
    frames::{ready, startup},
};

/// The maps take so many flows: what stayed of those that are gone would leave no room. The canary's fit.
const SMALL: &str = "UNDERPASS_TEST_HOOKS=entries=32";
const ENTRIES: usize = 32;

/// Whether a client is gone in time is a matter of microseconds.
const TRIES: usize = 600;
const LONGEST_WAIT: usize = 60;

/// Resets so long after it was told that it may go on.
fn resets_behind_ready(mut client: TcpStream, mut database: TcpStream, wait: Duration) {
    let startup = startup(4, &[("CQL_VERSION", "3.0.0"), ("DRIVER_NAME", DRIVER)]);
    let ready = ready(4);
    client.write_all(&startup).unwrap();
    read_now(&mut database, &mut vec![0; startup.len()]);
    database.write_all(&ready).unwrap();
    read_now(&mut client, &mut vec![0; ready.len()]);
    let begun = Instant::now();
    while begun.elapsed() < wait {
        std::hint::spin_loop();
    }
    SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    let deadline = Instant::now() + LOADED;
    while let Err(e) = database.read(&mut [0; 8]) {
        if e.kind() != ErrorKind::WouldBlock {
            break;
        }
        assert!(Instant::now() < deadline, "the database is not told");
        std::thread::yield_now();
    }
}

fn gone(agent: &Agent<'_>) -> f64 {
    let reasons = ["client_gone", "socket_gone", "database_gone"];
    let counts = reasons.map(|reason| {
        let name = format!("underpass_splice_refusals_total{{reason=\"{reason}\"}}");
        agent.metric(&name).unwrap()
    });
    counts.iter().sum()
}

#[test]
fn a_flow_whose_client_is_gone_is_refused_and_leaves_nothing() {
    let sandbox = Sandbox::new().unwrap();
    let listener = listener(&sandbox);
    let folder = tempfile::tempdir().unwrap();
    let binary = switched(folder.path(), SMALL);
    let port = listener.local_addr().unwrap().port();
    let agent = agent_as(&binary, &sandbox, "sender", port);
    let mut tries = 0;
    while tries <= ENTRIES || gone(&agent) == 0.0 {
        assert!(tries < TRIES, "none was gone in time");
        let (client, database) = pair(&sandbox, &listener);
        let wait = Duration::from_micros((tries % LONGEST_WAIT) as u64);
        resets_behind_ready(client, database, wait);
        tries += 1;
    }
    eventually("all have ended", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });
    // The kernel's words of a flow go a second after it, as the next one comes.
    std::thread::sleep(Duration::from_millis(1_100));
    let mut open: Vec<_> = (0..ENTRIES).map(|_| pair(&sandbox, &listener)).collect();
    for (client, database) in &mut open {
        super::ping_pong(client, database);
    }
    eventually("there is room for as many as ever", || {
        let flows = agent.json("/flows").unwrap();
        let flows = flows.as_array().unwrap();
        flows.len() == ENTRIES && flows.iter().all(|flow| flow["path"] == "splice")
    });
}
