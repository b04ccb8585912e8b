//! Over a wire that loses, doubles and holds up packets: a verdict is handed what TCP sends again, and
//! passes every byte on once.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
};

use integrity::{Choices, Cql, Options, Plan, Report, Server, drive};
use sandbox::{Faults, run_in};

use super::{BINARY, COST, DRIVER, LOADED, NEVER_BLOCKS, agent_as};
use crate::common::{Family, Hosts};

/// Faults of the wire. Packets that overtake each other make TCP send a part of what has come again
/// more than anything else does.
const BAD: Faults = Faults {
    lost: 10,
    doubled: 20,
    held: 150,
    late: 0,
};

/// Every one of which both sides hear the end: a reset is not sent again when it is lost, and who only
/// reads would wait for ever, with TCP alone as well.
const SHAPES: [&str; 9] = [
    "bulk-up",
    "bulk-down",
    "duplex",
    "ping-pong",
    "pipelined",
    "half-close-client",
    "half-close-server",
    "slow-reader",
    "stopped-reader",
];

fn driven(hosts: &Hosts, to: SocketAddr) -> Report {
    let plan = Plan {
        choices: Choices::named(&[&NEVER_BLOCKS[..], &SHAPES].concat()).unwrap(),
        bytes: 24 << 20,
        connection_max: 4 << 20,
        connections: (1, 16),
        // Retransmissions wait, each time twice as long.
        hang_limit: 2 * LOADED,
        cql: Some(Cql {
            drivers: vec![DRIVER.into()],
            ..Cql::default()
        }),
        ..Plan::new(to)
    };
    hosts.client(|| drive(&plan))
}

#[test]
fn what_comes_again_is_passed_on_once() {
    let (hosts, wire) = Hosts::with_wire(4);
    for family in [Family::V4, Family::V6] {
        let at = SocketAddr::new(family.database(), 0);
        let server = run_in(Some(&hosts.database), None, || {
            let options = Options {
                never_blocks: true,
                ..Options::default()
            };
            Server::start_with(TcpListener::bind(at).unwrap(), options).unwrap()
        });
        let server = server.unwrap();
        let agent = agent_as(
            Path::new(BINARY),
            &hosts.app,
            "egress",
            server.addr().port(),
        );
        let before = wire.carried();
        wire.set([BAD, BAD]);
        let report = driven(&hosts, server.addr());
        wire.set([Faults::default(); 2]);
        let after = wire.carried();
        assert!(report.passed(&[COST.into()]), "{family:?}: {report}");
        for direction in ["to_database", "to_client"] {
            let name = format!("underpass_spliced_bytes_total{{direction=\"{direction}\"}}");
            assert!(agent.metric(&name).unwrap() > 0.0, "{family:?} {direction}");
        }
        for cause in ["splice_corrupted", "splice_position_lost"] {
            let name = format!("underpass_safer_path_total{{cause=\"{cause}\"}}");
            assert_eq!(agent.metric(&name).unwrap(), 0.0, "{family:?} {cause}");
        }
        for (after, before) in after.into_iter().zip(before) {
            let (lost, doubled) = (after.lost - before.lost, after.doubled - before.doubled);
            assert!(lost > 24 && doubled > 24, "{family:?}: {after:?}");
        }
    }
}
