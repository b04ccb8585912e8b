//! A policy as the edge reads it: sources, ports and destination networks that no rule tells apart
//! are of one class, and two tables say which rule a combination of classes meets first.
//!
//! Only rules that name `from` or `to` speak of connections from elsewhere; one that names a user,
//! a process or a cgroup never holds for them. There is no default: what no rule speaks of is not
//! the edge's business.

use std::collections::{BTreeSet, HashMap};

#[cfg(test)]
use std::net::IpAddr;

use ebpf::abi;
use ipnet::IpNet;

use crate::compile::CompileError;
use policy::{Action, MAX_RULES, Policy, Rule, RuleName, Target};

const MAX_NETWORKS: usize = abi::MAX_EDGE_NETWORKS as usize / abi::GENERATIONS as usize;
const MAX_CELLS: usize = abi::EDGE_CELLS as usize;
const DEPENDS: u16 = abi::EDGE_DEPENDS as u16;

/// Numbers of rules or of targets, in order.
type Set = Vec<u32>;

/// Networks and the class of each; what is in none is of class 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Networks {
    /// Each one's class is that of the addresses in it that are in no smaller one.
    pub classes: Vec<(IpNet, u32)>,
    /// How many classes there are.
    pub count: u32,
}

/// The facts of a rule that the program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EdgeRule {
    pub name: RuleName,
    pub action: Action,
    /// All of its targets have ports.
    pub names_ports: bool,
    /// Whether the rule has backends and its flows need not go through the agent.
    pub forwards: bool,
}

/// A compiled policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Classes {
    pub sources: Networks,
    pub networks: Networks,
    /// Ports that a rule names: class, and whether one of those rules denies. The rest is of class 0.
    pub ports: Vec<(u16, u16, bool)>,
    /// By port's class, whether the network matters.
    pub uses_networks: Vec<bool>,
    /// How many classes of (port, network) pairs there are.
    pub target_count: u32,
    /// `[port's class][network's class]` → the pair's class.
    pub targets: Vec<u16>,
    /// `[source's class][pair's class]` → 1 + the rule's number, or 0.
    pub verdicts: Vec<u16>,
    /// `[source's class][port's class]` → as `verdicts`, or that it depends on the network. Empty if
    /// that is more than a table holds.
    pub early: Vec<u16>,
    /// Some virtual address is the agent's.
    pub has_taken: bool,
    /// By rule number, None for those that do not speak of connections from elsewhere.
    pub rules: Vec<Option<EdgeRule>>,
}

/// Whether `rule` speaks of connections from elsewhere, and can hold for one.
pub(crate) fn is_of_the_edge(rule: &Rule) -> bool {
    let is_local = [
        !rule.is_shadow(),
        rule.uids.is_empty(),
        rule.gids.is_empty(),
        rule.processes.is_empty(),
        !rule.names_cgroups(),
        rule.namespaces.is_empty(),
    ];
    is_local.iter().all(|none| *none) && !(rule.from.is_empty() && rule.to.is_any())
}

