//! [`Resolver`]: asks name servers, over UDP, and over TCP where an answer does not fit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use policy::{Domain, Endpoint};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    task::JoinSet,
    time::{Instant, timeout_at},
};

use crate::{
    Failure, Files,
    message::{self, Found, Kind, Read, Records},
    system::{HostsInFile, Servers},
};

/// Bytes of an answer in a datagram (RFC 1035, 4.2.1): more is sent to nobody who does not ask for it.
const DATAGRAM_BYTES: usize = 512;

/// Hosts of a service that are looked up.
const MAX_SERVICES: usize = 64;

/// Hosts of one service that are looked up at the same time: one that does not answer is not in the way of the others.
const MAX_HOSTS_AT_ONCE: usize = 8;

/// The wait for one server at the start, which has little time: no longer than the least of `resolv.conf`.
const TIMEOUT_AT_START: Duration = Duration::from_secs(1);

/// Ports that one service's records may say: what a database listens on is few, and each is an entry in the kernel's tables.
pub(crate) const MAX_PORTS: usize = 16;

/// The time for which what `/etc/hosts` says holds: the file is looked at again then.
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
    hosts: Arc<HostsInFile>,
    dial: Dial,
    /// The place of the server that has answered last, which is asked first: one that is away is not waited for each time.
    first: Arc<AtomicUsize>,
    /// The wait for one server, at most.
    patience: Duration,
}

/// The addresses that a name stands for.
#[derive(Debug, Default)]
pub(crate) struct LookedUp {
    pub(crate) endpoints: BTreeSet<Endpoint>,
    /// The host of each, where a service has several.
    pub(crate) hosts: HashMap<Endpoint, Arc<str>>,
    pub(crate) ttl: Duration,
    /// Parts of which nobody has told.
    pub(crate) missing: Option<Missing>,
    /// Addresses and ports that no database can have.
    pub(crate) refused: usize,
    /// Hosts of a service beyond those that are looked up.
    pub(crate) too_many: usize,
}

/// Parts of what a name stands for: there may be addresses in them, and nobody has told which.
#[derive(Debug)]
pub(crate) struct Missing {
    /// The first reason.
    pub(crate) why: Failure,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    /// The host of a service; None: the name is a host itself.
    host: Option<Arc<str>>,
    /// One family of addresses; None: both.
    is_v6: Option<bool>,
}

impl Missing {
    /// One family of the addresses of a host.
    pub(crate) fn of_family(why: Failure, is_v6: bool) -> Self {
        let part = Part {
            host: None,
            is_v6: Some(is_v6),
        };
        let parts = vec![part];
        Self { why, parts }
    }

    /// All addresses of a host of a service.
    pub(crate) fn of_host(why: Failure, host: Arc<str>) -> Self {
        let part = Part {
            host: Some(host),
            is_v6: None,
        };
        let parts = vec![part];
        Self { why, parts }
    }

    /// Whether an address may be in one of the parts.
    pub(crate) fn may_have(&self, at: &Endpoint, host: Option<&Arc<str>>) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| {
            part.host.as_ref() == host && part.is_v6.is_none_or(|v6| v6 == at.ip.is_ipv6())
        })
    }
}

impl LookedUp {
    /// Adds the addresses of a host of a service, at each of its ports.
    fn add<'p>(
        &mut self,
        host: &Arc<str>,
        found: Self,
        ports: impl Iterator<Item = &'p u16> + Clone,
    ) {
        for at in &found.endpoints {
            for port in ports.clone() {
                let endpoint = Endpoint::from(SocketAddr::new(at.ip, *port));
                self.endpoints.insert(endpoint);
                self.hosts.insert(endpoint, host.clone());
            }
        }
        self.ttl = self.ttl.min(found.ttl);
        self.refused += found.refused;
        if let Some(mut missing) = found.missing {
            for part in &mut missing.parts {
                part.host = Some(host.clone());
            }
            self.miss(missing);
        }
    }

    fn miss(&mut self, more: Missing) {
        match &mut self.missing {
            Some(missing) => missing.parts.extend(more.parts),
            None => self.missing = Some(more),
        }
    }
}

impl Resolver {
    /// Asks the servers that these files name.
    pub fn new(files: Files, dial: Dial) -> Self {
        Self {
            files,
            hosts: Arc::default(),
            dial,
            first: Arc::default(),
            patience: Duration::MAX,
        }
    }

