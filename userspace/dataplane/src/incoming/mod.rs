//! Connections from other hosts to databases on this one. What decides is in `incoming.h`; here
//! it is attached, given its listeners, and kept in the know of which databases there are.
//!
//! - `own.rs`: which of the connections there are this host's own.
//! - `listener.rs`: the agent's listeners.
//! - `dial.rs`: the dialled leg, from the client's address; `addresses.rs`: to where.
//! - `routes.rs`: how its answers come back; `last.rs`: for how long they do.
//! - `strays.rs`: who answers for a connection that is gone.

mod addresses;
mod dial;
mod error;
mod last;
mod listener;
mod own;
mod routes;
mod strays;

use std::{
    collections::HashSet,
    fs,
    io::{self, Read},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::{fd::AsFd as _, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use aya::{
    Btf, Ebpf,
    maps::{HashMap, MapData, SockMap},
    programs::{
        Iter, SkLookup,
        links::{FdLink, PinnedLink},
    },
};
use ebpf::abi;
use nix::{
    libc,
    sched::{CloneFlags, unshare},
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use crate::{
    attach::{AttachError, program, reasons, refused},
    host, listeners,
    listeners::Mark,
    load,
    maps::{MapsError, take},
    netns_handle::{self, NetnsHandle},
    pins::Pins,
    sys,
};

pub use dial::{IncomingDialled, NotKept};
pub use error::IncomingError;
pub use listener::{Arrived, IncomingListener};

use dial::{Dialler, Dials};
use listener::Behind;
use own::OwnAddresses;
use routes::Routed;
use strays::Strays;

/// Namespaces whose incoming connections can be steered.
pub const MAX_INCOMING: usize = abi::MAX_INCOMING as usize;

const STEERS: [&str; MAX_INCOMING] = [
    "incoming_0",
    "incoming_1",
    "incoming_2",
    "incoming_3",
    "incoming_4",
    "incoming_5",
    "incoming_6",
    "incoming_7",
];
const FINDS: &str = "find_databases";

/// The address that the database sees as its client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ClientAddress {
    /// The client's own, and its port.
    #[default]
    Keep,
    /// An address of this host's.
    Agent,
}

/// A namespace whose incoming connections are steered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingOptions {
    /// The namespace's path: `/run/netns/NAME`, as `ip netns` makes it, or `/proc/PID/ns/net`. None:
    /// the agent's own.
    pub netns: Option<PathBuf>,
    /// The address that the databases there see.
    pub client_address: ClientAddress,
}

impl IncomingOptions {
    /// The number of the namespace's inode. None: there is no such namespace, or it may not be looked at.
    pub(crate) fn inode(&self) -> Option<u32> {
        match &self.netns {
            None => host::own_netns_inode(),
            Some(path) => host::netns_inode(path),
        }
    }
}

/// Whether the rules that the dialled leg needs are there.
#[derive(Debug, Default)]
pub(crate) struct Routing {
    v4: AtomicBool,
    v6: AtomicBool,
}

impl Routing {
    fn has(&self, client: SocketAddr) -> bool {
        match client {
            SocketAddr::V4(_) => self.v4.load(Relaxed),
            SocketAddr::V6(_) => self.v6.load(Relaxed),
        }
    }

    /// Notes which families are routed, and logs each change once.
    fn note(&self, routed: &Routed) {
        for (family, had, made) in [
            ("IPv4", &self.v4, &routed.v4),
            ("IPv6", &self.v6, &routed.v6),
        ] {
            let has = made.is_ok();
            if had.swap(has, Relaxed) != has
                && let Err(error) = made
            {
                tracing::warn!(
                    %error,
                    "databases do not see {family} clients' addresses: no routing rule"
                );
            }
        }
    }
}

struct Steered {
    netns: Arc<NetnsHandle>,
    cookie: u64,
    number: u32,
    addresses: HashSet<IpAddr>,
    routing: Option<Arc<Routing>>,
    /// The listener for strays, where clients' addresses are kept.
    strays: Option<Strays>,
    _link: PinnedLink,
}

/// Every namespace whose incoming connections are steered.
#[derive(Default)]
pub(crate) struct Incoming {
    steered: Vec<Steered>,
    own: Option<OwnAddresses>,
    strays: Option<SockMap<MapData>>,
    /// Programs that are loaded later need them, too.
    _spaces: Option<HashMap<MapData, u64, u32>>,
    _inlets: Option<SockMap<MapData>>,
}

impl Incoming {
    /// Attaches to the namespaces. The programs stay pinned when this is dropped, as by a crash.
    ///
    /// # Errors
    /// What was made is gone with the pins, but for the routing: [`remove_routes`].
    pub(crate) fn attach(
        ebpf: &mut Ebpf,
        options: &[IncomingOptions],
        pins: &Pins,
        mark: Mark,
    ) -> Result<(Self, Vec<IncomingListener>), AttachError> {
        let mut incoming = Self::default();
        if options.is_empty() {
            return Ok((incoming, Vec::new()));
        }
        let mut namespaces: HashMap<MapData, u64, u32> = take(ebpf, "incoming_netns")?;
        let mut inlets: SockMap<MapData> = take(ebpf, "incoming_listeners")?;
        let mut strays: SockMap<MapData> = take(ebpf, strays::MAP)?;
        let mut own: OwnAddresses = take(ebpf, "own_addresses")?;
        let dials: Dials = Arc::new(Mutex::new(take(ebpf, "incoming_dials")?));
        load_finder(ebpf)?;
        let mut known = HashSet::new();
        let mut listeners = Vec::new();
        for ((number, option), name) in (0_u32..).zip(options).zip(STEERS) {
            if let Some(netns) = &option.netns {
                pins.remember_netns(number, netns)?;
            }
            let entered = Entered::enter(option)?;
            if !known.insert(entered.cookie) {
                return Err(IncomingError::Twice.into());
            }
            let put = namespaces.insert(entered.cookie, number, 0);
            put.map_err(|e| MapsError::Layout("incoming_netns", e))?;
            let routing = entered.routed.as_ref().map(|routed| {
                let routing = Routing::default();
                // The first time it is worth a word either way.
                routing.v4.store(true, Relaxed);
                routing.v6.store(true, Relaxed);
                routing.note(routed);
                Arc::new(routing)
            });
            let dialler = Arc::new(Dialler {
                netns: entered.netns.clone(),
                number,
                mark,
                dials: dials.clone(),
                routing: routing.clone().unwrap_or_default(),
                keeps: option.client_address == ClientAddress::Keep,
                ports: entered.ports,
            });
            for (socket, offset) in entered.listeners.into_iter().zip(0..) {
                let Some(socket) = socket else { continue };
                let put = inlets.set(2 * number + offset, &socket, 0);
                put.map_err(|e| MapsError::Layout("incoming_listeners", e))?;
                let listener = TcpListener::from_std(socket.into());
                listeners.push(IncomingListener {
                    listener: listener.map_err(IncomingError::Sockets)?,
                    behind: Behind::Database(dialler.clone()),
                });
            }
            let keeps = entered.routed.is_some();
            let answers = keeps.then(|| {
                let netns = option.netns.as_deref();
                Strays::open(&mut strays, &entered.netns, number, netns)
            });
            // Before anything is steered.
            find_in(ebpf, &entered.netns)?;
            let mut addresses = HashSet::new();
            let put = own::put(&mut own, &entered.netns, number, &mut addresses);
            put.map_err(IncomingError::Sockets)?;
            incoming.steered.push(Steered {
                _link: steer(ebpf, name, &entered.netns, pins)?,
                netns: entered.netns,
                cookie: entered.cookie,
                number,
                addresses,
                routing,
                strays: answers,
            });
        }
        incoming.own = Some(own);
        incoming._spaces = Some(namespaces);
        incoming.strays = Some(strays);
        incoming._inlets = Some(inlets);
        Ok((incoming, listeners))
    }

    /// The number of the agent's own namespace, if it is one of them.
    pub(crate) fn own_number(&self) -> Option<u32> {
        let own = host::netns_cookie().ok()?;
        let own = self.steered.iter().find(|steered| steered.cookie == own);
        own.map(|steered| steered.number)
    }

    /// The numbers of the inodes of all of them.
    pub(crate) fn inodes(&self) -> HashSet<u32> {
        let inodes = self.steered.iter().map(|steered| steered.netns.inode());
        inodes.flatten().collect()
    }

    /// Whether connections from other hosts come in anywhere.
    pub(crate) fn has_steered(&self) -> bool {
        !self.steered.is_empty()
    }

    /// Looks for databases that nobody has announced, and has the routing rules, and who answers for
    /// connections that are gone, be there. To be called every second.
    pub(crate) fn tend(&mut self, ebpf: &mut Ebpf) -> Result<(), AttachError> {
        for steered in &mut self.steered {
            find_in(ebpf, &steered.netns)?;
            if let Some(own) = &mut self.own {
                let put = own::put(own, &steered.netns, steered.number, &mut steered.addresses);
                put.map_err(IncomingError::Sockets)?;
            }
            if let Some(routing) = &steered.routing
                && let Ok(routed) = steered.netns.within(|| Ok(routes::make()))
            {
                routing.note(&routed);
            }
            if let (Some(answers), Some(map)) = (&mut steered.strays, &mut self.strays) {
                answers.tend(map, &steered.netns, steered.number);
            }
        }
        Ok(())
    }

    /// Leaves the namespaces' routing as it was found, once the connections that use it have ended; that
    /// of flows that outlive the agent stays. The links go with the pins, and before.
    pub(crate) fn close(&self) {
        for steered in self.steered.iter().filter(|s| s.routing.is_some()) {
            let removed = steered.netns.within(|| {
                last::wait();
                remove_unused_routes()
            });
            if let Err(error) = removed {
                tracing::error!(%error, "a routing rule for incoming connections stays");
            }
        }
    }
}

/// Removes what was made of the routing in these namespaces.
pub(crate) fn remove_routes(options: &[IncomingOptions]) {
    for option in options {
        remove_routes_of(option.netns.as_deref());
    }
}

/// Whether this is the pin of a program that steers.
pub(crate) fn is_pin(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| STEERS.contains(&name))
}

