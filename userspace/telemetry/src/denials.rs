//! Denials: flows and requests that a rule refused, as operators look for them.
//!
//! Every one is counted by cause. The latest are kept for `underpass denied`, and said in the log, both no more often than
//! somebody can read: whoever is refused decides how often that happens.

use std::{
    collections::VecDeque,
    time::{Instant, SystemTime},
};

use parking_lot::Mutex;
use prometheus::{IntCounterVec, Registry};

use crate::{
    counters,
    rarely::{MAX_SAID, PERIOD},
};

/// The denials that are kept.
pub const MAX_KEPT: usize = 256;

/// A refusal, and who was refused.
#[derive(Clone, Debug)]
pub struct Denial {
    /// The time of the refusal.
    pub at: SystemTime,
    /// The rule that refused.
    pub rule: String,
    /// The cause, as in the metrics; `rule` or `fail`, if the kernel's hooks refused.
    pub cause: &'static str,
    /// The reason in a word or two, if the cause has several.
    pub reason: &'static str,
    /// The name of the client's process; empty for a client on another host.
    pub process: String,
    /// The process id; 0 for a client on another host.
    pub pid: u32,
    /// The user id of the process.
    pub uid: u32,
    /// The kernel's number of the process's cgroup; 0 for a client on another host.
    pub cgroup_id: u64,
    /// The user who had logged in, if that is known.
    pub user: Option<String>,
    /// The client's address.
    pub client: String,
    /// The address that the client dialled.
    pub to: String,
    /// Denials since the one before that are only counted.
    pub more: u64,
}

/// The counter of denials, and the latest of them.
#[derive(Debug)]
pub struct Denials {
    counted: IntCounterVec,
    recent: Mutex<Recent>,
}

#[derive(Debug)]
struct Recent {
    kept: VecDeque<Denial>,
    period: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl Denials {
    /// Declares and registers the counter.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counted = counters(
            registry,
            "underpass_denied_total",
            "Flows and requests that a rule refused in the agent, by cause: session, mark, or the step. What the kernel's hooks \
             refuse is in underpass_connections_total.",
            "cause",
            &["session", "mark"],
        )?;
        let recent = Recent {
            kept: VecDeque::new(),
            period: None,
            said: 0,
            unsaid: 0,
        };
        Ok(Self {
            counted,
            recent: Mutex::new(recent),
        })
    }

    /// Counts a denial. `describe` is called if it is one of those that are kept.
    pub fn note(&self, cause: &'static str, describe: impl FnOnce() -> Denial) {
        self.counted.with_label_values(&[cause]).inc();
        self.list(0, describe);
    }

    /// Keeps a denial that is counted elsewhere, as were `unsaid` before it of which nobody will tell.
    pub fn list(&self, unsaid: u64, describe: impl FnOnce() -> Denial) {
        let Some(more) = self.recent.lock().take_turn(Instant::now(), unsaid) else {
            return;
        };
        let denial = Denial { more, ..describe() };
        tracing::info!(
            rule = denial.rule,
            cause = denial.cause,
            reason = denial.reason,
            process = denial.process,
            pid = denial.pid,
            uid = denial.uid,
            user = denial.user.as_deref().unwrap_or("-"),
            client = denial.client,
            to = denial.to,
            not_said_before = more,
            "denied"
        );
        let mut recent = self.recent.lock();
        if recent.kept.len() >= MAX_KEPT {
            recent.kept.pop_front();
        }
        recent.kept.push_back(denial);
    }

    /// Returns those that are kept, the latest first.
    pub fn recent(&self) -> Vec<Denial> {
        self.recent.lock().kept.iter().rev().cloned().collect()
    }
}

impl Recent {
    /// Whether one more may be said. Returns how many were not, since the last.
    fn take_turn(&mut self, now: Instant, unsaid: u64) -> Option<u64> {
        self.unsaid += unsaid;
        let is_new = self
            .period
            .is_none_or(|begun| now.duration_since(begun) >= PERIOD);
        if is_new {
            self.period = Some(now);
            self.said = 0;
        }
        if self.said >= MAX_SAID {
            self.unsaid += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(n: usize) -> Denial {
        Denial {
            at: SystemTime::UNIX_EPOCH,
            rule: n.to_string(),
            cause: "session",
            reason: "",
            process: String::new(),
            pid: 0,
            uid: 0,
            cgroup_id: 0,
            user: None,
            client: String::new(),
            to: String::new(),
            more: 0,
        }
    }

    #[test]
    fn all_are_counted_and_some_are_said() {
        let denials = Denials::register(&Registry::new()).unwrap();
        for n in 0..1_000 {
            denials.note("session", || denial(n));
        }
        let counted = denials.counted.with_label_values(&["session"]).get();
        assert_eq!(counted, 1_000);
        // A slow host may begin another period.
        let said = denials.recent().len();
        assert!((MAX_SAID as usize..100).contains(&said), "{said}");
        assert!(denials.recent().iter().any(|denial| denial.rule == "0"));
    }

    #[test]
    fn the_next_period_says_how_many_were_not_said() {
        let denials = Denials::register(&Registry::new()).unwrap();
        let begun = Instant::now();
        let mut recent = denials.recent.lock();
        let turns: Vec<_> = (0..15).map(|_| recent.take_turn(begun, 0)).collect();
        assert_eq!(turns.iter().flatten().count(), MAX_SAID as usize);
        assert_eq!(recent.take_turn(begun + PERIOD, 0), Some(5));
        assert_eq!(recent.take_turn(begun + PERIOD, 3), Some(3));
    }

    #[test]
    fn only_the_latest_are_kept() {
        let denials = Denials::register(&Registry::new()).unwrap();
        for n in 0..MAX_KEPT + 10 {
            denials.recent.lock().said = 0;
            denials.note("mark", || denial(n));
        }
        let kept = denials.recent();
        assert_eq!(kept.len(), MAX_KEPT);
        assert_eq!(kept[0].rule, (MAX_KEPT + 9).to_string());
    }
}
