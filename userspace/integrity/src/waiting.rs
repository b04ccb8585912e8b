//! How an end that does not block waits for its socket.

use std::{mem::MaybeUninit, net::TcpStream, os::fd::OwnedFd, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, epoll, poll},
    io::Errno,
};

use super::behaviour::Waiting;

/// Outcome of a wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) read: bool,
    pub(super) write: bool,
    /// There will be no further edge: the peer has ended, or the connection is broken.
    pub(super) over: bool,
}

/// A socket's waiter.
#[derive(Debug)]
pub(super) enum Waiter {
    Poll,
    Level { epoll: OwnedFd, interest: Ready },
    Edge { epoll: OwnedFd },
}

impl Waiter {
    pub(super) fn new(waiting: Waiting, socket: &TcpStream) -> Result<Self, Errno> {
        let make = |flags| {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, socket, epoll::EventData::new_u64(0), flags)?;
            Ok(epoll)
        };
        Ok(match waiting {
            Waiting::Poll | Waiting::Blocking => Self::Poll,
            Waiting::Level => Self::Level {
                epoll: make(epoll::EventFlags::empty())?,
                interest: Ready::default(),
            },
            Waiting::Edge => Self::Edge {
                epoll: make(
                    epoll::EventFlags::IN
                        | epoll::EventFlags::OUT
                        | epoll::EventFlags::RDHUP
                        | epoll::EventFlags::ET,
                )?,
            },
        })
    }

    /// Edges come once; levels are told again by each wait.
    pub(super) fn is_edge(&self) -> bool {
        matches!(self, Self::Edge { .. })
    }

    /// Waits until `interest`, or an edge, or `limit`.
    pub(super) fn wait(
        &mut self,
        socket: &TcpStream,
        interest: Ready,
        limit: Duration,
    ) -> Result<Ready, Errno> {
        let limit = Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        };
        match self {
            Self::Poll => {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, interest.read);
                flags.set(PollFlags::OUT, interest.write);
                let mut polled = [PollFd::new(socket, flags)];
                poll(&mut polled, Some(&limit))?;
                let [fd] = polled;
                let over = fd
                    .revents()
                    .intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP);
                Ok(Ready {
                    read: fd.revents().contains(PollFlags::IN) || over,
                    write: fd.revents().contains(PollFlags::OUT) || over,
                    over,
                })
            }
            Self::Level {
                epoll,
                interest: told,
            } => {
                if *told != interest {
                    let mut flags = epoll::EventFlags::empty();
                    flags.set(epoll::EventFlags::IN, interest.read);
                    flags.set(epoll::EventFlags::OUT, interest.write);
                    epoll::modify(&epoll, socket, epoll::EventData::new_u64(0), flags)?;
                    *told = interest;
                }
                events(epoll, &limit)
            }
            Self::Edge { epoll } => events(epoll, &limit),
        }
    }
}

fn events(epoll: &OwnedFd, limit: &Timespec) -> Result<Ready, Errno> {
    let mut room = [MaybeUninit::uninit(); 1];
    let (events, _) = epoll::wait(epoll, &mut room, Some(limit))?;
    let Some(event) = events.first() else {
        return Ok(Ready::default());
    };
    let flags = event.flags;
    let over = flags
        .intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR | epoll::EventFlags::RDHUP);
    Ok(Ready {
        read: flags.contains(epoll::EventFlags::IN) || over,
        write: flags.contains(epoll::EventFlags::OUT) || over,
        over,
    })
}