/// Removes what a dead agent has left in this thread's namespace and in those others, unless it is
/// wanted again.
pub(crate) fn remove_unwanted_routes(wanted: &[IncomingOptions], others: &[PathBuf]) {
    if wanted.iter().all(|option| option.netns.is_some()) {
        remove_routes_of(None);
    }
    let same = |wanted: &Option<PathBuf>, other: &Path| {
        let inode = |path: &Path| fs::metadata(path).map(|m| m.ino()).ok();
        wanted.as_ref().is_some_and(|w| inode(w) == inode(other))
    };
    for other in others {
        // One that has gone has taken its routing with it.
        if other.exists() && !wanted.iter().any(|option| same(&option.netns, other)) {
            remove_routes_of(Some(other));
        }
    }
}

/// Removes the routing that an agent has left in this thread's namespace for flows that outlived it, if
/// they have ended.
pub fn remove_routes_left() {
    remove_routes_of(None);
}

fn remove_routes_of(netns: Option<&Path>) {
    let removed = NetnsHandle::open(netns).and_then(|netns| netns.within(remove_unused_routes));
    if let Err(error) = removed {
        tracing::warn!(%error, "a routing rule for incoming connections may have been left");
    }
}

/// In the calling thread's namespace.
fn remove_unused_routes() -> io::Result<()> {
    if last::go_on() {
        tracing::info!("the routing for incoming connections stays for flows that go on");
        return Ok(());
    }
    routes::remove()
}

