//! The kernel's account of this process: getrusage(2), which, unlike /proc, keeps the usage of
//! threads that have ended since.

use anyhow::Context;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use serde::{Deserialize, Serialize};

/// CPU time and context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// CPU time outside of the kernel, in µs.
    pub user_us: u64,
    /// CPU time in it, in µs.
    pub system_us: u64,
    /// Times that a thread went to sleep.
    pub voluntary_switches: u64,
    /// Times that a thread had to make room.
    pub involuntary_switches: u64,
}

impl Used {
    /// Since the process began.
    ///
    /// # Errors
    /// None in practice: the call has no way to fail.
    pub fn so_far() -> anyhow::Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?;
        let count = |value: i64| u64::try_from(value).unwrap_or(0);
        Ok(Self {
            user_us: count(usage.user_time().num_microseconds()),
            system_us: count(usage.system_time().num_microseconds()),
            voluntary_switches: count(usage.voluntary_context_switches()),
            involuntary_switches: count(usage.involuntary_context_switches()),
        })
    }

    /// Since then.
    pub fn since(&self, then: &Self) -> Self {
        Self {
            user_us: self.user_us.saturating_sub(then.user_us),
            system_us: self.system_us.saturating_sub(then.system_us),
            voluntary_switches: self
                .voluntary_switches
                .saturating_sub(then.voluntary_switches),
            involuntary_switches: self
                .involuntary_switches
                .saturating_sub(then.involuntary_switches),
        }
    }

    /// Adds the usage of another.
    pub fn add(&mut self, other: &Self) {
        self.user_us += other.user_us;
        self.system_us += other.system_us;
        self.voluntary_switches += other.voluntary_switches;
        self.involuntary_switches += other.involuntary_switches;
    }

    /// Returns the CPU time, in µs.
    pub fn cpu_us(&self) -> u64 {
        self.user_us + self.system_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        thread,
        time::{Duration, Instant},
    };

    #[test]
    fn a_thread_that_ended_counts() {
        let before = Used::so_far().unwrap();
        // The limit allows for a machine that others use, too.
        let end = Instant::now() + Duration::from_secs(10);
        let worked = move || Used::so_far().unwrap().since(&before).cpu_us();
        let worker = thread::spawn(move || {
            while worked() < 60_000 && Instant::now() < end {
                std::hint::black_box(std::fs::metadata("/proc/self").is_ok());
            }
        });
        worker.join().unwrap();
        let used = Used::so_far().unwrap().since(&before);
        assert!(used.cpu_us() > 50_000, "{used:?}");
        assert!(used.voluntary_switches > 0, "we slept in join(): {used:?}");
        let mut twice = used;
        twice.add(&used);
        assert_eq!(twice.cpu_us(), 2 * used.cpu_us());
    }
}
