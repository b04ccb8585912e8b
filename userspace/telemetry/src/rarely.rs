//! Log lines that strangers can cause, or that a failure repeats, no more often than somebody can read them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The length of a period.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// Lines of one kind in a period: as many as somebody can read.
pub(crate) const MAX_SAID: u32 = 10;

/// The length of a period for a failure of this host's own that goes on, which has one line in it.
const FAILING_PERIOD: Duration = Duration::from_secs(60);

/// A limit on lines of one kind. Further ones of a period are counted, and the next line says how many there were.
#[derive(Debug)]
pub struct Rarely {
    period: Duration,
    most: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    period: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl Rarely {
    /// Makes a limit for one kind of lines that strangers cause.
    #[expect(
        clippy::new_without_default,
        reason = "a limit is a static, which needs a const"
    )]
    pub const fn new() -> Self {
        Self::of(MAX_SAID, PERIOD)
    }

    /// Makes a limit for the lines of something that is tried again and again and fails, such as for want of descriptors: the
    /// first one, and one a minute.
    pub const fn failing() -> Self {
        Self::of(1, FAILING_PERIOD)
    }

    const fn of(most: u32, period: Duration) -> Self {
        Self {
            period,
            most,
            state: Mutex::new(State {
                period: None,
                said: 0,
                unsaid: 0,
            }),
        }
    }

    /// Calls `say` if one more line may be written now, with how many were not, since the last; None: all were.
    pub fn say(&self, say: impl FnOnce(Option<u64>)) {
        if let Some(unsaid) = self.take_turn_at(Instant::now()) {
            say((unsaid > 0).then_some(unsaid));
        }
    }

    fn take_turn_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let is_new = state
            .period
            .is_none_or(|begun| now.duration_since(begun) >= self.period);
        if is_new {
            state.period = Some(now);
            state.said = 0;
        }
        if state.said >= self.most {
            state.unsaid += 1;
            return None;
        }
        state.said += 1;
        Some(std::mem::take(&mut state.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_a_period_and_the_next_one_says_how_many_were_not() {
        let rarely = Rarely::new();
        let begun = Instant::now();
        let turns = (0..1_000).filter_map(|_| rarely.take_turn_at(begun));
        assert_eq!(turns.count() as u32, MAX_SAID);
        assert_eq!(rarely.take_turn_at(begun + PERIOD), Some(990));
        assert_eq!(rarely.take_turn_at(begun + PERIOD), Some(0));
    }

    #[test]
    fn a_failure_that_goes_on_is_said_once_a_minute() {
        let rarely = Rarely::failing();
        let begun = Instant::now();
        let turns = (0..1_000).map(|ms| rarely.take_turn_at(begun + Duration::from_millis(ms)));
        assert_eq!(turns.flatten().count(), 1);
        assert_eq!(rarely.take_turn_at(begun + FAILING_PERIOD), Some(999));
    }
}
