//! Quotas: no user and no cgroup without privileges holds all flows that the agent may carry.
//!
//! A flow counts three times: for its user, for its cgroup, and for its user in that cgroup. The last quota
//! is half of the first, so that another user in the same cgroup finds room, and the same user id in another
//! container does.

use std::collections::{HashMap, HashSet};

use dataplane::{Holder, Quota};

/// The fraction of a quota, 1 / `ROOM_DIVISOR`, that must be free before the hook is told that there is
/// room again.
const ROOM_DIVISOR: usize = 20;

/// The fraction of a quota, 1 / `STRAGGLERS_DIVISOR`, that is served beyond it: flows whose SYNs were under
/// way when the hook was told.
const STRAGGLERS_DIVISOR: usize = 8;

/// How many flows a quota allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaLimits {
    user: usize,
    cgroup: usize,
    user_in_cgroup: usize,
}

impl QuotaLimits {
    /// Makes the limits of an agent that carries `max_flows`, of which one user and one cgroup may hold these
    /// shares, above 0 and up to 1. A share of 1 is no limit.
    pub fn new(max_flows: usize, user_share: f64, cgroup_share: f64) -> Self {
        let limit = |share: f64| match share < 1.0 {
            // Two users find room in whatever is shared out, where there is room for two.
            true => ((max_flows as f64 * share).ceil() as usize).max(2),
            false => usize::MAX,
        };
        let user = limit(user_share);
        Self {
            user,
            cgroup: limit(cgroup_share),
            user_in_cgroup: match user {
                usize::MAX => usize::MAX,
                user => user.div_ceil(2),
            },
        }
    }

    fn of(self, quota: Quota) -> usize {
        match quota {
            Quota::UserInCgroup(_) => self.user_in_cgroup,
            Quota::User(_) => self.user,
            Quota::Cgroup(_) => self.cgroup,
        }
    }
}

/// The flows that count for each quota.
#[derive(Debug)]
pub(super) struct Quotas {
    limits: QuotaLimits,
    held: HashMap<Quota, usize>,
    /// Quotas of which the hook was told last that they are used up.
    full: HashSet<Quota>,
}

/// A quota that is used up from now on, or not any more.
pub(super) type Change = (Quota, bool);

impl Quotas {
    pub(super) fn new(limits: QuotaLimits) -> Self {
        Self {
            limits,
            held: HashMap::new(),
            full: HashSet::new(),
        }
    }

    /// Counts one more flow of a holder, and says what the hook is to be told.
    ///
    /// # Errors
    /// The quota that is used up, stragglers included. The flow is not counted.
    pub(super) fn enter(&mut self, holder: Holder) -> Result<Vec<Change>, Quota> {
        let over = |quota: &Quota| {
            let limit = self.limits.of(*quota);
            let stragglers = limit / STRAGGLERS_DIVISOR;
            self.held(quota) >= limit.saturating_add(stragglers)
        };
        if let Some(quota) = quotas(holder).find(over) {
            return Err(quota);
        }
        let mut changes = Vec::new();
        for quota in quotas(holder) {
            let held = self.held.entry(quota).or_default();
            *held += 1;
            if *held >= self.limits.of(quota) && self.full.insert(quota) {
                changes.push((quota, true));
            }
        }
        Ok(changes)
    }

    /// Counts a holder's flow no more, and says what the hook is to be told.
    pub(super) fn leave(&mut self, holder: Holder) -> Vec<Change> {
        let mut changes = Vec::new();
        for quota in quotas(holder) {
            let limit = self.limits.of(quota);
            let held = self.held.entry(quota).or_default();
            *held = held.saturating_sub(1);
            let has_room = *held < limit && *held + limit / ROOM_DIVISOR <= limit;
            if *held == 0 {
                self.held.remove(&quota);
            }
            if has_room && self.full.remove(&quota) {
                changes.push((quota, false));
            }
        }
        changes
    }

    fn held(&self, quota: &Quota) -> usize {
        self.held.get(quota).copied().unwrap_or_default()
    }
}

