//! Connections of rules with a holdout, one by one: those that were left alone, and those that were treated.
//!
//! The kernel draws both when a connection begins and meters both at the client's socket (`meter.h`), so a difference between them is
//! the treatment's. Connections that have ended stay here, the oldest of a rule go first: so both groups span the same time.

use std::collections::{BTreeMap, VecDeque};

use ebpf::abi;
use policy::RuleName;

use crate::meters::Traffic;

/// Connections that are kept after their end, of all rules. Of one that was busy a few KiB are kept.
pub const MAX_KEPT: usize = 4096;

/// Counts of one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// How many latencies are in each bucket that is not empty, by the bucket's number.
    pub latencies: Vec<(u16, u32)>,
    /// ERROR responses.
    pub errors: u64,
}

impl Compared {
    fn of(traffic: &Traffic) -> Self {
        Self {
            latencies: traffic.latencies.buckets().collect(),
            errors: traffic.errors(),
        }
    }

    /// Requests whose latency is known.
    pub fn requests(&self) -> u64 {
        self.latencies.iter().map(|(_, n)| u64::from(*n)).sum()
    }
}

/// Connections of a rule, by group. None of them is without a request.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// Connections that were left alone.
    pub held_out: Vec<Compared>,
    /// Connections that were treated as the rule says, as many as were drawn to be compared.
    pub treated: Vec<Compared>,
}

impl Groups {
    fn add(&mut self, group: u8, compared: Compared) {
        match is_held_out(group) {
            true => self.held_out.push(compared),
            false => self.treated.push(compared),
        }
    }
}

/// Whether a connection of this group was left alone.
pub(crate) fn is_held_out(group: u8) -> bool {
    u32::from(group) == abi::GROUP_HELD_OUT
}

/// Whether a connection of this group is metered for the ledger alone: the agent carries it.
pub(crate) fn is_inline(group: u8) -> bool {
    u32::from(group) == abi::GROUP_TREATED_INLINE
}

/// Connections that have ended, by rule, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    ended: BTreeMap<RuleName, VecDeque<(u8, Compared)>>,
    kept: usize,
}

impl Ledger {
    /// Keeps a connection that has ended, if it was drawn into a group and has asked something.
    pub(crate) fn keep(&mut self, rule: &RuleName, group: u8, traffic: &Traffic) {
        let Some(compared) = compared(group, traffic) else {
            return;
        };
        self.ended
            .entry(rule.clone())
            .or_default()
            .push_back((group, compared));
        self.kept += 1;
        if self.kept > MAX_KEPT {
            let most = self.ended.values_mut().max_by_key(|ended| ended.len());
            self.kept -= usize::from(most.and_then(VecDeque::pop_front).is_some());
        }
    }

    /// Forgets rules that are not `known`.
    pub(crate) fn retain(&mut self, is_known: impl Fn(&RuleName) -> bool) {
        self.ended.retain(|rule, _| is_known(rule));
        self.kept = self.ended.values().map(VecDeque::len).sum();
    }

    /// The connections that have ended, by rule and group.
    pub(crate) fn groups(&self) -> BTreeMap<RuleName, Groups> {
        let mut all = BTreeMap::<RuleName, Groups>::new();
        for (rule, ended) in &self.ended {
            let groups = all.entry(rule.clone()).or_default();
            for (group, compared) in ended {
                groups.add(*group, compared.clone());
            }
        }
        all
    }
}

/// Adds a connection that goes on.
pub(crate) fn add_live(
    all: &mut BTreeMap<RuleName, Groups>,
    rule: &RuleName,
    group: u8,
    traffic: &Traffic,
) {
    if let Some(compared) = compared(group, traffic) {
        all.entry(rule.clone()).or_default().add(group, compared);
    }
}

fn compared(group: u8, traffic: &Traffic) -> Option<Compared> {
    let is_drawn = u32::from(group) != abi::GROUP_NONE;
    let compared = is_drawn.then(|| Compared::of(traffic))?;
    (!compared.latencies.is_empty()).then_some(compared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn traffic(us: u64) -> Traffic {
        let mut traffic = Traffic::default();
        traffic.latencies.add(Duration::from_micros(us), 1);
        traffic
    }

    #[test]
    fn the_oldest_of_the_rule_with_most_go_first_whatever_their_group() {
        let (held_out, treated) = (abi::GROUP_HELD_OUT as u8, abi::GROUP_TREATED as u8);
        let (busy, quiet) = (RuleName::new("busy"), RuleName::new("quiet"));
        let mut ledger = Ledger::default();
        ledger.keep(&quiet, held_out, &traffic(1));
        for n in 0..MAX_KEPT as u64 {
            let group = if n % 5 == 0 { held_out } else { treated };
            ledger.keep(&busy, group, &traffic(n + 1));
            // Nothing was asked, or nobody drew.
            ledger.keep(&busy, group, &Traffic::default());
            ledger.keep(&busy, abi::GROUP_NONE as u8, &traffic(1));
        }
        let groups = ledger.groups();
        assert_eq!(groups[&quiet].held_out.len(), 1);
        let of_busy = &groups[&busy];
        assert_eq!(of_busy.held_out.len() + of_busy.treated.len(), MAX_KEPT - 1);
        // The first one, which was held out, is gone.
        assert_eq!(of_busy.held_out.len(), MAX_KEPT.div_ceil(5) - 1);
        ledger.retain(|rule| *rule == quiet);
        assert_eq!((ledger.kept, ledger.groups().len()), (1, 1));
    }
}
