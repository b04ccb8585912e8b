//! Windows of rules: when the policy has to be put into force again because one opens or closes.

use std::{collections::BTreeMap, time::Duration};

use policy::{Policy, RuleName, Timestamp};
use tokio::time::Instant;

use super::Control;

/// The longest sleep before the wall clock is looked at again: it may have been set, and a host that sleeps wakes up later.
const LOOK_AT_CLOCK_EVERY: Duration = Duration::from_secs(30);

/// The windows of a policy's rules as they were when it was last put into force.
#[derive(Debug, Default)]
pub(super) struct Windows {
    are_open: BTreeMap<RuleName, bool>,
    /// When to look again; None: no rule has a window.
    look_at: Option<Instant>,
}

impl Windows {
    /// The windows of a file's policy at a moment.
    pub(super) fn at(file: &Policy, now: Timestamp) -> Self {
        let windows = file.windows();
        let are_open: BTreeMap<RuleName, bool> = windows
            .map(|(rule, when)| (rule.name.clone(), when.is_open(now)))
            .collect();
        let look_at = (!are_open.is_empty()).then(|| {
            let change = file.next_change(now);
            let until =
                change.and_then(|change| Duration::try_from(change.duration_since(now)).ok());
            Instant::now()
                + until
                    .unwrap_or(LOOK_AT_CLOCK_EVERY)
                    .min(LOOK_AT_CLOCK_EVERY)
        });
        Self { are_open, look_at }
    }

    /// When to look again.
    pub(super) fn look_at(&self) -> Option<Instant> {
        self.look_at
    }
}

impl Control {
    /// Puts the policy into force again if a window has opened or closed since it was put into force.
    pub(super) fn look_at_windows(&mut self) {
        let now = Timestamp::now();
        let found = Windows::at(&self.config.policy, now);
        if found.are_open == self.windows.are_open {
            self.windows = found;
            return;
        }
        for (rule, when) in self.config.policy.windows() {
            let state = when.state(now);
            if self.windows.are_open.get(&rule.name) != Some(&state.is_open) {
                tracing::info!(rule = %rule.name, window = %when, "the rule's window is {state}");
            }
        }
        // Looked at again in time even if the policy cannot be put into force now, which is tried again.
        self.windows.look_at = found.look_at;
        if let Err(error) = self.put(&self.config.policy.clone()) {
            self.stale = true;
            tracing::error!("cannot put a window into force, rules hold as before: {error:#}");
        }
    }

    /// Notes the windows of the policy that is in force from now on.
    pub(super) fn note_windows(&mut self, file: &Policy, now: Timestamp) {
        self.windows = Windows::at(file, now);
        self.show_windows();
    }

    /// Notes the windows of the policy that was put into force before there was anybody to note them. They are looked at
    /// at once.
    pub(super) fn note_windows_in_force(&mut self) {
        let policy = self.told.policy.borrow().clone();
        let is_there = |name: &RuleName| policy.rules.iter().any(|rule| rule.name == *name);
        let windows = self.config.policy.windows();
        let are_open: BTreeMap<RuleName, bool> = windows
            .map(|(rule, _)| (rule.name.clone(), is_there(&rule.name)))
            .collect();
        let look_at = (!are_open.is_empty()).then(Instant::now);
        self.windows = Windows { are_open, look_at };
        self.show_windows();
    }

    fn show_windows(&self) {
        self.metrics.marks.window_open.reset();
        for (rule, is_open) in &self.windows.are_open {
            let gauge = self
                .metrics
                .marks
                .window_open
                .with_label_values(&[rule.as_str()]);
            gauge.set((*is_open).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn policy(windows: &[&str]) -> Policy {
        let rules = windows.iter().enumerate().map(|(n, when)| {
            format!(
                "[[rule]]\nname = \"r{n}\"\nto = [\":1\"]\naction = \"bypass\"\nwhen = {when}\n"
            )
        });
        let text: String = rules.collect();
        Config::parse(Path::new("f"), &text).unwrap().policy
    }

    /// For how long a policy's windows are left alone at this time, in seconds.
    fn sleep(windows: &[&str], now: &str) -> u64 {
        let windows = Windows::at(&policy(windows), now.parse().unwrap());
        let left = windows.look_at().unwrap() - Instant::now();
        left.as_secs_f64().round() as u64
    }

    #[test]
    fn the_next_edge_of_any_window_is_waited_for_and_no_longer_than_the_clock_is_believed() {
        let early = "{ from = \"06:00\", to = \"22:00\", tz = \"UTC\" }";
        let late = "{ from = \"22:00:10\", to = \"23:00\", tz = \"UTC\" }";
        let always = "{ days = \"mon-sun\", tz = \"UTC\" }";
        let most = LOOK_AT_CLOCK_EVERY.as_secs();
        assert_eq!(sleep(&[early, late], "2026-11-27T21:59:55Z"), 5);
        assert_eq!(sleep(&[late, early], "2026-11-27T22:00:00Z"), 10);
        assert_eq!(sleep(&[early, late], "2026-11-27T12:00:00Z"), most);
        assert_eq!(sleep(&[always], "2026-11-27T12:00:00Z"), most);
        assert_eq!(Windows::at(&policy(&[]), Timestamp::now()).look_at(), None);
    }

    #[test]
    fn rules_whose_windows_are_closed_are_not_there() {
        let file = policy(&[
            "{ days = \"mon-fri\", tz = \"UTC\" }",
            "{ days = \"sat,sun\", tz = \"UTC\" }",
        ]);
        for (now, there) in [
            ("2026-11-27T12:00:00Z", "r0"),
            ("2026-11-28T12:00:00Z", "r1"),
        ] {
            let policy = file.open_at(now.parse().unwrap());
            let names: Vec<&str> = policy.rules.iter().map(|rule| rule.name.as_str()).collect();
            assert_eq!(names, [there]);
            // What holds now may be relied on: nothing else asks what time it is.
            assert_eq!(policy.rules[0].when, None);
        }
    }
}
