//! The maps and the program by which flows are handed to the kernel and taken back, and the calls
//! that come from there.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use aya::{
    Ebpf,
    maps::{HashMap as BpfHashMap, MapData, MapError, RingBuf, SockHash},
};
use ebpf::abi;
use tokio::{io::unix::AsyncFd, sync::Notify, time};

use super::Near;
use crate::{
    listeners::Mark,
    netns_handle::NetnsHandle,
    readers::{LOOK_EVERY, Looker, Nudged, Pace, Readers, ToNudge},
    splice::refusal::SpliceRefusal,
    sys::{self, PodOf},
};

/// The object's maps for spliced flows.
pub(crate) struct SpliceMaps {
    pub near_apps: SockHash<MapData, u64>,
    pub far_apps: SockHash<MapData, u64>,
    pub near_legs: SockHash<MapData, u64>,
    pub far_legs: SockHash<MapData, u64>,
    pub far_sinks: SockHash<MapData, u64>,
    pub orders: BpfHashMap<MapData, u64, PodOf<abi::SpliceSlot>>,
    pub splices: BpfHashMap<MapData, u64, PodOf<abi::Splice>>,
    pub calls: RingBuf<MapData>,
    /// Descriptors of all of these maps.
    pub descriptors: Vec<OwnedFd>,
}

/// The namespace of applications' sockets, if it is not the agent's own.
type Namespace = Option<Arc<NetnsHandle>>;

/// A flow that waits for the kernel's call.
pub(super) struct Caller {
    pub(super) called: Notify,
    /// An application of the flow did not read on, and its sockets have left the sockmaps for good.
    pub(super) is_out: AtomicBool,
    netns: Namespace,
}

impl Caller {
    pub(super) fn new(netns: Namespace, is_out: bool) -> Arc<Self> {
        Arc::new(Self {
            called: Notify::new(),
            is_out: AtomicBool::new(is_out),
            netns,
        })
    }
}

/// Flows that wait for the kernel's call.
type Callers = HashMap<u64, Arc<Caller>>;

/// The maps of one BPF object, and who waits for what its programs do.
pub(super) struct Carrier {
    /// No other has it.
    pub(super) number: u32,
    /// `splice_look`, by a descriptor of its own: who works on the other programs does not hold up
    /// flows.
    pub(super) look: OwnedFd,
    /// The mark of the agent whose hooks leave its own sockets alone.
    pub(super) mark: Option<Mark>,
    maps: Mutex<Maps>,
    callers: Mutex<Callers>,
    readers: Readers,
    to_nudge: Mutex<Left>,
    pace: Mutex<Pace>,
    /// Told when there is something to look at: a flow, or a reader to be nudged.
    to_look: Notify,
    /// The last look has failed.
    cannot_look: AtomicBool,
    /// The programs, where nobody else keeps them: dropped, they would leave the maps.
    pub(super) programs: OnceLock<Ebpf>,
    /// With which another process can go on (`adopt.rs`).
    pub(super) descriptors: Vec<OwnedFd>,
    pub(super) hooks: OnceLock<Vec<OwnedFd>>,
    pub(super) left: AtomicBool,
    /// Dropped, sockets would leave the maps.
    _sockets: [SockHash<MapData, u64>; 3],
}

/// Readers that have left and are to be nudged.
#[derive(Default)]
struct Left {
    whom: ToNudge,
    /// The namespaces of these readers.
    namespaces: Vec<Namespace>,
}

/// The maps of orders and of the kernel's counts.
pub(super) struct Maps {
    pub(super) orders: BpfHashMap<MapData, u64, PodOf<abi::SpliceSlot>>,
    pub(super) splices: BpfHashMap<MapData, u64, PodOf<abi::Splice>>,
    /// The maps of applications' sockets. Dropped, sockets would leave them.
    applications: [SockHash<MapData, u64>; 2],
    /// Entries of `splices` that are forgotten, the oldest first.
    fallow: VecDeque<(Instant, u64)>,
}

