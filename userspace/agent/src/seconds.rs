//! [`every`]: the times at which the agent looks after what does not tell of itself.
//!
//! All such looks are at the same moments, so that an idle host wakes up for them once a second.

use std::{sync::OnceLock, time::Duration};

use tokio::time::{self, Instant, Interval, MissedTickBehavior};

/// Ticks at multiples of `period` since the agent's start. A tick that is missed is left out.
pub fn every(period: Duration) -> Interval {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    let mut ticks = time::interval_at(start, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_begins_later_ticks_at_the_same_moments() {
        let period = Duration::from_millis(40);
        let mut first = every(period);
        first.tick().await;
        time::sleep(period / 3).await;
        let mut later = every(period);
        // What has begun is looked after at once.
        later.tick().await;
        // On a busy machine a moment may be missed, by one of them.
        let (first, later) = (first.tick().await, later.tick().await);
        let apart = later.max(first) - later.min(first);
        assert_eq!(apart.as_nanos() % period.as_nanos(), 0);
    }
}
