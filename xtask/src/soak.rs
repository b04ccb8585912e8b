//! `soak`: the tests of which `test` runs a smaller load, with all of it, or for a given time. The assertions are the same.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    cassandra, programs, python,
    run::{cargo, require_root, run as run_command},
    setup,
};

/// Options of `soak`.
#[derive(clap::Args)]
pub struct Args {
    /// Go on with the tests that make other traffic by another seed (ways of reading, clients, generated statements), round
    /// by round, until this time is over. The others are left out
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Leave out all tests but those whose names hold this text. With `UPDATE_DOCS` set, those of the tap
    /// (`observe_truth`, `adopted`) write `bench/results/tapped.md`
    #[arg(long, value_name = "TEXT", conflicts_with = "minutes")]
    only: Option<String>,
    /// Only have agents take over from one another so often, while five drivers work, and measure. With `UPDATE_DOCS` set the
    /// result is written to `bench/results/upgrades.md`
    #[arg(long, value_name = "N", conflicts_with_all = ["minutes", "only"])]
    upgrades: Option<u32>,
    /// Only have all paths at once under one agent, for so many hours (a fraction will do), while faults happen, one after the
    /// other. With `UPDATE_DOCS` set the result is written to `bench/results/soak.md`
    #[arg(long, value_name = "N", conflicts_with_all = ["minutes", "only", "upgrades"])]
    hours: Option<f64>,
    /// The seed of the faults of `--hours`: the same ones, in the same order
    #[arg(long, value_name = "S", default_value_t = 0, requires = "hours")]
    seed: u64,
}

/// Tests with a load that can be set.
struct Soak {
    /// The test program.
    program: &'static str,
    /// Full names of the tests.
    tests: &'static [&'static str],
    /// Variable that sets the load, and its value here.
    load: (&'static str, &'static str),
    /// The value for a round of several, for tests that obey `UNDERPASS_SEED`.
    round: Option<&'static str>,
    /// Whether it is judged by the time that it takes: that of a release build.
    is_timed: bool,
}

const UPGRADES: Soak = Soak {
    program: "drivers",
    tests: &["upgraded::drivers_work_while_agents_take_over_from_one_another"],
    load: ("UNDERPASS_UPGRADES", "100"),
    round: None,
    is_timed: false,
};

const HOURS: Soak = Soak {
    program: "paths",
    tests: &["soak::nothing_is_wrong_or_waits_or_is_left_behind_whatever_fails"],
    load: ("UNDERPASS_SOAK_HOURS", "1"),
    round: None,
    is_timed: false,
};

const SOAKS: &[Soak] = &[
    Soak {
        program: "alone",
        tests: &[
            "observe_truth::requests_of_a_driver_are_counted_and_measured",
            "observe_truth::statements_of_a_driver_are_counted_and_measured_by_copies",
        ],
        load: ("UNDERPASS_REQUESTS", "1000000"),
        round: None,
        is_timed: false,
    },
    Soak {
        program: "enrichment",
        tests: &["reporters::adopted::no_application_notices_how_often_the_agent_dies"],
        load: ("UNDERPASS_DEATHS", "100"),
        round: None,
        is_timed: false,
    },
    Soak {
        program: "enrichment",
        tests: &["reporters::thousands::running_connections_are_read_within_seconds"],
        load: ("UNDERPASS_RUNNING", "10000"),
        round: None,
        is_timed: true,
    },
    Soak {
        program: "edge",
        tests: &[
            "random::nothing_malformed_is_sent_on_and_every_packet_is_counted_once",
            "wire::packets_at_random_are_all_counted_and_nothing_malformed_comes_back",
        ],
        load: ("UNDERPASS_EDGE_PACKETS", "1000000"),
        round: None,
        is_timed: false,
    },
    Soak {
        program: "paths",
        tests: &["integrity::readers::whoever_reads_in_whatever_way_gets_every_byte_on_every_path"],
        load: ("UNDERPASS_READERS_MIB", "2048"),
        round: Some("64"),
        is_timed: false,
    },
    Soak {
        program: "paths",
        tests: &[
            "clients::envoy_gets_every_answer",
            "clients::haproxy_gets_every_answer",
            "clients::nginx_gets_every_answer",
            "clients::redis_cli_in_a_pipe_gets_every_answer",
        ],
        load: ("UNDERPASS_ANSWER_MIB", "64"),
        round: Some("64"),
        is_timed: false,
    },
    Soak {
        program: "etcd",
        tests: &["two_hundred_hosts_follow_a_thousand_rules_within_two_seconds"],
        load: ("UNDERPASS_FOLLOWERS", "1000"),
        round: None,
        is_timed: true,
    },
    Soak {
        program: "host",
        tests: &["sharing::agents::agents_hold_a_tenants_rate_together"],
        load: ("UNDERPASS_SHARING_AGENTS", "20"),
        round: None,
        is_timed: false,
    },
    UPGRADES,
    HOURS,
    Soak {
        program: "drivers",
        tests: &["differential::answers_are_those_without_the_agent"],
        load: ("UNDERPASS_STATEMENTS", "20000"),
        round: Some("2000"),
        is_timed: false,
    },
    Soak {
        program: "drivers",
        tests: &[
            "differential::answers_through_each_step_are_those_without_it",
            "differential::odd::what_comes_at_an_odd_time_is_answered_as_without_the_agent",
        ],
        load: ("UNDERPASS_STATEMENTS_ALONE", "20000"),
        round: Some("400"),
        is_timed: false,
    },
];

