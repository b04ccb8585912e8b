//! Busy polling: a worker that expects something within microseconds looks for it again instead of going to sleep.
//!
//! To fall asleep and be woken takes longer than a database takes for an answer that it has in memory. Where the last wait was
//! shorter than [`LONGEST_LOOK`], the next one is spent looking, for as long at most; where it was longer, the worker
//! sleeps. So a worker looks only while something comes every few microseconds, and an idle one costs nothing. Where it
//! comes for several turns at once they share what it costs to be woken, and the worker sleeps, too.
//!
//! Looking takes a processor, which must be one that nobody else wants. The kernel counts for how long a thread was ready to
//! run and had none ([`RunDelay`]); where that is more than one part in [`WANTED`] of the time, the worker sleeps for a pause,
//! which is twice as long each time.

use std::{
    cell::{Cell, RefCell},
    fs::File,
    future::poll_fn,
    io,
    os::unix::fs::FileExt as _,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use telemetry::BusyPollMetrics;

/// The longest wait that is spent looking: waking a processor that sleeps takes about as long.
const LONGEST_LOOK: Duration = Duration::from_micros(50);
/// The interval at which the kernel is asked whether others want the processor.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Others want the processor where the worker has waited for it one part in so many of the time. Whoever sends it something
/// from the same processor takes some of that.
const WANTED: u32 = 3;
/// The turns of flows since the last wait after which a worker looks, at most.
const ALONE: u64 = 1;
/// The pauses after others wanted the processor.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

thread_local! {
    /// The number of turns that this worker's flows have had.
    static TURNS: Cell<u64> = const { Cell::new(0) };
    /// None: this thread does not look, it sleeps.
    static LOOKOUT: RefCell<Option<Lookout>> = const { RefCell::new(None) };
}

/// A worker's decisions to look or to sleep.
struct Lookout {
    waits: Waits,
    contention: Contention<RunDelay>,
    metrics: BusyPollMetrics,
    /// Wakes a task that does nothing: with something to do the worker does not sleep.
    waker: Waker,
}

/// Makes this thread look, where the kernel tells whether others want the processor. To be called in its runtime.
pub(super) fn install(metrics: BusyPollMetrics) {
    let run_delay = RunDelay::open().and_then(|delay| Ok((delay.total()?, delay)));
    let (waited, run_delay) = match run_delay {
        Ok(both) => both,
        Err(error) => {
            tracing::info!(%error, "no busy polling: the kernel does not tell how long this thread waits for a processor");
            return;
        }
    };
    let now = Instant::now();
    let lookout = move |cx: &Context<'_>| Lookout {
        waits: Waits::new(now),
        contention: Contention::new(run_delay, waited, now),
        metrics,
        waker: cx.waker().clone(),
    };
    let mut lookout = Some(lookout);
    tokio::spawn(poll_fn(move |cx| {
        if let Some(lookout) = lookout.take() {
            LOOKOUT.set(Some(lookout(cx)));
        }
        Poll::<()>::Pending
    }));
}

/// Notes that a flow has a turn.
pub(super) fn turn() {
    TURNS.set(TURNS.get().wrapping_add(1));
}

/// Decides whether the worker, which has nothing to do, sleeps or looks.
pub(super) fn about_to_sleep() {
    let waker = LOOKOUT.with_borrow_mut(|lookout| lookout.as_mut()?.about_to_sleep());
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Notes that the worker has slept, or looked.
pub(super) fn woken() {
    LOOKOUT.with_borrow_mut(|lookout| {
        if let Some(lookout) = lookout {
            lookout.waits.woken(Instant::now);
        }
    });
}

impl Lookout {
    /// Returns what keeps the worker from sleeping, if it is to look.
    fn about_to_sleep(&mut self) -> Option<Waker> {
        let now = Instant::now();
        let is_wanted = || self.contention.ask(now);
        let outcome = self.waits.next(now, TURNS.get(), is_wanted);
        if let Some(outcome) = outcome {
            let counter = match outcome {
                Outcome::Came => &self.metrics.came,
                Outcome::InVain => &self.metrics.in_vain,
                Outcome::Wanted => &self.metrics.wanted,
            };
            counter.inc();
        }
        self.waits.looks.then(|| self.waker.clone())
    }
}

/// The end of a wait that was spent looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Something came.
    Came,
    /// Nothing came for as long as a worker looks.
    InVain,
    /// Others want the processor.
    Wanted,
}

