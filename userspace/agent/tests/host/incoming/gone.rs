//! Databases that are gone between the decision and the enrolment: their flow is refused, and ends.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

use socket2::SockRef;

use super::{
    hosts::*,
    spliced::{DRIVER, policy, riding},
};
use crate::common::{
    BINARY, Family, accept, eventually,
    frames::{ready, startup},
};

/// Whether a database is gone in time is a matter of microseconds.
const TRIES: u64 = 2_000;
const LONGEST_WAIT: u64 = 400;

/// A database that resets so long after it has let a client in.
fn resets_behind_ready(hosts: &Hosts, listener: &TcpListener, wait: Duration) {
    let mut client: TcpStream = hosts.connect(Family::V4).unwrap();
    let (mut database, _) = accept(listener);
    let startup = startup(4, &[("CQL_VERSION", "3.0.0"), ("DRIVER_NAME", DRIVER)]);
    let ready = ready(4);
    client.write_all(&startup).unwrap();
    database.read_exact(&mut vec![0; startup.len()]).unwrap();
    database.set_nonblocking(true).unwrap();
    database.write_all(&ready).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < wait {
        std::hint::spin_loop();
    }
    let own = SockRef::from(&database);
    own.set_linger(Some(Duration::ZERO)).unwrap();
    drop(database);
    let mut all = Vec::new();
    match client.read_to_end(&mut all) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
    }
    assert!(ready.starts_with(&all), "{all:?}");
}

#[test]
fn a_flow_whose_database_is_gone_is_refused_and_ends() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Family::V4);
    let agent = hosts.splicing(Path::new(BINARY), ENGINE, &policy());
    // The agent's own socket to it is reset in the same moment, and looked for first.
    let gone = || {
        let counts = ["socket_gone", "database_gone"].map(|reason| {
            let name = format!("underpass_splice_refusals_total{{reason=\"{reason}\"}}");
            agent.metric(&name).unwrap()
        });
        counts.iter().sum::<f64>()
    };
    let mut tries = 0;
    while gone() == 0.0 {
        assert!(tries < TRIES, "none was gone in time");
        resets_behind_ready(
            &hosts,
            &listener,
            Duration::from_micros(tries % LONGEST_WAIT),
        );
        tries += 1;
    }
    eventually("all have ended", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });
    // The next one rides.
    drop(riding(&hosts, &agent, &listener));
}
