//! The pace of a thread that does one thing at a time.

use std::{thread, time::Duration};

use crate::{schedule::Schedule, tally::Tally, threads::Run};

/// A thread's pace.
#[derive(Debug)]
pub struct Pace {
    /// The schedule. None: the next request begins when the last has ended.
    schedule: Option<Schedule>,
    /// The time when the last request has ended.
    free_ns: u64,
}

impl Pace {
    /// Makes the pace of one of this number of threads, which share a rate.
    pub fn new(rate: Option<f64>, thread: usize, threads: usize) -> Self {
        let (thread, threads) = (thread as f64, threads as f64);
        Self {
            schedule: rate.map(|rate| Schedule::new(rate / threads, thread / threads)),
            free_ns: 0,
        }
    }

    /// Begins an order.
    pub fn restart(&mut self, run: &Run, tally: &mut Tally) {
        self.free_ns = 0;
        if let Some(schedule) = &mut self.schedule {
            schedule.restart();
            tally.scheduled = Some(schedule.due_before(run.end_ns));
        }
    }

    /// The schedule, for who waits by other means.
    pub fn schedule(&self) -> Option<Schedule> {
        self.schedule.clone()
    }

    /// Waits until the next is to begin. When that was to be; None: the order is over.
    pub fn next(&mut self, run: &Run, tally: &mut Tally) -> Option<u64> {
        let now_ns = run.now_ns();
        if run.is_stopped() {
            return None;
        }
        let Some(schedule) = &mut self.schedule else {
            return (now_ns < run.end_ns).then_some(now_ns);
        };
        let due_ns = schedule.next_ns();
        // A request that was due before the end leaves after it, if it had to wait.
        if due_ns >= run.end_ns || run.is_drained(now_ns) {
            return None;
        }
        schedule.advance();
        thread::sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns)));
        if self.free_ns <= due_ns {
            tally.lateness.record(run.now_ns().saturating_sub(due_ns));
        }
        Some(due_ns)
    }

    /// Notes that the request has ended.
    pub fn end(&mut self, run: &Run) -> u64 {
        self.free_ns = run.now_ns();
        self.free_ns
    }
}
