//! A server that does nothing but answer: what a generator reaches against it is the generator's
//! own limit.
//!
//! It is one thread with level-triggered epoll. It knows the protocol of a connection by the first
//! byte. A client that only connects is a connection like any other, and its end is noticed.

mod connection;

use std::{
    collections::HashMap,
    io::{self, ErrorKind, Write, stdout},
    net::{SocketAddr, TcpListener},
};

use anyhow::Context;
use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, EventData, EventFlags},
    fd::{AsRawFd, OwnedFd},
    io::Errno,
};
use socket2::{Domain, Socket, Type};

use connection::{Connection, State};

/// The most events that one call brings; the rest come with the next.
const MAX_EVENTS: usize = 256;
/// The bytes of one `read`: a few hundred requests.
const READ_BYTES: usize = 64 << 10;
/// The most connections that wait to be accepted. A client that dials and closes has less work than
/// we have with it, and a dial that finds the queue full is tried again a whole second later.
const BACKLOG: i32 = 4_096;
/// The connections that are accepted in one go; the others' requests wait for it.
const ACCEPTS: usize = 64;
/// The number that no connection has: a connection's number is its descriptor.
const LISTENER: u64 = u64::MAX;

/// Prints `listening on ADDRESS` on standard output, and answers until the process ends.
///
/// # Errors
/// The server cannot listen or wait. A client's mistake ends that client's connection.
pub fn serve(listen: SocketAddr) -> anyhow::Result<()> {
    let listener = bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let addr = listener.local_addr()?;
    writeln!(stdout(), "listening on {addr}").context("nobody reads where we listen")?;
    serve_on(listener)
}

fn bind(listen: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(listen), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&listen.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Answers on this socket for ever.
///
/// # Errors
/// When it cannot wait.
pub fn serve_on(listener: TcpListener) -> anyhow::Result<()> {
    Server::new(listener)?.run()
}

struct Server {
    listener: TcpListener,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    input: Vec<u8>,
}

impl Server {
    fn new(listener: TcpListener) -> anyhow::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create")?;
        let data = EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, data, EventFlags::IN).context("epoll_ctl")?;
        Ok(Self {
            listener,
            epoll,
            connections: HashMap::new(),
            input: vec![0; READ_BYTES],
        })
    }

    fn run(&mut self) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll_wait"),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept_some()?,
                    number => self.serve_one(number)?,
                }
            }
        }
    }

    /// Accepts connections that wait; further ones come with the next event.
    fn accept_some(&mut self) -> anyhow::Result<()> {
        for _ in 0..ACCEPTS {
            if !self.accept()? {
                break;
            }
        }
        Ok(())
    }

    /// Accepts a connection that waits; false when there is none.
    fn accept(&mut self) -> anyhow::Result<bool> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            // A client that is gone already is no error.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                ) =>
            {
                return Ok(true);
            }
            Err(error) => return Err(error).context("accept"),
        };
        if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
            // The connection was reset already.
            return Ok(true);
        }
        let number = u64::try_from(stream.as_raw_fd())?;
        let data = EventData::new_u64(number);
        epoll::add(&self.epoll, &stream, data, EventFlags::IN).context("epoll_ctl")?;
        self.connections.insert(number, Connection::new(stream));
        Ok(true)
    }

    fn serve_one(&mut self, number: u64) -> anyhow::Result<()> {
        let Some(connection) = self.connections.get_mut(&number) else {
            return Ok(());
        };
        let was_full = connection.is_full();
        let state = connection.serve(&mut self.input);
        let is_full = match state {
            State::Open => false,
            // Answers wait: no more requests are taken until they are gone.
            State::Full => true,
            State::Closed => {
                // Closing its descriptor takes it out of the epoll.
                self.connections.remove(&number);
                return Ok(());
            }
        };
        if is_full != was_full {
            let flags = if is_full {
                EventFlags::OUT
            } else {
                EventFlags::IN
            };
            let data = EventData::new_u64(number);
            epoll::modify(&self.epoll, connection.stream(), data, flags).context("epoll_ctl")?;
        }
        Ok(())
    }
}
