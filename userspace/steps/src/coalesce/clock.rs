//! The clock: a thread that says when a window has been open for long enough. The flow's own thread
//! ends the window.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::windows::{FORGOTTEN, Windows};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// The clock's handle. Dropped with the step, it ends the thread.
#[derive(Debug)]
pub(super) struct Clock(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    windows: Mutex<Windows>,
    times: Mutex<Times>,
    wake: Condvar,
}

/// The ends of windows. **Lock order**: taken before [`Windows`], never after.
#[derive(Debug, Default)]
struct Times {
    /// The end, flow and number of each open window. The earliest end comes first, because all
    /// windows have one length.
    ends: VecDeque<(Instant, usize, u64)>,
    over: bool,
}

impl Clock {
    /// Starts the thread. `window`: the length of each window.
    ///
    /// # Errors
    /// There can be no more threads.
    pub(super) fn start(window: Duration) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = thread::Builder::new().name("coalesce".to_owned());
        thread.spawn(move || of_thread.run(window))?;
        Ok(Self(shared))
    }

    pub(super) fn windows(&self) -> MutexGuard<'_, Windows> {
        let windows = &self.0.windows;
        windows.lock()
    }

    /// Notes the end of a window that has been opened.
    pub(super) fn ends_at(&self, when: Instant, flow: usize, number: u64) {
        let mut times = self.0.times();
        times.ends.push_back((when, flow, number));
        if times.ends.len() == 1 {
            self.0.wake.notify_one();
        }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.0.times().over = true;
        self.0.wake.notify_one();
    }
}

impl Shared {
    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock()
    }

    fn run(&self, window: Duration) {
        let mut swept = Instant::now();
        loop {
            let mut times = self.times();
            if times.over {
                return;
            }
            let now = Instant::now();
            let due = match times.ends.front() {
                Some((when, flow, number)) if *when <= now => Some((*flow, *number)),
                _ => None,
            };
            let lock = || self.windows.lock();
            if let Some((flow, number)) = due {
                times.ends.pop_front();
                drop(times);
                lock().nudge(flow, number);
                continue;
            }
            if now.saturating_duration_since(swept) >= FORGOTTEN {
                swept = now;
                lock().sweep(now);
            }
            let first = times.ends.front().map(|(when, ..)| *when);
            let wait = first.map_or(FORGOTTEN, |when| {
                when.saturating_duration_since(now).min(window)
            });
            self.wake.wait_for(&mut times, wait);
        }
    }
}
