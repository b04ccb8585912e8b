//! A rule's `to`: addresses, and names that stand for addresses which may change.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::{Name, NamedTarget, Policy, Target};

/// Addresses that the names of one policy may stand for together: a quarter of the kernel's table of destinations is left
/// for them, of which half is the next policy's.
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
            fixed,
            named,
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
        let theirs = other.possible();
        let mut mine = self.possible().into_iter();
        mine.any(|mine| theirs.iter().any(|theirs| mine.meets(theirs)))
    }

    /// Whether every destination that the other holds now is one of these.
    pub(crate) fn cover(&self, other: &Self) -> bool {
        let within = |narrow: &Target| self.held().any(|wide| wide.covers(narrow));
        self.is_any() || !other.is_any() && other.held().all(within)
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
        let mut seen = std::collections::HashSet::new();
        let named = self.rules.iter().flat_map(|rule| &rule.to.named);
        named
            .map(|target| &target.name)
            .filter(|name| seen.insert(*name))
            .collect()
    }

    /// Makes rules that name destinations hold for what the names stand for, and for nothing else. Returns the number of
    /// addresses that are left out, because the kernel's table has no room for them.
    pub fn find_names(&mut self, of: impl Fn(&Name) -> Vec<Endpoint>) -> usize {
        let (mut room, mut left_out) = (MAX_FOUND, 0);
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
            left_out += found.len().saturating_sub(room);
            found.truncate(room);
            room -= found.len();
            rule.to.found = found;
        }
        left_out
    }
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
    fn a_name_may_be_any_address_of_its_ports() {
        let meet = |a: &[&str], b: &[&str]| to(a).may_meet(&to(b));
        assert!(meet(&["db.x:1"], &["10.0.0.0/8:1"]));
        assert!(meet(&["db.x:1"], &["_cql._tcp.x"]));
        assert!(meet(&["cluster:x"], &[]));
        assert!(!meet(&["db.x:1"], &["10.0.0.0/8:2"]));
    }
}