/// The kernel gives a removed entry to the next flow at once, though a program may still write to it:
/// longer than any program runs, also one that has to wait for a processor.
const FALLOW: Duration = Duration::from_secs(1);

impl Maps {
    /// Has the sockets of a flow's applications leave. False: they were not in, or are closed.
    fn let_out(&mut self, id: u64) -> bool {
        let [near, far] = &mut self.applications;
        let out = [near.remove(&id), far.remove(&id)];
        out.iter().any(Result::is_ok)
    }

    /// Removes what has lain for long enough.
    pub(super) fn clear(&mut self) {
        while let Some((since, id)) = self.fallow.front().copied() {
            if since.elapsed() < FALLOW {
                return;
            }
            self.fallow.pop_front();
            forgotten(self.splices.remove(&id));
        }
    }
}

impl Left {
    fn add(&mut self, netns: Namespace, whom: ToNudge) {
        let number = |n: &Namespace| n.as_ref().map(Arc::as_ptr);
        if !self.namespaces.iter().any(|n| number(n) == number(&netns)) {
            self.namespaces.push(netns);
        }
        if self.whom != ToNudge::Left {
            self.whom = whom;
        }
    }
}

fn forgotten(removed: Result<(), MapError>) {
    match removed {
        Ok(()) | Err(MapError::KeyNotFound) => {}
        Err(error) => tracing::debug!(%error, "a splice that was forgotten already"),
    }
}

/// `BPF_F_LOCK` (linux/bpf.h): an entry is replaced, or read, where it lies and as a whole. Without it
/// the kernel makes a new one, and the old one may be another flow's while a program still reads it.
pub(super) const IN_PLACE: u64 = 4;

const QUESTION_BYTES: usize = size_of::<abi::SpliceQuestion>();

const NOBODY: abi::Endpoint = abi::Endpoint {
    addr: [0; 16],
    port_be: 0,
    family: 0,
    pad: 0,
};

pub(super) const NO_QUESTION: abi::SpliceQuestion = abi::SpliceQuestion {
    id: 0,
    enrol: 0,
    near_app_cookie: 0,
    near_leg_cookie: 0,
    near_app: NOBODY,
    near_leg: NOBODY,
    far_leg: NOBODY,
    far_app: NOBODY,
};

impl Carrier {
    /// Makes a carrier over these maps and the program that reads them.
    pub(super) fn new(
        look: OwnedFd,
        readers: Readers,
        maps: SpliceMaps,
        mark: Option<Mark>,
        hooks: OnceLock<Vec<OwnedFd>>,
    ) -> Result<(Arc<Self>, Calls), MapError> {
        let near_apps = maps.near_apps.fd().as_fd().try_clone_to_owned();
        let number = MapData::from_fd(near_apps.map_err(MapError::IoError)?)?;
        let number = number.info()?.id();
        let mut descriptors = vec![look.try_clone().map_err(MapError::IoError)?];
        descriptors.extend(readers.descriptors().map_err(MapError::IoError)?);
        descriptors.extend(maps.descriptors);
        let carrier = Arc::new(Self {
            number,
            look,
            mark,
            maps: Mutex::new(Maps {
                orders: maps.orders,
                splices: maps.splices,
                applications: [maps.near_apps, maps.far_apps],
                fallow: VecDeque::new(),
            }),
            callers: Mutex::default(),
            readers,
            to_nudge: Mutex::default(),
            pace: Mutex::default(),
            to_look: Notify::new(),
            cannot_look: AtomicBool::new(false),
            programs: OnceLock::new(),
            descriptors,
            hooks,
            left: AtomicBool::new(false),
            _sockets: [maps.near_legs, maps.far_legs, maps.far_sinks],
        });
        let calls = carrier.calls(maps.calls);
        Ok((carrier, calls))
    }

