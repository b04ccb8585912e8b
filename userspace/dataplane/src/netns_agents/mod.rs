//! Network namespaces of this host that are not the agent's own: containers, pods. Processes there are
//! served from inside: the listeners that they are sent to, the sockets that answer them, and the dials
//! on their behalf are all of their namespace.
//!
//! A [`NetnsAgent`] holds the agent's sockets in one such namespace. It is set up when a rule first
//! matches there (`connect.h` sends a [`ServeRequest`]), and given up when no thread is left there:
//! otherwise it would keep the namespace alive. `threads.rs` finds the threads.
//!
//! **Invariant**: nobody is sent to a listener that is about to be closed. First the kernel forgets it,
//! and at the next look, a second later, it goes.

mod threads;

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
    causes::{causes, other},
    host,
    listeners::{HoldFilter, Listeners, Opened},
    maps::NetnsAgentsMap,
    netns_handle::NetnsHandle,
    sys::{self, PodOf},
};
use ebpf::abi;
use threads::NetnsThread;

/// Network namespaces that can be served besides the agent's own.
pub const MAX_NAMESPACES: usize = abi::MAX_NETNS_AGENTS as usize - 1;

/// Descriptors of each: itself, listeners and raw sockets for two families.
pub const DESCRIPTORS_PER_NAMESPACE: usize = 5;

/// A network namespace that is not the agent's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netns {
    /// The kernel's number, which no other ever has.
    pub cookie: u64,
    /// The number of the namespace's inode, as `lsns` and `/proc/PID/ns/net` show it.
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
    /// The limit of served namespaces is reached.
    #[error("as many namespaces as `max_namespaces` allows are served")]
    Full,
    /// The thread that made the request has ended, or is elsewhere by now.
    #[error("who called for it has gone")]
    Gone,
    /// Nothing could reach a listener.
    #[error("its loopback is down")]
    LoopbackDown,
    /// The namespace could not be served a moment ago.
    #[error("it has just been tried")]
    JustTried,
    /// Sockets.
    #[error("cannot open sockets there: {0}")]
    Sockets(io::Error),
    /// The kernel's table.
    #[error("the kernel is not told: {}", causes(.0))]
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

    /// The reason as a metric's label.
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
pub(crate) struct NetnsAgent {
    pub netns: Arc<Netns>,
    pub raw: RawSockets,
    pub handle: Arc<NetnsHandle>,
}

impl NetnsAgent {
    /// Does something in the namespace.
    pub(crate) fn within<T: Send>(
        &self,
        body: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        self.handle.within(body)
    }
}

/// A request to serve a namespace: a thread there met a rule, and the agent has no sockets there.
#[derive(Clone, Copy, Debug)]
pub struct ServeRequest {
    netns_cookie: u64,
    inode: u32,
    who: NetnsThread,
}

/// The stream of requests to serve namespaces.
pub struct ServeRequests {
    ring: AsyncFd<RingBuf<MapData>>,
}

impl ServeRequests {
    pub(crate) fn new(ring: RingBuf<MapData>) -> io::Result<Self> {
        Ok(Self {
            ring: sys::watch(ring)?,
        })
    }

    /// Waits for the next one.
    ///
    /// # Errors
    /// The ring cannot be waited for: there is no way on.
    pub async fn next(&mut self) -> io::Result<ServeRequest> {
        loop {
            let mut ready = self.ring.readable_mut().await?;
            let record = ready.get_inner_mut().next();
            let Some(call) = record.map(|bytes| sys::bytes::read::<abi::Unserved>(&bytes)) else {
                ready.clear_ready();
                continue;
            };
            if let Some(call) = call {
                return Ok(ServeRequest {
                    netns_cookie: call.netns_cookie,
                    inode: call.inode,
                    who: NetnsThread {
                        pid: call.tgid,
                        tid: call.tid,
                    },
                });
            }
        }
    }
}

/// The listeners in a namespace that is served from now on.
pub struct NewNetnsListeners {
    /// The listeners at which connections arrive.
    pub listeners: Listeners,
    /// Ends when they are to be closed.
    pub until: oneshot::Receiver<()>,
    /// The namespace.
    pub netns: Arc<Netns>,
}

/// A served namespace as an operator sees it.
#[derive(Clone, Debug)]
pub struct NetnsAgentView {
    /// The namespace.
    pub netns: Arc<Netns>,
    /// Somebody there.
    pub pid: u32,
    /// The process's name, from `/proc/PID/comm`.
    pub process: String,
    /// When it was set up.
    pub since: SystemTime,
}

