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
    holds::Names,
    maps::{self, MapsError},
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

/// The kernel's table of shares, by the rule's slot.
pub(crate) struct LeftOut {
    map: Array<MapData, u32>,
    shares: Shares,
    /// Entries that are not 0.
    written: BTreeMap<u32, u32>,
}

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
            self.map.set(*index, 0, 0)?;
        }
        for (index, share) in &wanted {
            if old.get(index) != Some(share) {
                self.map.set(*index, *share, 0)?;
            }
        }
        self.written = wanted;
        *self.shares.0.lock().unwrap_or_else(PoisonError::into_inner) = shares;
        Ok(())
    }
}

/// The shares by slot, in both policies that the kernel has.
fn entries(shares: &HashMap<RuleName, u32>, names: &Names) -> BTreeMap<u32, u32> {
    let names = names.lock().unwrap_or_else(PoisonError::into_inner);
    let generations = (0..).zip(names.iter());
    let slots = generations.flat_map(|(generation, names)| {
        let slots = (0..).zip(names.iter());
        slots.map(move |(slot, name)| (generation * abi::RULE_SLOTS + slot, name))
    });
    slots
        .filter_map(|(index, name)| Some((index, *shares.get(name)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let name = |names: &[&str]| names.iter().map(|n| RuleName::new(n)).collect::<Arc<[_]>>();
        let names = Arc::new(Mutex::new([name(&["a", "r"]), name(&["r"])]));
        let shares = HashMap::from([(RuleName::new("r"), 7)]);
        let slots = [(1, 7), (abi::RULE_SLOTS, 7)];
        assert_eq!(entries(&shares, &names), BTreeMap::from(slots));
    }
}
