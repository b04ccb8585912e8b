//! Counting: a thread's operations, and all threads' sum.

use crate::{
    INTERVAL_MS,
    latencies::Latencies,
    order::{Answer, Interval},
};

const INTERVAL_NS: u64 = INTERVAL_MS * 1_000_000;

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
    slices: Vec<Slice>,
    order_ns: u64,
    in_time: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    ops: u64,
    sum_ns: u64,
}

impl Tally {
    /// Makes an empty tally, with room for an order of this length.
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
            slices: vec![Slice::default(); whole_slices(order_ns)],
            order_ns,
            in_time: 0,
        })
    }

    /// An operation succeeded.
    pub fn done(&mut self, intended_ns: u64, now_ns: u64) {
        let took = now_ns.saturating_sub(intended_ns);
        self.latencies.record(took);
        self.in_time += u64::from(now_ns <= self.order_ns);
        // An operation that ends behind the last whole slice is in none.
        let slice = self.slices.get_mut((now_ns / INTERVAL_NS) as usize);
        if let Some(slice) = slice {
            slice.ops += 1;
            slice.sum_ns += took;
        }
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
        let mut slices: Vec<Slice> = Vec::new();
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
            slices.resize(slices.len().max(tally.slices.len()), Slice::default());
            for (sum, slice) in slices.iter_mut().zip(tally.slices) {
                sum.ops += slice.ops;
                sum.sum_ns += slice.sum_ns;
            }
        }
        answer.seconds = order_ns as f64 / 1e9;
        answer.intervals = slices
            .into_iter()
            .map(|slice| Interval {
                ops: slice.ops,
                mean_us: slice.sum_ns as f64 / 1e3 / slice.ops.max(1) as f64,
            })
            .collect();
        Ok(answer)
    }
}

fn whole_slices(order_ns: u64) -> usize {
    (order_ns / INTERVAL_NS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn threads_add_up_and_slices_are_whole() {
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
        let slices: Vec<_> = answer
            .intervals
            .iter()
            .map(|i| (i.ops, i.mean_us))
            .collect();
        assert_eq!(slices, [(2, 3_000.0), (1, 1_000.0)]);
    }
}
