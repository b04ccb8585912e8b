//! A policy as the kernel reads it: for each dimension, which rules hold for a value.
//!
//! `decide.h` looks one set up per dimension, ANDs them and takes the lowest bit. For that
//! a set must already hold everything that shorter prefixes of its key say, because a
//! longest-prefix look-up returns one entry only.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    path::Path,
};

use ebpf::abi;
use ipnet::IpNet;
use thiserror::Error;

use policy::{
    Action, ClientLimit, Fail, LimitPer, MAX_BALANCED, MAX_RULES, MAX_SHADOWS, NetnsPattern,
    Policy, ProcessPattern, Rule, RuleName, Sample, TapDepth, Target,
};

// The bounds that the policy crate names are those of the kernel's tables.
const _: () = {
    assert!(MAX_RULES == abi::MAX_RULES as usize);
    assert!(policy::MAX_BACKENDS == abi::MAX_BACKENDS as usize);
    assert!(MAX_BALANCED == abi::MAX_BALANCED as usize);
    assert!(MAX_SHADOWS == abi::MAX_SHADOWS as usize);
    assert!(policy::MAX_CGROUPS == (abi::MAX_CGROUPS / abi::GENERATIONS) as usize);
    assert!(policy::MAX_PROCESS_NAME_BYTES == abi::COMM_BYTES as usize - 1);
};

/// Rules by number, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleSet([u64; abi::RULE_WORDS as usize]);

impl RuleSet {
    /// No rule.
    pub const EMPTY: Self = Self([0; abi::RULE_WORDS as usize]);

    fn add(&mut self, rule: usize) {
        if let Some(word) = self.0.get_mut(rule / 64) {
            *word |= 1 << (rule % 64);
        }
    }

    fn unite(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
    }

    /// Whether one of the first `rules` is not in the set.
    pub(crate) fn misses_one_of(&self, rules: usize) -> bool {
        self.members() < rules
    }

    /// How many rules are in the set.
    pub(crate) fn members(&self) -> usize {
        let members: u32 = self.0.iter().map(|w| w.count_ones()).sum();
        members as usize
    }

    /// The words as in `struct up_rule_set`.
    pub(crate) fn to_abi(self) -> abi::RuleSet {
        abi::RuleSet { words: self.0 }
    }
}

/// A key of a longest-prefix map: its bytes behind the prefix length, and that length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix<const N: usize> {
    /// Bits past `bits` are zero.
    pub bytes: [u8; N],
    /// How many of them count.
    pub bits: u32,
}

/// Bytes of a target's key: `struct up_target_key` without the prefix length, and without
/// the generation, which is filled in when the key is written.
pub const TARGET_BYTES: usize = 24;
/// Bits of it before the address: generation, padding, port, family, padding.
const TARGET_HEAD_BITS: u32 = 64;
/// Bits of it before the family: an entry for any address ends here.
const TARGET_PORT_BITS: u32 = 32;
/// Bytes of a process's key: `struct up_process_key`, likewise.
pub const PROCESS_BYTES: usize = 20;
const PROCESS_HEAD_BITS: u32 = 8;

/// A rule with backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balanced {
    /// The rule's number.
    pub rule: usize,
    /// The rule's name.
    pub name: RuleName,
    /// In its order.
    pub backends: Vec<SocketAddr>,
}
/// Bytes of a source's key: `struct up_source_key`, likewise.
pub const SOURCE_BYTES: usize = 20;
/// Bits of it before the address: generation, family, padding.
const SOURCE_HEAD_BITS: u32 = 32;

