//! Triggers: a rule that observes has its later connections enriched while the observed flows are
//! slow.
//!
//! The decision at `connect()` holds for a connection's life. So connections that are observed stay
//! so, and show when the slowness is over. Those that were enriched meanwhile are let go then.

use std::{collections::BTreeMap, time::Duration};

use dataplane::{Latencies, Traffic};
use policy::{Action, Policy, RuleName};
use tokio::time::Instant;

/// The interval of looks; a quantile is one of the responses in between.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The least number of responses from which anything is concluded.
const MIN_RESPONSES: u64 = 20;

/// The condition under which a rule's flows are slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// The limit of the 99th percentile, over the responses of a second.
    pub p99: Duration,
    /// The time for which the trigger stays on after the flows were slow.
    pub lasts: Duration,
}

/// The state of a rule's trigger.
#[derive(Clone, Debug)]
struct Standing {
    trigger: Trigger,
    /// The latencies at the last look.
    seen: Option<Latencies>,
    until: Option<Instant>,
}

/// The triggers of a policy file.
#[derive(Clone, Debug, Default)]
pub struct Triggers(BTreeMap<RuleName, Standing>);

/// The changes of a look.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The rules whose later connections are enriched from now on, each with the latency that was
    /// seen.
    pub begun: Vec<(RuleName, Duration)>,
    /// The rules whose later connections are not enriched any more.
    pub ended: Vec<RuleName>,
}

impl Triggers {
    /// Replaces the triggers. The state of those that were there before stays. Returns the rules
    /// whose trigger was on and is gone.
    pub fn set(
        &mut self,
        triggers: impl IntoIterator<Item = (RuleName, Trigger)>,
    ) -> Vec<RuleName> {
        let mut old = std::mem::take(&mut self.0);
        for (rule, trigger) in triggers {
            let before = old.remove(&rule);
            let (seen, until) = before.map_or((None, None), |b| (b.seen, b.until));
            let standing = Standing {
                trigger,
                seen,
                until,
            };
            self.0.insert(rule, standing);
        }
        let was_on = |(rule, standing): (RuleName, Standing)| standing.until.map(|_| rule);
        old.into_iter().filter_map(was_on).collect()
    }

    /// Whether there are no triggers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Looks whether flows are slow. `observed`: all that was ever observed, by rule.
    pub fn look(&mut self, now: Instant, observed: &BTreeMap<RuleName, Traffic>) -> Changes {
        let mut changes = Changes::default();
        for (rule, standing) in &mut self.0 {
            let all = observed.get(rule).map(|traffic| &traffic.latencies);
            let slow = all.and_then(|all| standing.slow(all));
            let was_on = standing.until.is_some();
            if let Some(p99) = slow {
                standing.until = Some(now + standing.trigger.lasts);
                if !was_on {
                    changes.begun.push((rule.clone(), p99));
                }
            }
            if standing.until.is_some_and(|until| until <= now) {
                standing.until = None;
                changes.ended.push(rule.clone());
            }
        }
        changes
    }

    /// Returns the file's policy, with the rules whose trigger is on enriching.
    pub fn over(&self, file: &Policy) -> Policy {
        let mut policy = file.clone();
        for rule in &mut policy.rules {
            let standing = self.0.get(&rule.name);
            if standing.is_some_and(|standing| standing.until.is_some()) {
                rule.action = Action::Enrich;
            }
        }
        policy
    }

    /// Each rule that has one, and whether it is on.
    pub fn states(&self) -> impl Iterator<Item = (&RuleName, bool)> {
        let each = self.0.iter();
        each.map(|(rule, standing)| (rule, standing.until.is_some()))
    }
}

impl Standing {
    /// The 99th percentile of what came since the last look, if that is above the limit.
    fn slow(&mut self, all: &Latencies) -> Option<Duration> {
        let before = self.seen.replace(all.clone())?;
        let since = all.since(&before);
        let p99 = since.quantile(0.99)?;
        (since.count() >= MIN_RESPONSES && p99 > self.trigger.p99).then_some(p99)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIGGER: Trigger = Trigger {
        p99: Duration::from_millis(50),
        lasts: Duration::from_secs(30),
    };

    fn name() -> RuleName {
        RuleName::new("r")
    }

    fn observed(each: &[(u64, u64)]) -> BTreeMap<RuleName, Traffic> {
        let mut traffic = Traffic::default();
        for (count, ms) in each {
            traffic.latencies.add(Duration::from_millis(*ms), *count);
        }
        BTreeMap::from([(name(), traffic)])
    }

    #[test]
    fn it_is_on_while_what_came_lately_is_slow_and_for_a_while_after() {
        let mut triggers = Triggers::default();
        triggers.set([(name(), TRIGGER)]);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let on = |triggers: &Triggers| triggers.states().next() == Some((&name(), true));
        // Slow responses before the first look are old.
        triggers.look(at(0), &observed(&[(1_000, 90)]));
        assert!(!on(&triggers));
        // One of a hundred is the 99th percentile's own; too few show nothing.
        triggers.look(at(1), &observed(&[(1_000, 90), (99, 1), (1, 90)]));
        triggers.look(at(2), &observed(&[(1_000, 90), (99, 1), (10, 90)]));
        assert!(!on(&triggers));
        let slow = observed(&[(1_000, 90), (200, 1), (15, 90)]);
        let changes = triggers.look(at(3), &slow);
        let [(rule, p99)] = &changes.begun[..] else {
            panic!("{changes:?}")
        };
        assert_eq!(*rule, name());
        assert!(p99.abs_diff(Duration::from_millis(90)) < Duration::from_millis(3));
        assert!(on(&triggers));
        // The trigger stays on as long as nothing more is seen, and longer when it is slow again.
        assert_eq!(triggers.look(at(32), &slow), Changes::default());
        let slower = observed(&[(1_000, 90), (200, 1), (50, 90)]);
        assert_eq!(triggers.look(at(32), &slower), Changes::default());
        assert_eq!(triggers.look(at(61), &slower), Changes::default());
        assert!(on(&triggers));
        assert_eq!(triggers.look(at(62), &slower).ended, [name()]);
        assert!(!on(&triggers));
    }

    #[test]
    fn what_a_file_does_not_say_any_more_has_ended() {
        let mut triggers = Triggers::default();
        triggers.set([(name(), TRIGGER)]);
        let now = Instant::now();
        triggers.look(now, &observed(&[]));
        triggers.look(now, &observed(&[(20, 90)]));
        assert_eq!(triggers.set([(name(), TRIGGER)]), []);
        assert_eq!(triggers.states().next(), Some((&name(), true)));
        assert_eq!(triggers.set([]), [name()]);
        assert!(triggers.is_empty());
    }
}
