//! The ways to the database that are compared: past everything, over each of our paths, through
//! each of our peers. One file for each of our paths; peers are a crate of their own.

mod bypass;
mod enrich;
mod forward;
mod observe;
mod relay;
mod shortcut;
mod splice;

use load::workload::Protocol;
use report::schema::PathKind;
pub use shortcut::SHORTCUT;

/// The name of the way without a proxy.
pub const DIRECT: &str = "direct";

/// One of underpass's paths.
#[derive(Debug)]
pub struct Ours {
    /// As in tables; also the name of its rule and of its clients' cgroup.
    pub name: &'static str,
    /// How bytes travel, in one line.
    pub about: &'static str,
    /// How a rule asks for it: lines of the policy file. Or why none can.
    pub rule: Result<&'static str, &'static str>,
    /// What it can carry.
    pub carries: fn(Protocol) -> Result<(), &'static str>,
    /// What the agent counts its connections as: the label of `underpass_connections_total`.
    pub outcome: &'static str,
    /// Its bytes pass through the agent's memory.
    pub is_copied: bool,
}

/// All of them, in the order of tables.
pub const OURS: [&Ours; 7] = [
    &bypass::BYPASS,
    &observe::OBSERVE,
    &SHORTCUT,
    &splice::SPLICE,
    &relay::RELAY,
    &enrich::ENRICH,
    &forward::FORWARD,
];

/// For paths that know no protocol.
fn anything(_: Protocol) -> Result<(), &'static str> {
    Ok(())
}

/// For paths that need connections that last.
fn conversations(protocol: Protocol) -> Result<(), &'static str> {
    match protocol {
        Protocol::Connect => Err("it begins where connect() ends"),
        _ => Ok(()),
    }
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
    let peers = peers::all().iter().map(|peer| report::schema::Path {
        name: peer.name().into(),
        kind: PathKind::Peer,
        about: peer.about().into(),
        absent: None,
    });
    [direct].into_iter().chain(ours).chain(peers).collect()
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
