//! Tapped flows that are left out: of a rule so many that whoever reads the copies has time for the others.
//!
//! A flow is left out as a whole, by its cookie, so that what is told of the others is complete. The kernel counts its
//! requests as ever.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use aya::{
    Ebpf,
    maps::{Array, MapData, MapError},
};
use ebpf::abi;

use crate::{
    address::SockCookie,
    maps::{self, MapsError},
    rule_names::{self, Names},
    sys::PodOf,
};
use policy::RuleName;

/// All of a rule's flows, in the kernel's unit.
const WHOLE: f64 = 65_536.0;

/// 2^64 by the golden ratio, as the kernel has it (`tap.h`).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The shares of flows that are left out now, by rule, in the kernel's unit. Whoever shows flows asks it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares(Arc<Mutex<HashMap<RuleName, u32>>>);

impl Shares {
    /// Whether the flow of this rule is left out.
    pub(crate) fn has(&self, rule: &RuleName, cookie: SockCookie) -> bool {
        let shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let share = shares.get(rule);
        share.is_some_and(|share| cookie.0.wrapping_mul(STEP) >> 48 < u64::from(*share))
    }
}

/// The kernel's table of shares, by the rule's slot. Flows from before a slot was the rule's are copied whatever the share: who
/// reads copies asks [`Shares`] of these.
pub(crate) struct LeftOut {
    map: Array<MapData, PodOf<abi::TapShare>>,
    shares: Shares,
    /// Entries whose share is not 0.
    written: BTreeMap<u32, abi::TapShare>,
}

/// The entry of a rule of which no flow is left out.
const NONE: abi::TapShare = abi::TapShare { share: 0, since: 0 };

impl LeftOut {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapsError> {
        Ok(Self {
            map: maps::take(ebpf, "tap_left_out")?,
            shares: Shares::default(),
            written: BTreeMap::new(),
        })
    }

    pub(crate) fn shares(&self) -> Shares {
        self.shares.clone()
    }

    /// Leaves out these shares, from 0 to 1, and of other rules' flows none. To be called now and then while there
    /// are any: a rule's slot is another rule's two policies later.
    pub(crate) fn set(
        &mut self,
        shares: &BTreeMap<RuleName, f64>,
        names: &Names,
    ) -> Result<(), MapError> {
        let share = |share: &f64| (share.clamp(0.0, 1.0) * WHOLE) as u32;
        let shares = shares.iter().map(|(rule, of)| (rule.clone(), share(of)));
        let shares: HashMap<RuleName, u32> = shares.collect();
        let wanted = entries(&shares, names);
        let old = std::mem::take(&mut self.written);
        for index in old.keys().filter(|index| !wanted.contains_key(index)) {
            self.map.set(*index, PodOf(NONE), 0)?;
        }
        for (index, share) in &wanted {
            if old.get(index) != Some(share) {
                self.map.set(*index, PodOf(*share), 0)?;
            }
        }
        self.written = wanted;
        *self.shares.0.lock().unwrap_or_else(PoisonError::into_inner) = shares;
        Ok(())
    }
}

/// The shares by slot, in both policies that the kernel has.
fn entries(shares: &HashMap<RuleName, u32>, names: &Names) -> BTreeMap<u32, abi::TapShare> {
    let names = rule_names::lock(names);
    let generations = (0..).zip(names.iter());
    let slots = generations.flat_map(|(generation, names)| {
        let slots = (0..).zip(names.by_slot.iter());
        slots.filter_map(move |(slot, name)| {
            let share = *shares.get(name)?;
            let since = names.since;
            let index = generation * abi::RULE_SLOTS + slot;
            Some((index, abi::TapShare { share, since }))
        })
    });
    slots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule_names::RuleNames;

    #[test]
    fn as_many_flows_are_left_out_as_the_share_says_and_always_the_same() {
        let rule = RuleName::new("r");
        let shares = Shares::default();
        let left_out = |share: f64| {
            let share = (share * WHOLE) as u32;
            *shares.0.lock().unwrap() = HashMap::from([(rule.clone(), share)]);
            let flows = (1..10_000).map(SockCookie::new);
            flows
                .filter(|cookie| shares.has(&rule, *cookie))
                .collect::<Vec<_>>()
        };
        assert_eq!(left_out(0.0), []);
        let (few, many) = (left_out(0.25), left_out(0.5));
        assert!((2_400..2_600).contains(&few.len()), "{}", few.len());
        assert!((4_900..5_100).contains(&many.len()), "{}", many.len());
        assert!(few.iter().all(|cookie| many.contains(cookie)));
        assert!(!shares.has(&RuleName::new("other"), few[0]));
    }

    #[test]
    fn a_rule_is_found_in_both_policies() {
        let names = |names: &[&str], since| RuleNames {
            by_slot: names.iter().map(|n| RuleName::new(n)).collect(),
            since,
        };
        let names = Arc::new(Mutex::new([names(&["a", "r"], 4), names(&["r"], 3)]));
        let shares = HashMap::from([(RuleName::new("r"), 7)]);
        let share = |since| abi::TapShare { share: 7, since };
        let slots = [(1, share(4)), (abi::RULE_SLOTS, share(3))];
        assert_eq!(entries(&shares, &names), BTreeMap::from(slots));
    }
}
