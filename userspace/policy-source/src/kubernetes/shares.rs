//! Shares of namespaces in what all policies have together, so that none can take anything away from another one, or from the cluster's own.

use std::collections::BTreeMap;

use super::objects::Kind;
use crate::{
    MAX_NAMESPACE_BYTES, MAX_NAMESPACE_DESTINATIONS, MAX_NAMESPACE_IDS, MAX_NAMESPACE_NAMES,
    MAX_NAMESPACE_OBJECTS, MAX_NAMESPACE_PORTS, MAX_NAMESPACE_RULES, MAX_NAMESPACE_SHADOWS,
    MAX_NAMESPACES_DESTINATIONS, MAX_NAMESPACES_IDS, MAX_NAMESPACES_NAMES, MAX_NAMESPACES_PORTS,
    MAX_NAMESPACES_RULES, MAX_NAMESPACES_SHADOWS, MAX_OBJECTS, MAX_OBJECTS_BYTES,
};

/// Shares of rules in what all rules have together. The rules of every namespace are beside the cluster's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulesTake {
    /// The rules.
    pub rules: usize,
    /// Different names in `to`.
    pub names: usize,
    /// Destinations, of which each port of a range is one. Those that several rules have count for each.
    pub destinations: usize,
    /// Different ports of these.
    pub ports: usize,
    /// Entries of `uid`, `gid` and `process`.
    pub ids: usize,
    /// Rules in shadow.
    pub shadows: usize,
}

impl RulesTake {
    fn and(self, other: Self) -> Self {
        Self {
            rules: self.rules + other.rules,
            names: self.names + other.names,
            destinations: self.destinations + other.destinations,
            ports: self.ports + other.ports,
            ids: self.ids + other.ids,
            shadows: self.shadows + other.shadows,
        }
    }
}

/// Counts of what policies take, of what they may.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    policies: usize,
    bytes: usize,
    rules: RulesTake,
}

impl Taken {
    fn add(&mut self, text: &str, rules: RulesTake) {
        self.policies += 1;
        self.bytes += text.len();
        self.rules = self.rules.and(rules);
    }

    /// Checks that these do not take more than they may and took before.
    ///
    /// # Errors
    /// Says which share they exceed.
    fn fit(&self, before: &Self, most: &Self) -> Result<(), String> {
        let counts = self.counts().into_iter().zip(before.counts());
        let beyond = counts
            .zip(most.counts())
            .find(|(((_, now), (_, before)), (_, most))| now > most && now > before);
        match beyond {
            None => Ok(()),
            Some((_, (what, most))) => Err(format!("{most} {what}")),
        }
    }

    fn counts(&self) -> [(&'static str, usize); 8] {
        let RulesTake {
            rules,
            names,
            destinations,
            ports,
            ids,
            shadows,
        } = self.rules;
        [
            ("policies", self.policies),
            ("rules", rules),
            ("names in `to`", names),
            (
                "destinations, of which each port of a range is one",
                destinations,
            ),
            ("different ports in `to`, counted in each policy", ports),
            ("entries of `uid`, `gid` and `process`", ids),
            ("rules in shadow", shadows),
            ("bytes", self.bytes),
        ]
    }
}

/// All policies together. What their rules take is bounded where they are parsed.
const ALL: Taken = Taken {
    policies: MAX_OBJECTS,
    bytes: MAX_OBJECTS_BYTES,
    rules: RulesTake {
        rules: usize::MAX,
        names: usize::MAX,
        destinations: usize::MAX,
        ports: usize::MAX,
        ids: usize::MAX,
        shadows: usize::MAX,
    },
};

/// Policies of all namespaces: half is left for the cluster's.
const NAMESPACES: Taken = Taken {
    policies: MAX_OBJECTS / 2,
    bytes: MAX_OBJECTS_BYTES / 2,
    rules: RulesTake {
        rules: MAX_NAMESPACES_RULES,
        names: MAX_NAMESPACES_NAMES,
        destinations: MAX_NAMESPACES_DESTINATIONS,
        ports: MAX_NAMESPACES_PORTS,
        ids: MAX_NAMESPACES_IDS,
        shadows: MAX_NAMESPACES_SHADOWS,
    },
};

/// Policies of one namespace.
const NAMESPACE: Taken = Taken {
    policies: MAX_NAMESPACE_OBJECTS,
    bytes: MAX_NAMESPACE_BYTES,
    rules: RulesTake {
        rules: MAX_NAMESPACE_RULES,
        names: MAX_NAMESPACE_NAMES,
        destinations: MAX_NAMESPACE_DESTINATIONS,
        ports: MAX_NAMESPACE_PORTS,
        ids: MAX_NAMESPACE_IDS,
        shadows: MAX_NAMESPACE_SHADOWS,
    },
};

const ALL_HAVE: &str = "all policies have at most";
const NAMESPACES_HAVE: &str = "all namespaces have at most";
const NAMESPACE_HAS: &str = "a namespace has at most";

/// Shares that policies have taken.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    all: Taken,
    namespaces: Taken,
    each: BTreeMap<String, Taken>,
}

