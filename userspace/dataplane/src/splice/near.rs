//! The near application of a spliced flow: the one on this host.
//!
//! It has a socket of its own there, from which and to which the kernel carries the flow's bytes; the
//! other one is the *far* application. Everything in `ebpf/src/splice.h` is told from the near
//! application's side: of a client on another host, what is said there of the client holds for the
//! database, and the other way round.

use std::{fmt, io, sync::Arc};

use ebpf::abi;
use policy::Shortcut;

use crate::{
    address::{self, SockCookie},
    netns_handle::NetnsHandle,
    sock_diag,
    splice::refusal::SpliceRefusal,
};

/// The application that is on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Near {
    /// The client.
    Client,
    /// The database, whose client is on another host.
    Database,
}

impl Near {
    /// Whether a rule that says so lets the near application's socket into a sockmap.
    pub fn is_opted_in(self, shortcut: Shortcut) -> bool {
        match self {
            Self::Client => shortcut.takes_client(),
            Self::Database => shortcut.takes_database(),
        }
    }

    /// Sorts what the two sides have into the client's and the database's; or, from those two, into the
    /// near and the far side's.
    pub fn sides<T>(self, near: T, far: T) -> (T, T) {
        match self {
            Self::Client => (near, far),
            Self::Database => (far, near),
        }
    }

    /// Sorts what the two directions have into the one to the database and the one to the client; or,
    /// from those two, into the one to the far and the one to the near side.
    pub fn directions<T>(self, to_far: T, to_near: T) -> [T; 2] {
        match self {
            Self::Client => [to_far, to_near],
            Self::Database => [to_near, to_far],
        }
    }
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "the client",
            Self::Database => "the database",
        })
    }
}

/// The near application, as its socket is found.
#[derive(Clone, Debug)]
pub enum Application {
    /// By its number, in the agent's namespace unless in this one.
    Client(SockCookie, Option<Arc<NetnsHandle>>),
    /// In this namespace, by its address.
    Database(Arc<NetnsHandle>),
}

impl Application {
    /// The side of the application.
    pub fn near(&self) -> Near {
        match self {
            Self::Client(..) => Near::Client,
            Self::Database(_) => Near::Database,
        }
    }

    /// The namespace of its socket, unless it is the agent's own.
    pub(super) fn netns(&self) -> Option<&Arc<NetnsHandle>> {
        match self {
            Self::Client(_, netns) => netns.as_ref(),
            Self::Database(netns) => Some(netns),
        }
    }

    /// A client's number; 0 of a database.
    pub fn client_cookie(&self) -> SockCookie {
        match self {
            Self::Client(cookie, _) => *cookie,
            Self::Database(_) => SockCookie::new(0),
        }
    }

    /// Does `look` where its socket is, with its number in the question.
    pub(super) fn look(
        &self,
        mut question: abi::SpliceQuestion,
        look: impl FnOnce(&abi::SpliceQuestion) -> Result<abi::SpliceAnswer, SpliceRefusal> + Send,
    ) -> Result<abi::SpliceAnswer, SpliceRefusal> {
        let netns = match self {
            Self::Client(cookie, netns) => {
                question.near_app_cookie = cookie.number();
                let Some(netns) = netns else {
                    return look(&question);
                };
                // The agent's sockets of the flow are there, too.
                return netns
                    .within(|| Ok(look(&question)))
                    .map_err(super::kernel)?;
            }
            Self::Database(netns) => netns,
        };
        let there = move || {
            let own = address::from_abi(&question.near_app);
            let peer = address::from_abi(&question.near_leg);
            match sock_diag::cookie(own, peer) {
                Ok(Some(cookie)) => question.near_app_cookie = cookie,
                // Its handshake is not done, though the agent's is.
                Ok(None) => return Ok(Err(SpliceRefusal::Busy)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    return Ok(Err(SpliceRefusal::Gone(Near::Database)));
                }
                Err(e) => return Err(e),
            }
            Ok(look(&question))
        };
        netns.within(there).map_err(super::kernel)?
    }
}
