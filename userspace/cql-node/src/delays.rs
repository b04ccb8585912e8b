//! A database that takes its time: answers wait, each for itself, so that a later request may
//! be answered first.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use tokio::time::Instant;

/// How long statements take: `least` and an exponential tail, the same in every run. Timers are
/// to the millisecond; see [`super::Tally`] for what was taken indeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// Another seed, other delays.
    pub seed: u64,
    /// No answer is faster.
    pub least: Duration,
    /// The mean of what comes on top.
    pub tail: Duration,
}

/// One connection's answers that wait.
#[derive(Debug)]
pub(super) struct Late {
    delays: Delays,
    drawn: u64,
    waiting: BinaryHeap<Answer>,
}

/// Whole frames, the request's arrival, and when they are to go.
#[derive(Debug)]
pub(super) struct Answer {
    due: Instant,
    pub(super) asked: Instant,
    pub(super) frame: Vec<u8>,
}

impl Late {
    pub(super) fn new(delays: Delays) -> Self {
        Self {
            delays,
            drawn: delays.seed,
            waiting: BinaryHeap::new(),
        }
    }

    pub(super) fn push(&mut self, asked: Instant, frame: Vec<u8>) {
        let due = asked + self.draw();
        self.waiting.push(Answer { due, asked, frame });
    }

    /// When the next one is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.peek().map(|answer| answer.due)
    }

    /// The next one that is due.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Answer> {
        if self.next_due()? > now {
            return None;
        }
        self.waiting.pop()
    }

    /// An LCG's upper half, by the inverse of the distribution.
    fn draw(&mut self) -> Duration {
        self.drawn = self
            .drawn
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let uniform = ((self.drawn >> 33) as f64 + 1.0) / (1_u64 << 31) as f64;
        self.delays.least + self.delays.tail.mul_f64(-uniform.ln())
    }
}

impl Ord for Answer {
    /// The heap's greatest is the one that is due first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.due.cmp(&self.due)
    }
}

impl PartialOrd for Answer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Answer {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Answer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_as_they_are_told() {
        let mut late = Late::new(Delays {
            seed: 3,
            least: Duration::from_millis(4),
            tail: Duration::from_millis(10),
        });
        let mut drawn: Vec<Duration> = (0..100_000).map(|_| late.draw()).collect();
        drawn.sort_unstable();
        assert!(drawn[0] >= Duration::from_millis(4));
        // ln 2 and ln 100 of the tail's mean.
        let ms = |at: usize| drawn[at].as_secs_f64() * 1e3;
        assert!((ms(50_000) - 10.93).abs() < 0.2, "{}", ms(50_000));
        assert!((ms(99_000) - 50.05).abs() < 1.0, "{}", ms(99_000));
    }

    #[test]
    fn what_is_due_first_goes_first() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut late = Late::new(Delays {
            seed: 3,
            least: Duration::ZERO,
            tail: Duration::ZERO,
        });
        for ms in [3, 1, 2] {
            late.push(at(ms), vec![ms as u8]);
        }
        assert_eq!(late.next_due(), Some(at(1)));
        assert!(late.pop(now).is_none());
        let frames = [1, 2].map(|_| late.pop(at(2)).unwrap().frame);
        assert_eq!(frames, [vec![1], vec![2]]);
        assert!(late.pop(at(2)).is_none());
    }
}
