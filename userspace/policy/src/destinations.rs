//! A rule's `to`: addresses, and names that stand for addresses which may change.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;

use crate::{Name, NamedTarget, Policy, Target};

/// Different destinations of one policy: half of the kernel's table, of which the other half is the next policy's.
pub const MAX_DESTINATIONS: usize = 8192;

/// Different ports of one policy's destinations: half of the kernel's table of ports, likewise. Written ones may be more, in rules of
/// this host's own connections; then names tell no further ones.
pub const MAX_DESTINATION_PORTS: usize = 4096;

/// Different destinations that the names of one policy may stand for together: a quarter of what a policy may have, or less, where its
/// addresses leave less.
pub const MAX_FOUND: usize = 2048;

/// The destinations that a rule holds for. **Invariant**: a rule that names destinations holds for none of them until their
/// addresses are found, and never for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    fixed: Vec<Target>,
    named: Vec<NamedTarget>,
    /// The addresses of `named`, as [`Policy::find_names`] found them.
    found: Vec<Target>,
}

/// An address that a name stands for, and its port where the name tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The address, never an IPv4-mapped one.
    pub ip: IpAddr,
    /// The port; None: that of the rule.
    pub port: Option<u16>,
}

impl Endpoint {
    /// An address of which a name does not tell the port.
    pub fn host(ip: IpAddr) -> Self {
        let ip = ip.to_canonical();
        Self { ip, port: None }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(at: SocketAddr) -> Self {
        Self {
            ip: at.ip().to_canonical(),
            port: Some(at.port()),
        }
    }
}

impl From<Vec<Target>> for Destinations {
    fn from(fixed: Vec<Target>) -> Self {
        Self::new(fixed, Vec::new())
    }
}

impl Destinations {
    /// All destinations.
    pub const ANY: Self = Self {
        fixed: Vec::new(),
        named: Vec::new(),
        found: Vec::new(),
    };

    /// Makes destinations of addresses and names: all, if there are neither.
    pub fn new(fixed: Vec<Target>, named: Vec<NamedTarget>) -> Self {
        Self {
            fixed: each_once(fixed),
            named: each_once(named),
            found: Vec::new(),
        }
    }

    /// Whether every destination is one of them.
    pub fn is_any(&self) -> bool {
        self.fixed.is_empty() && self.named.is_empty()
    }

    /// The addresses that do not depend on a name.
    pub fn fixed(&self) -> &[Target] {
        &self.fixed
    }

    /// The names.
    pub fn named(&self) -> &[NamedTarget] {
        &self.named
    }

    /// The addresses of now, unless [all](Self::is_any) are.
    pub fn held(&self) -> impl Iterator<Item = &Target> {
        self.fixed.iter().chain(&self.found)
    }

    /// Whether an address is one of the destinations.
    pub fn holds(&self, to: SocketAddr) -> bool {
        self.is_any() || self.held().any(|target| target.holds(to))
    }

    /// Whether a destination may be one of both, now or when a name stands for something else.
    pub(crate) fn may_meet(&self, other: &Self) -> bool {
        // By port: rules with ranges of ports have thousands of destinations.
        let mut theirs = HashMap::<Option<u16>, Vec<Target>>::new();
        for target in other.possible() {
            theirs.entry(target.port).or_default().push(target);
        }
        let mut mine = self.possible().into_iter();
        mine.any(|mine| match mine.port {
            None => theirs.values().flatten().any(|other| mine.meets(other)),
            Some(_) => {
                let ports = [mine.port, None];
                let mut same = ports.iter().filter_map(|port| theirs.get(port)).flatten();
                same.any(|other| mine.meets(other))
            }
        })
    }

    /// Whether every destination of the other is one of these, whatever names stand for.
    pub(crate) fn always_cover(&self, other: &Self) -> bool {
        let within = |narrow: &Target| self.fixed.iter().any(|wide| wide.covers(narrow));
        let named = |narrow: &NamedTarget| {
            self.named.iter().any(|wide| wide.covers(narrow))
                || narrow.possible().iter().all(within)
        };
        self.is_any()
            || !other.is_any() && other.fixed.iter().all(within) && other.named.iter().all(named)
    }