    /// The reader of this carrier's calls.
    pub(super) fn calls(self: &Arc<Self>, ring: RingBuf<MapData>) -> Calls {
        let carrier = self.clone();
        Calls { ring, carrier }
    }

    /// Runs `splice_look` here and now. `netns`: where the applications' sockets are that it may enrol.
    pub(super) fn look(
        &self,
        question: &abi::SpliceQuestion,
        near: Near,
        netns: Option<&Arc<NetnsHandle>>,
    ) -> Result<abi::SpliceAnswer, SpliceRefusal> {
        let mut out = [0; QUESTION_BYTES];
        let ran = sys::run_program(self.look.as_fd(), sys::bytes::of(question), &mut out);
        let ran = ran.map_err(kernel)?;
        if ran != 0 {
            return Err(SpliceRefusal::Kernel("splice_look failed".into()));
        }
        let answer = sys::bytes::read::<abi::SpliceAnswer>(&out)
            .ok_or_else(|| SpliceRefusal::Kernel("a short answer".into()))?;
        if answer.to_nudge != 0 {
            self.nudge_later(netns.cloned());
        }
        SpliceRefusal::of(&answer, near).map_or(Ok(answer), Err)
    }

    /// Without an order no program redirects any more; the kernel's words go when none can write
    /// them any more.
    pub(super) fn forget(&self, id: u64) {
        let mut maps = self.maps();
        maps.let_out(id);
        forgotten(maps.orders.remove(&id));
        maps.fallow.push_back((Instant::now(), id));
        maps.clear();
    }

    /// Has the sockets of a flow's applications leave the sockmaps, and nudges their readers at the next look.
    pub(super) fn let_out(&self, id: u64, caller: &Caller) {
        if self.maps().let_out(id) {
            caller.is_out.store(true, Relaxed);
            self.nudge_later(caller.netns.clone());
        }
    }

    /// Looks after readers, and nudges them, each when its time has come. Returns the pause until this is to be called
    /// again.
    fn paced_look(&self) -> Duration {
        let looked = self.look_and_nudge();
        let could_not = self.cannot_look.swap(looked.is_err(), Relaxed);
        let error = match looked {
            Ok(pause) => return pause,
            Err(error) => error,
        };
        if !could_not {
            tracing::warn!(%error, "nobody looks after readers in sockmaps until it works: it is tried again every second");
        }
        NOT_AGAIN_FOR
    }

    fn look_and_nudge(&self) -> io::Result<Duration> {
        let mut pace = self.pace();
        let mut looked = Ok(());
        if let Some(begun) = pace.begin_look() {
            looked = self.look_after_readers();
            pace.end_look(begun);
        }
        let whom = self.to_nudge().whom;
        if let Some(begun) = pace.begin_nudge(whom) {
            let nudged = self.nudge();
            pace.end_nudge(begun);
            nudged?;
        }
        drop(pace);
        // Whatever the look has found: somebody waits for the nudge.
        looked?;
        Ok(self.pause())
    }