/// Whether a client's own address can be dialled from here: tried in a namespace of its own.
pub(crate) fn try_out() -> Result<(), String> {
    let there = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        routes::raise_loopback()?;
        let Routed { v4, v6 } = routes::make();
        v4?;
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        sys::set_transparent(&socket, false)?;
        match v6 {
            // Not every host has IPv6.
            Err(e) if e.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
            made => made,
        }
    };
    let tried = thread::scope(|scope| scope.spawn(there).join());
    let tried: io::Result<()> = tried.map_err(|_| "the probe_traffic panicked".to_owned())?;
    tried.map_err(|e| e.to_string())
}

/// The sockets and routes that are made in a namespace.
struct Entered {
    netns: Arc<NetnsHandle>,
    cookie: u64,
    ports: std::ops::RangeInclusive<u16>,
    /// IPv4's, and IPv6's if the namespace has it.
    listeners: [Option<Socket>; 2],
    /// The routes, where clients' addresses are kept.
    routed: Option<Routed>,
}

impl Entered {
    fn enter(option: &IncomingOptions) -> Result<Self, IncomingError> {
        let named = |source| match &option.netns {
            Some(netns) => IncomingError::Namespace {
                netns: netns.clone(),
                source,
            },
            None => IncomingError::Sockets(source),
        };
        let netns = Arc::new(NetnsHandle::open(option.netns.as_deref()).map_err(named)?);
        let cookie = netns.within(host::netns_cookie).map_err(named)?;
        let made = netns.within(|| {
            let v4 = listeners::incoming(IpAddr::V4(listeners::ADDRESS_4))?;
            let v6 = listeners::incoming(IpAddr::V6(Ipv6Addr::LOCALHOST));
            Ok((netns_handle::port_range()?, [Some(v4), v6.ok()]))
        });
        let (ports, listeners) = made.map_err(IncomingError::Sockets)?;
        let routed = match option.client_address {
            ClientAddress::Agent => {
                // Of an agent that has died, and kept them.
                netns.within(remove_unused_routes).map(|()| None)
            }
            ClientAddress::Keep => netns.within(|| Ok(Some(routes::make()))),
        };
        let routed = routed.map_err(IncomingError::Sockets)?;
        Ok(Self {
            netns,
            cookie,
            ports,
            listeners,
            routed,
        })
    }
}