impl Shares {
    /// Adds a policy. What has a name of no kind is in the sum of all.
    pub fn add(&mut self, name: &str, text: &str, rules: RulesTake) {
        self.all.add(text, rules);
        if let Some(namespace) = Kind::namespace_of(name) {
            self.namespaces.add(text, rules);
            let own = self.each.entry(namespace.to_owned()).or_default();
            own.add(text, rules);
        }
    }

    /// Adds a policy, if it does not exceed a share.
    ///
    /// # Errors
    /// Says which one it exceeds.
    pub fn try_add(&mut self, name: &str, text: &str, rules: RulesTake) -> Result<(), String> {
        // Of all namespaces only this one takes more.
        let own = Kind::namespace_of(name).and_then(|namespace| self.each.get_key_value(namespace));
        let before = Self {
            each: own
                .map(|(of, own)| (of.clone(), *own))
                .into_iter()
                .collect(),
            ..*self
        };
        let mut after = before.clone();
        after.add(name, text, rules);
        after.fit(&before)?;
        (self.all, self.namespaces) = (after.all, after.namespaces);
        self.each.extend(after.each);
        Ok(())
    }

    /// Checks that nobody takes more than he may and took before: whoever exceeds his share may take less, and is no hindrance to others.
    ///
    /// # Errors
    /// Says which share is exceeded.
    pub fn fit(&self, before: &Self) -> Result<(), String> {
        let all = self.all.fit(&before.all, &ALL);
        all.map_err(|share| format!("{ALL_HAVE} {share} together"))?;
        let nothing = Taken::default();
        for (namespace, taken) in &self.each {
            let before = before.each.get(namespace).unwrap_or(&nothing);
            let own = taken.fit(before, &NAMESPACE);
            own.map_err(|share| format!("{NAMESPACE_HAS} {share} together"))?;
        }
        let namespaces = self.namespaces.fit(&before.namespaces, &NAMESPACES);
        namespaces.map_err(|share| format!("{NAMESPACES_HAVE} {share} together"))
    }

    /// Whether a reason is one of these, which quote nobody.
    pub fn have_said(why: &str) -> bool {
        let openings = [ALL_HAVE, NAMESPACES_HAVE, NAMESPACE_HAS];
        openings.iter().any(|opening| why.starts_with(opening))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(rules: &[(&str, usize)]) -> Shares {
        let mut shares = Shares::default();
        for (n, (namespace, rules)) in rules.iter().enumerate() {
            let take = RulesTake {
                rules: *rules,
                ..RulesTake::default()
            };
            shares.add(&format!("underpasspolicies/{namespace}/{n}"), "", take);
        }
        shares
    }

    #[test]
    fn whoever_exceeds_his_share_may_take_less_and_hinders_nobody() {
        let most = MAX_NAMESPACE_RULES;
        let before = shares(&[("a", most), ("a", 2), ("b", 1)]);
        for (now, fits) in [
            (&[("a", most), ("a", 2), ("b", 2)][..], true),
            (&[("a", most), ("a", 1), ("b", most)], true),
            (&[("a", most), ("a", 3), ("b", 1)], false),
            (&[("a", most), ("b", most), ("b", 1)], false),
        ] {
            assert_eq!(shares(now).fit(&before).is_ok(), fits, "{now:?}");
        }
    }
}
