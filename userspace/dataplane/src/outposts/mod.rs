//! Network namespaces of this host that are not the agent's own: containers, pods. Processes there are
//! served from inside: the listeners that they are sent to, the sockets that answer them, and the dials
//! on their behalf are all of their namespace.
//!
//! An outpost is set up when a rule first matches there (`connect.h` calls for it), and given up
//! when nobody is left there: it would keep the namespace alive. `find.rs` says who is there.
//!
//! **Invariant**: nobody is sent to a listener that is about to be closed. First the kernel forgets it,
//! and at the next look, a second later, it goes.

mod find;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt, fs, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use aya::maps::{MapData, MapError, RingBuf};
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};
use thiserror::Error;
use tokio::{io::unix::AsyncFd, sync::oneshot};

use crate::{
    answers::RawSockets,
    host,
    listeners::{HoldFilter, Listeners, Opened},
    maps::OutpostsMap,
    space::Space,
    sys::{self, Shared},
};
use ebpf::abi;
use find::Witness;

/// Network namespaces that can be served besides the agent's own.
pub const MAX_NAMESPACES: usize = abi::MAX_OUTPOSTS as usize - 1;

/// Descriptors of each: itself, listeners and raw sockets for two families.
pub const DESCRIPTORS_PER_NAMESPACE: usize = 5;

/// A network namespace that is not the agent's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netns {
    /// The kernel's number, which no other ever has.
    pub cookie: u64,
    /// Its inode's, as `lsns` and `/proc/PID/ns/net` show it.
    pub inode: u32,
    /// In `/run/netns`, when it was found.
    pub name: Option<String>,
}

impl fmt::Display for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => name.fmt(f),
            None => self.inode.fmt(f),
        }
    }
}

/// Why a namespace is not served.
#[derive(Debug, Error)]
pub enum NotServed {
    /// As many are served as may be.
    #[error("as many namespaces as `max_namespaces` allows are served")]
    Full,
    /// Who called has ended, or is elsewhere by now.
    #[error("who called for it has gone")]
    Gone,
    /// Nothing could reach a listener.
    #[error("its loopback is down")]
    LoopbackDown,
    /// It failed a moment ago.
    #[error("it has just been tried")]
    JustTried,
    /// Sockets.
    #[error("cannot open sockets there: {0}")]
    Sockets(io::Error),
    /// The kernel's table.
    #[error("the kernel is not told: {0}")]
    Kernel(MapError),
}

impl NotServed {
    /// Every label, for metrics.
    pub const LABELS: [&str; 6] = [
        "full",
        "gone",
        "loopback_down",
        "just_tried",
        "sockets",
        "kernel",
    ];

    /// As a metric's label.
    pub fn as_str(&self) -> &'static str {
        let [full, gone, loopback_down, just_tried, sockets, kernel] = Self::LABELS;
        match self {
            Self::Full => full,
            Self::Gone => gone,
            Self::LoopbackDown => loopback_down,
            Self::JustTried => just_tried,
            Self::Sockets(_) => sockets,
            Self::Kernel(_) => kernel,
        }
    }
}

/// The agent's sockets in a namespace but for the listeners, for as long as a flow needs them.
#[derive(Debug)]
pub(crate) struct Outpost {
    pub netns: Arc<Netns>,
    pub raw: RawSockets,
    pub space: Arc<Space>,
}

impl Outpost {
    /// Does something in the namespace.
    pub(crate) fn within<T: Send>(
        &self,
        body: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        self.space.within(body)
    }
}

/// A thread that met a rule where the agent had no outpost.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    netns_cookie: u64,
    inode: u32,
    who: Witness,
}

/// The stream of calls for outposts.
pub struct Calling {
    ring: AsyncFd<RingBuf<MapData>>,
}

impl Calling {
    pub(crate) fn new(ring: RingBuf<MapData>) -> io::Result<Self> {
        Ok(Self {
            ring: sys::watch(ring)?,
        })
    }

    /// Waits for the next one.
    ///
    /// # Errors
    /// The ring cannot be waited for: there is no way on.
    pub async fn next(&mut self) -> io::Result<Caller> {
        loop {
            let mut ready = self.ring.readable_mut().await?;
            let record = ready.get_inner_mut().next();
            let Some(call) = record.map(|bytes| sys::unserved_from_bytes(&bytes)) else {
                ready.clear_ready();
                continue;
            };
            if let Some(call) = call {
                return Ok(Caller {
                    netns_cookie: call.netns_cookie,
                    inode: call.inode,
                    who: Witness {
                        pid: call.tgid,
                        tid: call.tid,
                    },
                });
            }
        }
    }
}

/// A new outpost's listeners.
pub struct Settled {
    /// Where connections arrive.
    pub listeners: Listeners,
    /// Ends when they are to be closed.
    pub until: oneshot::Receiver<()>,
    /// Which namespace.
    pub netns: Arc<Netns>,
}

