//! The ways to the database that are compared: past everything, over each of our paths, through
//! each of our peers. One file for each of our paths; peers are a crate of their own.

mod bypass;
mod enrich;
mod enrich_short;
mod fold;
mod forward;
mod observe;
mod ours;
mod relay;
mod remembered;
mod shortcut;
mod splice;
mod stats;
mod tap;

pub use forward::FORWARD;
pub use load::workload::Topology;
pub use ours::Ours;
use report::schema::PathKind;
pub use report::view::{AGAIN, DIRECT};
pub use shortcut::SHORTCUT;

use crate::gateway::nftables;

/// All of them, in the order of tables.
pub const OURS: [&Ours; 14] = [
    &bypass::BYPASS,
    &remembered::REMEMBERED,
    &observe::OBSERVE,
    &tap::TAP,
    &SHORTCUT,
    &splice::SPLICE,
    &splice::SPLICE_EGRESS,
    &relay::RELAY,
    &enrich::ENRICH,
    &enrich_short::ENRICH_SHORT,
    &enrich_short::ENRICH_SHORT_BOTH,
    &stats::STATS,
    &fold::FOLD,
    &FORWARD,
];

/// Every way, measured or not: name, kind, description, and why it cannot be had.
pub fn every() -> Vec<report::schema::Path> {
    let direct = report::schema::Path {
        name: DIRECT.into(),
        kind: PathKind::Direct,
        about: "no proxy; nothing is attached to the cgroup that the client is in".into(),
        absent: None,
    };
    let again = report::schema::Path {
        name: AGAIN.into(),
        about: "as direct, under another name: what it differs by is chance".into(),
        ..direct.clone()
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
    [direct, again]
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
}