/// A compiled policy.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// By destination.
    pub targets: Vec<(Prefix<TARGET_BYTES>, RuleSet)>,
    /// Rules by the network of a client on another host.
    pub sources: Vec<(Prefix<SOURCE_BYTES>, RuleSet)>,
    /// By process name.
    pub processes: Vec<(Prefix<PROCESS_BYTES>, RuleSet)>,
    /// By user id.
    pub uids: Vec<(u32, RuleSet)>,
    /// By group id.
    pub gids: Vec<(u32, RuleSet)>,
    /// By cgroup id.
    pub cgroups: Vec<(u64, RuleSet)>,
    /// Rules by the inode number of a network namespace.
    pub namespaces: Vec<(u32, RuleSet)>,
    /// Rules without a `uid`, `gid`, `process`, `cgroup`.
    pub any_uid: RuleSet,
    /// See `any_uid`.
    pub any_gid: RuleSet,
    /// See `any_uid`.
    pub any_process: RuleSet,
    /// See `any_uid`.
    pub any_cgroup: RuleSet,
    /// See `any_uid`.
    pub any_netns: RuleSet,
    /// Rules that say which backends stand behind an address.
    pub settles: RuleSet,
    /// Rules that stand in shadow.
    pub shadows: RuleSet,
    /// Rules that have backends.
    pub balanced: Vec<Balanced>,
    /// Rules without a `from`.
    pub any_source: RuleSet,
    /// Rules that may hold for what this host opens.
    pub here: RuleSet,
    /// Rules that may hold for what others open.
    pub elsewhere: RuleSet,
    /// Ports of `elsewhere`'s rules that the agent may have to serve; 0: of any.
    pub incoming_ports: BTreeSet<u16>,
    /// Whether nobody gets past the rule by a choice of his own, by rule number.
    pub(crate) guards: Vec<bool>,
    /// Action and `fail` by rule number; a session rule's action is to ask the agent.
    pub rules: Vec<(Action, Fail)>,
    /// Whether it may take the shortcut, by rule number.
    pub shortcuts: Vec<bool>,
    /// How much the agent gets copies of, as the kernel has it, by rule number; then the action is to observe.
    pub taps: Vec<u8>,
    /// Whether the answer that the agent gives may be remembered, by rule number.
    pub recalls: Vec<bool>,
    /// How many of its flows come to the agent, by rule number.
    pub samples: Vec<Option<Sample>>,
    /// How many of its flows are left alone for comparison, by rule number.
    pub holdouts: Vec<Option<Sample>>,
    /// How many connections one client may have, by rule number.
    pub limits: Vec<Option<ClientLimit>>,
    /// The default's.
    pub default: (Action, Fail),
    /// Names by rule number, the default's last.
    pub names: Vec<RuleName>,
}

/// A policy that does not fit the kernel's tables. Each bound is in `abi.h`.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CompileError {
    /// See [`MAX_RULES`].
    #[error("{0} rules: at most {MAX_RULES} fit")]
    TooManyRules(usize),
    /// Distinct entries of one dimension.
    #[error("{count} distinct {what}: at most {most} fit")]
    TooManyEntries {
        /// The dimension.
        what: &'static str,
        /// How many the policy has.
        count: usize,
        /// How many fit.
        most: usize,
    },
}

/// Destinations that policies are told to have room for are those that fit.
const _: () = assert!(policy::MAX_DESTINATIONS as u32 == abi::MAX_TARGETS / abi::GENERATIONS);
const _: () =
    assert!(policy::MAX_DESTINATION_PORTS as u32 == abi::MAX_INCOMING_PORTS / abi::GENERATIONS);