struct ServedNetns {
    netns_agent: Arc<NetnsAgent>,
    listeners: abi::NetnsAgent,
    thread: NetnsThread,
    since: SystemTime,
    /// The kernel sends nobody there any more.
    is_leaving: bool,
    /// Dropped, it closes the listeners.
    _until: oneshot::Sender<()>,
}

/// Every namespace that is served.
pub struct NetnsAgents {
    own_cookie: u64,
    most: usize,
    filter: HoldFilter,
    map: Mutex<NetnsAgentsMap>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_cookie: BTreeMap<u64, ServedNetns>,
    /// Namespaces that could not be served, since the last look: many may call, and entering them is
    /// not free.
    failed: BTreeSet<u64>,
}

impl NetnsAgents {
    /// `own`: the agent's listeners in its own namespace. At most `most` others.
    pub(crate) fn new(
        filter: HoldFilter,
        mut map: NetnsAgentsMap,
        own: abi::NetnsAgent,
        most: usize,
    ) -> io::Result<Self> {
        let own_cookie = host::netns_cookie()?;
        map.insert(own_cookie, PodOf(own), 0).map_err(other)?;
        Ok(Self {
            own_cookie,
            most: most.min(MAX_NAMESPACES),
            filter,
            map: Mutex::new(map),
            state: Mutex::default(),
        })
    }

    /// The agent's sockets in a namespace, if it is served; `Some(None)`: the namespace is the agent's own,
    /// and needs none.
    pub(crate) fn served(&self, netns_cookie: u64) -> Option<Option<Arc<NetnsAgent>>> {
        if netns_cookie == self.own_cookie {
            return Some(None);
        }
        let state = self.state();
        let served_netns = state.by_cookie.get(&netns_cookie)?;
        Some(Some(served_netns.netns_agent.clone()))
    }

    /// Serves the namespace of a request; None: it is served already. Takes a millisecond,
    /// within a runtime.
    ///
    /// # Errors
    /// Connections there follow their rule's `fail`, and call again.
    pub fn serve(&self, request: &ServeRequest) -> Result<Option<NewNetnsListeners>, NotServed> {
        let new = self.try_to_serve(request);
        if new.is_err() {
            let mut state = self.state();
            // Bounded by the threads that can call between two looks, and by this.
            if state.failed.len() < MAX_NAMESPACES {
                state.failed.insert(request.netns_cookie);
            }
        }
        new
    }

    /// Serves the namespace of a process before any thread there asks for it; None: it is served already, or
    /// is the agent's own. Takes as long as [`Self::serve`].
    ///
    /// # Errors
    /// Whoever connects there calls.
    pub fn serve_process(&self, pid: u32) -> Result<Option<NewNetnsListeners>, NotServed> {
        let gone = |_| NotServed::Gone;
        let who = NetnsThread { pid, tid: pid };
        let inode = host::netns_inode(&who.netns()).ok_or(NotServed::Gone)?;
        let is_it = |served_netns: &ServedNetns| served_netns.netns_agent.netns.inode == inode;
        if self.state().by_cookie.values().any(is_it) {
            return Ok(None);
        }
        let handle = NetnsHandle::open(Some(&who.netns())).map_err(gone)?;
        let netns_cookie = handle.within(host::netns_cookie).map_err(gone)?;
        if netns_cookie == self.own_cookie {
            return Ok(None);
        }
        self.try_to_serve(&ServeRequest {
            netns_cookie,
            inode,
            who,
        })
    }

    fn try_to_serve(&self, request: &ServeRequest) -> Result<Option<NewNetnsListeners>, NotServed> {
        let cookie = request.netns_cookie;
        {
            let mut state = self.state();
            if let Some(served_netns) = state.by_cookie.get_mut(&cookie) {
                // Somebody came when it was about to be given up.
                if served_netns.is_leaving {
                    served_netns.thread = request.who;
                    self.stay(served_netns).map_err(NotServed::Kernel)?;
                }
                return Ok(None);
            }
            if state.failed.contains(&cookie) {
                return Err(NotServed::JustTried);
            }
            if state.by_cookie.len() >= self.most {
                return Err(NotServed::Full);
            }
        }
        // Meanwhile flows are served elsewhere.
        let (served_netns, new) = self.set_up(request)?;
        // Before the kernel sends anybody there.
        let mut state = self.state();
        let Entry::Vacant(place) = state.by_cookie.entry(cookie) else {
            // Somebody else's call was met meanwhile.
            return Ok(None);
        };
        let served_netns = place.insert(served_netns);
        match self.stay(served_netns) {
            Ok(()) => Ok(Some(new)),
            Err(error) => {
                state.by_cookie.remove(&cookie);
                Err(NotServed::Kernel(error))
            }
        }
    }