/// A worker's waits for something to do.
struct Waits {
    /// The turns that flows had had when this wait began.
    turns: u64,
    /// Whether what came last was for one turn.
    was_alone: bool,
    /// The time at which it began.
    since: Instant,
    /// Whether this wait is expected to be short, as the last one was.
    expects: bool,
    /// Whether it is spent looking.
    looks: bool,
}

impl Waits {
    fn new(now: Instant) -> Self {
        Self {
            turns: 0,
            was_alone: false,
            since: now,
            expects: false,
            looks: false,
        }
    }

    /// Decides whether a worker that has nothing to do looks. Returns what looking has come to, where it has come to something.
    fn next(
        &mut self,
        now: Instant,
        turns: u64,
        is_wanted: impl FnOnce() -> bool,
    ) -> Option<Outcome> {
        let has_come = turns != self.turns;
        if has_come {
            self.was_alone = turns.wrapping_sub(self.turns) <= ALONE;
            (self.turns, self.since) = (turns, now);
        }
        let is_short =
            self.expects && self.was_alone && now.duration_since(self.since) < LONGEST_LOOK;
        let looked = std::mem::replace(&mut self.looks, is_short && !is_wanted());
        self.expects = self.looks;
        match (looked, self.looks) {
            (true, _) if has_come => Some(Outcome::Came),
            (_, false) if is_short => Some(Outcome::Wanted),
            (true, false) => Some(Outcome::InVain),
            _ => None,
        }
    }

    /// Notes that a worker has slept, or looked.
    fn woken(&mut self, now: impl FnOnce() -> Instant) {
        if !self.looks {
            self.expects = now().duration_since(self.since) < LONGEST_LOOK;
        }
    }
}

/// The time for which a thread was ready to run and had no processor, since it began.
trait Waited {
    fn total(&self) -> io::Result<Duration>;
}

/// [`Waited`] by this thread, as `/proc/thread-self/schedstat` has it: nanoseconds on a processor, nanoseconds ready, and slices.
struct RunDelay(File);

impl RunDelay {
    fn open() -> io::Result<Self> {
        File::open("/proc/thread-self/schedstat").map(Self)
    }
}

impl Waited for RunDelay {
    fn total(&self) -> io::Result<Duration> {
        let mut text = [0; 64];
        let length = self.0.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
        let nanoseconds = text.split(' ').nth(1).and_then(|word| word.parse().ok());
        let nanoseconds = nanoseconds.ok_or_else(|| io::Error::other(format!("{text:?}")));
        nanoseconds.map(Duration::from_nanos)
    }
}

/// Whether others want a thread's processor.
struct Contention<W> {
    waited: W,
    /// The time at which the kernel was asked, and what it said.
    asked: (Instant, Duration),
    /// The next pause.
    pause: Duration,
    /// The end of the last one.
    not_before: Instant,
}

impl<W: Waited> Contention<W> {
    fn new(waited: W, total: Duration, now: Instant) -> Self {
        Self {
            waited,
            asked: (now, total),
            pause: SHORTEST_PAUSE,
            not_before: now,
        }
    }

