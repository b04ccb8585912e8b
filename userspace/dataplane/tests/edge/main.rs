//! The edge.
//!
//! - `filter.rs`: rules; `packets.rs`: single packets; `random.rs`: packets at random; `ways.rs`,
//!   `table.rs`: what is remembered of connections.
//! - `forward.rs`: TCP through a gateway; `mtu.rs`: by wires that take less than others.
//! - `frames.rs`: VLANs and jumbo frames; `wire.rs`: packets at random and odd ones, on a wire.
//! - `drops.rs`: packets dropped in a second, beside nftables; `costs.rs`: what a packet costs, by hand;
//!   `results.rs`: where that is kept.
//!
//! The rest is what they share: a gateway in a namespace of its own, and frames.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

mod costs;
mod drops;
mod filter;
mod forward;
mod frame;
mod frames;
mod gateway;
mod lone;
mod mtu;
mod packets;
mod quote;
mod random;
mod read;
mod results;
mod route_cache;
mod table;
mod wire;

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use dataplane::{
    Edge,
    edge::{self, EdgeVerdict, Forward, Interface, WantedMode},
};
use policy::{
    Action, ContainerConditions, Fail, Policy, Rule, RuleName, SessionConditions, Target,
};

pub(crate) const DROP: u32 = 1;
pub(crate) const PASS: u32 = 2;
pub(crate) const REDIRECT: u32 = 4;

/// Pins of a test's own; gone when it is dropped, and with them every program.
pub(crate) struct TestPins(pub(crate) PathBuf);

impl TestPins {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("underpass-edge-{}-{number}", std::process::id());
        Self(PathBuf::from("/sys/fs/bpf").join(name))
    }

    pub(crate) fn open(&self) -> Edge {
        Edge::open(&self.0, 1024).unwrap()
    }
}

impl Drop for TestPins {
    fn drop(&mut self) {
        let removed = edge::remove(&self.0).map(|_| std::fs::remove_dir(&self.0));
        if let Err(error) = removed {
            eprintln!("pins are left at {}: {error}", self.0.display());
        }
    }
}

pub(crate) fn interface(name: &str, forward: Forward) -> Interface {
    Interface {
        name: name.to_owned(),
        mode: WantedMode::Auto,
        forward,
        syn_rate: None,
    }
}

pub(crate) fn rule(name: &str, from: &[&str], to: &[&str], action: Action) -> Rule {
    let target = |text: &&str| {
        let (network, port) = text.rsplit_once(':').unwrap();
        let network = network.trim_matches(['[', ']']);
        let network = (!network.is_empty()).then(|| match network.contains('/') {
            true => network.parse().unwrap(),
            false => network.parse::<std::net::IpAddr>().unwrap().into(),
        });
        let port = (!port.is_empty()).then(|| port.parse().unwrap());
        Target { network, port }
    };
    Rule {
        name: RuleName::new(name),
        from: from.iter().map(|n| n.parse().unwrap()).collect(),
        to: Vec::from_iter(to.iter().map(target)).into(),
        uids: Vec::new(),
        gids: Vec::new(),
        processes: Vec::new(),
        cgroups: Vec::new(),
        namespaces: Vec::new(),
        containers: ContainerConditions::default(),
        session: SessionConditions::default(),
        backends: Vec::new(),
        action,
        fail: Fail::Open,
        shortcut: policy::Shortcut::Neither,
        taps: None,
        asks_copies: false,
        when: None,
        remember: None,
        sample: None,
        holdout: None,
        limit: None,
        is_mark: false,
        shadow: None,
        protects: false,
    }
}

pub(crate) fn policy(rules: Vec<Rule>) -> Policy {
    Policy {
        rules,
        default_action: Action::Deny,
        default_fail: Fail::Open,
    }
}

/// Packets of one fate so far.
pub(crate) fn packets(edge: &Edge, fate: EdgeVerdict) -> u64 {
    edge.counters().unwrap().packets_of(fate)
}

/// Packets so far, whatever became of them.
pub(crate) fn all_packets(edge: &Edge) -> u64 {
    let counters = edge.counters().unwrap();
    counters.packets.iter().map(|(_, n)| n).sum()
}
