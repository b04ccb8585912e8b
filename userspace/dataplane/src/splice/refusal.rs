//! Why the kernel does not carry a flow.

use std::io;

use ebpf::abi;
use thiserror::Error;

use crate::splice::Near;

/// Why a flow is not spliced.
#[derive(Debug, Error)]
pub enum SpliceRefusal {
    /// The flow's rule does not let the near application's socket into a sockmap.
    #[error("its rule lets {0}'s socket into no sockmap (`shortcut`)")]
    NotOptedIn(Near),
    /// The near application's socket is gone.
    #[error("{0}'s socket is not found")]
    Gone(Near),
    /// The agent's own sockets are not found: they are closing.
    #[error("a socket of the agent's is not found")]
    SocketGone,
    /// Another program's sockmap has the near application's socket, or it speaks TLS in the kernel.
    #[error("{0}'s socket belongs to another program's sockmap, or speaks kernel TLS: {1}")]
    Taken(Near, io::Error),
    /// The flow speaks TLS, which its socket may be told to do in the kernel at any time.
    #[error("the flow speaks TLS")]
    Tls,
    /// The near application's socket blocks, which a sockmap does not do as an application expects it.
    #[error("{0}'s socket blocks (it is not O_NONBLOCK)")]
    Blocks(Near),
    /// Another program's sockmap has one of the agent's.
    #[error("a socket of the agent's belongs to another program's sockmap: {0}")]
    SocketTaken(io::Error),
    /// The table of spliced flows is full.
    #[error("as many flows are spliced as can be")]
    Full,
    /// The far application has sent what the agent has not read yet, or the near one has not accepted
    /// the connection yet. To be tried again.
    #[error("there is something to read first")]
    Busy,
    /// The one engine that may carry it needs a database on this host whose socket does not block.
    #[error(
        "the database's socket is not on this host, or blocks, and no other engine may carry it"
    )]
    NoEngine,
    /// The kernel.
    #[error("the kernel refuses: {0}")]
    Kernel(String),
}

impl SpliceRefusal {
    /// The refusal as a metric's label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::NotOptedIn(_) => "not_opted_in",
            Self::Gone(Near::Client) => "client_gone",
            Self::Gone(Near::Database) => "database_gone",
            Self::SocketGone => "socket_gone",
            Self::Taken(Near::Client, _) => "client_taken",
            Self::Taken(Near::Database, _) => "database_taken",
            Self::Tls => "tls",
            Self::Blocks(Near::Client) => "client_blocks",
            Self::Blocks(Near::Database) => "database_blocks",
            Self::SocketTaken(_) => "socket_taken",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::NoEngine => "no_engine",
            Self::Kernel(_) => "kernel",
        }
    }

    /// Every label.
    pub const LABELS: [&'static str; 14] = [
        "not_opted_in",
        "client_gone",
        "database_gone",
        "database_taken",
        "database_blocks",
        "socket_gone",
        "client_taken",
        "tls",
        "client_blocks",
        "socket_taken",
        "full",
        "busy",
        "no_engine",
        "kernel",
    ];

    pub(crate) fn of(answer: &abi::SpliceAnswer, near: Near) -> Option<Self> {
        let error = io::Error::from_raw_os_error(answer.error.cast_signed());
        match answer.refusal {
            abi::SPLICE_ENROLLED => None,
            abi::SPLICE_NO_NEAR_APP => Some(Self::Gone(near)),
            abi::SPLICE_NO_NEAR_LEG | abi::SPLICE_NO_FAR_LEG | abi::SPLICE_UNKNOWN => {
                Some(Self::SocketGone)
            }
            abi::SPLICE_NEAR_APP_TAKEN => Some(Self::Taken(near, error)),
            abi::SPLICE_NEAR_APP_BLOCKS => Some(Self::Blocks(near)),
            abi::SPLICE_NEAR_LEG_TAKEN | abi::SPLICE_FAR_LEG_TAKEN => {
                Some(Self::SocketTaken(error))
            }
            abi::SPLICE_FULL => Some(Self::Full),
            abi::SPLICE_BUSY => Some(Self::Busy),
            abi::SPLICE_NO_ENGINE => Some(Self::NoEngine),
            other => Some(Self::Kernel(format!("answer {other}"))),
        }
    }
}
