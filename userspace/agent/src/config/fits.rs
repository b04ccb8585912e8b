//! Whether a policy fits the kernel's tables. Whoever checks a policy finds that out, and not only the host that puts it into force.

use std::{collections::HashMap, ops::Range};

use dataplane::compile;
use policy::Policy;

use super::{error::Flaw, raw::RawConfig};

/// The rules as the texts have them, before they become a policy.
pub(super) struct Written(HashMap<String, WrittenRule>);

struct WrittenRule {
    place: Range<usize>,
    is_shadow: bool,
    /// Whether each host of the fleet has the rule: it is the fleet's, and for all.
    is_everywhere: bool,
}

impl Written {
    /// The rules of texts, of which those of the fleet begin at a place.
    pub(super) fn of(raw: &RawConfig, fleets: usize) -> Self {
        let rules = raw.rule.iter().map(|rule| {
            let place = rule.get_ref().name.span();
            let rule = rule.get_ref();
            let is_fleets = place.start >= fleets;
            let written = WrittenRule {
                place,
                is_shadow: rule.is_shadow(),
                is_everywhere: is_fleets && rule.hosts.is_empty() && rule.rollout.is_none(),
            };
            (rule.name.get_ref().clone(), written)
        });
        Self(rules.collect())
    }

    /// Checks a host's policy.
    pub(super) fn fit(&self, policy: Policy) -> Result<(), Flaw> {
        let policy = always(policy);
        let Err((number, error)) = compile::fit(&policy) else {
            return Ok(());
        };
        let name = policy.rules.get(number).map(|rule| rule.name.as_str());
        let written = name.and_then(|name| self.0.get(name));
        let place = written.map_or(0..0, |written| written.place.clone());
        let message = format!(
            "rule: expected what the kernel has room for; this one and those before it have {error}"
        );
        Err(Flaw::new(place, message))
    }

    /// Checks the part of a fleet's policy that each host has. The rules of one host are few of those for some hosts, so what these take
    /// together says nothing.
    pub(super) fn fit_everywhere(&self, mut policy: Policy) -> Result<(), Flaw> {
        policy.rules.retain_mut(|rule| {
            let Some(written) = self.0.get(rule.name.as_str()) else {
                return false;
            };
            if written.is_shadow {
                rule.shadow = Some(rule.action);
                rule.backends.clear();
            }
            written.is_everywhere
        });
        self.fit(policy)
    }
}

/// The rules that are there at any time. Those with a window are in the kernel while it is open, and not all are at once.
fn always(mut policy: Policy) -> Policy {
    policy.rules.retain(|rule| rule.when.is_none());
    policy
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use policy_source::{Fragment, Fragments};

    use crate::config::{
        Config, Sources,
        tests::{parse, refusal},
    };

    fn rules(count: usize, of: impl Fn(usize) -> String) -> String {
        let rule = |n| {
            let of = of(n);
            format!("[[rule]]\nname = \"r{n}\"\naction = \"bypass\"\n{of}\n")
        };
        (0..count).map(rule).collect()
    }

    fn pushed(own: &str, text: &str) -> Result<(), String> {
        let file = Fragment {
            name: "policy.toml".to_owned(),
            text: text.to_owned(),
        };
        let sources = Sources::of(Path::new("own.toml"), own);
        let fleets = Fragments::new(1, vec![file]).unwrap();
        let checked = Config::for_every_host(&sources.with(&fleets));
        checked.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn what_no_kernel_has_room_for_is_refused_where_it_is_checked() {
        let ranges = |n: usize| {
            let range = |k: usize| format!("\"10.{n}.0.{k}:1-128\"");
            let ranges: Vec<String> = (0..8).map(range).collect();
            format!("to = [{}]", ranges.join(", "))
        };
        let ids = |key: &str, n: usize| {
            let ids: Vec<String> = (0..1000).map(|k| (n * 1000 + k).to_string()).collect();
            format!("to = [\":1\"]\n{key} = [{}]", ids.join(", "))
        };
        for (fits, exceeds, says) in [
            (
                rules(7, ranges),
                rules(9, ranges),
                "have 9216 distinct destinations: at most 8192 fit",
            ),
            (
                rules(4, |n| ids("uid", n)),
                rules(5, |n| ids("uid", n)),
                "have 5000 distinct uids: at most 4096 fit",
            ),
            (
                rules(64, |_| "mode = \"shadow\"\nto = [\":1\"]".to_owned()),
                rules(65, |_| "mode = \"shadow\"\nto = [\":1\"]".to_owned()),
                "have 65 distinct rules in shadow: at most 64 fit",
            ),
        ] {
            assert!(parse(&fits).is_ok());
            assert_eq!(pushed("", &fits), Ok(()));
            let refused = refusal(&exceeds);
            assert!(refused.contains(says), "{refused}");
            // The place is that of the first rule that is too many.
            let last = exceeds.lines().count()
                - exceeds.split("[[rule]]").last().unwrap().lines().count()
                + 2;
            assert!(
                refused.starts_with(&format!("policy.toml:{last}:")),
                "{refused}"
            );
            assert_eq!(pushed("", &exceeds), Err(format!("etcd:rules/{refused}")));
        }
    }

    #[test]
    fn rules_for_some_hosts_are_counted_by_those_hosts() {
        let shadow = |_| "mode = \"shadow\"\nto = [\":1\"]\nhosts = { role = \"db\" }".to_owned();
        assert_eq!(pushed("", &rules(65, shadow)), Ok(()));
        let host = "[host]\nlabels = { role = \"db\" }\n";
        let refused = refusal(&(host.to_owned() + &rules(65, shadow)));
        assert!(refused.contains("rules in shadow"), "{refused}");
    }

    #[test]
    fn what_is_not_there_at_once_has_room() {
        let shadow = |_| {
            "mode = \"shadow\"\nto = [\":1\"]\nwhen = { days = \"mon\", tz = \"UTC\" }".to_owned()
        };
        assert!(parse(&rules(65, shadow)).is_ok());
        // Other hosts have other files of their own.
        let shadow = |_| "mode = \"shadow\"\nto = [\":1\"]".to_owned();
        let of_fleet = rules(40, shadow).replace("\"r", "\"f");
        assert_eq!(pushed(&rules(40, shadow), &of_fleet), Ok(()));
    }
}
