//! The shortcut: two sockets of this host hand bytes to each other, past TCP. What decides is
//! in `shortcut.h`; here it is attached, bounded, kept alive, and read.
//!
//! **Invariant**: the sk_msg program is in the map of sockets before any socket is: the kernel
//! copies it at insertion. Neither is ever taken from a live flow; flows that outlive the agent
//! hold program and maps by themselves, and return to TCP once [`STAYS_OPEN`] has passed. The keeper then has their
//! sockets leave the map.

mod canary;
mod flows;
mod limits;
mod readers;
mod refusals;

use std::{
    fs::File,
    io,
    io::Read,
    os::fd::{AsFd, OwnedFd},
    sync::Mutex,
    time::Duration,
};

use aya::{
    Btf, Ebpf,
    maps::{Array, MapData, MapError, PerCpuArray, RingBuf, SkStorage, SockHash},
    programs::{CgroupAttachMode, Iter, SchedClassifier, SkMsg, SockOps, sock_ops::SockOpsLinkId},
};
use ebpf::abi;
use nix::time::{ClockId, clock_gettime};
use tokio::io::unix::AsyncFd;

use crate::{
    attach::{AttachError, lock, program, refused},
    counters::Turn,
    legs::Legs,
    listeners::Mark,
    load,
    maps::{self, MapsError, take},
    probe_result::ProbeResult,
    readers::{self as any_readers, LOOK_EVERY},
    rule_names::Names,
    sys::{self, PodOf},
};

pub use canary::Fionread;
pub use flows::OnShortcut;
use flows::{Ends, Rules};
pub use readers::ShortcutReaders;
use refusals::Refusals;

/// How long flows stay on the shortcut when the agent says nothing: several of its turns, on a
/// machine that is busy.
const STAYS_OPEN: Duration = Duration::from_secs(5);

const ENROLS: &str = "on_shortcut_event";
const CHOOSES: &str = "take_shortcut";
const NUDGES: &str = "nudge_readers";
const LEGS: &str = "leg_look";

/// An [`abi::ShortcutWish`], which a connect hook writes.
type Wish = [u8; size_of::<abi::ShortcutWish>()];

/// Messages and flows of sockets that are on the shortcut.
#[derive(Clone, Debug, Default)]
pub struct ShortcutCounts {
    /// Flows of which both ends are on it now.
    pub flows: u64,
    /// Connections between an application and the agent of which both ends are on it now.
    pub legs: u64,
    /// How many of these have taken TCP again for want of memory, since the agent began.
    pub legs_without_memory: u64,
    /// Messages and bytes, by the way that they took.
    pub by_turn: Vec<(Turn, u64, u64)>,
    /// Edges that readers were given again.
    pub nudges: u64,
}

/// Tells when bytes in TCP begin to lie behind bytes that wait in a reader's other queue.
pub struct Spills(AsyncFd<RingBuf<MapData>>);

impl Spills {
    /// Waits for the next one.
    ///
    /// # Errors
    /// The ring cannot be waited for: there is no way on.
    pub async fn next(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable_mut().await?;
            let ring = ready.get_inner_mut();
            let mut any = false;
            while ring.next().is_some() {
                any = true;
            }
            ready.clear_ready();
            if any {
                return Ok(());
            }
        }
    }
}

const PATH: &str = "shortcut";

/// Tries the shortcut out on loopback sockets of this process's own, beside any agent's. Returns what FIONREAD
/// tells there, too, if it works.
pub fn try_out() -> (ProbeResult, Option<Fionread>) {
    let mut says = None;
    let tried = ProbeResult::of(PATH, || {
        says = Some(canary::try_out(None)?);
        Ok(())
    });
    (tried, says)
}

pub(crate) struct Shortcut {
    mark: Option<Mark>,
    limits: Array<MapData, PodOf<abi::ShortcutLimits>>,
    /// Another descriptor of `limits`, for another process.
    limits_descriptor: OwnedFd,
    wishes: SkStorage<MapData, Wish>,
    refusals: Refusals,
    ends: Ends,
    rules: Rules,
    legs: Legs,
    socks: SockHash<MapData, u64>,
    turns: PerCpuArray<MapData, PodOf<abi::TurnCount>>,
    counts: PerCpuArray<MapData, PodOf<abi::ShortcutCount>>,
    nudge_counts: Array<MapData, PodOf<abi::NudgeCount>>,
    spills: Option<RingBuf<MapData>>,
    nudges: u64,
    /// The look over its sockets, once loaded.
    readers: Option<ShortcutReaders>,
    /// sk_msg and the iterator are loaded, which is done once.
    loaded: bool,
    enrols: Option<SockOpsLinkId>,
    /// A rule asks for it.
    wanted: bool,
    /// The result of probing the shortcut, once a rule has asked for it.
    tried: Option<ProbeResult>,
}

