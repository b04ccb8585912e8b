//! `soak`: the tests of which `test` runs a smaller load, with all of it. The assertions are the same.

use anyhow::{Context, Result};

use crate::{
    cassandra,
    run::{cargo, require_root, run as run_command},
};

/// Tests with a load that can be set.
struct Soak {
    package: &'static str,
    /// The test program.
    program: &'static str,
    /// Full names of the tests.
    tests: &'static [&'static str],
    /// Variable that sets the load, and its value here.
    load: (&'static str, &'static str),
}

const SOAKS: &[Soak] = &[
    Soak {
        package: "underpass",
        program: "alone",
        tests: &["observe_truth::requests_of_a_driver_are_counted_and_measured"],
        load: ("UNDERPASS_REQUESTS", "1000000"),
    },
    Soak {
        package: "underpass",
        program: "enrichment",
        tests: &["reporters::adopted::no_application_notices_how_often_the_agent_dies"],
        load: ("UNDERPASS_DEATHS", "100"),
    },
    Soak {
        package: "underpass",
        program: "enrichment",
        tests: &["reporters::adopted::thousands_of_running_connections_are_read_within_seconds"],
        load: ("UNDERPASS_RUNNING", "10000"),
    },
    Soak {
        package: "underpass-dataplane",
        program: "edge",
        tests: &[
            "random::nothing_malformed_is_sent_on_and_every_packet_is_counted_once",
            "wire::packets_at_random_are_all_counted_and_nothing_malformed_comes_back",
        ],
        load: ("UNDERPASS_EDGE_PACKETS", "1000000"),
    },
    Soak {
        package: "underpass",
        program: "paths",
        tests: &["integrity::readers::whoever_reads_in_whatever_way_gets_every_byte_on_every_path"],
        load: ("UNDERPASS_READERS_MIB", "2048"),
    },
    Soak {
        package: "underpass",
        program: "paths",
        tests: &[
            "clients::haproxy_gets_every_answer",
            "clients::nginx_gets_every_answer",
        ],
        load: ("UNDERPASS_ANSWER_MIB", "64"),
    },
    Soak {
        package: "underpass",
        program: "drivers",
        tests: &["differential::answers_are_those_without_the_agent"],
        load: ("UNDERPASS_STATEMENTS", "20000"),
    },
];

/// The command. The first test that fails ends it. Cassandra is stopped at the end if it was not running before.
pub fn run() -> Result<()> {
    require_root("soak", "loads BPF programs and makes network namespaces")?;
    let node = cassandra::up(None)?;
    let soaked = soak(&node);
    soaked.and(node.finish())
}

fn soak(node: &cassandra::Up) -> Result<()> {
    for soak in SOAKS {
        let (variable, load) = soak.load;
        run_command(
            cargo()
                .args(["test", "-p", soak.package, "--test", soak.program])
                .args(["--", "--exact", "--nocapture"])
                .args(soak.tests)
                .envs(node.variables())
                .env(variable, load),
        )
        .with_context(|| format!("{} failed with {variable}={load}", soak.tests.join(", ")))?;
    }
    Ok(())
}