    fn set_up(
        &self,
        request: &ServeRequest,
    ) -> Result<(ServedNetns, NewNetnsListeners), NotServed> {
        let ServeRequest { inode, who, .. } = *request;
        let (thread, handle) = reached(request, who)
            .or_else(|| {
                // The thread that called has ended, if only just now; then somebody else there will do.
                let thread = threads::of_each(BTreeSet::from([inode])).remove(&inode)?;
                reached(request, thread)
            })
            .ok_or(NotServed::Gone)?;
        if !handle.within(has_loopback).map_err(NotServed::Sockets)? {
            return Err(NotServed::LoopbackDown);
        }
        let open = || Ok((Opened::open(&self.filter, None)?, RawSockets::open(None)?));
        let (opened, raw) = handle.within(open).map_err(NotServed::Sockets)?;
        let listeners = opened.to_abi().map_err(NotServed::Sockets)?;
        let netns = Arc::new(Netns {
            cookie: request.netns_cookie,
            inode,
            name: threads::name_of(inode),
        });
        let (close, until) = oneshot::channel();
        let new = NewNetnsListeners {
            listeners: Listeners::of(opened, netns.cookie).map_err(NotServed::Sockets)?,
            until,
            netns: netns.clone(),
        };
        let served_netns = ServedNetns {
            netns_agent: Arc::new(NetnsAgent {
                netns,
                raw,
                handle: Arc::new(handle),
            }),
            listeners,
            thread,
            since: SystemTime::now(),
            is_leaving: true,
            _until: close,
        };
        Ok((served_netns, new))
    }

    /// The kernel sends connections there.
    fn stay(&self, served_netns: &mut ServedNetns) -> Result<(), MapError> {
        let cookie = served_netns.netns_agent.netns.cookie;
        self.map()
            .insert(cookie, PodOf(served_netns.listeners), 0)?;
        served_netns.is_leaving = false;
        Ok(())
    }

    /// Stops serving namespaces in which no thread is left. To be called every second. Takes some microseconds
    /// for each, and a walk over `/proc` when somebody has gone.
    pub fn tend(&self) {
        let lonely = self.lonely();
        if lonely.is_empty() {
            return;
        }
        let threads = threads::of_each(lonely.clone());
        self.state().by_cookie.retain(|_, served_netns| {
            let inode = served_netns.netns_agent.netns.inode;
            match (threads.get(&inode), lonely.contains(&inode)) {
                (_, false) => true,
                (Some(thread), true) => {
                    served_netns.thread = *thread;
                    if served_netns.is_leaving
                        && let Err(error) = self.stay(served_netns)
                    {
                        tracing::error!(%error, "a namespace is not served any more");
                        return false;
                    }
                    true
                }
                (None, true) => !self.leave(served_netns),
            }
        });
    }

    /// Namespaces whose thread has gone.
    fn lonely(&self) -> BTreeSet<u32> {
        let mut state = self.state();
        state.failed.clear();
        let lonely = state.by_cookie.values().filter_map(|s| {
            let inode = s.netns_agent.netns.inode;
            (!s.thread.is_in(inode)).then_some(inode)
        });
        lonely.collect()
    }

    /// True: it can be closed.
    fn leave(&self, served_netns: &mut ServedNetns) -> bool {
        if served_netns.is_leaving {
            return true;
        }
        served_netns.is_leaving = true;
        match self.map().remove(&served_netns.netns_agent.netns.cookie) {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => tracing::error!(%error, "the kernel does not forget a namespace"),
        }
        false
    }

    /// Returns the views of all network-namespace agents, in the order in which their namespaces were made.
    pub fn views(&self) -> Vec<NetnsAgentView> {
        let state = self.state();
        let served_netns = state.by_cookie.values();
        served_netns
            .map(|served_netns| NetnsAgentView {
                netns: served_netns.netns_agent.netns.clone(),
                pid: served_netns.thread.pid,
                process: process_name(served_netns.thread.pid),
                since: served_netns.since,
            })
            .collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.state().by_cookie.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn map(&self) -> MutexGuard<'_, NetnsAgentsMap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The namespace that was called from, if that is where this thread is: a thread may end, or go
/// elsewhere, at any moment before its namespace is open.
fn reached(request: &ServeRequest, thread: NetnsThread) -> Option<(NetnsThread, NetnsHandle)> {
    let handle = NetnsHandle::open(Some(&thread.netns())).ok()?;
    let cookie = handle.within(host::netns_cookie).ok()?;
    (cookie == request.netns_cookie).then_some((thread, handle))
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