impl Shortcut {
    /// `mark`: of the agent whose hooks leave its own sockets alone.
    pub(crate) fn take(ebpf: &mut Ebpf, mark: Option<Mark>) -> Result<Self, MapsError> {
        Ok(Self {
            mark,
            limits_descriptor: maps::descriptor(ebpf, "shortcut_limits")?,
            limits: take(ebpf, "shortcut_limits")?,
            refusals: Refusals::of(ebpf)?,
            wishes: take(ebpf, "shortcut_wishes")?,
            ends: take(ebpf, "shortcut_ends")?,
            rules: Rules::default(),
            legs: Legs::default(),
            socks: take(ebpf, "shortcut_socks")?,
            turns: take(ebpf, "shortcut_turns")?,
            counts: take(ebpf, "shortcut_counts")?,
            nudge_counts: take(ebpf, "nudges")?,
            spills: Some(take(ebpf, "spills")?),
            nudges: 0,
            readers: None,
            loaded: false,
            enrols: None,
            wanted: false,
            tried: None,
        })
    }

    /// Called before a policy that asks for it is in force, and again for each such policy.
    /// A host that cannot have it keeps its flows on TCP, which the log says.
    pub(crate) fn open(&mut self, ebpf: &Mutex<Ebpf>, cgroup: &File) {
        self.wanted = true;
        if self.enrols.is_some() {
            return;
        }
        let loaded = self.refusals.load(&mut lock(ebpf));
        if let Err(error) = loaded {
            tracing::warn!("flows that are refused the shortcut cannot be listed: {error}");
        }
        let opened = ProbeResult::of(PATH, || {
            // Not under the lock: it takes a while.
            canary::try_out(self.mark)?;
            let attached = self
                .attach(&mut lock(ebpf), cgroup)
                .and_then(|()| self.stay_open());
            attached.map_err(|e| e.to_string())
        });
        self.tried = Some(opened);
    }

    /// The result of probing the shortcut, to be told once.
    pub(crate) fn tell(&mut self) -> Option<ProbeResult> {
        self.tried.take()
    }

    /// Called when no rule of the policy in force asks for it. Flows that are on it stay.
    pub(crate) fn leave_off(&mut self) {
        self.wanted = false;
    }

    fn attach(&mut self, ebpf: &mut Ebpf, cgroup: &File) -> Result<(), AttachError> {
        if !self.loaded {
            self.load(ebpf)?;
        }
        let hook: &mut SockOps = program(ebpf, ENROLS)?;
        if hook.fd().is_err() {
            load::retry_load(|| hook.load()).map_err(refused(ENROLS))?;
        }
        let link = hook.attach(cgroup, CgroupAttachMode::Single);
        self.enrols = Some(link.map_err(refused(ENROLS))?);
        let look: &mut SchedClassifier = program(ebpf, LEGS)?;
        let look = look.fd().map_err(refused(LEGS))?.as_fd();
        let look = look.try_clone_to_owned().map_err(AttachError::Sockets)?;
        self.legs.open(look);
        Ok(())
    }

    fn load(&mut self, ebpf: &mut Ebpf) -> Result<(), AttachError> {
        let btf = Btf::from_sys_fs().map_err(|e| AttachError::Load(e.into()))?;
        let nudges: &mut Iter = program(ebpf, NUDGES)?;
        // An attempt before may have come half-way.
        if nudges.fd().is_err() {
            nudges.load("tcp", &btf).map_err(refused(NUDGES))?;
        }
        let chooses: &mut SkMsg = program(ebpf, CHOOSES)?;
        if chooses.fd().is_err() {
            load::retry_load(|| chooses.load()).map_err(refused(CHOOSES))?;
        }
        let socks = self.socks.fd().as_fd().try_clone_to_owned();
        let limits = self.limits_descriptor.try_clone();
        let readers = any_readers::load::readers(ebpf)?;
        let readers = socks
            .and_then(|socks| ShortcutReaders::new(readers, socks, limits?))
            .map_err(AttachError::Sockets)?;
        self.readers = Some(readers);
        let chooses: &mut SkMsg = program(ebpf, CHOOSES)?;
        chooses.attach(self.socks.fd()).map_err(refused(CHOOSES))?;
        let look: &mut SchedClassifier = program(ebpf, LEGS)?;
        if look.fd().is_err() {
            load::retry_load(|| look.load()).map_err(refused(LEGS))?;
        }
        self.loaded = true;
        Ok(())
    }

    /// To be called every second: flows return to TCP when it is not. Detaches when no rule asks
    /// for the shortcut and nobody is on it.
    pub(crate) fn tend(&mut self, ebpf: &mut Ebpf) -> Result<(), AttachError> {
        if self.enrols.is_none() {
            return Ok(());
        }
        self.stay_open()?;
        if self.wanted || self.ends.keys().next().is_some() {
            return Ok(());
        }
        if let Some(link) = self.enrols.take() {
            let hook: &mut SockOps = program(ebpf, ENROLS)?;
            hook.detach(link).map_err(refused(ENROLS))?;
        }
        self.close()
    }

