//! [`Budget`]: the processor time that reading copies may take, and the flows that are left out when it takes more.

use std::{collections::BTreeMap, time::Duration};

use policy::RuleName;

/// The budget is looked at this often, while something comes.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The share of a rule's flows that is read at least.
const LEAST_READ: f64 = 1.0 / 64.0;
/// Where the budget is exceeded, this share of it is aimed at.
const AIM: f64 = 0.9;
/// Flows are read again while less than this share of the budget is used.
const ENOUGH: f64 = 0.7;
/// So many times the flows are read then. With [`ENOUGH`] it still fits if all flows are alike.
const BACK: f64 = 1.25;
/// The most that is saved before other flows are read, of what was used beyond the budget: so many seconds of it. A flow that exceeds
/// the budget by itself would otherwise be read in one of a few seconds.
const MOST_OWED_SECONDS: f64 = 10.0;

/// The work that each rule's flows have made: packets, and what takes as long.
#[derive(Debug, Default)]
pub(super) struct Loads(BTreeMap<RuleName, u64>);

impl Loads {
    /// Adds work. A flow that has ended counts as any other: where many come and go, nearly all work is that of such.
    pub(super) fn add(&mut self, rule: &RuleName, load: u64) {
        if load == 0 {
            return;
        }
        match self.0.get_mut(rule) {
            Some(all) => *all += load,
            None => drop(self.0.insert(rule.clone(), load)),
        }
    }
}

/// See the module. A state machine without a clock.
#[derive(Debug)]
pub(super) struct Budget {
    /// In processors.
    most: f64,
    left_out: BTreeMap<RuleName, f64>,
    /// Processor seconds beyond the budget that are not saved yet.
    owed: f64,
}

impl Budget {
    pub(super) fn new(most: f64) -> Self {
        Self {
            most,
            left_out: BTreeMap::new(),
            owed: 0.0,
        }
    }

    /// Shares of rules' flows that are left out, above 0.
    pub(super) fn left_out(&self) -> &BTreeMap<RuleName, f64> {
        &self.left_out
    }

    /// Takes what was used in the time since the last look, in processors, and how much came of each rule. Whether other flows are
    /// left out now.
    pub(super) fn look(&mut self, used: f64, time: Duration, loads: &Loads) -> bool {
        let before = self.left_out.clone();
        let seconds = time.as_secs_f64();
        let owed = self.owed + (used - self.most) * seconds;
        self.owed = owed.clamp(0.0, MOST_OWED_SECONDS * self.most);
        if used > self.most {
            self.shed(1.0 - AIM * self.most / used, loads);
        } else if used < ENOUGH * self.most && self.owed == 0.0 {
            self.bring_back();
        }
        before != self.left_out
    }

    /// Leaves out as much as makes up this share of all that came, of the busiest rule first.
    fn shed(&mut self, mut excess: f64, Loads(loads): &Loads) {
        let all: u64 = loads.values().sum();
        let mut busiest: Vec<_> = loads.iter().collect();
        busiest.sort_by_key(|(_, load)| std::cmp::Reverse(**load));
        for (rule, load) in busiest {
            if excess <= 0.0 {
                return;
            }
            let part = *load as f64 / all as f64;
            let was = 1.0 - self.left_out.get(rule).copied().unwrap_or(0.0);
            let read = (was * (1.0 - (excess / part).min(1.0))).max(LEAST_READ);
            excess -= part * (1.0 - read / was);
            self.left_out.insert(rule.clone(), 1.0 - read);
        }
    }

    /// Has more flows read of the rule of which most are left out.
    fn bring_back(&mut self) {
        let most = self.left_out.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let Some((rule, out)) = most.map(|(rule, out)| (rule.clone(), *out)) else {
            return;
        };
        let read = (1.0 - out) * BACK;
        match read < 1.0 {
            true => self.left_out.insert(rule, 1.0 - read),
            false => self.left_out.remove(&rule),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(of: &[(&str, u64)]) -> Loads {
        let mut loads = Loads::default();
        for (rule, load) in of {
            loads.add(&RuleName::new(rule), *load);
        }
        loads
    }

    fn read(budget: &Budget, rule: &str) -> f64 {
        1.0 - budget.left_out().get(&RuleName::new(rule)).unwrap_or(&0.0)
    }

    #[test]
    fn what_fits_is_read() {
        let mut budget = Budget::new(0.25);
        assert!(!budget.look(0.25, LOOK_EVERY, &loads(&[("a", 100)])));
        assert!(!budget.look(0.0, LOOK_EVERY, &loads(&[])));
        assert_eq!(read(&budget, "a"), 1.0);
    }

    #[test]
    fn the_busiest_rule_gives_way_first() {
        let mut budget = Budget::new(0.25);
        assert!(budget.look(0.5, LOOK_EVERY, &loads(&[("busy", 900), ("calm", 100)])));
        // 45 % of all may stay: 35 of 90, and all of the other.
        assert!((read(&budget, "busy") - 35.0 / 90.0).abs() < 1e-9);
        assert_eq!(read(&budget, "calm"), 1.0);
        // It alone is not enough.
        assert!(budget.look(25.0, LOOK_EVERY, &loads(&[("busy", 600), ("calm", 400)])));
        assert_eq!(read(&budget, "busy"), LEAST_READ);
        assert!(read(&budget, "calm") < 0.1);
    }

    #[test]
    fn the_work_of_one_rule_adds_up_and_none_is_no_work() {
        let mut budget = Budget::new(0.25);
        let many = [("a", 300), ("b", 500), ("a", 300), ("idle", 0)];
        assert!(budget.look(0.3, LOOK_EVERY, &loads(&many)));
        assert!(read(&budget, "a") < 1.0);
        assert_eq!((read(&budget, "b"), read(&budget, "idle")), (1.0, 1.0));
    }

    #[test]
    fn all_are_read_again_when_it_fits() {
        let mut budget = Budget::new(0.25);
        // As much as is read of what would take two processors.
        let used = |budget: &Budget| 2.0 * read(budget, "a");
        let load = loads(&[("a", 1_000)]);
        for _ in 0..20 {
            budget.look(used(&budget), LOOK_EVERY, &load);
        }
        let steady = used(&budget);
        assert!(steady > 0.15 && steady <= 0.25, "{steady}");
        assert!(!budget.look(steady, LOOK_EVERY, &load), "it is steady");
        // It calms down.
        let mut looks = 0;
        while !budget.left_out().is_empty() {
            budget.look(0.1 * read(&budget, "a"), LOOK_EVERY, &load);
            looks += 1;
            assert!(looks < 30, "{looks}");
        }
    }

    #[test]
    fn a_flow_that_is_too_much_by_itself_is_seldom_tried() {
        const LOOKS: u32 = 1_000;
        let mut budget = Budget::new(0.05);
        let load = loads(&[("a", 1_000)]);
        // It is read if its rule's share is above this.
        let is_read = |budget: &Budget| read(budget, "a") > 0.03;
        let mut all = 0.0;
        for _ in 0..LOOKS {
            let used = if is_read(&budget) { 0.95 } else { 0.0 };
            all += used;
            budget.look(used, LOOK_EVERY, &load);
        }
        let mean = all / f64::from(LOOKS);
        assert!(mean > 0.0 && mean < 2.0 * 0.05, "{mean}");
    }
}