/// An outpost as an operator sees it.
#[derive(Clone, Debug)]
pub struct OutpostView {
    /// Which namespace.
    pub netns: Arc<Netns>,
    /// Somebody there.
    pub pid: u32,
    /// Their `/proc/PID/comm`.
    pub process: String,
    /// When it was set up.
    pub since: SystemTime,
}

struct Standing {
    outpost: Arc<Outpost>,
    listeners: abi::Outpost,
    witness: Witness,
    since: SystemTime,
    /// The kernel sends nobody there any more.
    is_leaving: bool,
    /// Dropped, it closes the listeners.
    _until: oneshot::Sender<()>,
}

/// Every namespace that is served.
pub struct Outposts {
    own_cookie: u64,
    most: usize,
    filter: HoldFilter,
    map: Mutex<OutpostsMap>,
    served: Mutex<Served>,
}

#[derive(Default)]
struct Served {
    standing: BTreeMap<u64, Standing>,
    /// Namespaces that could not be served, since the last look: many may call, and entering them is
    /// not free.
    failed: BTreeSet<u64>,
}

impl Outposts {
    /// `own`: the agent's listeners in its own namespace. At most `most` others.
    pub(crate) fn new(
        filter: HoldFilter,
        mut map: OutpostsMap,
        own: abi::Outpost,
        most: usize,
    ) -> io::Result<Self> {
        let own_cookie = host::netns_cookie()?;
        map.insert(own_cookie, Shared(own), 0)
            .map_err(io::Error::other)?;
        Ok(Self {
            own_cookie,
            most: most.min(MAX_NAMESPACES),
            filter,
            map: Mutex::new(map),
            served: Mutex::default(),
        })
    }

    /// The outpost in a namespace; `Some(None)`: it is the agent's own, and needs none.
    pub(crate) fn at(&self, netns_cookie: u64) -> Option<Option<Arc<Outpost>>> {
        if netns_cookie == self.own_cookie {
            return Some(None);
        }
        let served = self.served();
        let standing = served.standing.get(&netns_cookie)?;
        Some(Some(standing.outpost.clone()))
    }

    /// Sets up an outpost where one was called for; None: there is one already. Takes a millisecond,
    /// within a runtime.
    ///
    /// # Errors
    /// Connections there follow their rule's `fail`, and call again.
    pub fn settle(&self, caller: &Caller) -> Result<Option<Settled>, NotServed> {
        let settled = self.try_to_settle(caller);
        if settled.is_err() {
            let mut served = self.served();
            // Bounded by the threads that can call between two looks, and by this.
            if served.failed.len() < MAX_NAMESPACES {
                served.failed.insert(caller.netns_cookie);
            }
        }
        settled
    }

    /// Sets up an outpost where this process is, before anybody calls for it; None: none is needed. As
    /// [`Self::settle`].
    ///
    /// # Errors
    /// Whoever connects there calls.
    pub fn settle_with(&self, pid: u32) -> Result<Option<Settled>, NotServed> {
        let gone = |_| NotServed::Gone;
        let who = Witness { pid, tid: pid };
        let inode = host::netns_inode(&who.netns()).ok_or(NotServed::Gone)?;
        let is_it = |standing: &Standing| standing.outpost.netns.inode == inode;
        if self.served().standing.values().any(is_it) {
            return Ok(None);
        }
        let space = Space::open(Some(&who.netns())).map_err(gone)?;
        let netns_cookie = space.within(host::netns_cookie).map_err(gone)?;
        if netns_cookie == self.own_cookie {
            return Ok(None);
        }
        self.try_to_settle(&Caller {
            netns_cookie,
            inode,
            who,
        })
    }

    fn try_to_settle(&self, caller: &Caller) -> Result<Option<Settled>, NotServed> {
        let cookie = caller.netns_cookie;
        {
            let mut served = self.served();
            if let Some(standing) = served.standing.get_mut(&cookie) {
                // Somebody came when it was about to be given up.
                if standing.is_leaving {
                    standing.witness = caller.who;
                    self.stay(standing).map_err(NotServed::Kernel)?;
                }
                return Ok(None);
            }
            if served.failed.contains(&cookie) {
                return Err(NotServed::JustTried);
            }
            if served.standing.len() >= self.most {
                return Err(NotServed::Full);
            }
        }
        // Meanwhile flows are served elsewhere.
        let (standing, settled) = self.set_up(caller)?;
        // Before the kernel sends anybody there.
        let mut served = self.served();
        let Entry::Vacant(place) = served.standing.entry(cookie) else {
            // Somebody else's call was met meanwhile.
            return Ok(None);
        };
        let standing = place.insert(standing);
        match self.stay(standing) {
            Ok(()) => Ok(Some(settled)),
            Err(error) => {
                served.standing.remove(&cookie);
                Err(NotServed::Kernel(error))
            }
        }
    }

