//! The agent is killed at random moments while every path carries bytes.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use integrity::{Plan, drive_while};
use sandbox::{Agent, Sandbox};

use super::LOADED;
use crate::common::ways::{WAYS, agent, sum};

/// One engine of the splice after the other, so that flows ride by each; and whether the agent is
/// killed only after that works, or at any time. A busy machine may take seconds to try one out.
const LIVES: [(&str, bool); 6] = [
    ("sender", true),
    ("sender", false),
    ("egress", true),
    ("egress", false),
    ("sender", false),
    ("egress", false),
];

/// Tries to see that an engine works, of ten seconds each.
const TRIES: usize = 3;

/// Says that it is over, also when it ends by a panic.
struct GoesOn<'a>(&'a AtomicBool);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

#[test]
fn at_whatever_moments_the_agent_dies_no_byte_is_wrong_on_any_path() {
    let sandbox = Sandbox::new().unwrap();
    let servers = WAYS.each_ref().map(|way| way.server(&sandbox));
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("agent");
    // The next agent's.
    let only = |engine: &str| {
        let other = if engine == "sender" {
            "egress"
        } else {
            "sender"
        };
        // Flows are taken back and handed over again as often: at each moment some are on their way.
        let switch = format!("UNDERPASS_TEST_HOOKS=recall_ms=10,without=splice_{other}");
        let binary = env!("CARGO_BIN_EXE_underpass");
        sandbox::program::switched(&script, binary, &switch).unwrap();
    };
    only(LIVES[0].0);
    let mut agent = agent(&script, &sandbox, "splice = \"auto\"", &servers);
    let goes_on = AtomicBool::new(true);
    let mut carried = BTreeMap::new();
    let reports = thread::scope(|scope| {
        let dying = GoesOn(&goes_on);
        let drives: Vec<_> = WAYS
            .iter()
            .zip(&servers)
            .map(|(way, server)| {
                let plan = Plan {
                    connections: (1, 3),
                    connection_max: 4 << 20,
                    hang_limit: LOADED,
                    may_be_cut: !way.outlives,
                    ..way.plan(server)
                };
                let (sandbox, goes_on) = (&sandbox, &goes_on);
                let drive = move || drive_while(&plan, || goes_on.load(Relaxed));
                scope.spawn(move || sandbox.client(drive).unwrap())
            })
            .collect();
        for (life, (engine, works)) in (0..).zip(LIVES) {
            let said = format!("path works path=\"splice_{engine}\"");
            (0..TRIES).find(|_| !works || agent.wait_for_log(&said).is_ok());
            thread::sleep(Duration::from_millis(200 + (life + 1) * 7919 % 1300));
            count(&agent, engine, &mut carried);
            agent.kill().unwrap();
            let (next, _) = LIVES.get(life as usize + 1).unwrap_or(&LIVES[0]);
            only(next);
            agent.restart().unwrap();
        }
        drop(dying);
        let reports = drives.into_iter().map(|drive| drive.join().unwrap());
        reports.collect::<Vec<_>>()
    });
    for (way, report) in WAYS.iter().zip(&reports) {
        assert!(report.passed(&way.allowed()), "{}: {report}", way.name);
    }
    let idle: Vec<_> = carried.iter().filter(|(_, sum)| **sum == 0.0).collect();
    assert!(idle.is_empty(), "{idle:?} of {carried:?}");
}

/// Adds what this life of the agent has carried on each path.
fn count(agent: &Agent<'_>, engine: &'static str, carried: &mut BTreeMap<&str, f64>) {
    let of_rule = |outcome, rule| {
        format!("underpass_connections_total{{outcome=\"{outcome}\",rule=\"{rule}\"")
    };
    for (path, samples) in [
        ("bypass", of_rule("untouched", "bypass")),
        ("observe", "underpass_observed_bytes_total".into()),
        (
            "shortcut",
            "underpass_shortcut_bytes_total{way=\"shortcut\"}".into(),
        ),
        (engine, "underpass_spliced_bytes_total".into()),
        ("relay", of_rule("intercepted", "relay")),
        ("enrich", of_rule("intercepted", "enrich")),
        ("short", of_rule("intercepted", "short")),
        // At the moment at which it is killed.
        ("short legs", "underpass_short_legs".into()),
    ] {
        *carried.entry(path).or_default() += sum(agent, &samples);
    }
}
