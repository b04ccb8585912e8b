//! Many policies of which some are wrong: which ones, takes an agent seconds to find out, and meanwhile it does what it is told.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use sandbox::{Agent, Sandbox};

use super::{clusters, played::Played};
use crate::common::{BINARY, eventually, rule, to};

/// Policies, and rules of each: as many rules as there may be, nearly. Every fifth policy is wrong.
const POLICIES: usize = 125;
const RULES: usize = 8;
const WRONG: usize = 5;

/// Destinations of a rule: nearly all that there may be, too.
const DESTINATIONS: usize = 8;

/// Finding out takes longer than this, or nothing is seen here.
const LONG: Duration = Duration::from_secs(1);

/// The time in which it has to end.
const MOST: Duration = Duration::from_secs(120);

fn policies() -> Vec<String> {
    let policy = |n: usize| {
        let rule = |k: usize| {
            let port = 10_000 + n * RULES + k;
            // In the form of a network, and none.
            let first = match n.is_multiple_of(WRONG) && k + 1 == RULES {
                true => "10.0.0.1/8",
                false => "10.0.0.0/8",
            };
            let others = (1..DESTINATIONS).map(|d| format!(", \"10.1.0.{d}:{port}\""));
            let others: String = others.collect();
            format!(r#"{{"name": "r{k}", "action": "bypass", "to": ["{first}:{port}"{others}]}}"#)
        };
        let rules: Vec<String> = (0..RULES).map(rule).collect();
        clusters(&format!("p{n:03}"), &rules.join(", "))
    };
    (0..POLICIES).map(policy).collect()
}

#[test]
fn a_file_is_reloaded_and_marks_are_told_while_policies_are_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let host = Sandbox::new().unwrap();
    let server = Played::start(&host, folder.path(), [&policies(), &[]]);
    let own = &server.settings;
    let (netns, cgroup) = (Some(&host.netns), &host.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", own).unwrap();
    let metric = |name: &str| agent.metric(name).unwrap_or_default();
    eventually("they are offered", || {
        metric("underpass_policy_source_in_step") == 1.0
    });
    let begun = Instant::now();
    agent
        .write_policy(&(own.clone() + &rule("bypass", &to(&[9042]))))
        .unwrap();
    agent.signal(Signal::SIGHUP).unwrap();
    let mut reloaded = None;
    let mut longest = Duration::ZERO;
    while metric("underpass_policy_source_refused") == 0.0 {
        assert!(begun.elapsed() < MOST, "it never ends");
        if reloaded.is_none() && metric("underpass_reloads_total{result=\"ok\"}") > 0.0 {
            reloaded = Some(begun.elapsed());
        }
        let asked = Instant::now();
        agent.json("/marks").unwrap();
        longest = longest.max(asked.elapsed());
        thread::sleep(Duration::from_millis(20));
    }
    let took = begun.elapsed();
    eprintln!("{took:?}: reloaded after {reloaded:?}, marks told after {longest:?}");
    assert!(took > LONG, "{took:?}");
    assert!(reloaded.is_some_and(|reloaded| reloaded < took / 2));
    assert!(longest < took / 2, "{longest:?} of {took:?}");
}
