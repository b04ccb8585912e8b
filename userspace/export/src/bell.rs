//! The bell: how a consumer sleeps, and how writers wake it.
//!
//! While there is something to do the consumer *dozes* between two batches: it comes back by
//! itself, a moment later, and no writer has to call it, unless a ring is getting full. When
//! nothing has come for a while it *sleeps*, for as long as there is nothing: the next writer wakes
//! it, by the one system call that an idle agent's first record costs. So a writer makes no system
//! call while records keep coming, and the agent makes none while none come.

use std::{
    sync::{
        OnceLock,
        atomic::{
            AtomicU8,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
    thread::{self, Thread},
    time::Duration,
};

const AWAKE: u8 = 0;
const DOZES: u8 = 1;
const SLEEPS: u8 = 2;

/// The state of a consumer, and its thread.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: AtomicU8,
    sleeper: OnceLock<Thread>,
}

impl Bell {
    /// Notes the calling thread as the one that sleeps.
    pub(crate) fn set_sleeper(&self) {
        // The thread that was made for it calls this once.
        let _ = self.sleeper.set(thread::current());
    }

    /// Something was written. `urgent`: also somebody who dozes has to see it now.
    pub(crate) fn ring(&self, urgent: bool) {
        // Either the writer sees here that the reader sleeps, or the reader, behind its own fence in
        // `sleep`, what was written.
        fence(SeqCst);
        match self.state.load(Relaxed) {
            SLEEPS => self.wake(),
            DOZES if urgent => self.wake(),
            _ => {}
        }
    }

    /// Wakes the consumer, whether it dozes or sleeps.
    #[cold]
    pub(crate) fn wake(&self) {
        if self.state.swap(AWAKE, SeqCst) != AWAKE
            && let Some(sleeper) = self.sleeper.get()
        {
            sleeper.unpark();
        }
    }

    /// Dozes for this long, or until a ring gets full.
    pub(crate) fn doze(&self, time: Duration) {
        self.state.store(DOZES, SeqCst);
        thread::park_timeout(time);
        self.state.store(AWAKE, SeqCst);
    }

    /// Sleeps until something is written, and at most for this long. `is_idle` is asked once more
    /// when every writer can see that the consumer sleeps.
    pub(crate) fn sleep(&self, time: Option<Duration>, is_idle: impl FnOnce() -> bool) {
        self.state.store(SLEEPS, SeqCst);
        fence(SeqCst);
        if is_idle() {
            match time {
                Some(time) => thread::park_timeout(time),
                None => thread::park(),
            }
        }
        self.state.store(AWAKE, SeqCst);
    }
}
