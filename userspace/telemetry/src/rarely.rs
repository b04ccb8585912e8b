//! Log lines that strangers can cause, no more often than somebody can read them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The length of a period.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// Lines of one kind in a period: as many as somebody can read.
pub(crate) const MAX_SAID: u32 = 10;

/// A limit on lines of one kind. Further ones of a period are counted, and the next line says how many there were.
#[derive(Debug)]
pub struct Rarely {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    period: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl Rarely {
    /// Makes a limit for one kind of lines.
    #[expect(
        clippy::new_without_default,
        reason = "a limit is a static, which needs a const"
    )]
    pub const fn new() -> Self {
        Self {
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
            .is_none_or(|begun| now.duration_since(begun) >= PERIOD);
        if is_new {
            state.period = Some(now);
            state.said = 0;
        }
        if state.said >= MAX_SAID {
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
}