    /// All targets that these may ever be.
    fn possible(&self) -> Vec<Target> {
        if self.is_any() {
            return vec![Target::ANY];
        }
        let named = self.named.iter().flat_map(NamedTarget::possible);
        self.fixed.iter().copied().chain(named).collect()
    }
}

impl Policy {
    /// Whether a rule names destinations, whose addresses must then be looked up.
    pub fn names_destinations(&self) -> bool {
        self.rules.iter().any(|rule| !rule.to.named.is_empty())
    }

    /// The names of all rules, each once, in the order of the rules.
    pub fn destination_names(&self) -> Vec<&Name> {
        let mut seen = HashSet::new();
        let named = self.rules.iter().flat_map(|rule| &rule.to.named);
        named
            .map(|target| &target.name)
            .filter(|name| seen.insert(*name))
            .collect()
    }

    /// Makes rules that name destinations hold for what the names stand for, and for nothing else. Returns the number of
    /// different destinations that are left out, because the kernel's table has no room for them. One that several rules have is in
    /// that table once.
    pub fn find_names(&mut self, of: impl Fn(&Name) -> Vec<Endpoint>) -> usize {
        // Rules without destinations have one together.
        let mut taken = HashSet::from([Target::ANY]);
        taken.extend(self.rules.iter().flat_map(|rule| &rule.to.fixed));
        let room = MAX_FOUND.min(MAX_DESTINATIONS.saturating_sub(taken.len()));
        let most = taken.len() + room;
        let mut ports: HashSet<Option<u16>> = taken.iter().map(|target| target.port).collect();
        let mut left_out = HashSet::new();
        for rule in &mut self.rules {
            let named = rule.to.named.iter();
            let mut found: Vec<Target> = named
                .flat_map(|target| {
                    let addresses = of(&target.name).into_iter();
                    addresses.flat_map(|at| target.at(at))
                })
                .collect();
            found.sort_unstable_by_key(|target| (target.network, target.port));
            found.dedup();
            found.retain(|target| {
                let has_port = ports.contains(&target.port) || ports.len() < MAX_DESTINATION_PORTS;
                let has_room = has_port && (taken.contains(target) || taken.len() < most);
                if has_room {
                    ports.insert(target.port);
                    taken.insert(*target);
                } else {
                    left_out.insert(*target);
                }
                has_room
            });
            rule.to.found = found;
        }
        left_out.len()
    }
}

/// The first of each, in their order.
fn each_once<T: Clone + Eq + Hash>(mut all: Vec<T>) -> Vec<T> {
    let mut seen = HashSet::new();
    all.retain(|one| seen.insert(one.clone()));
    all
}

impl Target {
    /// Any address, and any port.
    pub const ANY: Self = Self {
        network: None,
        port: None,
    };
}

impl NamedTarget {
    /// The targets that the name stands for at one of its addresses.
    fn at(&self, at: Endpoint) -> impl Iterator<Item = Target> {
        let network = Some(IpNet::from(at.ip));
        let ports = match (at.port, self.ports.as_slice()) {
            (Some(port), _) => vec![Some(port)],
            (None, []) => vec![None],
            (None, ports) => ports.iter().copied().map(Some).collect(),
        };
        ports.into_iter().map(move |port| Target { network, port })
    }

    /// The targets among which the name's are, whatever it stands for.
    fn possible(&self) -> Vec<Target> {
        match self.ports.as_slice() {
            [] => vec![Target::ANY],
            ports => ports
                .iter()
                .map(|port| Target {
                    network: None,
                    port: Some(*port),
                })
                .collect(),
        }
    }

    fn covers(&self, narrow: &Self) -> bool {
        let has = |port: &u16| self.ports.contains(port);
        self.name == narrow.name
            && (self.ports.is_empty() || !narrow.ports.is_empty() && narrow.ports.iter().all(has))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Destination, Doubt,
        tests::{candidate, plain_rule, policy},
    };

    fn to(entries: &[&str]) -> Destinations {
        let (mut fixed, mut named) = (Vec::new(), Vec::new());
        for entry in entries {
            match Destination::parse(entry).unwrap() {
                Destination::Fixed(targets) => fixed.extend(targets),
                Destination::Named(target) => named.push(target),
            }
        }
        Destinations::new(fixed, named)
    }

