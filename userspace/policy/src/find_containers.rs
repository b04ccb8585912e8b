//! Finding the containers that rules name.
//!
//! The kernel knows a container by its cgroup. A rule that names containers is therefore one that names
//! cgroups: those of the containers for which it holds at the moment, beneath its own `cgroup` where it
//! has one.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use crate::{Action, Container, Policy, Rule};

/// Cgroups that one policy may name: half of the kernel's table, of which the other half is the next
/// policy's.
pub const MAX_CGROUPS: usize = 4096;

impl Policy {
    /// Whether any rule names containers, whose runtimes must then be asked.
    pub fn names_containers(&self) -> bool {
        self.rules.iter().any(|rule| !rule.containers.is_empty())
    }

    /// Whether a rule that names containers sends connections of this one to the agent.
    pub fn asks_for(&self, container: &Container) -> bool {
        let mut rules = self.rules.iter().filter(|rule| !rule.containers.is_empty());
        rules.any(|rule| {
            let mut places = rule.cgroups_held().iter();
            rule.kernel_action() == Action::Enrich
                && places.any(|place| place.starts_with(&container.cgroup))
        })
    }

    /// Makes rules that name containers hold for those of `running` that they mean, and for nobody else.
    /// Returns the number of cgroups that did not fit into the kernel's table: in those, no such rule
    /// holds.
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
                for place in rule.cgroups_in(&container.cgroup) {
                    if !places.contains(&place) {
                        if places.len() >= MAX_CGROUPS {
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

impl Rule {
    /// The cgroups that lie in a container and in one of the rule's cgroups: of each pair, the one that is
    /// beneath the other.
    fn cgroups_in(&self, container: &Path) -> Vec<PathBuf> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Glob, MAX_CONTAINER_TEXT_BYTES,
        tests::{candidate, plain_rule, policy},
    };

    /// Matches a glob by trying every position of one `*` after the other.
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
            pod: None,
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
        let places = policy.rules.first().unwrap().cgroups_held();
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
}
