//! Figures that one run shows and another does not.
//!
//! A run that was narrowed to a few experiments looks like one in which the others broke. A gate
//! cannot know, so it must be told by giving it runs of the same scope.

use crate::schema::{Experiment, Run, Series};

/// Something that is not there.
pub struct Missing {
    /// `connect`, or `enrich in connect`.
    pub what: String,
    /// The reason, as far as it is known.
    pub why: String,
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
                what: experiment.id.clone(),
                why,
                is_ours: shown.any(is_ours),
            }];
        }
    };
    let lacking = shown.filter_map(|s| {
        Some(Missing {
            what: format!("{} in {}", s.path, experiment.id),
            why: why_not(other, theirs, &s.path)?,
            is_ours: is_ours(s),
        })
    });
    lacking.collect()
}

fn found<'a>(other: &'a Run, id: &str) -> Result<&'a Experiment, String> {
    let experiment = other
        .experiment(id)
        .ok_or_else(|| match other.failed.get(id) {
            Some(reason) => format!("failed: {reason}"),
            None => "not part of it".into(),
        })?;
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
