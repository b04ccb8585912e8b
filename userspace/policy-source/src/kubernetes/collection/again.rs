//! [`Again`]: when all is listed again because there may be room for objects that were not kept.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time from when there may be room to the list. Up to as long again is added by chance: each agent of a cluster hears of the
/// same objects at once.
const LIST_AGAIN_AFTER_AT_LEAST: Duration = Duration::from_secs(15);

/// The time is twice as long after each such list, up to this, and the shortest again once none was made for so long: whoever makes
/// and deletes objects without end has all agents list now and then.
const LIST_AGAIN_AFTER_AT_MOST: Duration = Duration::from_secs(240);

/// The next list.
#[derive(Debug)]
pub(super) struct Again {
    due: Option<Instant>,
    pause: Duration,
    /// The last list that was made for this reason.
    listed: Option<Instant>,
}

impl Default for Again {
    fn default() -> Self {
        Self {
            due: None,
            pause: LIST_AGAIN_AFTER_AT_LEAST,
            listed: None,
        }
    }
}

impl Again {
    /// The time at which to list. None: nothing has made room since the last list.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Has a list be made, if none is to be already. `spread`, from 0 to 1, keeps those of many agents apart.
    pub(super) fn want(&mut self, now: Instant, spread: f64) {
        if self.due.is_some() {
            return;
        }
        let is_long_ago = |listed| now.duration_since(listed) >= LIST_AGAIN_AFTER_AT_MOST;
        if self.listed.is_some_and(is_long_ago) {
            self.pause = LIST_AGAIN_AFTER_AT_LEAST;
        }
        self.due = Some(now + self.pause.mul_f64(1.0 + spread.clamp(0.0, 1.0)));
    }

    /// Notes that all was listed, for whatever reason.
    pub(super) fn note_list(&mut self, now: Instant) {
        if self.due.take().is_some() {
            self.pause = (self.pause * 2).min(LIST_AGAIN_AFTER_AT_MOST);
            self.listed = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_one_after_the_other_are_ever_further_apart_until_it_is_quiet() {
        let mut again = Again::default();
        let mut now = Instant::now();
        // The first list of all is nobody's fault.
        again.note_list(now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            again.want(now, 0.0);
            // More room makes it neither sooner nor later.
            again.want(now + Duration::from_secs(1), 1.0);
            let due = again.due().unwrap();
            pauses.push((due - now).as_secs());
            now = due;
            again.note_list(now);
            assert_eq!(again.due(), None);
        }
        assert_eq!(pauses, [15, 30, 60, 120, 240, 240]);
        now += LIST_AGAIN_AFTER_AT_MOST;
        again.want(now, 1.0);
        assert_eq!(again.due(), Some(now + 2 * LIST_AGAIN_AFTER_AT_LEAST));
    }
}