    /// Waits no longer for a server than a start may.
    pub(crate) fn at_start(&self) -> Self {
        Self {
            patience: TIMEOUT_AT_START,
            ..self.clone()
        }
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
        let from_hosts = self.in_hosts_file(domain.as_str());
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

    /// The addresses and ports of a service, of those of its hosts that have told them `until` then.
    pub(crate) async fn service(
        &self,
        domain: &Domain,
        until: Instant,
    ) -> Result<LookedUp, Failure> {
        let servers = Arc::new(self.files.servers()?);
        let mut last = Failure::NoSuchName;
        for name in servers.candidates(domain.as_str()) {
            match self.ask(&servers, &name, Kind::Srv).await {
                Err(failure) if failure.is_answer() => last = worse(last, failure),
                Err(failure) => return Err(failure),
                Ok(records) => return self.hosts_of(&servers, records, until).await,
            }
        }
        Err(last)
    }

    /// The addresses of the hosts that SRV records name: of those that have told them `until` then. Other records of the same answer
    /// could say them, too, and are not believed.
    async fn hosts_of(
        &self,
        servers: &Arc<Servers>,
        records: Records,
        until: Instant,
    ) -> Result<LookedUp, Failure> {
        let Found::Services(services) = records.found else {
            return Err(Failure::Malformed);
        };
        let mut all = LookedUp {
            ttl: records.ttl,
            ..LookedUp::default()
        };
        let ports = ports_of_hosts(services, &mut all);
        let mut waiting = ports.keys();
        let mut open: BTreeSet<&Arc<str>> = ports.keys().collect();
        let mut asking = JoinSet::new();
        let mut nothing = Failure::NoAddress;
        loop {
            for host in waiting.by_ref().take(MAX_HOSTS_AT_ONCE - asking.len()) {
                let (resolver, servers, host) = (self.clone(), servers.clone(), host.clone());
                asking.spawn(async move {
                    let looked_up = resolver.host_of_service(&servers, &host).await;
                    (host, looked_up)
                });
            }
            let Ok(Some(ended)) = timeout_at(until, asking.join_next()).await else {
                break;
            };
            // One that has failed is told as late.
            let Ok((host, looked_up)) = ended else {
                continue;
            };
            open.remove(&host);
            match looked_up {
                Ok(of_host) => all.add(&host, of_host, ports.get(&host).into_iter().flatten()),
                // One host less is an answer.
                Err(failure) if failure.is_answer() => nothing = failure,
                Err(failure) => all.miss(Missing::of_host(failure, host)),
            }
        }
        for late in open {
            all.miss(Missing::of_host(Failure::Late, late.clone()));
        }
        match (all.endpoints.is_empty(), all.missing.take()) {
            (true, Some(missing)) => Err(missing.why),
            (true, None) => Err(nothing),
            (false, missing) => Ok(LookedUp { missing, ..all }),
        }
    }

    async fn host_of_service(&self, servers: &Servers, host: &str) -> Result<LookedUp, Failure> {
        let from_hosts = self.in_hosts_file(host);
        match from_hosts.is_empty() {
            true => self.addresses(servers, host).await,
            false => usable(from_hosts, HOSTS_HOLD, None, true),
        }
    }

    fn in_hosts_file(&self, host: &str) -> Vec<IpAddr> {
        self.hosts.addresses_of(&self.files, host)
    }

    /// The addresses of both families.
    async fn addresses(&self, servers: &Servers, name: &str) -> Result<LookedUp, Failure> {
        let (v4, v6) = tokio::join!(
            self.ask(servers, name, Kind::A),
            self.ask(servers, name, Kind::Aaaa)
        );
        let (mut addresses, mut ttl) = (Vec::new(), Duration::MAX);
        let mut failures = Vec::new();
        for (is_v6, family) in [(false, v4), (true, v6)] {
            match family {
                Ok(Records {
                    found: Found::Addresses(found),
                    ttl: holds,
                }) => {
                    addresses.extend(found);
                    ttl = ttl.min(holds);
                }
                Ok(_) => failures.push((is_v6, Failure::Malformed)),
                Err(failure) => failures.push((is_v6, failure)),
            }
        }
        let open = failures.iter().position(|(_, why)| !why.is_answer());
        let open = open.map(|open| failures.swap_remove(open));
        match (addresses.is_empty(), open) {
            (true, Some((_, why))) => Err(why),
            (true, None) => {
                let answers = failures.into_iter().map(|(_, why)| why);
                Err(answers.reduce(worse).unwrap_or(Failure::NoAddress))
            }
            (false, open) => {
                let missing = open.map(|(is_v6, why)| Missing::of_family(why, is_v6));
                let is_here = name == "localhost" || name.ends_with(".localhost");
                usable(addresses, ttl, missing, is_here)
            }
        }
    }

    /// Asks one server after the other, and then again, until one answers. The one that has answered last is the first.
    async fn ask(&self, servers: &Servers, name: &str, kind: Kind) -> Result<Records, Failure> {
        let mut last = Failure::Late;
        let first = self.first.load(Ordering::Relaxed) % servers.at.len().max(1);
        for _ in 0..servers.attempts {
            let places = servers.at.iter().enumerate().cycle().skip(first);
            for (place, server) in places.take(servers.at.len()) {
                let until = Instant::now() + servers.timeout.min(self.patience);
                let asked = timeout_at(until, self.exchange(*server, name, kind)).await;
                match asked.unwrap_or(Err(Failure::Late)) {
                    Err(failure) if !failure.is_answer() => last = failure,
                    answer => {
                        self.first.store(place, Ordering::Relaxed);
                        return answer;
                    }
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

/// The ports of each host that SRV records name. What is not taken is counted.
fn ports_of_hosts(
    services: Vec<(String, u16)>,
    all: &mut LookedUp,
) -> BTreeMap<Arc<str>, BTreeSet<u16>> {
    let mut hosts = BTreeMap::<Arc<str>, BTreeSet<u16>>::new();
    let mut ports = HashSet::new();
    for (host, port) in services {
        // A record without a host says that there is no such service (RFC 2782).
        let is_port = port != 0 && (ports.contains(&port) || ports.len() < MAX_PORTS);
        if host.is_empty() || !is_port {
            all.refused += usize::from(!host.is_empty());
        } else if !hosts.contains_key(&*host) && hosts.len() >= MAX_SERVICES {
            all.too_many += 1;
        } else {
            ports.insert(port);
            hosts.entry(host.into()).or_default().insert(port);
        }
    }
    hosts
}

/// Addresses of a name that a database can have. `is_here`: it may be this host.
fn usable(
    addresses: Vec<IpAddr>,
    ttl: Duration,
    missing: Option<Missing>,
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
            ..LookedUp::default()
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
