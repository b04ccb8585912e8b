//! Decisions that stand for later connections of the same process to the same endpoint. The
//! kernel recalls them at `connect()`: `ebpf/src/recall.h` says for whom.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use aya::maps::MapError;
use ebpf::abi;
use nix::{
    libc,
    time::{ClockId, clock_gettime},
};
use thiserror::Error;

use crate::{causes::causes, host, maps::RememberedMap, sys::PodOf};

/// The process that opened a flow, and where to: who it is remembered as.
#[derive(Clone, Copy, Debug)]
pub struct Opener {
    who: abi::Opener,
    forgets: u32,
    generation: u8,
}

impl Opener {
    pub(crate) fn of(connect: &abi::Connect) -> Self {
        Self {
            who: connect.opener,
            forgets: connect.forgets,
            generation: connect.generation,
        }
    }

    pub(crate) fn netns_cookie(&self) -> u64 {
        self.who.netns_cookie
    }
}

/// Why a decision does not stand for later connections: they come to the agent as well.
#[derive(Debug, Error)]
pub enum NotRemembered {
    /// Since the flow was opened, everything was forgotten.
    #[error("everything was forgotten meanwhile")]
    Forgotten,
    /// The table of remembered decisions is full.
    #[error("as many decisions are remembered as can be")]
    Full,
    /// The kernel.
    #[error("the kernel refuses: {}", causes(.0))]
    Kernel(MapError),
}

impl NotRemembered {
    /// Every label, for metrics.
    pub const LABELS: [&str; 3] = ["forgotten", "full", "kernel"];

    /// The reason as a metric's label.
    pub fn as_str(&self) -> &'static str {
        let [forgotten, full, kernel] = Self::LABELS;
        match self {
            Self::Forgotten => forgotten,
            Self::Full => full,
            Self::Kernel(_) => kernel,
        }
    }
}

impl From<MapError> for NotRemembered {
    fn from(error: MapError) -> Self {
        match &error {
            MapError::SyscallError(e) if e.io_error.raw_os_error() == Some(libc::E2BIG) => {
                Self::Full
            }
            _ => Self::Kernel(error),
        }
    }
}

/// The remembered decisions.
pub struct Remembered {
    map: Mutex<RememberedMap>,
    /// How often everything was forgotten: what does not carry this number holds for nobody.
    forgets: AtomicU32,
}

impl Remembered {
    pub(crate) fn new(map: RememberedMap) -> Self {
        Self {
            map: Mutex::new(map),
            forgets: AtomicU32::new(0),
        }
    }

    /// From now on, and for so long, the kernel decides as this rule did: to bypass.
    ///
    /// # Errors
    /// It does not; later connections come to the agent.
    pub fn remember(
        &self,
        opener: &Opener,
        rule: usize,
        lasts: Duration,
    ) -> Result<(), NotRemembered> {
        if opener.forgets != self.forgets.load(SeqCst) {
            return Err(NotRemembered::Forgotten);
        }
        let until = now() + lasts;
        let decision = abi::Remembered {
            until_ns: until.as_nanos() as u64,
            forgets: opener.forgets,
            slot: rule as u16,
            generation: opener.generation,
            pad: 0,
        };
        // Should everything be forgotten at this very moment, the kernel sees that it is stale.
        Ok(self.map().insert(PodOf(opener.who), PodOf(decision), 0)?)
    }

    /// How many decisions are remembered, those included that have just expired.
    ///
    /// # Errors
    /// The kernel's.
    pub fn count(&self) -> Result<usize, MapError> {
        Ok(self.openers()?.len())
    }

    /// Takes out what holds for nobody any more: it has expired, or the process has ended. To be
    /// called now and then.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sweep(&self) -> Result<(), MapError> {
        let openers = self.openers()?;
        if openers.is_empty() {
            return Ok(());
        }
        let now_ns = now().as_nanos() as u64;
        let forgets = self.forgets.load(SeqCst);
        let mut alive = Alive::default();
        for who in openers {
            let found = self.map().get(&PodOf(who), 0);
            let stands = match found {
                Ok(PodOf(d)) => d.until_ns >= now_ns && d.forgets == forgets && alive.is(&who),
                Err(MapError::KeyNotFound) => continue,
                Err(error) => return Err(error),
            };
            if !stands {
                self.remove(&who)?;
            }
        }
        Ok(())
    }

    /// The kernel has been told already that everything is forgotten; here goes what it was.
    pub(crate) fn forget(&self, forgets: u32) -> Result<(), MapError> {
        self.forgets.store(forgets, SeqCst);
        self.openers()?.iter().try_for_each(|who| self.remove(who))
    }

    fn remove(&self, who: &abi::Opener) -> Result<(), MapError> {
        match self.map().remove(&PodOf(*who)) {
            Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(e)) if e.io_error.raw_os_error() == Some(libc::ENOENT) => {
                Ok(())
            }
            other => other,
        }
    }

    /// Collected first: an entry that is removed sends the iteration back to its beginning.
    fn openers(&self) -> Result<Vec<abi::Opener>, MapError> {
        let map = self.map();
        let keys = map.keys().take(abi::MAX_REMEMBERED as usize);
        keys.map(|key| key.map(|PodOf(who)| who)).collect()
    }

    fn map(&self) -> MutexGuard<'_, RememberedMap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// Processes that are still there, each looked up once.
