//! Rules that name containers, by what their runtime calls them.
//!
//! The kernel knows a container by its cgroup, so such a rule is one that names cgroups: those of the
//! containers for which it holds at the moment, beneath its own `cgroup` where it has one.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    path::{Path, PathBuf},
};

use ebpf::abi;

use super::{Action, Policy, Rule};

/// Of a container's name, and of a label's key and value: more than Kubernetes and Docker allow for
/// names (253), and than anybody types.
pub const MAX_CONTAINER_TEXT_BYTES: usize = 256;

/// Names, and labels, of one rule.
pub const MAX_CONTAINER_CONDITIONS: usize = 64;

/// A text in which `*` stands for anything, also for nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Glob(String);

impl Glob {
    /// None when it is empty or longer than [`MAX_CONTAINER_TEXT_BYTES`].
    pub fn parse(text: &str) -> Option<Self> {
        let fits = (1..=MAX_CONTAINER_TEXT_BYTES).contains(&text.len());
        fits.then(|| Self(text.to_owned()))
    }

    /// A text without `*` is that text. Otherwise what is before the first one has to come first, what
    /// is behind the last one last, and what is between them in between, each as early as it can.
    fn holds(&self, text: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else {
            return text == self.0;
        };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(text) = text.strip_prefix(first) else {
            return false;
        };
        let Some(mut text) = text.strip_suffix(last) else {
            return false;
        };
        for part in middle.split('*') {
            let Some((_, behind)) = text.split_once(part) else {
                return false;
            };
            text = behind;
        }
        true
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// What its runtime calls it.
    pub names: Vec<String>,
    /// Its labels, and its pod's.
    pub labels: BTreeMap<String, String>,
    /// Its own cgroup, from the mount's root: all of its processes are beneath it, and nobody else.
    pub cgroup: PathBuf,
    /// A process of it, unless that has ended.
    pub pid: u32,
}

/// A rule's conditions on the container. An empty list does not care.
#[derive(Clone, Debug, Default)]
pub struct ContainerConditions {
    /// One of its names is one of these.
    pub names: Vec<Glob>,
    /// It has each of these labels.
    pub labels: Vec<(String, Glob)>,
    /// Where processes are of which these conditions, and the rule's `cgroup`, hold:
    /// [`Policy::find_containers`].
    found: Vec<PathBuf>,
}

impl ContainerConditions {
    /// That hold for nobody until containers are found.
    pub fn new(names: Vec<Glob>, labels: Vec<(String, Glob)>) -> Self {
        Self {
            names,
            labels,
            found: Vec::new(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.labels.is_empty()
    }

    fn hold(&self, container: &Container) -> bool {
        let named = |glob: &Glob| container.names.iter().any(|name| glob.holds(name));
        let labelled = |(key, glob): &(String, Glob)| {
            let value = container.labels.get(key);
            value.is_some_and(|value| glob.holds(value))
        };
        (self.names.is_empty() || self.names.iter().any(named)) && self.labels.iter().all(labelled)
    }
}

impl Rule {
    /// Whether it holds for some cgroups only.
    pub fn names_cgroups(&self) -> bool {
        !(self.cgroups.is_empty() && self.containers.is_empty())
    }

    /// The cgroups that it holds for, if it [names any](Self::names_cgroups).
    pub fn places(&self) -> &[PathBuf] {
        match self.containers.is_empty() {
            true => &self.cgroups,
            false => &self.containers.found,
        }
    }

    /// Where both a container and the rule's `cgroup` are: in whichever is beneath the other.
    fn places_in(&self, container: &Path) -> Vec<PathBuf> {
        if self.cgroups.is_empty() {
            return vec![container.to_owned()];
        }
        let both = self.cgroups.iter().filter_map(|named| {
            match (container.starts_with(named), named.starts_with(container)) {
                (true, _) => Some(container.to_owned()),
                (_, true) => Some(named.clone()),
                _ => None,
            }
        });
        both.collect()
    }
}

/// Cgroups of one policy: half of the kernel's table, of which the other half is the next policy's.
const MAX_PLACES: usize = (abi::MAX_CGROUPS / abi::GENERATIONS) as usize;

impl Policy {
    /// Whether any rule names containers, whose runtimes must then be asked.
    pub fn names_containers(&self) -> bool {
        self.rules.iter().any(|rule| !rule.containers.is_empty())
    }

    /// Whether a rule that names containers sends connections of this one to the agent.
    pub fn asks_for(&self, container: &Container) -> bool {
        let mut rules = self.rules.iter().filter(|rule| !rule.containers.is_empty());
        rules.any(|rule| {
            let mut places = rule.places().iter();
            rule.kernel_action() == Action::Enrich
                && places.any(|place| place.starts_with(&container.cgroup))
        })
    }

    /// Has rules that name containers hold for those of `running` that they mean, and for nobody else.
    /// Returns how many cgroups did not fit into the kernel's table: in those no such rule holds.
    pub fn find_containers<'a>(
        &mut self,
        running: impl Iterator<Item = &'a Container> + Clone,
    ) -> usize {
        let named = self.rules.iter().filter(|rule| rule.containers.is_empty());
        let mut places: HashSet<PathBuf> = named.flat_map(|rule| &rule.cgroups).cloned().collect();
        let mut too_many = HashSet::new();
        for rule in &mut self.rules {
            let mut found = Vec::new();
            if rule.containers.is_empty() {
                continue;
            }
            for container in running.clone().filter(|c| rule.containers.hold(c)) {
                for place in rule.places_in(&container.cgroup) {
                    if !places.contains(&place) {
                        if places.len() >= MAX_PLACES {
                            too_many.insert(place);
                            continue;
                        }
                        places.insert(place.clone());
                    }
                    found.push(place);
                }
            }
            rule.containers.found = found;
        }
        too_many.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        compile::compile,
        policy::tests::{candidate, plain_rule, policy},
    };

    /// One `*` after the other, every way.
    fn plainly(glob: &str, text: &str) -> bool {
        match glob.split_at_checked(1) {
            None => text.is_empty(),
            Some(("*", rest)) => (0..=text.len()).any(|n| plainly(rest, text.get(n..).unwrap())),
            Some((c, rest)) => text.strip_prefix(c).is_some_and(|text| plainly(rest, text)),
        }
    }

    proptest! {
        #[test]
        fn a_star_stands_for_anything(glob in "[ab*]{1,8}", text in "[ab]{0,8}") {
            prop_assert_eq!(Glob::parse(&glob).unwrap().holds(&text), plainly(&glob, &text));
        }
    }

    #[test]
    fn globs_are_bounded() {
        assert_eq!(Glob::parse(""), None);
        assert!(Glob::parse(&"x".repeat(MAX_CONTAINER_TEXT_BYTES)).is_some());
        assert_eq!(Glob::parse(&"x".repeat(MAX_CONTAINER_TEXT_BYTES + 1)), None);
    }

    fn container(name: &str, labels: &[(&str, &str)], cgroup: &str) -> Container {
        let labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        Container {
            names: vec![name.into()],
            labels: labels.collect(),
            cgroup: cgroup.into(),
            pid: 0,
        }
    }

    fn rule(names: &[&str], labels: &[(&str, &str)], cgroups: &[&str]) -> Rule {
        let mut rule = plain_rule("r");
        let glob = |text: &&str| Glob::parse(text).unwrap();
        let labels = labels.iter().map(|(k, v)| ((*k).into(), glob(v)));
        rule.containers.names = names.iter().map(glob).collect();
        rule.containers.labels = labels.collect();
        rule.cgroups = cgroups.iter().map(PathBuf::from).collect();
        rule
    }

    fn found(rule: Rule, running: &[Container]) -> Vec<String> {
        let mut policy = policy(vec![rule]);
        assert_eq!(policy.find_containers(running.iter()), 0);
        let places = policy.rules.first().unwrap().places();
        let places = places.iter().map(|path| path.display().to_string());
        places.collect()
    }

    #[test]
    fn one_name_has_to_hold_and_every_label() {
        let running = [
            container("app-1", &[("app", "shop"), ("tier", "web")], "/c/1"),
            container("app-2", &[("app", "shop")], "/c/2"),
            container("db", &[("app", "db")], "/c/3"),
        ];
        let found = |names: &[&str], labels: &[_]| found(rule(names, labels, &[]), &running);
        assert_eq!(found(&["app-*"], &[]), ["/c/1", "/c/2"]);
        assert_eq!(found(&["app-1", "d?"], &[]), ["/c/1"]);
        assert_eq!(found(&["app-1", "db"], &[]), ["/c/1", "/c/3"]);
        assert_eq!(found(&[], &[("app", "shop")]), ["/c/1", "/c/2"]);
        assert_eq!(found(&[], &[("app", "shop"), ("tier", "*")]), ["/c/1"]);
        assert_eq!(found(&["app-2"], &[("app", "s*")]), ["/c/2"]);
        assert_eq!(found(&["db"], &[("app", "shop")]), [""; 0]);
        assert_eq!(found(&[], &[("other", "*")]), [""; 0]);
    }

    #[test]
    fn a_cgroup_has_to_hold_too() {
        let running = [container("a", &[], "/pods/x"), container("b", &[], "/else")];
        let found = |cgroups: &[&str]| found(rule(&["*"], &[], cgroups), &running);
        assert_eq!(found(&["/pods"]), ["/pods/x"]);
        assert_eq!(
            found(&["/pods/x/inner", "/else"]),
            ["/pods/x/inner", "/else"]
        );
        assert_eq!(found(&["/po"]), [""; 0]);
    }

    #[test]
    fn a_rule_for_containers_holds_for_nobody_until_they_are_found() {
        let mut policy = policy(vec![rule(&["a"], &[], &["/pods"])]);
        let mut candidate = candidate();
        candidate.cgroup = "/pods/x/deeper".into();
        let holds = |policy: &Policy| policy.first_match(&candidate).index.is_some();
        assert!(policy.names_cgroups() && policy.names_containers());
        assert!(!holds(&policy));
        policy.find_containers([container("a", &[], "/pods/x")].iter());
        assert!(holds(&policy));
        policy.find_containers([container("b", &[], "/pods/x")].iter());
        assert!(!holds(&policy));
    }

    #[test]
    fn what_does_not_fit_is_counted_and_named_cgroups_come_first() {
        let mut named = plain_rule("named");
        named.cgroups = vec!["/named".into()];
        let each = |n| container("a", &[], &format!("/c/{n}"));
        let running: Vec<_> = (0..MAX_PLACES + 4).map(each).collect();
        let rules = vec![rule(&["*"], &[], &[]), rule(&["a"], &[], &[]), named];
        let mut policy = policy(rules);
        assert_eq!(policy.find_containers(running.iter()), 5);
        let ids = |path: &Path| {
            Some(
                path.to_str()?
                    .bytes()
                    .fold(7, |n: u64, b| n * 31 + u64::from(b)),
            )
        };
        assert!(compile(&policy, ids).is_ok());
    }
}
