//! Waiting: for responses, and for the next request's time.

use std::{net::TcpStream, thread, time::Duration};

use anyhow::Context;
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    fd::OwnedFd,
    io::Errno,
};

/// Events that one call brings at most; the rest come with the next.
const MAX_EVENTS: usize = 256;

/// The way in which a thread waits.
pub enum Waiter {
    /// With one connection and one request in flight `read` itself waits, which saves a call.
    Alone,
    /// `epoll_pwait2`: level-triggered, with timeouts in ns.
    Many {
        /// The epoll descriptor of all the thread's connections.
        epoll: OwnedFd,
    },
}

/// The result of a wait; kept for its memory.
pub struct Ready {
    /// The connections that are worth a look; the code that looks takes them.
    pub numbers: Vec<usize>,
    events: Vec<epoll::Event>,
}

impl Ready {
    /// Makes an empty result.
    pub fn new() -> Self {
        Self {
            numbers: Vec::with_capacity(MAX_EVENTS),
            events: Vec::with_capacity(MAX_EVENTS),
        }
    }
}

impl Waiter {
    /// Makes a waiter for several connections.
    ///
    /// # Errors
    /// The kernel has no epoll for us.
    pub fn many() -> anyhow::Result<Self> {
        Ok(Self::Many {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create")?,
        })
    }

    /// Adds a connection to the waiter.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub fn add(&self, stream: &TcpStream, number: usize) -> anyhow::Result<()> {
        let Self::Many { epoll } = self else {
            return Ok(());
        };
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(epoll, stream, data, epoll::EventFlags::IN).context("epoll_ctl")
    }

    /// Waits until this one can be written to, too, or no longer.
    ///
    /// # Errors
    /// When it was not added.
    pub fn set_wants_room(
        &self,
        stream: &TcpStream,
        number: usize,
        wants: bool,
    ) -> anyhow::Result<()> {
        let Self::Many { epoll } = self else {
            return Ok(());
        };
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wants);
        let data = epoll::EventData::new_u64(number as u64);
        epoll::modify(epoll, stream, data, flags).context("epoll_ctl")
    }

    /// Waits for so long at most. The numbers of connections that are worth a look are added to
    /// `ready`.
    ///
    /// # Errors
    /// When waiting fails.
    pub fn wait(&self, in_flight: usize, timeout_ns: u64, ready: &mut Ready) -> anyhow::Result<()> {
        match self {
            Self::Alone if in_flight > 0 => ready.numbers.push(0),
            Self::Alone => thread::sleep(Duration::from_nanos(timeout_ns)),
            Self::Many { epoll } => {
                let timeout = Timespec {
                    tv_sec: (timeout_ns / 1_000_000_000) as i64,
                    tv_nsec: (timeout_ns % 1_000_000_000) as i64,
                };
                ready.events.clear();
                match epoll::wait(epoll, spare_capacity(&mut ready.events), Some(&timeout)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error).context("epoll_pwait2"),
                }
                let numbers = ready.events.iter().map(|event| event.data.u64() as usize);
                ready.numbers.extend(numbers);
            }
        }
        Ok(())
    }
}
