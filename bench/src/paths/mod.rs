//! The ways to the database that are compared: past everything, over each of our paths, through
//! each of our peers. One file for each of our paths; peers are a crate of their own.

mod bypass;
mod enrich;
mod fold;
mod forward;
mod observe;
mod relay;
mod remembered;
mod shortcut;
mod splice;
mod stats;

pub use forward::FORWARD;
pub use load::workload::Topology;
use load::workload::{Job, Protocol};
use report::schema::PathKind;
use sandbox::Metric;
pub use shortcut::SHORTCUT;

use crate::gateway::nftables;

/// The name of the way without a proxy.
pub const DIRECT: &str = "direct";

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

/// All of them, in the order of tables.
pub const OURS: [&Ours; 11] = [
    &bypass::BYPASS,
    &remembered::REMEMBERED,
    &observe::OBSERVE,
    &SHORTCUT,
    &splice::SPLICE,
    &splice::SPLICE_EGRESS,
    &relay::RELAY,
    &enrich::ENRICH,
    &stats::STATS,
    &fold::FOLD,
    &FORWARD,
];

/// For paths that know no protocol.
fn anything(_: &Job) -> Result<(), &'static str> {
    Ok(())
}

/// For paths that read what passes.
fn cql(job: &Job) -> Result<(), &'static str> {
    match job.protocol {
        Protocol::Redis => Err("it decodes CQL alone"),
        Protocol::Cql | Protocol::Connect => Ok(()),
    }
}

/// For paths that need connections that last.
fn conversations(job: &Job) -> Result<(), &'static str> {
    match job.protocol {
        Protocol::Connect => Err("it begins where connect() ends"),
        _ => Ok(()),
    }
}

/// For paths that begin with what a handshake tells.
fn sessions(job: &Job) -> Result<(), &'static str> {
    match job.protocol {
        Protocol::Cql => Ok(()),
        Protocol::Redis => Err("its rule needs what a CQL handshake tells"),
        Protocol::Connect => conversations(job),
    }
}

/// For paths that are taken whenever the outcome is right.
fn never(_: f64, _: &Metric) -> Option<String> {
    None
}

/// The sum of a metric's samples that have all of these labels.
fn sum(metrics: &Metric, name: &str, labels: &[&str]) -> f64 {
    let is = |sample: &str| {
        let rest = sample.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
            && labels.iter().all(|label| sample.contains(label))
    };
    let samples = metrics.iter().filter(|(sample, _)| is(sample));
    samples.map(|(_, count)| count).sum()
}

/// Every way, measured or not: name, kind, description, and why it cannot be had.
pub fn every() -> Vec<report::schema::Path> {
    let direct = report::schema::Path {
        name: DIRECT.into(),
        kind: PathKind::Direct,
        about: "no proxy; nothing is attached to the cgroup that the client is in".into(),
        absent: None,
    };
    let ours = OURS.iter().map(|path| report::schema::Path {
        name: path.name.into(),
        kind: PathKind::Ours,
        about: path.about.into(),
        absent: path.rule.err().map(str::to_owned),
    });
    let kernel = report::schema::Path {
        name: nftables::NAME.into(),
        kind: PathKind::Peer,
        about: nftables::ABOUT.into(),
        absent: nftables::version().err(),
    };
    let peers = peers::all().iter().map(|peer| report::schema::Path {
        name: peer.name().into(),
        kind: PathKind::Peer,
        about: peer.about().into(),
        absent: None,
    });
    [direct]
        .into_iter()
        .chain(ours)
        .chain([kernel])
        .chain(peers)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_direct_comes_first() {
        let all = every();
        let names: BTreeSet<_> = all.iter().map(|path| &path.name).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(all[0].name, DIRECT);
        assert!(all.iter().all(|path| !path.about.is_empty()));
    }

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
