//! Counting: a thread's operations, and all threads' sum.

use crate::{latencies::Latencies, order::Answer};

/// The counts of one thread. Times are ns since the order began.
#[derive(Debug)]
pub struct Tally {
    /// The latencies of successful operations.
    pub latencies: Latencies,
    /// Delays by the generator's own fault: see [`Answer::lateness`].
    pub lateness: Latencies,
    /// See [`Answer::bytes`].
    pub bytes: u64,
    /// See [`Answer::scheduled`].
    pub scheduled: Option<u64>,
    errors: u64,
    first_error: Option<String>,
    order_ns: u64,
    in_time: u64,
}

impl Tally {
    /// Makes an empty tally of an order of this length.
    ///
    /// # Errors
    /// None in practice: the histogram's bounds are constants.
    pub fn new(order_ns: u64) -> anyhow::Result<Self> {
        Ok(Self {
            latencies: Latencies::new()?,
            lateness: Latencies::new()?,
            bytes: 0,
            scheduled: None,
            errors: 0,
            first_error: None,
            order_ns,
            in_time: 0,
        })
    }

    /// An operation succeeded.
    pub fn done(&mut self, intended_ns: u64, now_ns: u64) {
        self.latencies.record(now_ns.saturating_sub(intended_ns));
        self.in_time += u64::from(now_ns <= self.order_ns);
    }

    /// An operation failed.
    pub fn fail(&mut self, why: String) {
        self.errors += 1;
        self.first_error.get_or_insert(why);
    }

    /// The answer of all threads together.
    ///
    /// # Errors
    /// None in practice: all histograms have one shape.
    pub fn sum(tallies: Vec<Self>) -> anyhow::Result<Answer> {
        let mut answer = Answer::empty()?;
        let mut order_ns = 0;
        for tally in tallies {
            answer.latencies.add(&tally.latencies)?;
            answer.lateness.add(&tally.lateness)?;
            answer.bytes += tally.bytes;
            answer.fail(tally.errors, tally.first_error);
            if let Some(scheduled) = tally.scheduled {
                *answer.scheduled.get_or_insert(0) += scheduled;
            }
            answer.in_time += tally.in_time;
            order_ns = order_ns.max(tally.order_ns);
        }
        answer.seconds = order_ns as f64 / 1e9;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn threads_add_up() {
        let mut one = Tally::new(600 * MS).unwrap();
        one.done(10 * MS, 12 * MS);
        one.done(300 * MS, 301 * MS);
        one.done(590 * MS, 640 * MS);
        one.scheduled = Some(4);
        let mut two = Tally::new(600 * MS).unwrap();
        two.done(0, 4 * MS);
        two.fail("no".into());
        two.fail("neither".into());
        two.scheduled = Some(3);
        let answer = Tally::sum(vec![one, two]).unwrap();
        assert_eq!((answer.ops(), answer.errors), (4, 2));
        assert_eq!(answer.first_error.as_deref(), Some("no"));
        assert_eq!(answer.scheduled, Some(7));
        // The one that ended at 640 ms was late.
        assert_eq!((answer.seconds, answer.in_time), (0.6, 3));
    }
}
