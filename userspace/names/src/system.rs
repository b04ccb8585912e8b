//! The system's files: which servers are asked, which domains are tried, and hosts that are known without DNS.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read as _},
    net::{IpAddr, SocketAddr},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use resolv_conf::ScopedIp;

use crate::Failure;

/// The port of name servers (RFC 1035, 4.2).
const PORT: u16 = 53;

/// Servers that are asked, as by the C library (`MAXNS`).
const MAX_SERVERS: usize = 3;

/// Domains of a search list that are tried: as many as Kubernetes allows (`MaxDNSSearchPaths`).
const MAX_SEARCHED: usize = 32;

/// The most that is read of either file. A list of hosts that blocks advertisements has some megabytes.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Hosts that were looked for in the file as it is: rules and services have fewer.
const MAX_LOOKED_FOR: usize = 4096;

/// Bounds of `timeout` and `attempts` in `resolv.conf`: a server that is away costs seconds, not minutes.
const TIMEOUT_SECONDS: [u32; 2] = [1, 3];
const ATTEMPTS: [u32; 2] = [1, 3];

/// The places of the system's files.
#[derive(Clone, Debug)]
pub struct Files {
    /// `resolv.conf`.
    pub resolv_conf: PathBuf,
    /// `hosts`.
    pub hosts: PathBuf,
    /// The port of name servers.
    pub port: u16,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            resolv_conf: "/etc/resolv.conf".into(),
            hosts: "/etc/hosts".into(),
            port: PORT,
        }
    }
}

/// The servers to ask, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Servers {
    pub(crate) at: Vec<SocketAddr>,
    pub(crate) timeout: Duration,
    pub(crate) attempts: u32,
    search: Vec<String>,
    ndots: usize,
}

impl Files {
    /// Reads whom to ask. The file may change at any time, so it is read for each look-up.
    pub(crate) fn servers(&self) -> Result<Servers, Failure> {
        let text = read(&self.resolv_conf).map_err(|error| Failure::NoServer(error.to_string()))?;
        let servers = Servers::parse(&text, self.port);
        match servers.at.is_empty() {
            true => Err(Failure::NoServer("it has no `nameserver`".to_owned())),
            false => Ok(servers),
        }
    }

    /// The addresses of a host that the file of hosts has. Reads it.
    fn addresses_of(&self, host: &str) -> Vec<IpAddr> {
        let text = read(&self.hosts).unwrap_or_default();
        text.lines()
            .filter_map(|line| {
                let line = line.split('#').next()?;
                let mut words = line.split_ascii_whitespace();
                let ip = words.next()?.parse().ok()?;
                let is_named =
                    words.any(|name| name.trim_end_matches('.').eq_ignore_ascii_case(host));
                is_named.then_some(ip)
            })
            .collect()
    }
}

/// Hosts that were found in the file of hosts, or not, for as long as the file is the same: it may be long, and names are looked up each
/// second.
#[derive(Default)]
pub(crate) struct HostsInFile(Mutex<LookedFor>);

#[derive(Default)]
struct LookedFor {
    /// Inode, time of the last change, and length. None: there is no file.
    file: Option<(u64, (i64, i64), u64)>,
    hosts: HashMap<String, Vec<IpAddr>>,
}

impl HostsInFile {
    /// The addresses of a host that the file names.
    pub(crate) fn addresses_of(&self, files: &Files, host: &str) -> Vec<IpAddr> {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        // Before it is read: what changes in between is seen the next time.
        let file = files.hosts.metadata().ok();
        let file = file.map(|file| (file.ino(), (file.mtime(), file.mtime_nsec()), file.size()));
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.file != file || known.hosts.len() >= MAX_LOOKED_FOR {
            known.file = file;
            known.hosts.clear();
        }
        let found = known.hosts.entry(host);
        let found = found.or_insert_with_key(|host| files.addresses_of(host));
        found.clone()
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Servers {
    fn parse(text: &str, port: u16) -> Self {
        // A line that it does not know is nobody's concern.
        let (config, _) = resolv_conf::Config::parse_with_errors(text.as_bytes());
        let at = config.nameservers.iter().filter_map(|server| match server {
            ScopedIp::V4(ip) => Some(IpAddr::from(*ip)),
            ScopedIp::V6(ip, None) => Some(IpAddr::from(*ip)),
            // A link's own address: there is no way to say the link here.
            ScopedIp::V6(_, Some(_)) => None,
        });
        let within = |n: u32, [least, most]: [u32; 2]| n.clamp(least, most);
        let search = config.get_last_search_or_domain();
        Self {
            at: at
                .take(MAX_SERVERS)
                .map(|ip| SocketAddr::new(ip, port))
                .collect(),
            timeout: Duration::from_secs(within(config.timeout, TIMEOUT_SECONDS).into()),
            attempts: within(config.attempts, ATTEMPTS),
            search: search
                .map(|domain| domain.trim_matches('.').to_ascii_lowercase())
                .filter(|domain| !domain.is_empty())
                .take(MAX_SEARCHED)
                .collect(),
            ndots: config.ndots as usize,
        }
    }

    /// The names that a name may stand for, in the order in which they are tried (resolver(5), `search` and `ndots`).
    pub(crate) fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(whole) = name.strip_suffix('.') {
            return vec![whole.to_owned()];
        }
        let whole = std::iter::once(name.to_owned());
        let searched = self.search.iter().map(|domain| format!("{name}.{domain}"));
        match name.matches('.').count() >= self.ndots {
            true => whole.chain(searched).collect(),
            false => searched.chain(whole).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_file_is_read() {
        let servers = Servers::parse(
            "nameserver 10.96.0.10\nnameserver fe80::1%eth0\nnameserver fd00::a\n\
             search shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5 timeout:9 attempts:7 trust-ad\n",
            PORT,
        );
        let at: Vec<_> = servers.at.iter().map(ToString::to_string).collect();
        assert_eq!(at, ["10.96.0.10:53", "[fd00::a]:53"]);
        assert_eq!((servers.timeout.as_secs(), servers.attempts), (3, 3));
        let tried = servers.candidates("db.shop");
        assert_eq!(
            tried,
            [
                "db.shop.shop.svc.cluster.local",
                "db.shop.svc.cluster.local",
                "db.shop.cluster.local",
                "db.shop"
            ]
        );
        assert_eq!(servers.candidates("db.shop."), ["db.shop"]);
        assert_eq!(servers.candidates("a.b.c.d.e.f")[0], "a.b.c.d.e.f");
    }

    #[test]
    fn hosts_are_found_by_any_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let hosts = folder.path().join("hosts");
        std::fs::write(
            &hosts,
            "10.1.0.1 db1 DB.shop # db2\n\nnonsense db.shop\nfd00::1\tdb.shop.\n",
        )
        .unwrap();
        let files = Files {
            hosts,
            ..Files::default()
        };
        let known = HostsInFile::default();
        let found = |host: &str| {
            known
                .addresses_of(&files, host)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(found("db.shop."), ["10.1.0.1", "fd00::1"]);
        assert_eq!(found("db1"), ["10.1.0.1"]);
        assert!(found("db2").is_empty());
        // A change is seen, also of what was not there.
        std::fs::write(&files.hosts, "10.1.0.2 db2\n").unwrap();
        assert_eq!(found("DB2"), ["10.1.0.2"]);
        assert!(found("db1").is_empty());
        std::fs::remove_file(&files.hosts).unwrap();
        assert!(found("db2").is_empty());
    }
}
