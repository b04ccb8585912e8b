//! The circumstances of two runs, and what only one of them shows.
//!
//! A run that was narrowed to a few experiments looks like one in which the others broke. A gate
//! cannot know, so it must be told by giving it runs of the same scope.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::schema::{Experiment, Run, Series};

/// The circumstances that differ by their nature: the code under test, the command line and its seed.
const MAY_DIFFER: [&str; 3] = ["/versions/underpass", "/settings/command", "/settings/seed"];

/// The differences of machine, settings and versions, a line each.
pub fn differences(first: &Run, second: &Run) -> Vec<String> {
    let all = |run: &Run| {
        let mut all = BTreeMap::new();
        let (machine, settings, versions) = (&run.machine, &run.settings, &run.versions);
        let parts = json!({ "machine": machine, "settings": settings, "versions": versions });
        flatten(&parts, String::new(), &mut all);
        all
    };
    let (a, b) = (all(first), all(second));
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differing = keys.into_iter().filter(|key| a.get(*key) != b.get(*key));
    let differing = differing.filter(|key| !MAY_DIFFER.contains(&&***key));
    let said = |of: Option<&String>| of.cloned().unwrap_or_else(|| "(not said)".into());
    let lines = differing.map(|key| {
        let what = key.trim_start_matches('/').replace('/', " ");
        format!(
            "{what} differs: {} and {}",
            said(a.get(key)),
            said(b.get(key))
        )
    });
    let mut lines: Vec<String> = lines.collect();
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

fn flatten(value: &Value, path: String, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(name, value)| flatten(value, format!("{path}/{name}"), into)),
        Value::String(text) => drop(into.insert(path, text.clone())),
        other => drop(into.insert(path, other.to_string())),
    }
}

/// Whether an experiment asks for the same under the same id.
pub fn is_same_load(a: &Experiment, b: &Experiment) -> bool {
    let of = |e: &Experiment| (e.nodes, e.threads, e.connections, e.depth, e.rate);
    (&a.database, &a.client, of(a)) == (&b.database, &b.client, of(b))
}

/// Something that is not there: `connect`, or `enrich in connect`, with the reason, as far as it is known.
pub struct Missing {
    /// The line that says so.
    pub line: String,
    /// One of our paths is.
    pub is_ours: bool,
}

/// Experiments and paths in them that `run` shows and `other` does not.
pub fn missing(run: &Run, other: &Run) -> Vec<Missing> {
    run.usable().flat_map(|e| of_one(run, other, e)).collect()
}

fn of_one(run: &Run, other: &Run, experiment: &Experiment) -> Vec<Missing> {
    let is_ours = |s: &Series| run.is_ours(&s.path) || other.is_ours(&s.path);
    let mut shown = experiment.series.iter().filter(|s| !s.rounds.is_empty());
    let theirs = match found(other, &experiment.id) {
        Ok(theirs) => theirs,
        Err(why) => {
            return vec![Missing {
                line: format!("{} ({why})", experiment.id),
                is_ours: shown.any(is_ours),
            }];
        }
    };
    let lacking = shown.filter_map(|s| {
        let why = why_not(other, theirs, &s.path)?;
        Some(Missing {
            line: format!("{} in {} ({why})", s.path, experiment.id),
            is_ours: is_ours(s),
        })
    });
    lacking.collect()
}

fn found<'a>(other: &'a Run, id: &str) -> Result<&'a Experiment, String> {
    let failed = || match other.failed.get(id) {
        Some(reason) => format!("failed: {reason}"),
        None => "not part of it".into(),
    };
    let experiment = other.experiment(id).ok_or_else(failed)?;
    match &experiment.refused {
        Some(reason) => Err(format!("withheld: {reason}")),
        None => Ok(experiment),
    }
}

/// None: it is there.
fn why_not(other: &Run, theirs: &Experiment, path: &str) -> Option<String> {
    match theirs.series(path) {
        Some(series) if !series.rounds.is_empty() => return None,
        Some(_) => return Some("no round of it".into()),
        None => {}
    }
    let absent = || other.path(path).and_then(|p| p.absent.clone());
    let reason = theirs.left_out.get(path).cloned().or_else(absent);
    Some(reason.unwrap_or_else(|| "not part of it".into()))
}
