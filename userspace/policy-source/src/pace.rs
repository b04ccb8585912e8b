//! How often etcd is asked, and how long it is waited for.

use std::time::Duration;

use crate::STATUS_TTL;

/// The time after which an agent says the same again, in case that it was deleted; half as long is added by chance. Where it is as
/// it was, the API server writes nothing; etcd is asked first.
pub const SAY_AGAIN: Duration = Duration::from_secs(300);

/// The times of an agent that follows. Tests have shorter ones.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The time limit of one question, and of making a connection.
    pub answer: Duration,
    /// The time between two questions whether the watch is alive. etcd refuses pings more often than every 5 s, and takes this
    /// for no ping.
    pub probe: Duration,
    /// The time without a word after which a member counts as dead.
    pub silence: Duration,
    /// The shortest wait after all members have failed; it doubles up to `longest_wait`. Behind each they are all tried.
    pub shortest_wait: Duration,
    /// The longest.
    pub longest_wait: Duration,
    /// The time after which the lease of an agent that has ended is gone, also of one that was taken over from: longer than [`STATUS_TTL`].
    pub outlives: Duration,
    /// The time after which an agent finds out whether its status is still there; half as long is added by chance.
    pub say_again: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(3),
            probe: Duration::from_secs(2),
            silence: Duration::from_secs(6),
            shortest_wait: Duration::from_millis(250),
            longest_wait: Duration::from_secs(15),
            outlives: 3 * STATUS_TTL,
            say_again: SAY_AGAIN,
        }
    }
}

impl Pace {
    /// Returns the time until an agent looks after its status, so drawn that the hosts of a fleet do not ask at once.
    pub(crate) fn again(&self) -> Duration {
        self.say_again.mul_f64(1.0 + fastrand::f64() / 2.0)
    }

    /// Returns the wait after so many failures in a row: none until each of `members` was tried once more, then longer and longer, and
    /// between half and all of that, so that a fleet does not come back at once.
    pub(crate) fn wait(&self, failures: u32, members: usize) -> Duration {
        let members = u32::try_from(members.max(1)).unwrap_or(u32::MAX);
        let rounds = failures / members;
        if rounds == 0 || !failures.is_multiple_of(members) {
            return Duration::ZERO;
        }
        let longer = self.shortest_wait.saturating_mul(1 << (rounds - 1).min(16));
        longer
            .min(self.longest_wait)
            .mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}