/// Compiles.
pub(crate) fn compile(policy: &Policy) -> Result<Classes, CompileError> {
    if policy.rules.len() > MAX_RULES {
        return Err(CompileError::TooManyRules(policy.rules.len()));
    }
    let rules: Vec<Option<&Rule>> = policy
        .rules
        .iter()
        .map(|rule| is_of_the_edge(rule).then_some(rule))
        .collect();
    let of_the_edge = || rules.iter().zip(0..).filter_map(|(r, n)| Some(((*r)?, n)));

    let mut from = Dimension::default();
    let mut targets: Vec<(Target, u32)> = Vec::new();
    for (rule, number) in of_the_edge() {
        if rule.from.is_empty() {
            from.any.insert(number);
        }
        for network in &rule.from {
            from.add(*network, number);
        }
        let to = rule.to.held().copied();
        targets.extend(to.map(|target| (target, number)));
        if rule.to.is_any() {
            targets.push((Target::ANY, number));
        }
    }
    let mut to = Dimension::default();
    let mut ports: HashMap<u16, (BTreeSet<u32>, bool)> = HashMap::new();
    let mut any_port = BTreeSet::new();
    for ((target, rule), number) in targets.iter().zip(0..) {
        match target.network {
            Some(network) => to.add(network, number),
            None => drop(to.any.insert(number)),
        }
        match target.port {
            Some(port) => {
                let denies = kernel_action(&rules, *rule) == Some(Action::Deny);
                let entry = ports.entry(port).or_default();
                entry.0.insert(number);
                entry.1 |= denies;
            }
            None => drop(any_port.insert(number)),
        }
    }
    let (sources, source_sets) = from.classes("networks in `from`")?;
    let (networks, network_sets) = to.classes("networks in `to`")?;
    let mut port_classes = Classifier::default();
    port_classes.class(any_port.iter().copied().collect());
    let mut named: Vec<_> = ports
        .into_iter()
        .map(|(port, (set, denies))| {
            let class = port_classes.class(set.union(&any_port).copied().collect());
            (port, class as u16, denies)
        })
        .collect();
    named.sort_unstable();

    let mut pairs = Classifier::default();
    let mut target_cells = Vec::new();
    fits(port_classes.sets.len(), network_sets.len())?;
    for by_port in &port_classes.sets {
        for by_network in &network_sets {
            let both = common(by_port, by_network);
            let rules = both.filter_map(|n| Some(targets.get(n as usize)?.1));
            let rules: BTreeSet<u32> = rules.collect();
            target_cells.push(pairs.class(rules.into_iter().collect()) as u16);
        }
    }
    let rows = target_cells.chunks(network_sets.len().max(1));
    let uses_networks = rows.map(|row| row.windows(2).any(|pair| pair.first() != pair.last()));
    let uses_networks = uses_networks.collect();
    fits(source_sets.len(), pairs.sets.len())?;
    let mut verdicts = Vec::new();
    for by_source in &source_sets {
        for by_target in &pairs.sets {
            let first = common(by_source, by_target).next();
            verdicts.push(first.map_or(0, |rule| rule as u16 + 1));
        }
    }
    let early = early(
        &target_cells,
        network_sets.len(),
        &verdicts,
        pairs.sets.len(),
    );
    Ok(Classes {
        sources,
        networks,
        early,
        ports: named,
        uses_networks,
        target_count: pairs.sets.len() as u32,
        targets: target_cells,
        verdicts,
        has_taken: !policy.taken_addresses().is_empty(),
        rules: rules.iter().map(|rule| rule.map(edge_rule)).collect(),
    })
}

/// The decision by a source and a port alone, where the destination's network does not matter.
fn early(targets: &[u16], networks: usize, verdicts: &[u16], pairs: usize) -> Vec<u16> {
    let rows = targets.chunks(networks.max(1));
    let by_port: Vec<BTreeSet<u16>> = rows.map(|row| row.iter().copied().collect()).collect();
    let by_source = verdicts.chunks(pairs.max(1));
    if by_source.len() * by_port.len() > MAX_CELLS {
        return Vec::new();
    }
    let cells = by_source.flat_map(|of_source| {
        by_port.iter().map(|pairs| {
            let mut all = pairs.iter().map(|pair| of_source.get(usize::from(*pair)));
            let first = all.next().flatten();
            let same = all.all(|verdict| verdict == first);
            first.filter(|_| same).copied().unwrap_or(DEPENDS)
        })
    });
    cells.collect()
}

impl Classes {
    /// Classes of ports in `early`; 0: it is empty.
    pub(crate) fn early_ports(&self) -> u32 {
        let ports = self.targets.len() / (self.networks.count.max(1) as usize);
        if self.early.is_empty() {
            0
        } else {
            ports as u32
        }
    }
}

fn kernel_action(rules: &[Option<&Rule>], number: u32) -> Option<Action> {
    Some((*rules.get(number as usize)?)?.kernel_action())
}

fn edge_rule(rule: &Rule) -> EdgeRule {
    let action = rule.kernel_action();
    EdgeRule {
        name: rule.name.clone(),
        action,
        names_ports: !rule.to.is_any() && rule.to.held().all(|target| target.port.is_some()),
        forwards: !rule.backends.is_empty() && matches!(action, Action::Bypass | Action::Observe),
    }
}

