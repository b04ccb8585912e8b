//! The answer to packets that a database sends on a connection that is gone: a listener that no client
//! reaches.
//!
//! It is needed rarely, so that incoming connections are steered without it where it cannot be had; it is
//! tried again every second, and the kernel counts what nobody has answered meanwhile.

use std::{io, path::Path};

use aya::maps::{MapData, SockMap};
use socket2::Socket;

use crate::{attach::reasons, listeners, netns_handle::NetnsHandle};

/// By a namespace's number.
pub(super) const MAP: &str = "incoming_strays";

/// The listener for strays of one namespace; it stays for as long as the namespace is steered, once it
/// could be opened.
pub(super) struct Strays(Option<Socket>);

impl Strays {
    /// With the listener, or with a word about what to do. `name`: as the file calls the namespace.
    pub(super) fn open(
        map: &mut SockMap<MapData>,
        netns: &NetnsHandle,
        number: u32,
        name: Option<&Path>,
    ) -> Self {
        let listener = listen(map, netns, number);
        if let Err(error) = &listener {
            let ports = listeners::PORTS;
            tracing::warn!(
                %error,
                netns = name.map(|name| tracing::field::display(name.display())),
                "[[incoming]] goes on without its listener for strays: a database that misses a reset may keep that \
                 connection open; it is tried again every second, and needs a TCP port of {} from {} to {}",
                listeners::ADDRESS_4,
                ports.start(),
                ports.end()
            );
        }
        Self(listener.ok())
    }

    /// Tries again, if there is none.
    pub(super) fn tend(&mut self, map: &mut SockMap<MapData>, netns: &NetnsHandle, number: u32) {
        if self.0.is_none()
            && let Ok(listener) = listen(map, netns, number)
        {
            tracing::info!("[[incoming]] has its listener for strays");
            self.0 = Some(listener);
        }
    }
}

fn listen(map: &mut SockMap<MapData>, netns: &NetnsHandle, number: u32) -> io::Result<Socket> {
    let socket = netns.within(listeners::of_strays)?;
    let put = map.set(number, &socket, 0);
    put.map_err(|e| io::Error::other(reasons(&e)))?;
    Ok(socket)
}
