//! The values in a rule's conditions: destinations, process names, network namespaces.

use std::{
    fmt, fs,
    net::{IpAddr, SocketAddr},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

use ipnet::IpNet;

/// Bytes of a process name: `comm` has room for 15 and a NUL (`TASK_COMM_LEN`); the kernel cuts longer
/// names.
pub const MAX_PROCESS_NAME_BYTES: usize = 15;

/// Ports of one range in `to`: each is an entry in the kernel's table of destinations.
pub const MAX_PORTS_OF_A_RANGE: usize = 128;

/// A destination: a network, a port, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The network of addresses; any address when absent. An IPv6 network never holds an IPv4-mapped address.
    pub network: Option<IpNet>,
    /// The port; any port when absent.
    pub port: Option<u16>,
}

impl Target {
    /// Reads `NETWORK:PORT`, `NETWORK`, `:PORT`; IPv6 networks in brackets: `[fd00::/8]:9042`.
    ///
    /// # Errors
    /// Says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "network and port, either of which may be left out: \
                                `10.1.0.0/16:9042`, `[fd00::/8]:9042`, `10.1.2.3`, `:9042`";
        let wrong = || EXPECTED.to_owned();
        let in_brackets = text.starts_with('[');
        let (network, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match port.strip_prefix(':').map(number) {
            Some(Some(port)) if port != 0 => Some(port),
            None if port.is_empty() => None,
            _ => return Err(wrong()),
        };
        let network = match network {
            "" if port.is_some() && !in_brackets => None,
            _ => Some(parse_network(network).ok_or_else(wrong)?),
        };
        if let Some(network) = network {
            if network.addr().is_ipv6() != in_brackets {
                return Err(wrong());
            }
            check_network(network)?;
        }
        Ok(Self { network, port })
    }

    /// Reads what [`Self::parse`] does, or the same with a range of ports: `10.1.2.3:9042-9044` stands for three targets.
    ///
    /// # Errors
    /// Says what was expected.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        let range = text.rsplit_once(':').and_then(|(network, ports)| {
            let (first, last) = ports.split_once('-')?;
            Some((network, number(first), number(last)))
        });
        match range {
            None => Ok(vec![Self::parse(text)?]),
            Some((network, Some(first), Some(last)))
                if first <= last && usize::from(last - first) < MAX_PORTS_OF_A_RANGE =>
            {
                let ports = first..=last;
                ports
                    .map(|port| Self::parse(&format!("{network}:{port}")))
                    .collect()
            }
            Some(_) => Err(format!(
                "at most {MAX_PORTS_OF_A_RANGE} ports, the lowest first: `:9042-9044`"
            )),
        }
    }

    /// The one address and port that the target stands for, if it stands for just one.
    pub(crate) fn endpoint(&self) -> Option<SocketAddr> {
        let network = self.network?;
        let is_one = network.prefix_len() == network.max_prefix_len();
        Some(SocketAddr::new(network.addr(), self.port?)).filter(|_| is_one)
    }

    pub(crate) fn holds(&self, dst: SocketAddr) -> bool {
        self.holds_at(dst.ip(), Some(dst.port()))
    }

    /// Whether an address is one of the target's. A port that is not known is none of its.
    pub(crate) fn holds_at(&self, ip: IpAddr, port: Option<u16>) -> bool {
        self.network
            .is_none_or(|net| net.contains(&ip.to_canonical()))
            && (self.port.is_none() || self.port == port)
    }
}

/// Reads a network, or the one address that it is.
pub fn parse_network(text: &str) -> Option<IpNet> {
    let Some((address, length)) = text.split_once('/') else {
        return text.parse::<IpAddr>().ok().map(IpNet::from);
    };
    let length = u8::try_from(number(length)?).ok()?;
    IpNet::new(address.parse().ok()?, length).ok()
}

/// Reads a number of digits: without a sign, and without a zero before others, which some take for an octal number.
fn number(text: &str) -> Option<u16> {
    let is_plain =
        text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

/// Checks that a network is written by its first address.
///
/// # Errors
/// Says what was expected.
pub fn check_network(network: IpNet) -> Result<(), String> {
    if network.addr() != network.network() {
        return Err(format!("a network's first address: `{}`", network.trunc()));
    }
    match network.addr() {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err("the IPv4 form of an IPv4-mapped address".to_owned())
        }
        _ => Ok(()),
    }
}

/// A pattern for process names: a name, or a beginning (`spark*`). At most [`MAX_PROCESS_NAME_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProcessPattern {
    text: String,
    prefix: bool,
}

impl ProcessPattern {
    /// Reads `name` or `prefix*`. None when the text is longer than a process name can be, empty, or
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

    /// The name, or the beginning of names if this [is a prefix](Self::is_prefix).
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether every name that begins with the text is meant.
    pub fn is_prefix(&self) -> bool {
        self.prefix
    }

    pub(crate) fn holds(&self, name: &str) -> bool {
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

/// The folder in which `ip netns` keeps its names.
pub const NETNS: &str = "/run/netns";

/// A network namespace of this host, as a rule names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NetnsPattern {
    /// The number of its inode, as `lsns` shows it.
    Inode(u32),
    /// A path at which it can be opened.
    At(PathBuf),
}

impl NetnsPattern {
    /// Reads a number, an absolute path, or a name that `ip netns` has given.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(inode) = text.parse() {
            return Some(Self::Inode(inode));
        }
        let path = Path::new(text);
        let plain = |c: Component<'_>| matches!(c, Component::RootDir | Component::Normal(_));
        match path.components().all(plain) && !text.is_empty() {
            true if path.is_absolute() => Some(Self::At(path.to_owned())),
            true if !text.contains('/') => Some(Self::At(Path::new(NETNS).join(path))),
            _ => None,
        }
    }

    /// The namespace's inode number; None while it does not exist. A path is looked up at each call, since
    /// a namespace may come, go and come again under one name.
    pub fn inode(&self) -> Option<u32> {
        match self {
            Self::Inode(inode) => Some(*inode),
            Self::At(path) => fs::metadata(path).ok()?.ino().try_into().ok(),
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
