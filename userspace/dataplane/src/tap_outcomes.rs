//! Outcomes for tapped flows whose session was asked for: the kernel takes each with the flow's next packet.

use std::collections::HashSet;

use aya::{
    Ebpf,
    maps::{HashMap, MapData, MapError},
};
use ebpf::abi;

use crate::{
    address::SockCookie,
    compile,
    maps::{self, MapsError},
    rule_names::{self, Names},
    sys::PodOf,
};
use policy::{RuleName, TapDepth};

/// The treatment of a tapped flow, once copies of its handshake have said which rule it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The flow is left alone, and nobody looks at its packets any more.
    LeftAlone,
    /// The kernel counts what passes, and copies nothing.
    Observed,
    /// So much of each frame is copied.
    Tapped(TapDepth),
}

/// The map in which the kernel is told of them.
pub(crate) struct Outcomes {
    map: HashMap<MapData, u64, PodOf<abi::TapOutcome>>,
    /// Flows whose outcome may still be in the map.
    told: HashSet<SockCookie>,
}

impl Outcomes {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapsError> {
        Ok(Self {
            map: maps::take(ebpf, "tap_outcomes")?,
            told: HashSet::new(),
        })
    }

    /// Tells the kernel of a flow's outcome by this rule.
    pub(crate) fn tell(
        &mut self,
        connect: &abi::Connect,
        rule: &RuleName,
        settled: Settled,
        names: &Names,
    ) -> Result<(), MapError> {
        let own = (connect.generation, connect.slot, connect.forgets);
        let (generation, slot, forgets) = place(connect.generation, rule, names).unwrap_or(own);
        let outcome = abi::TapOutcome {
            slot,
            generation,
            taps: match settled {
                Settled::Tapped(depth) => compile::depth(Some(depth)) as u8,
                Settled::LeftAlone | Settled::Observed => compile::depth(None) as u8,
            },
            leaves: u8::from(settled == Settled::LeftAlone),
            pad: 0,
            forgets,
        };
        let cookie = SockCookie(connect.cookie);
        self.map.insert(cookie.0, PodOf(outcome), 0)?;
        self.told.insert(cookie);
        Ok(())
    }

    /// Whether the kernel has been told of the flow and has not seen a packet since.
    pub(crate) fn has(&self, cookie: SockCookie) -> bool {
        self.told.contains(&cookie) && self.map.get(&cookie.0, 0).is_ok()
    }

    /// Forgets a flow that has ended.
    pub(crate) fn forget(&mut self, cookie: SockCookie) {
        if self.told.remove(&cookie) {
            // The kernel may have taken it.
            _ = self.map.remove(&cookie.0);
        }
    }

    /// Flows whose outcome may still be in the map.
    pub(crate) fn told(&self) -> impl Iterator<Item = SockCookie> {
        self.told.iter().copied()
    }

    /// Forgets a flow if it has ended, or the kernel has taken its outcome.
    pub(crate) fn sweep(&mut self, cookie: SockCookie, is_live: impl FnOnce() -> bool) {
        let is_told = self.told.contains(&cookie);
        if is_told && (self.map.get(&cookie.0, 0).is_err() || !is_live()) {
            self.forget(cookie);
        }
    }
}

/// The generation and the slot of a rule, and since when they are: of the policy that the flow began under, if that has it.
fn place(own: u8, rule: &RuleName, names: &Names) -> Option<(u8, u32, u32)> {
    let names = rule_names::lock(names);
    let generations = [own, 1 - own.min(1)];
    generations.into_iter().find_map(|generation| {
        let of = names.get(usize::from(generation))?;
        let slot = of.by_slot.iter().position(|name| name == rule)?;
        // The default's name stands behind those of rules, its slot behind all that there may be.
        let slot = match *rule == RuleName::of_default() {
            true => abi::MAX_RULES,
            false => u32::try_from(slot).ok()?,
        };
        Some((generation, slot, of.since))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule_names::RuleNames;
    use std::sync::{Arc, Mutex};

    #[test]
    fn a_rule_is_found_in_the_policy_of_its_flow_first() {
        let names = |of: &[&str], since| RuleNames {
            by_slot: of.iter().map(|n| RuleName::new(n)).collect(),
            since,
        };
        let both = [
            names(&["a", "r", "default"], 8),
            names(&["r", "b", "default"], 9),
        ];
        let both = Arc::new(Mutex::new(both));
        let at = |generation, rule: &str| place(generation, &RuleName::new(rule), &both);
        assert_eq!(at(0, "r"), Some((0, 1, 8)));
        assert_eq!(at(1, "r"), Some((1, 0, 9)));
        assert_eq!(at(1, "a"), Some((0, 0, 8)));
        assert_eq!(at(1, "default"), Some((1, abi::MAX_RULES, 9)));
        assert_eq!(at(1, "gone"), None);
    }
}
