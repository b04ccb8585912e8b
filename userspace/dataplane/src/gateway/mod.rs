//! Connections from other hosts to virtual addresses that the agent has to see. `virtual.h` hands
//! them to a listener of the agent's, and `routes.rs` makes the addresses this host's; both are there
//! only while a rule asks for it.

mod routes;

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    path::Path,
};

use aya::{
    Ebpf,
    maps::{HashMap, MapData, SockMap},
    programs::{
        SkLookup,
        links::{FdLink, PinnedLink},
    },
};
use ebpf::abi;
use tokio::net::TcpListener;

use crate::{
    address,
    attach::{AttachError, program, reasons, refused},
    incoming::{IncomingError, IncomingListener},
    listeners::{self, Mark},
    load,
    maps::{MapsError, take},
    netns_handle::NetnsHandle,
    pins::Pins,
    sys::PodOf,
    tables::gone,
};

/// The program, and its pin.
const STEERS: &str = "virtual_addresses";

/// The value for a namespace that is not steered.
const NOT_STEERED: u32 = 0;

type Taken = HashMap<MapData, PodOf<abi::Endpoint>, u32>;

/// In the agent's own namespace.
#[derive(Default)]
pub(crate) struct Gateway {
    taken: BTreeSet<SocketAddr>,
    /// From when the first address is taken.
    maps: Option<(Taken, SockMap<MapData>)>,
    /// From then on, too.
    listens: bool,
    /// Opened, and not given out: what came after them failed.
    opened: Vec<IncomingListener>,
    link: Option<PinnedLink>,
}

impl Gateway {
    /// Has the agent take connections to these addresses and to no others. `number`: that of its
    /// namespace among the steered ones, if it is. Returns the listeners, the first time.
    ///
    /// # Errors
    /// Some of the addresses may have been taken then, and be nobody's: to be called again, which goes
    /// on where this ended.
    pub(crate) fn take(
        &mut self,
        ebpf: &mut Ebpf,
        (pins, mark): (&Pins, Mark),
        number: Option<u32>,
        wanted: &BTreeSet<SocketAddr>,
    ) -> Result<Vec<IncomingListener>, AttachError> {
        if self.maps.is_none() && wanted.is_empty() {
            return Ok(Vec::new());
        }
        self.open(ebpf)?;
        self.listen(mark)?;
        self.write(number, wanted)?;
        if wanted.is_empty() {
            if let Some(link) = self.link.take() {
                let unpinned = link.unpin();
                drop(unpinned.map_err(IncomingError::Sockets)?);
            }
        } else if self.link.is_none() {
            self.link = Some(attach(ebpf, pins)?);
        }
        let addresses = self.addresses();
        routes::make(&addresses).map_err(IncomingError::Sockets)?;
        routes::keep_only(&addresses).map_err(IncomingError::Sockets)?;
        Ok(std::mem::take(&mut self.opened))
    }

    /// Whether any virtual address is this host's.
    pub(crate) fn has_addresses(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Has the routes be there. To be called every second.
    pub(crate) fn tend(&self) -> Result<(), AttachError> {
        let made = routes::make(&self.addresses());
        Ok(made.map_err(IncomingError::Sockets)?)
    }

    /// The addresses are not this host's any more. The link goes with the pins.
    pub(crate) fn close(&self) {
        if !self.taken.is_empty() {
            remove_routes();
        }
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.taken.iter().map(SocketAddr::ip).collect()
    }

    fn open(&mut self, ebpf: &mut Ebpf) -> Result<(), AttachError> {
        if self.maps.is_some() {
            return Ok(());
        }
        let steers: &mut SkLookup = program(ebpf, STEERS)?;
        if steers.fd().is_err() {
            load::retry_load(|| steers.load()).map_err(refused(STEERS))?;
        }
        self.maps = Some((
            take(ebpf, "taken_addresses")?,
            take(ebpf, "taken_listeners")?,
        ));
        Ok(())
    }

    fn listen(&mut self, mark: Mark) -> Result<(), AttachError> {
        let Some((_, listeners)) = self.maps.as_mut().filter(|_| !self.listens) else {
            return Ok(());
        };
        let v4 = listeners::incoming(IpAddr::V4(listeners::ADDRESS_4));
        // Not every host has IPv6.
        let v6 = listeners::incoming(IpAddr::V6(Ipv6Addr::LOCALHOST)).ok();
        let v4 = v4.map_err(IncomingError::Sockets)?;
        let mut opened = Vec::new();
        for (index, socket) in [Some(v4), v6].into_iter().enumerate() {
            let Some(socket) = socket else { continue };
            let put = listeners.set(index as u32, &socket, 0);
            put.map_err(|e| MapsError::Layout("taken_listeners", e))?;
            let listener = TcpListener::from_std(socket.into());
            let listener = listener.map_err(IncomingError::Sockets)?;
            opened.push(IncomingListener::of_backends(listener, mark));
        }
        self.opened = opened;
        self.listens = true;
        Ok(())
    }

    fn write(
        &mut self,
        number: Option<u32>,
        wanted: &BTreeSet<SocketAddr>,
    ) -> Result<(), AttachError> {
        let Some((map, _)) = &mut self.maps else {
            return Ok(());
        };
        let failed = |e| MapsError::Layout("taken_addresses", e);
        let key = |at: &SocketAddr| PodOf(address::to_abi(*at));
        let number = number.map_or(NOT_STEERED, |number| number + 1);
        for at in wanted.difference(&self.taken.clone()) {
            map.insert(key(at), number, 0).map_err(failed)?;
            self.taken.insert(*at);
        }
        for at in self.taken.clone().difference(wanted) {
            gone(map.remove(&key(at))).map_err(failed)?;
            self.taken.remove(at);
        }
        Ok(())
    }
}

fn attach(ebpf: &mut Ebpf, pins: &Pins) -> Result<PinnedLink, AttachError> {
    let own = NetnsHandle::open(None).map_err(IncomingError::Sockets)?;
    let steers: &mut SkLookup = program(ebpf, STEERS)?;
    let id = steers.attach(own.file()).map_err(refused(STEERS))?;
    let link: FdLink = steers.take_link(id).map_err(refused(STEERS))?.into();
    link.pin(pins.path(STEERS))
        .map_err(|e| AttachError::Program {
            name: STEERS,
            reason: reasons(&e),
        })
}

/// Whether this is the pin of the program.
pub(crate) fn is_pin(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == STEERS)
}

/// Removes what was made of the routing in this thread's namespace.
pub(crate) fn remove_routes() {
    keep_routes(&BTreeSet::new());
}

/// Removes routes as [`remove_routes`] does, but for these addresses.
pub(crate) fn keep_routes(taken: &BTreeSet<SocketAddr>) {
    let addresses = taken.iter().map(SocketAddr::ip).collect();
    if let Err(error) = routes::keep_only(&addresses) {
        tracing::warn!(%error, "a virtual address may have been left local");
    }
}
