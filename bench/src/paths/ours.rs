//! A path of underpass as the benchmark knows it, and what several paths answer alike.

use load::workload::{Job, Protocol, Topology};
use sandbox::Metric;

/// One of underpass's paths.
#[derive(Debug)]
pub struct Ours {
    /// As in tables; also the name of its rule and of its clients' cgroup.
    pub name: &'static str,
    /// Where it is one.
    pub at: Topology,
    /// How bytes travel, in one line.
    pub about: &'static str,
    /// What its agent needs to be told: lines of `[agent]`. Paths that say the same share one.
    pub agent: &'static str,
    /// How a rule asks for it: lines of the policy file. Or why none can.
    pub rule: Result<&'static str, &'static str>,
    /// Its agent has to see a process once: each generator logs in once before it begins.
    pub introduces: bool,
    /// What it can carry.
    pub carries: fn(&Job) -> Result<(), &'static str>,
    /// What the agent counts its connections as: the label of `underpass_connections_total`.
    pub outcome: &'static str,
    /// What of the agent's metrics says that so many connections did not take it, although they
    /// were counted right.
    pub slipped: fn(f64, &Metric) -> Option<String>,
    /// Its bytes pass through the agent's memory; None: some do.
    pub is_copied: Option<bool>,
}

/// For paths that know no protocol.
pub fn anything(_: &Job) -> Result<(), &'static str> {
    Ok(())
}

/// For paths that read what passes.
pub fn cql(job: &Job) -> Result<(), &'static str> {
    match job.protocol {
        Protocol::Redis => Err("it decodes CQL alone"),
        Protocol::Cql | Protocol::Connect => Ok(()),
    }
}

/// For paths that need connections that last.
pub fn conversations(job: &Job) -> Result<(), &'static str> {
    match job.protocol {
        Protocol::Connect => Err("it begins where connect() ends"),
        _ => Ok(()),
    }
}

/// For paths that begin with what a handshake tells.
pub fn sessions(job: &Job) -> Result<(), &'static str> {
    match job.protocol {
        Protocol::Cql => Ok(()),
        Protocol::Redis => Err("its rule needs what a CQL handshake tells"),
        Protocol::Connect => conversations(job),
    }
}

/// For paths that are taken whenever the outcome is right.
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