/// A class is a cell's `u16`, and a table has so many cells.
fn fits(rows: usize, columns: usize) -> Result<(), CompileError> {
    let count = rows * columns;
    let wide = rows.max(columns) > usize::from(u16::MAX);
    if count > MAX_CELLS || wide {
        return Err(CompileError::TooManyEntries {
            what: "combinations of `from` and `to` at the edge",
            count,
            most: MAX_CELLS,
        });
    }
    Ok(())
}

/// The members that two sets have in common, in order.
fn common<'a>(one: &'a Set, other: &'a Set) -> impl Iterator<Item = u32> + 'a {
    let mut rest = other.iter().copied().peekable();
    one.iter().copied().filter(move |wanted| {
        while rest.next_if(|at| at < wanted).is_some() {}
        rest.peek() == Some(wanted)
    })
}

/// Gives equal sets the same number.
#[derive(Default)]
struct Classifier {
    numbers: HashMap<Set, u32>,
    sets: Vec<Set>,
}

impl Classifier {
    fn class(&mut self, set: Set) -> u32 {
        if let Some(number) = self.numbers.get(&set) {
            return *number;
        }
        let number = self.sets.len() as u32;
        self.sets.push(set.clone());
        self.numbers.insert(set, number);
        number
    }
}

/// Rules by the networks that they name, in one dimension.
#[derive(Default)]
struct Dimension {
    /// Rules that hold for every address.
    any: BTreeSet<u32>,
    named: HashMap<IpNet, BTreeSet<u32>>,
}

impl Dimension {
    fn add(&mut self, network: IpNet, number: u32) {
        self.named.entry(network).or_default().insert(number);
    }

    /// A look-up returns the longest prefix only, so each one's set has what its shorter ones say.
    fn classes(&self, what: &'static str) -> Result<(Networks, Vec<Set>), CompileError> {
        for family in [true, false] {
            let of_family = |network: &&IpNet| network.addr().is_ipv4() == family;
            let count = self.named.keys().filter(of_family).count();
            if count > MAX_NETWORKS {
                return Err(CompileError::TooManyEntries {
                    what,
                    count,
                    most: MAX_NETWORKS,
                });
            }
        }
        let mut classifier = Classifier::default();
        classifier.class(self.any.iter().copied().collect());
        let mut classes: Vec<(IpNet, u32)> = self
            .named
            .keys()
            .map(|network| {
                let mut set = self.any.clone();
                for bits in 0..=network.prefix_len() {
                    let shorter = IpNet::new(network.addr(), bits).map(|net| net.trunc());
                    let named = shorter.ok().and_then(|net| self.named.get(&net));
                    set.extend(named.into_iter().flatten());
                }
                (*network, classifier.class(set.into_iter().collect()))
            })
            .collect();
        classes.sort_unstable();
        let count = classifier.sets.len() as u32;
        Ok((Networks { classes, count }, classifier.sets))
    }
}

#[cfg(test)]
impl Networks {
    /// The class of an address, as the kernel's trie answers.
    pub(crate) fn class_of(&self, ip: IpAddr) -> u32 {
        let holds = self.classes.iter().filter(|(net, _)| net.contains(&ip));
        holds
            .max_by_key(|(net, _)| net.prefix_len())
            .map_or(0, |(_, class)| *class)
    }
}

#[cfg(test)]
impl Classes {
    /// The number of the rule that a connection meets, as the program decides.
    pub(crate) fn first_match(&self, from: IpAddr, to: IpAddr, port: u16) -> Option<usize> {
        let named = self.ports.binary_search_by_key(&port, |(port, ..)| *port);
        let port = named.ok().and_then(|at| self.ports.get(at));
        let port = port.map_or(0, |(_, class, _)| u32::from(*class));
        let early = self.sources.class_of(from) * self.early_ports() + port;
        let early = self
            .early
            .get(early as usize)
            .filter(|_| self.early_ports() > 0);
        if let Some(early) = early.filter(|early| **early != DEPENDS) {
            return usize::from(*early).checked_sub(1);
        }
        let pair = port * self.networks.count + self.networks.class_of(to);
        let target = u32::from(*self.targets.get(pair as usize)?);
        let cell = self.sources.class_of(from) * self.target_count + target;
        usize::from(*self.verdicts.get(cell as usize)?).checked_sub(1)
    }
}

#[cfg(test)]
#[path = "classes_tests.rs"]
mod tests;