struct Alive {
    /// None where this agent does not see every process: then nobody is taken for dead.
    tick_ns: Option<u64>,
    since_ticks: HashMap<u32, Option<u64>>,
}

impl Default for Alive {
    fn default() -> Self {
        Self {
            tick_ns: host::sees_every_process().then(host::tick_ns).flatten(),
            since_ticks: HashMap::new(),
        }
    }
}

impl Alive {
    fn is(&mut self, who: &abi::Opener) -> bool {
        let Some(tick_ns) = self.tick_ns else {
            return true;
        };
        let since = self
            .since_ticks
            .entry(who.tgid)
            .or_insert_with(|| host::started_ticks(who.tgid));
        *since == Some(who.start_ns / tick_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(tgid: u32, start_ns: u64) -> abi::Opener {
        abi::Opener {
            start_ns,
            execs: 0,
            cgroup_id: 0,
            netns_cookie: 0,
            orig_dst: abi::Endpoint {
                addr: [0; 16],
                port_be: 0,
                family: 0,
                pad: 0,
            },
            tgid,
            uid: 0,
            gid: 0,
            comm: [0; 16],
        }
    }

    #[test]
    fn what_holds_for_nobody_is_taken_out_and_no_more_than_fit_are_taken_in() {
        let mut object = aya::Ebpf::load(ebpf::OBJECT).unwrap();
        let remembered = Remembered::new(crate::maps::take(&mut object, "remembered").unwrap());
        let own = std::process::id();
        let tick_ns = host::tick_ns().unwrap();
        let alive = process(own, host::started_ticks(own).unwrap() * tick_ns);
        let as_opener = |who: abi::Opener, forgets| Opener {
            who,
            forgets,
            generation: 1,
        };
        let hour = Duration::from_secs(3600);
        for (who, lasts) in [
            (alive, hour),
            // It has ended.
            (process(u32::MAX, 0), hour),
            // It has expired.
            (abi::Opener { execs: 1, ..alive }, Duration::ZERO),
        ] {
            remembered.remember(&as_opener(who, 0), 7, lasts).unwrap();
        }
        assert_eq!(remembered.count().unwrap(), 3);
        remembered.sweep().unwrap();
        assert_eq!(remembered.openers().unwrap(), [alive]);
        let PodOf(kept) = remembered.map().get(&PodOf(alive), 0).unwrap();
        assert_eq!((kept.slot, kept.generation, kept.forgets), (7, 1, 0));

        remembered.forget(1).unwrap();
        assert_eq!(remembered.count().unwrap(), 0);
        let late = remembered.remember(&as_opener(alive, 0), 7, hour);
        assert!(matches!(late, Err(NotRemembered::Forgotten)));

        for execs in 0..u64::from(abi::MAX_REMEMBERED) {
            let who = abi::Opener { execs, ..alive };
            remembered.remember(&as_opener(who, 1), 7, hour).unwrap();
        }
        let execs = u64::from(abi::MAX_REMEMBERED);
        let one_more = as_opener(abi::Opener { execs, ..alive }, 1);
        let refused = remembered.remember(&one_more, 7, hour);
        assert!(matches!(refused, Err(NotRemembered::Full)), "{refused:?}");
        // Who is remembered can be remembered for longer.
        remembered.remember(&as_opener(alive, 1), 8, hour).unwrap();
        remembered.forget(2).unwrap();
        assert_eq!(remembered.count().unwrap(), 0);
    }

    #[test]
    fn a_process_is_known_by_its_number_and_its_beginning() {
        let own = std::process::id();
        let tick_ns = host::tick_ns().unwrap();
        let start_ns = host::started_ticks(own).unwrap() * tick_ns;
        let mut alive = Alive {
            tick_ns: Some(tick_ns),
            since_ticks: HashMap::new(),
        };
        assert!(alive.is(&process(own, start_ns + tick_ns / 2)));
        // Another one had the number before.
        assert!(!alive.is(&process(own, start_ns - tick_ns)));
        assert!(!alive.is(&process(u32::MAX, start_ns)));
        let mut unseen = Alive {
            tick_ns: None,
            since_ticks: HashMap::new(),
        };
        assert!(unseen.is(&process(u32::MAX, start_ns)));
    }
}