/// Compiles. `cgroup_id` answers a cgroup path with its id, None while it does not exist. Namespaces are
/// those that have the names at this moment.
pub fn compile(
    policy: &Policy,
    mut cgroup_id: impl FnMut(&Path) -> Option<u64>,
) -> Result<Compiled, CompileError> {
    if policy.rules.len() > MAX_RULES {
        return Err(CompileError::TooManyRules(policy.rules.len()));
    }
    let mut sets = Sets::default();
    for (n, rule) in policy.rules.iter().enumerate() {
        sets.enter_rule(n, rule, &mut cgroup_id);
    }
    sets.fit()?;
    let rules = policy.rules.iter();
    Ok(Compiled {
        targets: accumulate(&sets.targets),
        sources: accumulate(&sets.sources),
        processes: accumulate(&sets.processes),
        uids: sets.uids.into_iter().collect(),
        gids: sets.gids.into_iter().collect(),
        cgroups: sets.cgroups.into_iter().collect(),
        namespaces: sets.namespaces.into_iter().collect(),
        any_uid: sets.any_uid,
        any_gid: sets.any_gid,
        any_process: sets.any_process,
        any_cgroup: sets.any_cgroup,
        any_netns: sets.any_netns,
        settles: sets.settles,
        shadows: sets.shadows,
        balanced: sets.balanced,
        any_source: sets.any_source,
        here: sets.here,
        elsewhere: sets.elsewhere,
        incoming_ports: sets.incoming_ports,
        rules: rules.clone().map(|r| (action(r), r.fail)).collect(),
        taps: rules.clone().map(taps).collect(),
        guards: (0..policy.rules.len()).map(|n| policy.guards(n)).collect(),
        shortcuts: rules.clone().map(Rule::skips_tcp).collect(),
        recalls: rules
            .clone()
            .map(|r| r.is_session() && policy.remembers())
            .collect(),
        // Whether a session rule holds only the agent knows, and so it draws.
        samples: rules
            .clone()
            .map(|r| r.sample.filter(|_| !r.is_session()))
            .collect(),
        holdouts: rules.clone().map(|r| r.holdout).collect(),
        limits: rules.clone().map(|r| r.limit).collect(),
        default: (policy.default_action, policy.default_fail),
        names: rules
            .map(|r| r.name.clone())
            .chain([RuleName::of_default()])
            .collect(),
    })
}

/// Finds out whether a policy fits, whatever cgroups there are on a host.
///
/// # Errors
/// Names the first rule with which it does not, by its number.
pub fn fit(policy: &Policy) -> Result<(), (usize, CompileError)> {
    if policy.rules.len() > MAX_RULES {
        let error = CompileError::TooManyRules(policy.rules.len());
        return Err((MAX_RULES, error));
    }
    let mut sets = Sets::default();
    for (n, rule) in policy.rules.iter().enumerate() {
        sets.enter_rule(n, rule, |_| None);
        sets.fit().map_err(|error| (n, error))?;
    }
    Ok(())
}

/// How much of each frame is copied of the rule's flows. While its session is asked for, everything that steps may need.
pub(crate) fn taps(rule: &Rule) -> u8 {
    let taps = match (rule.is_tapped(), rule.is_session()) {
        (false, _) => abi::TAP_NOTHING,
        (true, true) => abi::TAP_DETAILS | abi::TAP_ASKS,
        (true, false) => depth(rule.taps),
    };
    taps as u8
}

/// How much of each frame steps need.
pub(crate) fn depth(taps: Option<TapDepth>) -> u32 {
    match taps {
        None => abi::TAP_NOTHING,
        Some(TapDepth::Frames) => abi::TAP_FRAMES,
        Some(TapDepth::Bodies) => abi::TAP_BODIES,
        Some(TapDepth::Details) => abi::TAP_DETAILS,
        Some(TapDepth::Answers) => abi::TAP_ANSWERS,
    }
}

/// The action of the connect hooks: what is tapped is observed.
fn action(rule: &Rule) -> Action {
    match rule.is_tapped() {
        true => Action::Observe,
        false => rule.kernel_action(),
    }
}

