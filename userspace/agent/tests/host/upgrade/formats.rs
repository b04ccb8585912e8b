//! Agents of other versions: what another format means to the one that runs.

use std::{thread, time::Duration};

use super::{DRAINED, Host, draining, failed, handed::TAKEN, log_in, refusal};
use crate::common::*;

/// Long enough for flows to be handed over that can be.
const SETTLED: Duration = Duration::from_secs(1);

#[test]
fn flows_stay_where_the_other_agent_reads_another_format_of_them() {
    let host = Host::new();
    let mut agent = host.agent("");
    let mut client = host.dial();
    log_in(&mut client);
    let mut former = agent.take_over("flow_format=4000000000").unwrap();
    eventually("one flow is left", || draining(&agent) == 1.0);
    host.serves();
    thread::sleep(SETTLED);
    assert!(works(&mut client));
    assert_eq!(draining(&agent), 1.0);
    assert_eq!(agent.metric(TAKEN).unwrap(), 0.0);
    drop(client);
    let log = former.ends_within(DRAINED).unwrap();
    assert!(log.contains("why=Drained"), "{log}");
}

#[test]
fn an_agent_of_another_protocol_is_refused_and_nothing_is_lost() {
    let host = Host::new();
    let mut agent = host.agent("");
    let mut client = host.dial();
    log_in(&mut client);
    let said = refusal(&mut agent, "upgrade_format=4000000000");
    assert!(
        said.contains("speaks format 1, and the other one 4000000000: stop the one"),
        "{said}"
    );
    assert!(works(&mut client));
    host.serves();
    assert_eq!(failed(&agent), 1.0);
    agent.take_over("").unwrap().ends_within(DRAINED).unwrap();
    assert!(works(&mut client));
    assert_eq!(agent.metric(TAKEN).unwrap(), 1.0);
}