    /// The time until a look is due, or a nudge.
    fn pause(&self) -> Duration {
        let whom = self.to_nudge().whom;
        self.pace().pause(whom)
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the sockets of flows leave the sockmaps of which an application does not read on.
    fn look_after_readers(&self) -> io::Result<()> {
        let mut maps = self.maps();
        // A flow that ends leaves the maps first, and then these.
        let callers = self.callers();
        let mut stalled = Vec::new();
        for map in &maps.applications {
            stalled.extend(
                self.readers
                    .stalled(map.fd().as_fd(), Looker::Agent)?
                    .leave_now,
            );
        }
        for id in stalled {
            maps.let_out(id);
            let caller = callers.get(&id);
            if let Some(caller) = caller {
                caller.is_out.store(true, Relaxed);
                caller.called.notify_one();
            }
            // Also of a flow that the keeper cares for, whose maps these are, too.
            self.nudge_later(caller.and_then(|caller| caller.netns.clone()));
        }
        Ok(())
    }

    /// Has readers in this namespace nudged that have left.
    pub(super) fn nudge_later(&self, netns: Namespace) {
        self.to_nudge().add(netns, ToNudge::Left);
        self.to_look.notify_one();
    }

    fn nudge(&self) -> io::Result<()> {
        let left = std::mem::take(&mut *self.to_nudge());
        let mut failed = Ok(());
        for netns in left.namespaces {
            let nudged = match &netns {
                None => self.readers.nudge(),
                Some(netns) => netns.within(|| self.readers.nudge()),
            };
            match nudged {
                Ok(Nudged::All) => {}
                Ok(Nudged::NotAll) => self.to_nudge().add(netns, ToNudge::Again),
                Err(error) => {
                    self.to_nudge().add(netns, left.whom);
                    failed = Err(error);
                }
            }
        }
        failed
    }

    fn has_to_look(&self) -> bool {
        !self.callers().is_empty() || self.to_nudge().whom != ToNudge::Nobody
    }

    fn to_nudge(&self) -> MutexGuard<'_, Left> {
        self.to_nudge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes who waits for the kernel's call of this flow.
    pub(super) fn wait_for_calls(&self, id: u64, caller: Arc<Caller>) {
        self.callers().insert(id, caller);
        self.to_look.notify_one();
    }

    /// Wakes every flow.
    pub(super) fn call_all(&self) {
        for caller in self.callers().values() {
            caller.called.notify_one();
        }
    }

    pub(super) fn keep(&self, programs: Ebpf) {
        // Nobody else sets it.
        let _ = self.programs.set(programs);
    }

    pub(super) fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn callers(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls from the kernel: a flow has bytes for the agent.
pub struct Calls {
    ring: RingBuf<MapData>,
    carrier: Arc<Carrier>,
}

impl Calls {
    /// Passes calls on to their flows, for ever. To be run where nothing else can be in the way: a
    /// flow that has called waits.
    ///
    /// # Errors
    /// The ring cannot be waited for.
    pub async fn run(self) -> io::Result<()> {
        let mut ring: AsyncFd<RingBuf<MapData>> = sys::watch(self.ring)?;
        let mut next_look = time::Instant::now() + LOOK_EVERY;
        loop {
            let has_to_look = self.carrier.has_to_look();
            let mut ready = tokio::select! {
                ready = ring.readable_mut() => ready?,
                () = time::sleep_until(next_look), if has_to_look => {
                    next_look = time::Instant::now() + self.carrier.paced_look();
                    continue;
                }
                () = self.carrier.to_look.notified() => {
                    // One that has failed is not tried again sooner.
                    if !self.carrier.cannot_look.load(Relaxed) {
                        next_look = time::Instant::now() + self.carrier.pause();
                    }
                    continue;
                }
            };
            let mut called = 0;
            while let Some(record) = ready.get_inner_mut().next() {
                called += 1;
                let id = record.first_chunk().map(|id| u64::from_ne_bytes(*id));
                let callers = self.carrier.callers();
                if let Some(caller) = id.and_then(|id| callers.get(&id)) {
                    caller.called.notify_one();
                }
            }
            // The kernel may have found it full: then nobody knows who was not called.
            if called >= RING_RECORDS {
                self.carrier.call_all();
            }
            ready.clear_ready();
        }
    }
}

/// The pause after a look that has failed, as for want of descriptors: some readers wait for it.
const NOT_AGAIN_FOR: Duration = Duration::from_secs(1);

/// So many calls fit: each has a header of 8 bytes. A reading that found half of them may have
/// come after a time at which there was no room.
const RING_RECORDS: usize = abi::SPLICE_RING_BYTES as usize / 16 / 2;

/// An error of the kernel's that has no name here.
pub(super) fn kernel(error: impl std::fmt::Display) -> SpliceRefusal {
    SpliceRefusal::Kernel(error.to_string())
}