/// The sets of a policy while its rules are entered, one after the other.
#[derive(Default)]
struct Sets {
    targets: HashMap<Prefix<TARGET_BYTES>, RuleSet>,
    sources: HashMap<Prefix<SOURCE_BYTES>, RuleSet>,
    processes: HashMap<Prefix<PROCESS_BYTES>, RuleSet>,
    uids: HashMap<u32, RuleSet>,
    gids: HashMap<u32, RuleSet>,
    cgroups: HashMap<u64, RuleSet>,
    namespaces: HashMap<u32, RuleSet>,
    any_uid: RuleSet,
    any_gid: RuleSet,
    any_process: RuleSet,
    any_cgroup: RuleSet,
    any_netns: RuleSet,
    any_source: RuleSet,
    here: RuleSet,
    elsewhere: RuleSet,
    settles: RuleSet,
    shadows: RuleSet,
    balanced: Vec<Balanced>,
    incoming_ports: BTreeSet<u16>,
}

impl Sets {
    /// Enters rule number `n` under every value that it names, and into the sets of the dimensions that
    /// it does not care for.
    fn enter_rule(
        &mut self,
        n: usize,
        rule: &Rule,
        mut cgroup_id: impl FnMut(&Path) -> Option<u64>,
    ) {
        let to: Vec<&Target> = match rule.to.is_any() {
            true => vec![&Target::ANY],
            false => rule.to.held().collect(),
        };
        for target in &to {
            enter(&mut self.targets, target_prefix(target), n);
        }
        for network in &rule.from {
            enter(&mut self.sources, source_prefix(network), n);
        }
        for process in &rule.processes {
            enter(&mut self.processes, process_prefix(process), n);
        }
        for uid in &rule.uids {
            enter(&mut self.uids, *uid, n);
        }
        for gid in &rule.gids {
            enter(&mut self.gids, *gid, n);
        }
        for id in rule
            .cgroups_held()
            .iter()
            .filter_map(|path| cgroup_id(path))
        {
            enter(&mut self.cgroups, id, n);
        }
        for inode in rule.namespaces.iter().filter_map(NetnsPattern::inode) {
            enter(&mut self.namespaces, inode, n);
        }
        let needs_database = [Action::Enrich, Action::Observe].contains(&rule.kernel_action())
            || rule
                .limit
                .is_some_and(|limit| limit.per == LimitPer::Address);
        if rule.is_of_elsewhere() && needs_database {
            let ports = to.iter().map(|target| target.port.unwrap_or(0));
            self.incoming_ports.extend(ports);
        }
        if !rule.backends.is_empty() {
            self.balanced.push(Balanced {
                rule: n,
                name: rule.name.clone(),
                backends: rule.backends.clone(),
            });
        }
        for (set, holds) in [
            (&mut self.any_uid, rule.uids.is_empty()),
            (&mut self.any_gid, rule.gids.is_empty()),
            (&mut self.any_process, rule.processes.is_empty()),
            (&mut self.any_cgroup, !rule.names_cgroups()),
            (&mut self.any_netns, rule.namespaces.is_empty()),
            (&mut self.any_source, rule.from.is_empty()),
            (&mut self.here, rule.is_of_here()),
            (&mut self.elsewhere, rule.is_of_elsewhere()),
            (&mut self.settles, rule.settles_backends()),
            (&mut self.shadows, rule.is_shadow()),
        ] {
            if holds {
                set.add(n);
            }
        }
    }

    /// Fails if a dimension has more entries than half of its table in the kernel, of which the other half
    /// is the next policy's.
    fn fit(&self) -> Result<(), CompileError> {
        let half = |most: u32| most as usize / abi::GENERATIONS as usize;
        let counts = [
            ("destinations", self.targets.len(), half(abi::MAX_TARGETS)),
            (
                "networks of clients",
                self.sources.len(),
                half(abi::MAX_SOURCES),
            ),
            (
                "process names",
                self.processes.len(),
                half(abi::MAX_PROCESSES),
            ),
            ("uids", self.uids.len(), half(abi::MAX_UIDS)),
            ("gids", self.gids.len(), half(abi::MAX_GIDS)),
            ("cgroups", self.cgroups.len(), half(abi::MAX_CGROUPS)),
            (
                "namespaces",
                self.namespaces.len(),
                half(abi::MAX_NAMESPACES),
            ),
            ("rules with backends", self.balanced.len(), MAX_BALANCED),
            ("rules in shadow", self.shadows.members(), MAX_SHADOWS),
            // The old policy's are there until the new one is in force.
            (
                "ports in rules for clients on other hosts",
                self.incoming_ports.len(),
                half(abi::MAX_INCOMING_PORTS),
            ),
        ];
        match counts.into_iter().find(|(_, count, most)| count > most) {
            Some((what, count, most)) => Err(CompileError::TooManyEntries { what, count, most }),
            None => Ok(()),
        }
    }
}

