//! What a rule's conditions look like: destinations, process names, network namespaces.

use std::{
    fmt,
    net::SocketAddr,
    path::{Component, Path, PathBuf},
};

use ebpf::abi;
use ipnet::IpNet;

use crate::host;

/// `comm` has room for this many bytes; the kernel cuts longer names.
pub const MAX_PROCESS_NAME_BYTES: usize = abi::COMM_BYTES as usize - 1;

/// A destination: a network, a port, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Any address when absent. An IPv6 network never holds an IPv4-mapped address.
    pub network: Option<IpNet>,
    /// Any port when absent.
    pub port: Option<u16>,
}

impl Target {
    /// The one address and port that it is, if it is one.
    pub(super) fn endpoint(&self) -> Option<SocketAddr> {
        let network = self.network?;
        let is_one = network.prefix_len() == network.max_prefix_len();
        Some(SocketAddr::new(network.addr(), self.port?)).filter(|_| is_one)
    }

    pub(super) fn holds(&self, dst: SocketAddr) -> bool {
        let ip = dst.ip().to_canonical();
        self.network.is_none_or(|net| net.contains(&ip))
            && self.port.is_none_or(|port| port == dst.port())
    }
}

/// A process name, exact or a prefix (`spark*`). At most [`MAX_PROCESS_NAME_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProcessPattern {
    pub(crate) text: String,
    pub(crate) prefix: bool,
}

impl ProcessPattern {
    /// `name`, or `prefix*`. None when it is longer than a process name can be, empty, or
    /// has a `*` anywhere else.
    pub fn parse(pattern: &str) -> Option<Self> {
        let (text, prefix) = match pattern.strip_suffix('*') {
            Some(text) => (text, true),
            None => (pattern, false),
        };
        let fits = text.len() <= MAX_PROCESS_NAME_BYTES && !text.contains(['*', '\0']);
        (fits && (prefix || !text.is_empty())).then(|| Self {
            text: text.to_owned(),
            prefix,
        })
    }

    pub(super) fn holds(&self, name: &str) -> bool {
        if self.prefix {
            name.starts_with(&self.text)
        } else {
            name == self.text
        }
    }
}

impl fmt::Display for ProcessPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text, if self.prefix { "*" } else { "" })
    }
}

/// A network namespace of this host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NetnsPattern {
    /// By its inode's number, as `lsns` shows it.
    Inode(u32),
    /// By where it can be opened.
    At(PathBuf),
}

impl NetnsPattern {
    /// A number, an absolute path, or a name that `ip netns` has given.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(inode) = text.parse() {
            return Some(Self::Inode(inode));
        }
        let path = Path::new(text);
        let plain = |c: Component<'_>| matches!(c, Component::RootDir | Component::Normal(_));
        match path.components().all(plain) && !text.is_empty() {
            true if path.is_absolute() => Some(Self::At(path.to_owned())),
            true if !text.contains('/') => Some(Self::At(Path::new(host::NETNS).join(path))),
            _ => None,
        }
    }

    /// Its number; None while it does not exist.
    pub fn inode(&self) -> Option<u32> {
        match self {
            Self::Inode(inode) => Some(*inode),
            Self::At(path) => host::netns_inode(path),
        }
    }
}

impl fmt::Display for NetnsPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inode(inode) => inode.fmt(f),
            Self::At(path) => path.display().fmt(f),
        }
    }
}