fn load_finder(ebpf: &mut Ebpf) -> Result<(), AttachError> {
    let btf = Btf::from_sys_fs().map_err(|e| AttachError::Load(e.into()))?;
    let finds: &mut Iter = program(ebpf, FINDS)?;
    finds.load("tcp", &btf).map_err(refused(FINDS))
}

/// Enters the databases of a namespace.
fn find_in(ebpf: &mut Ebpf, netns: &NetnsHandle) -> Result<(), AttachError> {
    let finds: &mut Iter = program(ebpf, FINDS)?;
    let finds = finds.fd().map_err(refused(FINDS))?.as_fd();
    let looked = netns.within(|| {
        // Made here, it goes over this namespace's sockets.
        let mut look = sys::iterate_over(finds, None)?;
        match look.read_to_end(&mut Vec::new()) {
            // It has come to sockets that do not listen.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            looked => looked.map(drop),
        }
    });
    looked.map_err(|e| AttachError::Program {
        name: FINDS,
        reason: e.to_string(),
    })
}

fn steer(
    ebpf: &mut Ebpf,
    name: &'static str,
    netns: &NetnsHandle,
    pins: &Pins,
) -> Result<PinnedLink, AttachError> {
    let steers: &mut SkLookup = program(ebpf, name)?;
    load::retry_load(|| steers.load()).map_err(refused(name))?;
    let id = steers.attach(netns.file()).map_err(refused(name))?;
    let link: FdLink = steers.take_link(id).map_err(refused(name))?.into();
    let pinned = link.pin(pins.path(name));
    pinned.map_err(|e| AttachError::Program {
        name,
        reason: reasons(&e),
    })
}