fn enter<K: Eq + std::hash::Hash>(map: &mut HashMap<K, RuleSet>, key: K, rule: usize) {
    map.entry(key).or_insert(RuleSet::EMPTY).add(rule);
}

/// Adds to each entry what its shorter prefixes say.
fn accumulate<const N: usize>(entries: &HashMap<Prefix<N>, RuleSet>) -> Vec<(Prefix<N>, RuleSet)> {
    let mut lengths: Vec<u32> = entries.keys().map(|p| p.bits).collect();
    lengths.sort_unstable();
    lengths.dedup();
    entries
        .iter()
        .map(|(prefix, own)| {
            let mut set = *own;
            for bits in lengths.iter().take_while(|bits| **bits < prefix.bits) {
                if let Some(shorter) = entries.get(&prefix.cut(*bits)) {
                    set.unite(shorter);
                }
            }
            (*prefix, set)
        })
        .collect()
}

impl<const N: usize> Prefix<N> {
    /// The first `bits` bits.
    fn cut(&self, bits: u32) -> Self {
        let mut bytes = self.bytes;
        for (i, byte) in bytes.iter_mut().enumerate() {
            let kept = bits.saturating_sub(i as u32 * 8).min(8);
            *byte &= !(0xff_u8.checked_shr(kept).unwrap_or(0));
        }
        Self { bytes, bits }
    }
}

fn target_prefix(target: &Target) -> Prefix<TARGET_BYTES> {
    let mut bytes = [0; TARGET_BYTES];
    let [_, _, port_high, port_low, family, _, _, _, addr @ ..] = &mut bytes;
    [*port_high, *port_low] = target.port.unwrap_or(0).to_be_bytes();
    let Some(network) = target.network else {
        let bits = TARGET_PORT_BITS;
        return Prefix { bytes, bits };
    };
    (*family, *addr) = address(network);
    let bits = TARGET_HEAD_BITS + u32::from(network.prefix_len());
    Prefix { bytes, bits }
}

fn source_prefix(network: &IpNet) -> Prefix<SOURCE_BYTES> {
    let mut bytes = [0; SOURCE_BYTES];
    let [_, family, _, _, addr @ ..] = &mut bytes;
    (*family, *addr) = address(*network);
    let bits = SOURCE_HEAD_BITS + u32::from(network.prefix_len());
    Prefix { bytes, bits }
}

/// The family and the address, of which IPv4's is in the first four bytes.
fn address(network: IpNet) -> (u8, [u8; 16]) {
    match network.network() {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            for (to, from) in bytes.iter_mut().zip(v4.octets()) {
                *to = from;
            }
            (4, bytes)
        }
        IpAddr::V6(v6) => (6, v6.octets()),
    }
}

fn process_prefix(pattern: &ProcessPattern) -> Prefix<PROCESS_BYTES> {
    let mut bytes = [0; PROCESS_BYTES];
    for (to, from) in bytes.iter_mut().skip(1).zip(pattern.text().bytes()) {
        *to = from;
    }
    let named = if pattern.is_prefix() {
        pattern.text().len() as u32
    } else {
        abi::COMM_BYTES
    };
    let bits = PROCESS_HEAD_BITS + 8 * named;
    Prefix { bytes, bits }
}

#[cfg(test)]
#[path = "compile_tests.rs"]
mod tests;
