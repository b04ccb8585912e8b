//! The reasons why a name has no answer.

use std::io;

/// A look-up that has brought no addresses.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// DNS says that there is no such name.
    #[error("there is no such name in DNS")]
    NoSuchName,
    /// DNS knows the name, and no address of it.
    #[error("the name has no address in DNS")]
    NoAddress,
    /// All addresses are such as no database has.
    #[error(
        "DNS answers with addresses that no database of this name has: of this host itself, of no host, or of many"
    )]
    Unusable,
    /// The system has no name server.
    #[error("/etc/resolv.conf names no server: {0}")]
    NoServer(String),
    /// Nobody has answered in time.
    #[error("no name server answers in time")]
    Late,
    /// The server cannot be reached.
    #[error("the name server cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
    /// The server says that it has failed (SERVFAIL).
    #[error("the name server has failed (SERVFAIL)")]
    ServerFailed,
    /// The server refuses the question, or does not understand it.
    #[error("the name server does not answer such questions (code {0})")]
    Refused(u16),
    /// No node of a cluster has told of the others.
    #[error("{0}")]
    NoNode(String),
    /// A node does not let the agent in, or does not let it read.
    #[error("{0}")]
    LoginFailed(String),
    /// The answer is no DNS.
    #[error("the name server's answer is malformed")]
    Malformed,
}

impl Failure {
    /// Every [label](Self::label).
    pub const LABELS: [&str; 11] = [
        "no_such_name",
        "no_address",
        "unusable",
        "no_server",
        "late",
        "unreachable",
        "server_failed",
        "refused",
        "malformed",
        "no_node",
        "login_failed",
    ];

    /// The reason's name in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NoSuchName => "no_such_name",
            Self::NoAddress => "no_address",
            Self::Unusable => "unusable",
            Self::NoServer(_) => "no_server",
            Self::Late => "late",
            Self::Unreachable(_) => "unreachable",
            Self::ServerFailed => "server_failed",
            Self::Refused(_) => "refused",
            Self::Malformed => "malformed",
            Self::NoNode(_) => "no_node",
            Self::LoginFailed(_) => "login_failed",
        }
    }

    /// Whether it is an answer: the name stands for nothing now. Everything else leaves open what it stands for.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::NoSuchName | Self::NoAddress)
    }
}
