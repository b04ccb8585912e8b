//! SYNs that are being held, as they arrive from the hold filter.

use std::{io, sync::Arc};

use aya::maps::{MapData, RingBuf};
use ebpf::abi;
use tokio::io::unix::AsyncFd;

use crate::{
    address::{self, ClientAddr, OrigDst, SockCookie},
    listeners::Mark,
    netns_agents::{Netns, NetnsAgent, NetnsAgents},
    packet::Syn,
    quota::Holder,
    remembered::Opener,
    rule_names::{self, Names},
    splice::{Application, Near},
    sys,
};
use policy::RuleName;

/// The process that opened a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Thread group id, in the initial pid namespace.
    pub pid: u32,
    /// User id, in the initial user namespace.
    pub uid: u32,
    /// Group id, in the initial user namespace.
    pub gid: u32,
    /// `/proc/PID/comm`, at most 15 bytes.
    pub name: String,
    /// cgroup v2 id: the inode number of its folder.
    pub cgroup_id: u64,
    /// The holder for whose quotas its flows count. None: no quota holds for them.
    pub holder: Option<Holder>,
}

impl Process {
    /// A process on another host, of which nothing is known.
    pub fn elsewhere() -> Self {
        Self {
            // No process has any of these.
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
            name: String::new(),
            cgroup_id: 0,
            holder: None,
        }
    }

    /// Whether it is on another host.
    pub fn is_elsewhere(&self) -> bool {
        self.pid == 0
    }

    /// The application of the flow that is on this host.
    pub fn near(&self) -> Near {
        match self.is_elsewhere() {
            false => Near::Client,
            true => Near::Database,
        }
    }
}

/// A client that waits in connect(2) for the database's answer.
#[derive(Clone, Debug)]
pub struct Held {
    /// The client's socket.
    pub client: ClientAddr,
    /// The client's socket, by its number.
    pub cookie: SockCookie,
    /// The address that the client dialled.
    pub orig_dst: OrigDst,
    /// The rule that marked it.
    pub rule: RuleName,
    /// The process that dialled.
    pub process: Process,
    /// The client had bound its socket to an address of its choice.
    pub bound: bool,
    /// To a port of its choice.
    pub bound_port: bool,
    /// The identity under which decisions about the client are remembered.
    pub opener: Opener,
    /// The client has sent the SYN before.
    pub is_repeated: bool,
    pub(crate) key: abi::ConnectKey,
    /// The agent's sockets in the client's namespace, if that is not the agent's own.
    pub(crate) netns_agent: Option<Arc<NetnsAgent>>,
    pub(crate) mark: Mark,
    pub(crate) syn: Syn,
}

impl Held {
    /// The client's network namespace, as [`crate::Accepted`] has it.
    pub fn netns_cookie(&self) -> u64 {
        self.opener.netns_cookie()
    }

    /// The client, as its socket is found.
    pub fn application(&self) -> Application {
        let netns = self.netns_agent.as_ref().map(|agent| agent.handle.clone());
        Application::Client(self.cookie, netns)
    }

    /// The client's network namespace, unless it is the agent's own.
    pub fn netns(&self) -> Option<&Arc<Netns>> {
        self.netns_agent
            .as_ref()
            .map(|netns_agent| &netns_agent.netns)
    }
}

/// The number of held SYNs for which the ring has room, each with the kernel's header.
pub const MAX_HELD: usize = abi::HELD_RING_BYTES as usize / (size_of::<abi::Held>() + 8);

/// The stream of held SYNs.
pub struct Holds {
    ring: AsyncFd<RingBuf<MapData>>,
    netns_agents: Arc<NetnsAgents>,
    names: Names,
    mark: Mark,
}

impl Holds {
    pub(crate) fn new(
        ring: RingBuf<MapData>,
        netns_agents: Arc<NetnsAgents>,
        names: Names,
        mark: Mark,
    ) -> io::Result<Self> {
        Ok(Self {
            ring: sys::watch(ring)?,
            netns_agents,
            names,
            mark,
        })
    }

    /// Waits for the next one.
    ///
    /// # Errors
    /// The ring cannot be waited for: there is no way on.
    pub async fn next(&mut self) -> io::Result<Held> {
        loop {
            let mut ready = self.ring.readable_mut().await?;
            let record = ready.get_inner_mut().next();
            let Some(event) = record.map(|bytes| sys::bytes::read::<abi::Held>(&bytes)) else {
                ready.clear_ready();
                continue;
            };
            if let Some(held) = event.and_then(|e| self.read(&e)) {
                return Ok(held);
            }
            tracing::error!("a held SYN could not be read");
        }
    }

    fn read(&self, event: &abi::Held) -> Option<Held> {
        let connect = &event.connect;
        Some(Held {
            client: ClientAddr::new(address::from_abi(&event.key.client)),
            cookie: SockCookie(connect.cookie),
            orig_dst: OrigDst::new(address::from_abi(&connect.opener.orig_dst)),
            rule: rule_names::name_of(connect.generation, connect.slot, &self.names),
            process: process(connect),
            bound: connect.bound != 0,
            bound_port: connect.bound_port != 0,
            opener: Opener::of(connect),
            key: event.key,
            netns_agent: self.netns_agents.served(connect.opener.netns_cookie)?,
            mark: self.mark,
            is_repeated: connect.held != 0,
            syn: Syn::parse(event)?,
        })
    }
}

pub(crate) fn process(connect: &abi::Connect) -> Process {
    process_of(&connect.opener, Holder::of(connect))
}

pub(crate) fn process_of(opener: &abi::Opener, holder: Option<Holder>) -> Process {
    let abi::Opener {
        tgid,
        uid,
        gid,
        comm,
        cgroup_id,
        ..
    } = *opener;
    Process {
        pid: tgid,
        uid,
        gid,
        name: text(&comm),
        cgroup_id,
        holder,
    }
}

/// A process names itself: what is no letter could forge log lines and terminal output.
fn text(comm: &[u8]) -> String {
    let end = comm.iter().position(|b| *b == 0).unwrap_or(comm.len());
    let name = String::from_utf8_lossy(comm.get(..end).unwrap_or_default());
    name.replace(char::is_control, "?")
}