/// The command. The first test that fails ends it. Cassandra is stopped at the end if it was not running before.
pub fn run(args: &Args) -> Result<()> {
    require_root("soak", "loads BPF programs and makes network namespaces")?;
    setup::ensure(&setup::ALL)?;
    let mut variables = programs::ensure()?;
    variables.extend(python::ensure()?);
    let node = cassandra::up(None)?;
    let provided = Provided {
        variables,
        node: &node,
    };
    let soaked = match (args.minutes, args.upgrades, args.hours) {
        (Some(minutes), ..) => provided.rounds(Duration::from_secs(60 * minutes)),
        (None, Some(upgrades), _) => provided.run(&UPGRADES, &upgrades.to_string(), 0),
        (None, None, Some(hours)) => provided.run(&HOURS, &hours.to_string(), args.seed),
        (None, None, None) => provided.all(args.only.as_deref().unwrap_or_default()),
    };
    soaked.and(node.finish())
}

/// All that tests need besides the machine.
struct Provided<'n> {
    variables: Vec<(&'static str, PathBuf)>,
    node: &'n cassandra::Up,
}

impl Provided<'_> {
    /// Runs all whose names hold this text.
    fn all(&self, text: &str) -> Result<()> {
        let has = |soak: &&Soak| soak.tests.iter().any(|test| test.contains(text));
        let chosen: Vec<&Soak> = SOAKS.iter().filter(has).collect();
        ensure!(!chosen.is_empty(), "no test's name holds {text:?}");
        let mut chosen = chosen.into_iter();
        chosen.try_for_each(|soak| self.run(soak, soak.load.1, 0))
    }

    /// Runs rounds until the time is over. A test that has begun then goes on to its end.
    fn rounds(&self, time: Duration) -> Result<()> {
        let (begun, mut ran) = (Instant::now(), 0);
        for seed in 1.. {
            for soak in SOAKS {
                let Some(load) = soak.round else { continue };
                if begun.elapsed() >= time {
                    eprintln!("soak: nothing found in {ran} runs, {seed} seeds");
                    return Ok(());
                }
                self.run(soak, load, seed)?;
                ran += 1;
            }
        }
        Ok(())
    }

    fn run(&self, soak: &Soak, load: &str, seed: u64) -> Result<()> {
        let variable = soak.load.0;
        let variables = self.variables.iter().map(|(name, path)| (name, path));
        run_command(
            cargo()
                // As `test` builds it: one package alone would be compiled anew, with other features.
                .args(["test", "--workspace", "--test", soak.program])
                .args(soak.is_timed.then_some("--release"))
                .args(["--", "--exact", "--nocapture"])
                .args(soak.tests)
                .envs(self.node.variables())
                .envs(variables)
                .env("UNDERPASS_REQUIRE_ALL", "1")
                .env("UNDERPASS_SEED", seed.to_string())
                .env(variable, load),
        )
        .with_context(|| {
            let tests = soak.tests.join(", ");
            format!("{tests} failed with {variable}={load} UNDERPASS_SEED={seed}")
        })
    }
}
