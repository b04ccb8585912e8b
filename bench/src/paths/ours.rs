//! A path of underpass as the benchmark knows it, and the answers that several paths share.

use load::workload::{Job, Protocol, Topology};
use sandbox::Metric;

/// One of underpass's paths.
#[derive(Debug)]
pub struct Ours {
    /// The name in tables, which is also the name of the path's rule and of its clients' cgroup.
    pub name: &'static str,
    /// The topology in which the path exists.
    pub at: Topology,
    /// The path of the bytes, in one line.
    pub about: &'static str,
    /// The lines of `[agent]` that the path's agent needs. Paths with the same lines share an
    /// agent.
    pub agent: &'static str,
    /// The lines of the policy file by which a rule asks for the path.
    pub rule: &'static str,
    /// Whether the agent has to see a process once: each generator then logs in once before it
    /// begins.
    pub introduces: bool,
    /// The check whether the path can carry a job.
    pub carries: fn(&Job) -> Result<(), &'static str>,
    /// The outcome under which the agent counts the path's connections: the label of
    /// `underpass_connections_total`.
    pub outcome: &'static str,
    /// The check of the agent's metrics whether this number of connections did not take the path,
    /// although they were counted right.
    pub slipped: fn(f64, &Metric) -> Option<String>,
    /// Whether the path's bytes pass through the agent's memory; None: some do.
    pub is_copied: Option<bool>,
}

/// Accepts every job: for paths that know no protocol.
pub fn anything(_: &Job) -> Result<(), &'static str> {
    Ok(())
}

/// Accepts CQL: for paths that read what passes.
pub fn cql(job: &Job) -> Result<(), &'static str> {
    match job.protocol {
        Protocol::Redis => Err("it decodes CQL alone"),
        Protocol::Cql | Protocol::Connect => Ok(()),
    }
}

/// Accepts connections that last.
pub fn conversations(job: &Job) -> Result<(), &'static str> {
    match job.protocol {
        Protocol::Connect => Err("it begins where connect() ends"),
        _ => Ok(()),
    }
}

/// Accepts jobs with a CQL handshake: for paths that depend on it.
pub fn sessions(job: &Job) -> Result<(), &'static str> {
    match job.protocol {
        Protocol::Cql => Ok(()),
        Protocol::Redis => Err("its rule needs what a CQL handshake tells"),
        Protocol::Connect => conversations(job),
    }
}

/// Finds no fault: for paths that are taken whenever the outcome is right.
pub fn never(_: f64, _: &Metric) -> Option<String> {
    None
}

/// The sum of a metric's samples that have all of these labels.
pub fn sum(metrics: &Metric, name: &str, labels: &[&str]) -> f64 {
    let is = |sample: &str| {
        let rest = sample.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
            && labels.iter().all(|label| sample.contains(label))
    };
    let samples = metrics.iter().filter(|(sample, _)| is(sample));
    samples.map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_added_up_by_name_and_labels() {
        let sample = |name: &str, count| (name.to_owned(), count);
        let metrics = Metric::from([
            sample("bytes_total{to=\"a\",rule=\"x\"}", 1.0),
            sample("bytes_total{to=\"b\",rule=\"x\"}", 2.0),
            sample("bytes_total_of_all", 4.0),
            sample("flows", 8.0),
        ]);
        assert_eq!(sum(&metrics, "bytes_total", &["rule=\"x\""]), 3.0);
        let both = ["rule=\"x\"", "to=\"b\""];
        assert_eq!(sum(&metrics, "bytes_total", &both), 2.0);
        assert_eq!(sum(&metrics, "flows", &[]), 8.0);
    }
}
