//! The plan of what is to be started: pure, so that a peer's configuration can be tested as text.

use std::{
    ffi::OsString,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
};

/// Connections that a peer is configured for where it has a limit of its own: more than any
/// workload opens, so that no peer is compared at its limit; and few enough for usual limits of
/// descriptors (haproxy, with pipes for splicing, wants 2.5 for each and else refuses to start).
pub(crate) const MAX_CONNECTIONS: u32 = 2048;

/// Processes, and where they will listen.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The fronts for each backend, in the same order.
    pub fronts: Vec<SocketAddr>,
    /// The processes, which all run at the same time.
    pub launches: Vec<Launch>,
}

/// A process that stays in the foreground.
#[derive(Clone, Default)]
pub struct Launch {
    /// The binary.
    pub program: PathBuf,
    /// The program's arguments.
    pub args: Vec<OsString>,
    /// The variables that are added to our own environment; they may hold passwords, which a
    /// command line would show.
    pub env: Vec<(&'static str, String)>,
    /// Files to write first, with absolute paths.
    pub files: Vec<(PathBuf, String)>,
}

impl std::fmt::Debug for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launch")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// Free ports of one address.
///
/// They are held while a plan is made, so that all are different, and given back when this is
/// dropped, just before the processes start. Somebody else may be quicker: then the start is
/// repeated with other ports.
#[derive(Debug)]
pub struct Ports {
    host: Ipv4Addr,
    held: Vec<TcpListener>,
}

impl Ports {
    /// Finds ports of this address.
    #[must_use]
    pub fn of(host: Ipv4Addr) -> Self {
        Self {
            host,
            held: Vec::new(),
        }
    }

    /// Returns a port that nobody uses.
    ///
    /// # Errors
    /// There is none.
    pub fn take(&mut self) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind((self.host, 0))?;
        let address = listener.local_addr()?;
        self.held.push(listener);
        Ok(address)
    }

    /// Returns a port for each of `backends`.
    ///
    /// # Errors
    /// There are too few ports.
    pub fn take_for(&mut self, backends: &[SocketAddr]) -> io::Result<Vec<SocketAddr>> {
        backends.iter().map(|_| self.take()).collect()
    }
}