    fn rule(name: &str, entries: &[&str]) -> crate::Rule {
        let mut rule = plain_rule(name);
        rule.to = to(entries);
        rule
    }

    fn endpoints(texts: &[&str]) -> Vec<Endpoint> {
        let read = |text: &&str| match text.parse::<SocketAddr>() {
            Ok(at) => Endpoint::from(at),
            Err(_) => Endpoint::host(text.parse().unwrap()),
        };
        texts.iter().map(read).collect()
    }

    #[test]
    fn a_rule_that_names_destinations_holds_for_none_until_they_are_found() {
        let mut policy = policy(vec![rule("r", &["db.shop:9042-9043"])]);
        let held = |policy: &Policy, at: &str| {
            let mut candidate = candidate();
            candidate.to = at.parse().unwrap();
            policy.first_match(&candidate).index.is_some()
        };
        assert!(!held(&policy, "10.1.0.1:9042"));
        let known = endpoints(&["10.1.0.1", "fd00::1"]);
        assert_eq!(policy.find_names(|_| known.clone()), 0);
        for (at, holds) in [
            ("10.1.0.1:9042", true),
            ("10.1.0.1:9043", true),
            ("[::ffff:10.1.0.1]:9042", true),
            ("[fd00::1]:9042", true),
            ("10.1.0.1:9044", false),
            ("10.1.0.2:9042", false),
        ] {
            assert_eq!(held(&policy, at), holds, "{at}");
        }
        policy.find_names(|_| Vec::new());
        assert!(!held(&policy, "10.1.0.1:9042"));
    }

    #[test]
    fn the_port_that_a_name_tells_counts() {
        let mut policy = policy(vec![rule("r", &["_cql._tcp.shop"])]);
        let known = endpoints(&["10.1.0.1:9142"]);
        policy.find_names(|_| known.clone());
        let to = &policy.rules[0].to;
        assert!(to.holds("10.1.0.1:9142".parse().unwrap()));
        assert!(!to.holds("10.1.0.1:9042".parse().unwrap()));
    }

    #[test]
    fn what_does_not_fit_is_left_out_of_the_last_rules() {
        let known: Vec<Endpoint> = (0..1500_u32)
            .map(|n| Endpoint::host(IpAddr::from((n + (10 << 24)).to_be_bytes())))
            .collect();
        let mut policy = policy(vec![rule("a", &["a.x:1"]), rule("b", &["a.x:2"])]);
        assert_eq!(policy.find_names(|_| known.clone()), 3000 - MAX_FOUND);
        let held: Vec<_> = policy.rules.iter().map(|r| r.to.held().count()).collect();
        assert_eq!(held, [1500, MAX_FOUND - 1500]);
    }

    fn hosts(count: u32) -> Vec<Endpoint> {
        let hosts = (0..count).map(|n| IpAddr::from((n + (10 << 24)).to_be_bytes()));
        hosts.map(Endpoint::host).collect()
    }

    #[test]
    fn addresses_that_many_rules_name_have_room_once() {
        let rules = (0..30).map(|n| rule(&format!("r{n}"), &["cluster:shop"]));
        let mut policy = policy(rules.collect());
        let known = hosts(1000);
        assert_eq!(policy.find_names(|_| known.clone()), 0);
        assert!(policy.rules.iter().all(|r| r.to.held().count() == 1000));
    }

    #[test]
    fn addresses_of_names_take_no_room_of_those_that_are_written() {
        let fixed = (0..7000_u32).map(|n| Target {
            network: Some(IpAddr::from((n + (11 << 24)).to_be_bytes()).into()),
            port: Some(1),
        });
        let mut first = plain_rule("a");
        first.to = Destinations::from(fixed.collect::<Vec<_>>());
        let (shop, again) = (rule("b", &["a.x:1"]), rule("c", &["a.x:1", "11.0.0.1:1"]));
        let mut policy = policy(vec![first, shop, again]);
        let known = hosts(1500);
        // One is every destination, for rules that name none.
        let room = MAX_DESTINATIONS - 7000 - 1;
        assert_eq!(policy.find_names(|_| known.clone()), 1500 - room);
        let held: Vec<_> = policy.rules.iter().map(|r| r.to.held().count()).collect();
        assert_eq!(held, [7000, room, room + 1]);
    }

