//! Applications in a sockmap that do not read on: they leave it, because in there FIONREAD may not tell them
//! of what waits. The kernel's half is `ebpf/src/readers.h`.

pub(crate) mod load;

use std::{
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};

use crate::sys;

/// The shortest interval of looks. A reader that is at the same place at two of them leaves.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Looks take at most one part in so many of a processor: over some thousand sockets they are rarer.
const LOOKS_SHARE: u32 = 200;

/// Nudges take at most one part in so many: each goes through all TCP sockets of the host, and is of a reader that waits.
const NUDGES_SHARE: u32 = 20;

/// The number of times in whose mean one counts.
const MEAN_OF: u32 = 8;

/// Work that is repeated, and takes at most a share of a processor.
#[derive(Debug)]
pub(crate) struct Paced {
    share: u32,
    /// The time that it takes, over the last some times: one alone may have found cold caches.
    takes: Duration,
    next: Option<Instant>,
}

impl Paced {
    pub(crate) const fn looks() -> Self {
        Self {
            share: LOOKS_SHARE,
            takes: Duration::ZERO,
            next: None,
        }
    }

    pub(crate) const fn nudges() -> Self {
        Self {
            share: NUDGES_SHARE,
            takes: Duration::ZERO,
            next: None,
        }
    }

    /// The time until the work is due.
    pub(crate) fn pause(&self) -> Duration {
        let left = |next: Instant| next.saturating_duration_since(Instant::now());
        self.next.map_or(Duration::ZERO, left)
    }

    /// Begins the work, if it is due.
    pub(crate) fn begin(&self) -> Option<Begun> {
        self.pause().is_zero().then(|| Begun(processor_time()))
    }

    /// Ends the work, on the thread that began it. It is due again after [`LOOK_EVERY`], or as much later as it takes long.
    pub(crate) fn end(&mut self, Begun(begun): Begun) {
        let took = processor_time().saturating_sub(begun);
        self.takes = (self.takes * (MEAN_OF - 1) + took) / MEAN_OF;
        self.next = Some(Instant::now() + LOOK_EVERY.max(self.takes * self.share));
    }
}

/// The processor time at which work began.
pub(crate) struct Begun(Duration);

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The sockets of a map that are to leave it.
#[derive(Debug, Default)]
pub(crate) struct Stalled {
    /// The keys of those that can leave now.
    pub leave_now: Vec<u64>,
    /// Whether others are to leave at a later look.
    pub are_leaving: bool,
}

/// Whether readers that have left their map were all nudged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nudged {
    /// All of them.
    All,
    /// For some a system call that began in the map still goes on. To be done again.
    NotAll,
}

/// The process that looks. Each finds the moment at which a socket may leave by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looker {
    /// The agent, or the keeper in its place when it is dead.
    Agent,
    /// The keeper, beside an agent that lives and does not run.
    Beside,
}

/// The iterators, by descriptors, so that another process can go on with them.
#[derive(Debug)]
pub(crate) struct Readers {
    find: OwnedFd,
    find_beside: OwnedFd,
    nudge: OwnedFd,
}

impl Readers {
    pub(crate) fn of([find, find_beside, nudge]: [OwnedFd; 3]) -> Self {
        Self {
            find,
            find_beside,
            nudge,
        }
    }

    /// The descriptors of [`Self::of`].
    pub(crate) fn descriptors(&self) -> io::Result<[OwnedFd; 3]> {
        Ok([
            self.find.try_clone()?,
            self.find_beside.try_clone()?,
            self.nudge.try_clone()?,
        ])
    }

    /// Looks over the sockets in this map.
    pub(crate) fn stalled(&self, map: BorrowedFd<'_>, looker: Looker) -> io::Result<Stalled> {
        let find = match looker {
            Looker::Agent => &self.find,
            Looker::Beside => &self.find_beside,
        };
        let mut told = Vec::new();
        sys::iterate_over(find.as_fd(), Some(map))?.read_to_end(&mut told)?;
        let (words, _) = told.as_chunks().0.as_chunks();
        let mut stalled = Stalled::default();
        for [key, now] in words.iter().map(|words| words.map(u64::from_ne_bytes)) {
            match now {
                0 => stalled.are_leaving = true,
                _ => stalled.leave_now.push(key),
            }
        }
        Ok(stalled)
    }

    /// Announces once more to readers that have left, in the namespace of this thread, what waits for them.
    pub(crate) fn nudge(&self) -> io::Result<Nudged> {
        let mut still_in = Vec::new();
        sys::iterate_over(self.nudge.as_fd(), None)?.read_to_end(&mut still_in)?;
        Ok(match still_in.is_empty() {
            true => Nudged::All,
            false => Nudged::NotAll,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(time: Duration) {
        let begun = processor_time();
        while processor_time() - begun < time {}
    }

    #[test]
    fn work_is_done_when_it_is_due_and_as_rarely_as_it_is_dear() {
        let mut looks = Paced::looks();
        let begun = looks.begin().unwrap();
        looks.end(begun);
        assert!(looks.begin().is_none());
        assert!(looks.pause() <= LOOK_EVERY);
        let (mut looks, mut nudges) = (Paced::looks(), Paced::nudges());
        for paced in [&mut looks, &mut nudges] {
            let begun = paced.begin().unwrap();
            busy(Duration::from_millis(80));
            paced.end(begun);
        }
        // An eighth of 80 ms counts so far.
        assert!(looks.pause() > Duration::from_millis(1_900));
        assert!(nudges.pause() > LOOK_EVERY && nudges.pause() < Duration::from_millis(1_000));
    }
}
