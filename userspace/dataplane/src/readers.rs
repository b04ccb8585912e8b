//! Applications in a sockmap that do not read on, or were not told of a reset. The former leave it, because in there FIONREAD
//! may not tell them of what waits. The kernel's half is `ebpf/src/readers.h`.

pub(crate) mod load;

use std::{
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use ebpf::abi;
use nix::time::{ClockId, clock_gettime};

use crate::sys;

/// The shortest interval of looks. A reader that is at the same place at two of them leaves.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Looks, and nudges that are repeated, take at most one part in so many of a processor: over some thousand sockets they are
/// rarer.
const LOOKS_SHARE: u32 = 200;

/// Nudges of readers that have left since the last one take at most one part in so many: each goes through all TCP sockets
/// of the host, and somebody waits.
const NUDGES_SHARE: u32 = 20;

/// The number of times in whose mean one counts.
const MEAN_OF: u32 = 8;

/// The readers that a nudge is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToNudge {
    #[default]
    Nobody,
    /// Readers for whom a system call went on at the last nudge that began in the map.
    Again,
    /// Readers who have left since, or were found not to have been told that their connection is over.
    Left,
}

/// The times of looks and nudges.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    looks: Paced,
    nudges: Paced,
}

impl Pace {
    /// Begins a look, if one is due.
    pub(crate) fn begin_look(&self) -> Option<Begun> {
        self.looks.begin(LOOKS_SHARE)
    }

    /// Ends a look, on the thread that began it.
    pub(crate) fn end_look(&mut self, begun: Begun) {
        self.looks.end(begun);
    }

    /// Begins a nudge, if one is due.
    pub(crate) fn begin_nudge(&self, whom: ToNudge) -> Option<Begun> {
        self.nudges.begin(whom.share()?)
    }

    /// Ends a nudge, on the thread that began it.
    pub(crate) fn end_nudge(&mut self, begun: Begun) {
        self.nudges.end(begun);
    }

    /// The time until a look is due, or a nudge.
    pub(crate) fn pause(&self, whom: ToNudge) -> Duration {
        let look = self.looks.pause(LOOKS_SHARE);
        self.pause_of_nudges(whom)
            .map_or(look, |nudge| nudge.min(look))
    }

    /// The time until a nudge is due, if any is to be.
    pub(crate) fn pause_of_nudges(&self, whom: ToNudge) -> Option<Duration> {
        whom.share().map(|share| self.nudges.pause(share))
    }
}

impl ToNudge {
    fn share(self) -> Option<u32> {
        match self {
            Self::Nobody => None,
            Self::Again => Some(LOOKS_SHARE),
            Self::Left => Some(NUDGES_SHARE),
        }
    }
}

/// Work that is repeated.
#[derive(Debug, Default)]
struct Paced {
    /// The processor time that it takes, over the last some times: one alone may have found cold caches.
    takes: Duration,
    ended: Option<Instant>,
}

/// The processor time at which work began.
pub(crate) struct Begun(Duration);

impl Paced {
    fn begin(&self, share: u32) -> Option<Begun> {
        self.pause(share).is_zero().then(|| Begun(processor_time()))
    }

    fn end(&mut self, Begun(begun): Begun) {
        let took = processor_time().saturating_sub(begun);
        self.takes = (self.takes * (MEAN_OF - 1) + took) / MEAN_OF;
        self.ended = Some(Instant::now());
    }

    /// The time until the work is due: [`LOOK_EVERY`] after the last time, or as much later as it takes long.
    fn pause(&self, share: u32) -> Duration {
        let rest = LOOK_EVERY.max(self.takes * share);
        let left = |ended: Instant| (ended + rest).saturating_duration_since(Instant::now());
        self.ended.map_or(Duration::ZERO, left)
    }
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The sockets of a map whose applications need something.
#[derive(Debug, Default)]
pub(crate) struct Stalled {
    /// The keys of those that can leave now.
    pub leave_now: Vec<u64>,
    /// Whether others are to leave at a later look.
    pub are_leaving: bool,
    /// Whether others are to be nudged where they are: their other ends are closed, and they were not told.
    pub are_orphans: bool,
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
        let mut found = Stalled::default();
        for [key, stall] in words.iter().map(|words| words.map(u64::from_ne_bytes)) {
            match u32::try_from(stall) {
                Ok(abi::STALL_LEAVES) => found.are_leaving = true,
                Ok(abi::STALL_LEAVES_NOW) => found.leave_now.push(key),
                Ok(abi::STALL_ORPHAN) => found.are_orphans = true,
                _ => {}
            }
        }
        Ok(found)
    }

    /// Announces once more to readers that have left, in the namespace of this thread, what waits for them. Those whose
    /// connection is over ask whether it is.
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
    fn looks_and_nudges_are_as_rare_as_they_are_dear() {
        let mut pace = Pace::default();
        let begun = pace.begin_look().unwrap();
        pace.end_look(begun);
        assert!(pace.begin_look().is_none());
        assert!(pace.begin_nudge(ToNudge::Nobody).is_none());
        let begun = pace.begin_nudge(ToNudge::Again).unwrap();
        // An eighth of them counts.
        busy(Duration::from_millis(80));
        pace.end_nudge(begun);
        assert!(pace.pause(ToNudge::Left) <= LOOK_EVERY);
        let again = pace.nudges.pause(LOOKS_SHARE);
        assert!(again > Duration::from_millis(1_900), "{again:?}");
        let left = pace.nudges.pause(NUDGES_SHARE);
        assert!(left > LOOK_EVERY && left < again / 5, "{left:?}");
        std::thread::sleep(LOOK_EVERY + left);
        assert!(pace.begin_look().is_some() && pace.begin_nudge(ToNudge::Again).is_none());
        assert!(pace.begin_nudge(ToNudge::Left).is_some());
        assert_eq!(pace.pause(ToNudge::Left), Duration::ZERO);
    }
}