    #[test]
    fn ports_that_names_tell_take_no_room_of_those_that_are_written() {
        let fixed = (1..=4000).map(|port| Target {
            network: None,
            port: Some(port),
        });
        let mut first = plain_rule("a");
        first.to = Destinations::from(fixed.collect::<Vec<_>>());
        let mut policy = policy(vec![first, rule("b", &["_cql._tcp.x"])]);
        let at = |port: u16| Endpoint::from(SocketAddr::from(([10, 1, 0, 1], port)));
        let known: Vec<_> = (3900..4200).map(at).collect();
        // All ports are one, for rules that name none.
        let room = MAX_DESTINATION_PORTS - 4000 - 1;
        assert_eq!(policy.find_names(|_| known.clone()), 199 - room);
        assert_eq!(policy.rules[1].to.held().count(), 101 + room);
    }

    #[test]
    fn rules_with_many_ports_are_compared_by_port() {
        let ports = |n: u8| {
            (0..8_u32).map(move |k| format!("10.{n}.{k}.0/24:{}-{}", 1 + 128 * k, 128 * (1 + k)))
        };
        let with = |n: u8| {
            let entries: Vec<String> = ports(n).collect();
            to(&entries.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let (a, b) = (with(1), with(2));
        assert!(!a.may_meet(&b) && a.may_meet(&a));
        assert!(a.may_meet(&to(&["10.1.3.4"])) && !b.may_meet(&to(&["10.1.3.4"])));
        assert_eq!(
            to(&["10.1.0.1:1", "db.x:1", "10.1.0.1:1", "db.x:1"]),
            to(&["10.1.0.1:1", "db.x:1"])
        );
    }

    #[test]
    fn only_what_always_holds_is_said_to_hide_a_rule() {
        let hides = |first: &[&str], second: &[&str], known: &[Endpoint]| {
            let mut policy = policy(vec![rule("a", first), rule("b", second)]);
            policy.find_names(|_| known.to_vec());
            let doubts = policy.doubts();
            doubts
                .iter()
                .any(|doubt| matches!(doubt, Doubt::Hidden { .. }))
        };
        let known = endpoints(&["10.1.0.1"]);
        for known in [&known[..], &[]] {
            assert!(hides(&["db.x:1"], &["db.x:1"], known));
            assert!(hides(&["db.x"], &["db.x:1"], known));
            assert!(hides(&[":1"], &["db.x:1"], known));
            assert!(!hides(&["db.x:1"], &["db.x"], known));
            assert!(!hides(&["db.x:1"], &["db.y:1"], known));
            assert!(!hides(&["10.0.0.0/8:1"], &["db.x:1"], known));
            assert!(!hides(&["db.x:1"], &["10.1.0.1:1"], &[]));
        }
    }

    #[test]
    fn a_rule_surely_decides_only_what_names_cannot_take_from_it() {
        let instead = |to: &[&str], known: &[Endpoint]| {
            let mut asks = rule("asks", &["db.x:1"]);
            (asks.session.tls, asks.fail) = (Some(true), crate::Fail::Open);
            let mut denies = rule("denies", to);
            denies.action = crate::Action::Deny;
            let mut policy = policy(vec![asks, denies]);
            policy.find_names(|_| known.to_vec());
            policy.met_unknown(0).rule.to_string()
        };
        // Nothing is found of the name, or all of it is within.
        for known in [&[][..], &endpoints(&["10.9.9.9"])] {
            assert_eq!(instead(&["10.9.9.9:1"], known), "default");
            assert_eq!(instead(&["db.x"], known), "denies");
            assert_eq!(instead(&[":1"], known), "denies");
        }
    }

    #[test]
    fn a_name_may_be_any_address_of_its_ports() {
        let meet = |a: &[&str], b: &[&str]| to(a).may_meet(&to(b));
        assert!(meet(&["db.x:1"], &["10.0.0.0/8:1"]));
        assert!(meet(&["db.x:1"], &["_cql._tcp.x"]));
        assert!(meet(&["cluster:x"], &[]));
        assert!(!meet(&["db.x:1"], &["10.0.0.0/8:2"]));
    }
}
