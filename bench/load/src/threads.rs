//! Threads that begin and end together.

use std::{
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{order::Answer, tally::Tally};

/// Threads are made before the clock starts: all of a thousand are there by then.
const HEAD_START: Duration = Duration::from_millis(5);

/// The time after an order's end in which requests that were due before may still leave.
const DRAIN_NS: u64 = 10_000_000_000;

/// An order under way, as all of its threads see it.
#[derive(Debug)]
pub struct Run {
    start: Instant,
    /// The time after which no operation begins.
    pub end_ns: u64,
    stopped: AtomicBool,
}

impl Run {
    /// Since the order began, in ns.
    pub fn now_ns(&self) -> u64 {
        self.at_ns(Instant::now())
    }

    /// Returns a time in ns since the order began.
    pub fn at_ns(&self, then: Instant) -> u64 {
        let since = then.saturating_duration_since(self.start);
        since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())
    }

    /// Whether it is so late that nothing leaves any more.
    pub fn is_drained(&self, now_ns: u64) -> bool {
        now_ns >= self.end_ns.saturating_add(DRAIN_NS)
    }

    /// Whether another thread has failed: to go on would be for nothing.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// Works with a thread for each lane; sums their tallies up.
///
/// # Errors
/// The first error of a lane; the others stop at once.
pub fn on_threads<L: Send>(
    lanes: &mut [L],
    seconds: f64,
    work: impl Fn(&mut L, &Arc<Run>) -> anyhow::Result<Tally> + Sync,
) -> anyhow::Result<Answer> {
    let length = Duration::try_from_secs_f64(seconds).context("an order of no length")?;
    let run = Arc::new(Run {
        start: Instant::now() + HEAD_START,
        end_ns: u64::try_from(length.as_nanos()).context("an order without an end")?,
        stopped: AtomicBool::new(false),
    });
    let (run, work) = (&run, &work);
    let on_thread = move |lane: &mut L| {
        // Wake-ups are wanted when they are due, not up to 50 µs later.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        thread::sleep(run.start.saturating_duration_since(Instant::now()));
        let done = work(lane, run);
        if done.is_err() {
            run.stopped.store(true, Ordering::Relaxed);
        }
        done
    };
    let tallies: Vec<anyhow::Result<Tally>> = thread::scope(|scope| {
        let start = |lane| scope.spawn(move || on_thread(lane));
        let threads: Vec<_> = lanes.iter_mut().map(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join().ok());
        joined
            .map(|tally| tally.context("a thread panicked")?)
            .collect()
    });
    Tally::sum(tallies.into_iter().collect::<anyhow::Result<_>>()?)
}
