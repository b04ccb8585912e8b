//! [`Resolver`]: asks name servers, over UDP, and over TCP where an answer does not fit.

use std::{
    collections::{BTreeSet, HashSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use policy::{Domain, Endpoint};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::{Instant, timeout_at},
};

use crate::{
    Failure, Files,
    message::{self, Found, Kind, Read, Records},
    system::Servers,
};

/// Bytes of an answer in a datagram (RFC 1035, 4.2.1): more is sent to nobody who does not ask for it.
const DATAGRAM_BYTES: usize = 512;

/// Hosts of a service that are looked up.
const MAX_SERVICES: usize = 64;

/// Ports that one service's records may say: what a database listens on is few, and each is an entry in the kernel's tables.
pub(crate) const MAX_PORTS: usize = 16;

/// The time for which what `/etc/hosts` says holds: the file is read again then.
const HOSTS_HOLD: Duration = Duration::from_secs(5);

/// Connects to a name server; with connections that no hook of the agent changes, where it has such.
pub type Dial = Arc<
    dyn Fn(SocketAddr) -> Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>> + Send + Sync,
>;

/// Connects as any program does.
pub fn dial_plainly() -> Dial {
    Arc::new(|to| Box::pin(TcpStream::connect(to)))
}

/// Asks the system's name servers.
#[derive(Clone)]
pub struct Resolver {
    files: Files,
    dial: Dial,
}

/// The addresses that a name stands for.
#[derive(Debug, Default)]
pub(crate) struct LookedUp {
    pub(crate) endpoints: BTreeSet<Endpoint>,
    pub(crate) ttl: Duration,
    /// Why there may be more.
    pub(crate) missing: Option<Failure>,
    /// Addresses and hosts that were not taken.
    pub(crate) refused: usize,
}

impl Resolver {
    /// Asks the servers that these files name.
    pub fn new(files: Files, dial: Dial) -> Self {
        Self { files, dial }
    }

    /// Dials in another way from now on.
    pub(crate) fn dialling_by(self, dial: Dial) -> Self {
        Self { dial, ..self }
    }

    /// Connects as name servers are connected to.
    pub(crate) async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        (self.dial)(to).await
    }

    /// The addresses of a host, without ports.
    pub(crate) async fn host(&self, domain: &Domain) -> Result<LookedUp, Failure> {
        let from_hosts = self.files.addresses_of(domain.as_str());
        if !from_hosts.is_empty() {
            return usable(from_hosts, HOSTS_HOLD, None, true);
        }
        let servers = self.files.servers()?;
        let mut last = Failure::NoSuchName;
        for name in servers.candidates(domain.as_str()) {
            match self.addresses(&servers, &name).await {
                // What comes later in the list stands for something else.
                Err(failure) if failure.is_answer() => last = worse(last, failure),
                other => return other,
            }
        }
        Err(last)
    }

    /// The addresses and ports of a service.
    pub(crate) async fn service(&self, domain: &Domain) -> Result<LookedUp, Failure> {
        let servers = self.files.servers()?;
        let mut last = Failure::NoSuchName;
        for name in servers.candidates(domain.as_str()) {
            match self.ask(&servers, &name, Kind::Srv).await {
                Err(failure) if failure.is_answer() => last = worse(last, failure),
                Err(failure) => return Err(failure),
                Ok(records) => return self.hosts_of(&servers, records).await,
            }
        }
        Err(last)
    }

    /// The addresses of the hosts that SRV records name. Other records of the same answer could say them, too, and are not
    /// believed.
    async fn hosts_of(&self, servers: &Servers, records: Records) -> Result<LookedUp, Failure> {
        let Found::Services(services) = records.found else {
            return Err(Failure::Malformed);
        };
        let mut all = LookedUp {
            ttl: records.ttl,
            ..LookedUp::default()
        };
        let mut ports = HashSet::new();
        for (host, port) in services {
            let is_new = !ports.contains(&port);
            // A record without a host says that there is no such service (RFC 2782).
            if host.is_empty() || port == 0 || is_new && ports.len() >= MAX_PORTS {
                all.refused += usize::from(!host.is_empty());
                continue;
            }
            if all.endpoints.len() >= MAX_SERVICES {
                all.refused += 1;
                continue;
            }
            ports.insert(port);
            let from_hosts = self.files.addresses_of(&host);
            let looked_up = match from_hosts.is_empty() {
                true => self.addresses(servers, &host).await,
                false => usable(from_hosts, HOSTS_HOLD, None, true),
            };
            match looked_up {
                Ok(of_host) => {
                    let at = of_host.endpoints.iter();
                    let at = at.map(|at| Endpoint::from(SocketAddr::new(at.ip, port)));
                    all.endpoints.extend(at);
                    all.ttl = all.ttl.min(of_host.ttl);
                    all.refused += of_host.refused;
                    all.missing = all.missing.or(of_host.missing);
                }
                Err(failure) => {
                    all.missing.get_or_insert(failure);
                }
            }
        }
        match (all.endpoints.is_empty(), all.missing.take()) {
            (true, Some(failure)) => Err(failure),
            (true, None) => Err(Failure::NoAddress),
            // One host less is an answer.
            (false, missing) => Ok(LookedUp {
                missing: missing.filter(|failure| !failure.is_answer()),
                ..all
            }),
        }
    }

    /// The addresses of both families.
    async fn addresses(&self, servers: &Servers, name: &str) -> Result<LookedUp, Failure> {
        let (v4, v6) = tokio::join!(
            self.ask(servers, name, Kind::A),
            self.ask(servers, name, Kind::Aaaa)
        );
        let (mut addresses, mut ttl) = (Vec::new(), Duration::MAX);
        let mut failures = Vec::new();
        for family in [v4, v6] {
            match family {
                Ok(Records {
                    found: Found::Addresses(found),
                    ttl: holds,
                }) => {
                    addresses.extend(found);
                    ttl = ttl.min(holds);
                }
                Ok(_) => failures.push(Failure::Malformed),
                Err(failure) => failures.push(failure),
            }
        }
        let open = failures.iter().position(|failure| !failure.is_answer());
        match (addresses.is_empty(), open) {
            (true, Some(open)) => Err(failures.swap_remove(open)),
            (true, None) => Err(failures
                .into_iter()
                .reduce(worse)
                .unwrap_or(Failure::NoAddress)),
            (false, open) => {
                let missing = open.map(|open| failures.swap_remove(open));
                let is_here = name == "localhost" || name.ends_with(".localhost");
                usable(addresses, ttl, missing, is_here)
            }
        }
    }

    /// Asks one server after the other, and then again, until one answers.
    async fn ask(&self, servers: &Servers, name: &str, kind: Kind) -> Result<Records, Failure> {
        let mut last = Failure::Late;
        for _ in 0..servers.attempts {
            for server in &servers.at {
                let until = Instant::now() + servers.timeout;
                let asked = timeout_at(until, self.exchange(*server, name, kind)).await;
                match asked.unwrap_or(Err(Failure::Late)) {
                    Err(failure) if !failure.is_answer() => last = failure,
                    answer => return answer,
                }
            }
        }
        Err(last)
    }

    async fn exchange(
        &self,
        server: SocketAddr,
        name: &str,
        kind: Kind,
    ) -> Result<Records, Failure> {
        let id = unguessable()?;
        // A name that no query can have is not there.
        let query = message::query(id, name, kind).ok_or(Failure::NoSuchName)?;
        let any: IpAddr = match server.is_ipv4() {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        // Another port of this host's each time, and nobody else's datagrams.
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(server).await?;
        socket.send(&query).await?;
        let mut buffer = [0; DATAGRAM_BYTES];
        loop {
            let came = socket.recv(&mut buffer).await?;
            let bytes = buffer.get(..came).unwrap_or_default();
            match message::read(bytes, id, name, kind) {
                Read::Answer(answer) => return answer,
                Read::Truncated => break,
                Read::Other => {}
            }
        }
        let mut stream = (self.dial)(server).await?;
        let length = u16::try_from(query.len()).unwrap_or_default();
        stream
            .write_all(&[&length.to_be_bytes()[..], &query].concat())
            .await?;
        let mut answer = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut answer).await?;
        match message::read(&answer, id, name, kind) {
            Read::Answer(answer) => answer,
            Read::Truncated | Read::Other => Err(Failure::Malformed),
        }
    }
}

