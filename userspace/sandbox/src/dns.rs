//! A name server that answers as it is told, over UDP and TCP.

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use simple_dns::{
    CLASS, Name, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE,
    rdata::{A, AAAA, CNAME, RData, SRV},
};

/// How often the threads look whether they are to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Records that a name has, or what becomes of a question for it.
#[derive(Clone, Debug)]
pub enum Told {
    /// Addresses, of both families.
    Addresses(Vec<IpAddr>),
    /// The name that this one stands for; what that has comes with it.
    Alias(String),
    /// Hosts and ports.
    Services(Vec<(String, u16)>),
    /// SERVFAIL.
    Fails,
    /// No answer.
    Silence,
    /// An answer to another question first, and then these addresses.
    Forged(Vec<IpAddr>),
    /// Addresses; SERVFAIL for those of IPv6.
    FailsForV6(Vec<IpAddr>),
}

#[derive(Debug, Default)]
struct Zone {
    names: HashMap<String, (Told, u32)>,
    asked: HashMap<String, usize>,
    by_tcp: usize,
}

/// A name server; gone when it is dropped. Names that it has not been told do not exist.
#[derive(Debug)]
pub struct NameServer {
    at: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl NameServer {
    /// Listens in the namespace of this thread.
    ///
    /// # Errors
    /// The address is taken.
    pub fn start(at: SocketAddr) -> anyhow::Result<Self> {
        let tcp = TcpListener::bind(at)?;
        let at = tcp.local_addr()?;
        let udp = UdpSocket::bind(at)?;
        udp.set_read_timeout(Some(LOOK_EVERY))?;
        tcp.set_nonblocking(true)?;
        let zone = Arc::<Mutex<Zone>>::default();
        let ended = Arc::<AtomicBool>::default();
        let (of_udp, ends) = (zone.clone(), ended.clone());
        let datagrams = thread::spawn(move || {
            let mut buffer = [0; 512];
            while !ends.load(Relaxed) {
                if let Ok((came, from)) = udp.recv_from(&mut buffer) {
                    for answer in answers(&of_udp, buffer.get(..came).unwrap_or_default()) {
                        let cut = truncated(&answer);
                        let _ = udp.send_to(cut.as_deref().unwrap_or(&answer), from);
                    }
                }
            }
        });
        let (of_tcp, ends) = (zone.clone(), ended.clone());
        let streams = thread::spawn(move || {
            while !ends.load(Relaxed) {
                match tcp.accept() {
                    Ok((stream, _)) => drop(serve(&stream, &of_tcp)),
                    Err(_) => thread::sleep(LOOK_EVERY),
                }
            }
        });
        Ok(Self {
            at,
            zone,
            ended,
            threads: vec![datagrams, streams],
        })
    }

    /// Where it listens.
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// From now on a name has this, for so many seconds.
    pub fn tell(&self, name: &str, told: Told, ttl: u32) {
        lock(&self.zone).names.insert(name.to_owned(), (told, ttl));
    }

    /// From now on there is no such name.
    pub fn forget(&self, name: &str) {
        lock(&self.zone).names.remove(name);
    }

    /// How often a name was asked for.
    pub fn asked(&self, name: &str) -> usize {
        lock(&self.zone).asked.get(name).copied().unwrap_or(0)
    }

    /// How often it was asked over TCP.
    pub fn asked_by_tcp(&self) -> usize {
        lock(&self.zone).by_tcp
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

fn lock(zone: &Mutex<Zone>) -> std::sync::MutexGuard<'_, Zone> {
    zone.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(mut stream: &TcpStream, zone: &Mutex<Zone>) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut query)?;
    lock(zone).by_tcp += 1;
    for answer in answers(zone, &query) {
        let length = (answer.len() as u16).to_be_bytes();
        stream.write_all(&[&length[..], &answer].concat())?;
    }
    Ok(())
}

/// The beginning of an answer that does not fit into a datagram. None: it does.
fn truncated(answer: &[u8]) -> Option<Vec<u8>> {
    if answer.len() <= 512 {
        return None;
    }
    let mut packet = Packet::parse(answer).ok()?;
    packet.answers.clear();
    packet.set_flags(PacketFlag::TRUNCATION);
    packet.build_bytes_vec().ok()
}

fn answers(zone: &Mutex<Zone>, query: &[u8]) -> Vec<Vec<u8>> {
    let Ok(query) = Packet::parse(query) else {
        return Vec::new();
    };
    let Some(question) = query.questions.first() else {
        return Vec::new();
    };
    let (asked, kind) = (question.qname.to_string(), question.qtype);
    let mut zone = lock(zone);
    *zone.asked.entry(asked.clone()).or_default() += 1;
    let mut reply = query.clone().into_reply();
    let mut name = asked;
    let mut all = Vec::new();
    loop {
        let Some((told, ttl)) = zone.names.get(&name) else {
            *reply.rcode_mut() = RCODE::NameError;
            break;
        };
        let add = |reply: &mut Packet<'_>, data: RData<'static>| {
            let owner = Name::new_unchecked(&name).into_owned();
            reply
                .answers
                .push(ResourceRecord::new(owner, CLASS::IN, *ttl, data));
        };
        match told {
            Told::Silence => return Vec::new(),
            Told::FailsForV6(_) if kind == QTYPE::TYPE(TYPE::AAAA) => {
                *reply.rcode_mut() = RCODE::ServerFailure;
            }
            Told::Fails => *reply.rcode_mut() = RCODE::ServerFailure,
            Told::Alias(to) => {
                let target = Name::new_unchecked(to).into_owned();
                add(&mut reply, RData::CNAME(CNAME(target)));
                name = to.clone();
                continue;
            }
            Told::Services(services) if kind == QTYPE::TYPE(TYPE::SRV) => {
                for (host, port) in services {
                    let target = Name::new_unchecked(host).into_owned();
                    let (priority, weight, port) = (0, 0, *port);
                    add(
                        &mut reply,
                        RData::SRV(SRV {
                            priority,
                            weight,
                            port,
                            target,
                        }),
                    );
                }
            }
            Told::Services(_) => {}
            Told::Addresses(addresses) | Told::Forged(addresses) | Told::FailsForV6(addresses) => {
                if matches!(told, Told::Forged(_)) {
                    let mut forged = reply.clone();
                    forged.set_id(reply.id().wrapping_add(1));
                    all.extend(forged.build_bytes_vec().ok());
                }
                for address in addresses {
                    match (address, kind) {
                        (IpAddr::V4(ip), QTYPE::TYPE(TYPE::A)) => {
                            let address = u32::from(*ip);
                            add(&mut reply, RData::A(A { address }));
                        }
                        (IpAddr::V6(ip), QTYPE::TYPE(TYPE::AAAA)) => {
                            let address = u128::from(*ip);
                            add(&mut reply, RData::AAAA(AAAA { address }));
                        }
                        _ => {}
                    }
                }
            }
        }
        break;
    }
    all.extend(reply.build_bytes_vec_compressed().ok());
    all
}