    /// Returns whether they do; the kernel is asked if it was not lately.
    fn ask(&mut self, now: Instant) -> bool {
        if now < self.not_before {
            return true;
        }
        let (asked, before) = self.asked;
        let elapsed = now.duration_since(asked);
        if elapsed < ASK_EVERY {
            return false;
        }
        let total = self.waited.total().ok();
        self.asked = (now, total.unwrap_or(before));
        // Where the kernel does not tell, the worker sleeps.
        let is_wanted =
            total.is_none_or(|total| total.saturating_sub(before).saturating_mul(WANTED) > elapsed);
        if is_wanted {
            self.not_before = now + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        } else if elapsed < SHORTEST_PAUSE {
            self.pause = SHORTEST_PAUSE;
        }
        is_wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(10);

    /// A worker, its clock and its flows' turns.
    struct Worker {
        waits: Waits,
        now: Instant,
        turns: u64,
    }

    impl Worker {
        fn new() -> Self {
            let now = Instant::now();
            Self {
                waits: Waits::new(now),
                now,
                turns: 0,
            }
        }

        /// Has nothing to do for this long, and then a turn.
        fn waits(&mut self, wait: Duration) -> Vec<Outcome> {
            let mut outcomes = Vec::new();
            let ends = self.now + wait;
            loop {
                outcomes.extend(self.waits.next(self.now, self.turns, || false));
                self.now = match self.waits.looks {
                    true => (self.now + Duration::from_micros(1)).min(ends),
                    false => ends,
                };
                self.waits.woken(|| self.now);
                if self.now == ends {
                    break;
                }
            }
            self.turns += 1;
            outcomes
        }
    }

    #[test]
    fn a_worker_looks_after_a_short_wait_and_sleeps_after_a_long_one() {
        let mut worker = Worker::new();
        assert_eq!(worker.waits(SHORT), []);
        assert!(!worker.waits.looks, "it slept, and something came soon");
        worker.waits(SHORT);
        assert!(worker.waits.looks);
        assert_eq!(worker.waits(SHORT), [Outcome::Came]);
        assert_eq!(
            worker.waits(Duration::from_secs(1)),
            [Outcome::Came, Outcome::InVain]
        );
        assert!(!worker.waits.looks);
        for _ in 0..3 {
            assert_eq!(worker.waits(Duration::from_secs(1)), []);
        }
    }

    #[test]
    fn a_worker_for_whom_much_comes_at_once_sleeps() {
        let mut worker = Worker::new();
        worker.waits(SHORT);
        worker.waits(SHORT);
        assert!(worker.waits.looks);
        worker.turns += ALONE;
        assert_eq!(worker.waits(SHORT), [Outcome::Came]);
        assert!(!worker.waits.looks);
        worker.waits(SHORT);
        assert!(worker.waits.looks, "one alone came after a short wait");
    }

    #[test]
    fn a_worker_whose_processor_is_wanted_sleeps() {
        let mut worker = Worker::new();
        worker.waits(SHORT);
        worker.waits(SHORT);
        assert!(worker.waits.looks);
        let outcome = worker.waits.next(worker.now, worker.turns + 1, || true);
        assert_eq!(outcome, Some(Outcome::Came));
        assert!(!worker.waits.looks);
    }

    struct Told(Cell<Duration>);

    impl Waited for &Told {
        fn total(&self) -> io::Result<Duration> {
            Ok(self.0.get())
        }
    }

    struct Silent;

    impl Waited for Silent {
        fn total(&self) -> io::Result<Duration> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    #[test]
    fn a_worker_sleeps_while_the_kernel_does_not_tell() {
        let mut now = Instant::now();
        let mut contention = Contention::new(Silent, Duration::ZERO, now);
        for _ in 0..5 {
            now = contention.not_before + ASK_EVERY;
            assert!(contention.ask(now));
        }
    }

    #[test]
    fn pauses_grow_while_others_want_the_processor() {
        let told = Told(Cell::new(Duration::ZERO));
        let mut now = Instant::now();
        let mut contention = Contention::new(&told, Duration::ZERO, now);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            now += ASK_EVERY;
            told.0.set(told.0.get() + Duration::from_secs(1));
            assert!(contention.ask(now));
            let since = now;
            while contention.ask(now) {
                now += ASK_EVERY / 2;
                assert!(now - since <= LONGEST_PAUSE + ASK_EVERY);
            }
            pauses.push(contention.not_before - since);
        }
        assert_eq!(pauses[0], SHORTEST_PAUSE);
        assert_eq!(pauses[1], 2 * SHORTEST_PAUSE);
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));
        // Two times in a row nobody wanted it.
        now += ASK_EVERY;
        assert!(!contention.ask(now));
        now += ASK_EVERY;
        assert!(!contention.ask(now));
        assert_eq!(contention.pause, SHORTEST_PAUSE);
    }

    #[test]
    fn the_kernel_tells_how_long_a_thread_has_waited() {
        let delay = RunDelay::open().unwrap();
        let before = delay.total().unwrap();
        std::thread::yield_now();
        assert!(delay.total().unwrap() >= before);
    }
}