    fn stay_open(&mut self) -> Result<(), AttachError> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        let stays = test_hooks::get().shortcut_stays.unwrap_or(STAYS_OPEN);
        let until = now.saturating_add(stays).as_nanos();
        self.set_limits(abi::ShortcutLimits {
            until_ns: u64::try_from(until).unwrap_or(u64::MAX),
            host_pages: limits::host_pages(),
            flow_bytes: limits::flow_bytes(),
            bulk_bytes: abi::SHORTCUT_BULK_BYTES,
        })
    }

    fn set_limits(&mut self, limits: abi::ShortcutLimits) -> Result<(), AttachError> {
        let set = self.limits.set(0, PodOf(limits), 0);
        set.map_err(layout("shortcut_limits"))
    }

    /// From now on flows return to TCP.
    pub(crate) fn close(&mut self) -> Result<(), AttachError> {
        self.legs.close();
        self.set_limits(abi::ShortcutLimits {
            until_ns: 0,
            host_pages: 0,
            flow_bytes: 0,
            bulk_bytes: 0,
        })
    }

    /// The flows on it, and those that a rule wants there and that are not. To be called before a policy is in
    /// force, as well, after which the kernel's numbers of rules mean others.
    pub(crate) fn flows(&mut self, names: &Names) -> Result<Vec<OnShortcut>, AttachError> {
        let refusals = self.refusals.read();
        if let Err(error) = &refusals {
            // Nothing but a list depends on them.
            tracing::warn!("flows that are refused the shortcut cannot be listed: {error}");
        }
        let flows = self.rules.flows(&self.ends, refusals.ok(), names);
        flows.map_err(layout("shortcut_ends"))
    }

    /// The way to shorten the legs of flows that the agent reads, by which nothing is shortened before [`Self::open`].
    pub(crate) fn legs(&self) -> &Legs {
        &self.legs
    }

    pub(crate) fn is_open(&self) -> bool {
        self.enrols.is_some()
    }

    /// The look over its sockets, once a policy has asked for the shortcut and the host can have it.
    pub(crate) fn readers(&self) -> Option<&ShortcutReaders> {
        self.readers.as_ref()
    }

    /// Must be called within a runtime; once.
    pub(crate) fn spills(&mut self) -> io::Result<Option<Spills>> {
        let ring = self.spills.take();
        ring.map(|ring| sys::watch(ring).map(Spills)).transpose()
    }

    /// Looks over the sockets of this namespace. Returns whether to look again: somebody's queue
    /// is not empty yet.
    pub(crate) fn nudge(&mut self, ebpf: &mut Ebpf) -> Result<bool, AttachError> {
        if !self.loaded {
            return Ok(false);
        }
        let none = abi::NudgeCount {
            nudged: 0,
            filled: 0,
        };
        let zeroed = self.nudge_counts.set(0, PodOf(none), 0);
        zeroed.map_err(layout("nudges"))?;
        let nudges: &mut Iter = program(ebpf, NUDGES)?;
        let nudges = nudges.fd().map_err(refused(NUDGES))?.as_fd();
        // The program writes nothing; to read is to run it.
        let look = sys::iterate_over(nudges, None);
        look.and_then(|mut look| look.read_to_end(&mut Vec::new()))
            .map_err(AttachError::Readers)?;
        let PodOf(count) = self.nudge_counts.get(&0, 0).map_err(layout("nudges"))?;
        self.nudges += count.nudged;
        Ok(count.filled > 0)
    }

    /// Has ends leave the shortcut of which a reader does not read on, and nudges it. Returns the pause until this is
    /// to be called again.
    pub(crate) fn look_after_readers(&mut self) -> Result<Duration, AttachError> {
        self.legs.end_lingering();
        if self.readers().is_none_or(ShortcutReaders::is_idle) {
            return Ok(LOOK_EVERY);
        }
        if self.is_open() {
            // Ends leave a shortcut that is not open: an agent that was stopped for a while says first that it lives.
            self.stay_open()?;
        }
        let legs = &self.legs;
        let looked = self
            .readers
            .as_mut()
            .map(|readers| readers.look(|cookie| legs.note_left(cookie)));
        looked
            .unwrap_or(Ok(LOOK_EVERY))
            .map_err(AttachError::Readers)
    }

    pub(crate) fn counts(&self) -> Result<ShortcutCounts, AttachError> {
        let counts = self.counts.get(&0, 0).map_err(layout("shortcut_counts"))?;
        let begun: u64 = counts.iter().map(|PodOf(n)| n.begun).sum();
        let ended: u64 = counts.iter().map(|PodOf(n)| n.ended).sum();
        let by_turn = Turn::ALL.into_iter().map(|turn| {
            let counts = self.turns.get(&(turn as u32), 0);
            let counts = counts.map_err(layout("shortcut_turns"))?;
            let messages = counts.iter().map(|PodOf(n)| n.messages).sum();
            let bytes = counts.iter().map(|PodOf(n)| n.bytes).sum();
            Ok((turn, messages, bytes))
        });
        Ok(ShortcutCounts {
            // Read one after the other, on several CPUs.
            flows: begun.saturating_sub(ended),
            legs: self.legs.count() as u64,
            legs_without_memory: self.legs.without_memory(),
            by_turn: by_turn.collect::<Result<_, AttachError>>()?,
            nudges: self.nudges,
        })
    }
}

fn layout(map: &'static str) -> impl Fn(MapError) -> AttachError {
    move |e| AttachError::Maps(MapsError::Layout(map, e))
}
