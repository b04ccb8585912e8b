//! Whether two runs were made under the same circumstances.

use std::collections::{BTreeMap, BTreeSet};

use crate::schema::{Experiment, Run};

/// The name of the code under test among the versions: it is there to differ.
const OURS: &str = "underpass";

/// The differences of machine, settings and versions, a line each.
pub fn differences(first: &Run, second: &Run) -> Vec<String> {
    let mut lines = Vec::new();
    let mut differ = |what: &str, a: String, b: String| {
        if a != b {
            lines.push(format!("{what} differs: {a} and {b}"));
        }
    };
    let (a, b) = (&first.machine, &second.machine);
    differ("kernel", a.kernel.clone(), b.kernel.clone());
    differ("CPU", a.cpu.clone(), b.cpu.clone());
    differ("cores", a.cores.to_string(), b.cores.to_string());
    differ(
        "memory",
        format!("{} MiB", a.memory_mib),
        format!("{} MiB", b.memory_mib),
    );
    let (a, b) = (&first.settings, &second.settings);
    differ("rounds", a.rounds.to_string(), b.rounds.to_string());
    differ("seconds", a.seconds.to_string(), b.seconds.to_string());
    differ(
        "warm-up",
        format!("{} s", a.warm_up_seconds),
        format!("{} s", b.warm_up_seconds),
    );
    differ(
        "turn",
        format!("{} s", a.turn_seconds),
        format!("{} s", b.turn_seconds),
    );
    let (a, b) = (&first.machine, &second.machine);
    lines.extend(maps("mitigation of", &a.mitigations, &b.mitigations));
    lines.extend(maps("", &a.circumstances, &b.circumstances));
    lines.extend(maps("version of", &first.versions, &second.versions));
    for (run, which) in [(first, "first"), (second, "second")] {
        if !run.complete {
            lines.push(format!("the {which} run was interrupted"));
        }
        if run.source.dirty {
            lines.push(format!(
                "the {which} run's code has changes that no commit holds"
            ));
        }
    }
    lines
}

fn maps(what: &str, a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<String> {
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differing = keys.into_iter().filter(|key| a.get(*key) != b.get(*key));
    let value = |map: &BTreeMap<String, String>, key| {
        map.get(key).cloned().unwrap_or_else(|| "(not said)".into())
    };
    differing
        .filter(|key| *key != OURS)
        .map(|key| {
            let line = format!(
                "{what} {key} differs: {} and {}",
                value(a, key),
                value(b, key)
            );
            line.trim_start().to_owned()
        })
        .collect()
}

/// The change of a workload under the same id; None: nothing changed.
pub fn workload(a: &Experiment, b: &Experiment) -> Option<&'static str> {
    let load = |e: &Experiment| (e.threads, e.connections, e.depth);
    if a.database != b.database || a.nodes != b.nodes {
        Some("databases")
    } else if a.client != b.client || load(a) != load(b) {
        Some("clients")
    } else if a.rate != b.rate {
        Some("rates")
    } else {
        None
    }
}