    fn set_up(&self, caller: &Caller) -> Result<(Standing, Settled), NotServed> {
        let Caller { inode, who, .. } = *caller;
        let (witness, space) = reached(caller, who)
            .or_else(|| {
                // The thread that called has ended, if only just now; then somebody else there will do.
                let witness = find::witnesses(BTreeSet::from([inode])).remove(&inode)?;
                reached(caller, witness)
            })
            .ok_or(NotServed::Gone)?;
        if !space.within(has_loopback).map_err(NotServed::Sockets)? {
            return Err(NotServed::LoopbackDown);
        }
        let open = || Ok((Opened::open(&self.filter, None)?, RawSockets::open(None)?));
        let (opened, raw) = space.within(open).map_err(NotServed::Sockets)?;
        let listeners = opened.to_abi().map_err(NotServed::Sockets)?;
        let netns = Arc::new(Netns {
            cookie: caller.netns_cookie,
            inode,
            name: find::name_of(inode),
        });
        let (close, until) = oneshot::channel();
        let settled = Settled {
            listeners: Listeners::of(opened, netns.cookie).map_err(NotServed::Sockets)?,
            until,
            netns: netns.clone(),
        };
        let standing = Standing {
            outpost: Arc::new(Outpost {
                netns,
                raw,
                space: Arc::new(space),
            }),
            listeners,
            witness,
            since: SystemTime::now(),
            is_leaving: true,
            _until: close,
        };
        Ok((standing, settled))
    }

    /// The kernel sends connections there.
    fn stay(&self, standing: &mut Standing) -> Result<(), MapError> {
        let cookie = standing.outpost.netns.cookie;
        self.map().insert(cookie, Shared(standing.listeners), 0)?;
        standing.is_leaving = false;
        Ok(())
    }

    /// Gives outposts up where nobody is any more. To be called every second. Takes some microseconds
    /// for each, and a walk over `/proc` when somebody has gone.
    pub fn tend(&self) {
        let lonely = self.lonely();
        if lonely.is_empty() {
            return;
        }
        let witnesses = find::witnesses(lonely.clone());
        self.served().standing.retain(|_, standing| {
            let inode = standing.outpost.netns.inode;
            match (witnesses.get(&inode), lonely.contains(&inode)) {
                (_, false) => true,
                (Some(witness), true) => {
                    standing.witness = *witness;
                    if standing.is_leaving
                        && let Err(error) = self.stay(standing)
                    {
                        tracing::error!(%error, "a namespace is not served any more");
                        return false;
                    }
                    true
                }
                (None, true) => !self.leave(standing),
            }
        });
    }

    /// Namespaces whose witness has gone.
    fn lonely(&self) -> BTreeSet<u32> {
        let mut served = self.served();
        served.failed.clear();
        let lonely = served.standing.values().filter_map(|s| {
            let inode = s.outpost.netns.inode;
            (!s.witness.is_in(inode)).then_some(inode)
        });
        lonely.collect()
    }

    /// True: it can be closed.
    fn leave(&self, standing: &mut Standing) -> bool {
        if standing.is_leaving {
            return true;
        }
        standing.is_leaving = true;
        match self.map().remove(&standing.outpost.netns.cookie) {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => tracing::error!(%error, "the kernel does not forget a namespace"),
        }
        false
    }

    /// All of them, in the order in which their namespaces were made.
    pub fn views(&self) -> Vec<OutpostView> {
        let served = self.served();
        let standing = served.standing.values();
        standing
            .map(|standing| OutpostView {
                netns: standing.outpost.netns.clone(),
                pid: standing.witness.pid,
                process: process_name(standing.witness.pid),
                since: standing.since,
            })
            .collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.served().standing.len()
    }

    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn map(&self) -> MutexGuard<'_, OutpostsMap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The namespace that was called from, if that is where this witness is: a thread may end, or go
/// elsewhere, at any moment before its namespace is open.
fn reached(caller: &Caller, witness: Witness) -> Option<(Witness, Space)> {
    let space = Space::open(Some(&witness.netns())).ok()?;
    let cookie = space.within(host::netns_cookie).ok()?;
    (cookie == caller.netns_cookie).then_some((witness, space))
}

/// Whether the calling thread's namespace has a loopback that packets can take.
fn has_loopback() -> io::Result<bool> {
    let needed = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_LOOPBACK;
    let mut devices = getifaddrs()?;
    Ok(devices.any(|device| device.flags.contains(needed)))
}

/// A process names itself: what is no letter could forge terminal output.
fn process_name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().replace(char::is_control, "?")
}