/// The quotas for which a holder's flow counts. User id 0 that is not the host's root is that of many
/// containers, which have nothing in common: only their cgroups count.
fn quotas(holder: Holder) -> impl Iterator<Item = Quota> {
    let user = (holder.uid != 0).then_some(Quota::User(holder.uid));
    let others = [Quota::UserInCgroup(holder), Quota::Cgroup(holder.cgroup_id)];
    user.into_iter().chain(others)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holder(uid: u32, cgroup_id: u64) -> Holder {
        Holder { uid, cgroup_id }
    }

    /// Opens flows until the hook is told that the holder gets no more.
    fn fill(quotas: &mut Quotas, holder: Holder) -> usize {
        let is_full = |quotas: &Quotas| super::quotas(holder).any(|q| quotas.full.contains(&q));
        let mut held = 0;
        while !is_full(quotas) {
            quotas.enter(holder).unwrap();
            held += 1;
        }
        held
    }

    #[test]
    fn whoever_holds_all_he_can_leaves_room_for_every_other() {
        for max_flows in [4, 8, 12, 100, 10_000] {
            let limits = QuotaLimits::new(max_flows, 0.5, 0.5);
            // (who holds all he can, who comes then)
            for (crowd, others) in [
                (
                    vec![holder(1, 10)],
                    vec![holder(2, 10), holder(2, 20), holder(1, 20), holder(0, 20)],
                ),
                // One user in many cgroups.
                (
                    (10..200).map(|c| holder(1, c)).collect(),
                    vec![holder(2, 10), holder(2, 300)],
                ),
                // Many users in one cgroup.
                (
                    (1..200).map(|u| holder(u, 10)).collect(),
                    vec![holder(1, 20), holder(0, 20)],
                ),
                // Root of a container.
                (vec![holder(0, 10)], vec![holder(0, 20), holder(1, 10)]),
            ] {
                let mut quotas = Quotas::new(limits);
                let held: usize = crowd.iter().map(|h| fill(&mut quotas, *h)).sum();
                assert!(held < max_flows, "{max_flows}: {held} by {:?}", crowd[0]);
                for other in others {
                    let mut later = Quotas {
                        held: quotas.held.clone(),
                        full: quotas.full.clone(),
                        limits,
                    };
                    assert!(
                        fill(&mut later, other) > 0,
                        "{max_flows}: {other:?} beside {:?}",
                        crowd[0]
                    );
                }
            }
        }
    }

    #[test]
    fn a_share_of_one_is_no_limit() {
        let mut quotas = Quotas::new(QuotaLimits::new(4, 1.0, 1.0));
        for _ in 0..100 {
            assert_eq!(quotas.enter(holder(1, 10)), Ok(vec![]));
        }
    }

    #[test]
    fn flows_that_come_at_once_are_served_up_to_a_bound() {
        let mut quotas = Quotas::new(QuotaLimits::new(320, 0.5, 1.0));
        let served = (0..1_000).take_while(|_| quotas.enter(holder(1, 10)).is_ok());
        assert_eq!(served.count(), 90);
        assert_eq!(
            quotas.enter(holder(1, 10)),
            Err(Quota::UserInCgroup(holder(1, 10)))
        );
    }

    proptest! {
        #[test]
        fn the_hook_is_told_what_is_so(
            max_flows in 2..200_usize,
            share in 0.01..1.0_f64,
            steps in prop::collection::vec((0..4_u32, 1..4_u64, any::<bool>()), 1..400),
        ) {
            let limits = QuotaLimits::new(max_flows, share, share);
            let mut quotas = Quotas::new(limits);
            let (mut told, mut inside) = (HashSet::new(), Vec::new());
            for (uid, cgroup_id, comes) in steps {
                let holder = holder(uid, cgroup_id);
                let changes = match comes {
                    true => quotas.enter(holder).inspect(|_| inside.push(holder)).unwrap_or_default(),
                    false => match inside.iter().position(|h| *h == holder) {
                        Some(n) => quotas.leave(inside.swap_remove(n)),
                        None => continue,
                    },
                };
                for (quota, full) in changes {
                    let was_news = if full { told.insert(quota) } else { told.remove(&quota) };
                    prop_assert!(was_news);
                }
                for quota in inside.iter().flat_map(|h| super::quotas(*h)).chain(told.clone()) {
                    let held = inside.iter().filter(|h| super::quotas(**h).any(|q| q == quota)).count();
                    let limit = limits.of(quota);
                    prop_assert!(held <= limit + limit / STRAGGLERS_DIVISOR);
                    prop_assert!(held < limit || told.contains(&quota), "{quota:?}: {held} of {limit}");
                    prop_assert!(held * 2 >= limit || !told.contains(&quota), "{quota:?}: {held} of {limit}");
                }
            }
            for holder in inside.drain(..) {
                for (quota, full) in quotas.leave(holder) {
                    prop_assert!(!full && told.remove(&quota));
                }
            }
            prop_assert!(told.is_empty() && quotas.held.is_empty());
        }
    }
}
