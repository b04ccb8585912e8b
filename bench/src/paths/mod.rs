//! The ways to the database that are compared: past everything, over each of our paths, through
//! each of our peers. One file for each kind of our paths; peers are a crate of their own.

mod enrich;
pub mod ours;
mod shortcut;
mod splice;
mod tap;
mod untouched;

pub use load::workload::Topology;
pub use ours::Ours;
use report::schema::PathKind;
pub use report::view::{AGAIN, DIRECT};
pub use shortcut::SHORTCUT;
pub use untouched::FORWARD;

use crate::gateway::nftables;

/// All of them, in the order of tables.
pub const OURS: [&Ours; 17] = [
    &untouched::BYPASS,
    &untouched::REMEMBERED,
    &untouched::BESIDE,
    &untouched::OBSERVE,
    &tap::TAP,
    &SHORTCUT,
    &splice::SPLICE,
    &splice::SPLICE_EGRESS,
    &splice::RELAY,
    &enrich::ENRICH,
    &enrich::ENRICH_SHORT,
    &enrich::ENRICH_SHORT_BOTH,
    &enrich::STATS,
    &enrich::FOLD,
    &enrich::FOLD_SHORT,
    &enrich::FOLD_SHORT_BOTH,
    &FORWARD,
];

/// Every way, measured or not: name, kind, description, and why it cannot be had.
pub fn every() -> Vec<report::schema::Path> {
    let way = |name: &str, kind, about: &str, absent| report::schema::Path {
        name: name.into(),
        kind,
        about: about.into(),
        absent,
    };
    let no_proxy = "no proxy; nothing is attached to the cgroup that the client is in";
    let direct = way(DIRECT, PathKind::Direct, no_proxy, None);
    let twice = "as direct, under another name: what it differs by is chance";
    let again = way(AGAIN, PathKind::Direct, twice, None);
    let ours = OURS.iter();
    let ours = ours.map(|path| way(path.name, PathKind::Ours, path.about, None));
    let kernel = way(
        nftables::NAME,
        PathKind::Peer,
        nftables::ABOUT,
        nftables::version().err(),
    );
    let peers = peers::all().iter();
    let peers = peers.map(|peer| way(peer.name, PathKind::Peer, peer.about, None));
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
