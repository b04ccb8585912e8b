//! The times at which requests are due: arithmetic, so that nothing is queued however late one is.

/// A constant rate. Times are ns since the order began.
#[derive(Clone, Debug)]
pub struct Schedule {
    interval_ns: f64,
    phase: f64,
    taken: u64,
}

impl Schedule {
    /// Makes a schedule of this many requests in a second; the first one after this part (0 to 1)
    /// of an interval.
    pub fn new(rate: f64, phase: f64) -> Self {
        Self {
            interval_ns: 1e9 / rate,
            phase,
            taken: 0,
        }
    }

    /// Restarts the schedule from the beginning.
    pub fn restart(&mut self) {
        self.taken = 0;
    }

    /// Returns the time when the next request is due.
    pub fn next_ns(&self) -> u64 {
        ((self.taken as f64 + self.phase) * self.interval_ns) as u64
    }

    /// Notes that the next request is sent.
    pub fn advance(&mut self) {
        self.taken += 1;
    }

    /// Returns the number of requests that are due before this.
    pub fn due_before(&self, end_ns: u64) -> u64 {
        let after_first = end_ns as f64 / self.interval_ns - self.phase;
        after_first.ceil().max(0.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_from_end_to_end() {
        for (rate, phase) in [(1.0, 0.0), (1_000.0, 0.25), (7_777.7, 0.9)] {
            let mut schedule = Schedule::new(rate, phase);
            let end = 10_000_000_000;
            let mut count = 0;
            let mut last = 0;
            while schedule.next_ns() < end {
                assert!(count == 0 || schedule.next_ns() > last);
                last = schedule.next_ns();
                schedule.advance();
                count += 1;
            }
            assert!((count as f64 - rate * 10.0).abs() <= 1.0, "{rate}: {count}");
            assert_eq!(schedule.due_before(end), count, "{rate}");
            schedule.restart();
            assert_eq!(schedule.next_ns(), (phase * 1e9 / rate) as u64);
        }
    }
}