/// Addresses of a name that a database can have. `is_here`: it may be this host.
fn usable(
    addresses: Vec<IpAddr>,
    ttl: Duration,
    missing: Option<Failure>,
    is_here: bool,
) -> Result<LookedUp, Failure> {
    let count = addresses.len();
    let taken = addresses.into_iter().map(|ip| ip.to_canonical());
    let taken: Vec<IpAddr> = taken.filter(|ip| is_usable(*ip, is_here)).collect();
    match taken.is_empty() {
        true => Err(Failure::Unusable),
        false => Ok(LookedUp {
            refused: count - taken.len(),
            endpoints: taken.into_iter().map(Endpoint::host).collect(),
            ttl,
            missing,
        }),
    }
}

/// Whether a database can be at an address. DNS of others does not say what is on this host (`is_here`).
pub(crate) fn is_usable(ip: IpAddr, is_here: bool) -> bool {
    let is_many = match ip {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    !is_many && !ip.is_unspecified() && (is_here || !ip.is_loopback())
}

/// The answer that says more: a name that is there without addresses, and not one that is not there.
fn worse(a: Failure, b: Failure) -> Failure {
    match a {
        Failure::NoAddress => a,
        _ => b,
    }
}

/// A number that whoever forges answers has to guess.
fn unguessable() -> io::Result<u16> {
    let number = getrandom::u32().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(number as u16)
}
