//! Tries the shortcut out on loopback sockets of this process, with programs and maps of its own:
//! what it relies on is how this very kernel behaves.

mod leg;

use std::{
    fmt,
    fs::File,
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::fd::AsFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use aya::{Ebpf, EbpfLoader};
use ebpf::abi;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::listeners::Mark;

use super::{Shortcut, Wish};
use crate::{
    attach::reasons,
    causes::other,
    counters::Turn,
    host,
    probe_traffic::{self, LARGE_WRITE_BYTES, Random, bytes},
    sys,
};

/// The time limit of each step. A step takes a few milliseconds; the rest is for a machine under load.
const PATIENCE: Duration = Duration::from_secs(2);
/// A bound that a short test goes over many times.
const FLOW_BYTES: u32 = 16 * 1024;
const STREAM_BYTES: usize = 1 << 20;
/// Bytes of a large write that are read at once.
const CHUNK: usize = 256 * 1024;
/// Pauses between looks after readers.
const ASKS_EVERY: Duration = Duration::from_millis(5);
/// Sockets of each probe of its own; their streams may be one.
const STREAM: usize = 1;
/// Sockets of the trials, each for itself.
const ENDS: u32 = 64;
/// A wish without an owner: the canary does not care which process it was.
const NOBODYS: Wish = [0; size_of::<Wish>()];

/// Has bytes travel over the shortcut in every way that it is built for. Needs root.
///
/// # Errors
/// Why flows are better left on TCP.
pub(super) fn try_out(mark: Option<Mark>) -> Result<Fionread, String> {
    let mut canary = Canary::new(mark)?;
    canary.both_ways().map_err(of("a stream both ways"))?;
    canary.half_close().map_err(of("a half-close"))?;
    canary.slow_reader().map_err(of("a slow reader"))?;
    let says = canary.missed_edge().map_err(of("an edge too early"))?;
    canary
        .asks_first()
        .map_err(of("a reader that asks FIONREAD"))?;
    canary.kill().map_err(of("a reset"))?;
    canary
        .short_leg()
        .map_err(of("a connection that is there already"))?;
    canary.large_write().map_err(of("64 MiB in one write"))?;
    Ok(says)
}

/// The bytes of which FIONREAD tells on a socket in a sockmap that has some past TCP and some in TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fionread {
    /// Bytes past TCP.
    PastTcp,
    /// Bytes in TCP.
    Tcp,
    /// All bytes.
    Sum,
}

impl Fionread {
    fn of(told: u64, past: usize, tcp: usize) -> io::Result<Self> {
        match usize::try_from(told) {
            Ok(n) if n == past => Ok(Self::PastTcp),
            Ok(n) if n == tcp => Ok(Self::Tcp),
            Ok(n) if n == past + tcp => Ok(Self::Sum),
            _ => {
                let message = format!("FIONREAD says {told} of {past} past TCP and {tcp} in TCP");
                Err(io::Error::other(message))
            }
        }
    }
}

impl fmt::Display for Fionread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PastTcp => "what is past TCP, and leaves out what waits in TCP",
            Self::Tcp => "what waits in TCP, and leaves out what is past TCP",
            Self::Sum => "all that waits",
        })
    }
}

fn of(probe_traffic: &'static str) -> impl Fn(io::Error) -> String {
    move |e| format!("{probe_traffic}: {e}")
}

struct Canary {
    ebpf: Ebpf,
    shortcut: Shortcut,
    listener: TcpListener,
}

impl Canary {
    fn new(mark: Option<Mark>) -> Result<Self, String> {
        let mut loader = EbpfLoader::new();
        for map in ["shortcut_ends", "shortcut_firsts", "shortcut_socks"] {
            loader.map_max_entries(map, ENDS);
        }
        let mut ebpf = loader.load(ebpf::OBJECT).map_err(|e| reasons(&e))?;
        let mut shortcut = Shortcut::take(&mut ebpf, mark).map_err(|e| e.to_string())?;
        let cgroup = own_cgroup().map_err(|e| format!("this process's cgroup: {e}"))?;
        let attached = shortcut
            .attach(&mut ebpf, &cgroup)
            .and_then(|()| shortcut.set_limits(bounded(FLOW_BYTES, u32::MAX)));
        attached.map_err(|e| e.to_string())?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| e.to_string())?;
        Ok(Self {
            ebpf,
            shortcut,
            listener,
        })
    }

    /// A client's end and a database's, both on the shortcut.
    fn pair(&mut self) -> io::Result<(TcpStream, TcpStream)> {
        let before = self.counts()?.flows;
        let pair = self.connect(Some(NOBODYS))?;
        if self.counts()?.flows != before + 1 {
            return Err(io::Error::other("its sockets were not enrolled"));
        }
        Ok(pair)
    }

    /// A connection, whose client may wish to be on the shortcut.
    fn connect(&mut self, wish: Option<Wish>) -> io::Result<(TcpStream, TcpStream)> {
        let client = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        if let Some(mark) = self.shortcut.mark {
            client.set_mark(mark.0)?;
        }
        if let Some(wish) = wish {
            let inserted = self.shortcut.wishes.insert(&client, wish, 0);
            inserted.map_err(other)?;
        }
        client.connect(&self.listener.local_addr()?.into())?;
        let client = TcpStream::from(client);
        let server = loop {
            let (server, peer) = self.listener.accept()?;
            // Any other is somebody who dialled the port by chance.
            if peer == client.local_addr()? {
                break server;
            }
        };
        for end in [&client, &server] {
            end.set_nodelay(true)?;
            end.set_read_timeout(Some(PATIENCE))?;
            end.set_write_timeout(Some(PATIENCE))?;
        }
        Ok((client, server))
    }

    fn counts(&self) -> io::Result<super::ShortcutCounts> {
        self.shortcut.counts().map_err(io::Error::other)
    }

    fn bytes(&self, turn: Turn) -> io::Result<u64> {
        let counts = self.counts()?;
        let of_turn = counts.by_turn.iter().find(|(t, _, _)| *t == turn);
        Ok(of_turn.map_or(0, |(_, _, bytes)| *bytes))
    }

    /// Back and forth between the shortcut and TCP, in pieces of every size.
    fn both_ways(&mut self) -> io::Result<()> {
        let (mut a, mut b) = self.pair()?;
        let deadline = Instant::now() + PATIENCE;
        a.set_nonblocking(true)?;
        b.set_nonblocking(true)?;
        let (mut there, mut back) = (Stream::default(), Stream::default());
        let mut random = Random::new(1);
        while there.read < STREAM_BYTES || back.read < STREAM_BYTES {
            there.send(&mut a, &mut random)?;
            back.send(&mut b, &mut random)?;
            if random.below(8) == 0 {
                there.receive(&mut b, &mut random)?;
                back.receive(&mut a, &mut random)?;
            }
            if Instant::now() > deadline {
                return Err(io::Error::other("bytes are missing"));
            }
        }
        let (taken, full) = (self.bytes(Turn::Shortcut)?, self.bytes(Turn::FlowFull)?);
        if taken == 0 || full == 0 {
            return Err(io::Error::other("bytes did not take both ways"));
        }
        Ok(())
    }

    fn half_close(&mut self) -> io::Result<()> {
        let (mut a, mut b) = self.pair()?;
        let sent = bytes(STREAM, 0, 8 * 1024);
        a.write_all(&sent)?;
        a.shutdown(Shutdown::Write)?;
        let mut received = Vec::new();
        b.read_to_end(&mut received)?;
        same(&sent, &received)?;
        b.write_all(b"answer")?;
        drop(b);
        received.clear();
        a.read_to_end(&mut received)?;
        same(b"answer", &received)
    }

    /// Tests a slow reader: what it leaves unread is bounded, and what came by TCP behind it stays
    /// behind it.
    fn slow_reader(&mut self) -> io::Result<()> {
        let (mut a, mut b) = self.pair()?;
        let before = self.bytes(Turn::Shortcut)?;
        a.set_nonblocking(true)?;
        let mut sent = 0;
        loop {
            match a.write(&bytes(STREAM, sent, 4096)) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        let queued = self.bytes(Turn::Shortcut)? - before;
        if queued == 0 || queued > FLOW_BYTES.into() {
            return Err(io::Error::other(format!(
                "{queued} bytes were queued instead of {FLOW_BYTES} at most"
            )));
        }
        let mut received = vec![0; sent];
        b.read_exact(&mut received)?;
        same(&bytes(STREAM, 0, sent), &received)
    }

    /// An edge-triggered reader takes a short read for the end, though TCP holds more.
    /// Returns what FIONREAD tells of both.
    fn missed_edge(&mut self) -> io::Result<Fionread> {
        let (mut a, mut b) = self.pair()?;
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(&b, EpollEvent::new(interest, 0))?;
        let whole = bytes(STREAM, 0, FLOW_BYTES as usize + 1);
        let (queued, behind) = whole.split_at(FLOW_BYTES as usize);
        a.write_all(queued)?;
        a.write_all(behind)?;
        wait(&epoll)?;
        let told = sys::readable_bytes(b.as_fd())?;
        let says = Fionread::of(told, queued.len(), behind.len())?;
        let mut received = vec![0; whole.len() * 2];
        let n = b.read(&mut received)?;
        same(queued, received.get(..n).unwrap_or_default())?;
        self.shortcut
            .nudge(&mut self.ebpf)
            .map_err(io::Error::other)?;
        wait(&epoll)?;
        let n = b.read(&mut received)?;
        same(behind, received.get(..n).unwrap_or_default())?;
        Ok(says)
    }

    /// An edge-triggered reader that reads what its buffer holds, asks FIONREAD for the rest, and waits for the
    /// next edge when it is told that there is none. It reads all, past TCP and in TCP, and is off the
    /// shortcut then if it was ever told less.
    fn asks_first(&mut self) -> io::Result<()> {
        let (mut a, mut b) = self.pair()?;
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(&b, EpollEvent::new(interest, 0))?;
        b.set_nonblocking(true)?;
        let whole = bytes(STREAM, 0, FLOW_BYTES as usize * 4);
        for piece in whole.chunks(FLOW_BYTES as usize) {
            a.write_all(piece)?;
        }
        let deadline = Instant::now() + PATIENCE;
        let (mut received, mut buffer) = (Vec::new(), vec![0; FLOW_BYTES as usize / 4]);
        while received.len() < whole.len() {
            if Instant::now() > deadline {
                let told = sys::readable_bytes(b.as_fd())?;
                let message = format!(
                    "it waits behind {} of {} bytes, and FIONREAD says {told}",
                    received.len(),
                    whole.len()
                );
                return Err(io::Error::other(message));
            }
            let looked = self.shortcut.look_after_readers();
            looked.map_err(io::Error::other)?;
            let short = EpollTimeout::try_from(ASKS_EVERY).map_err(io::Error::other)?;
            if epoll.wait(&mut [EpollEvent::empty()], short)? == 0 {
                continue;
            }
            loop {
                let n = unless_blocked(b.read(&mut buffer))?;
                received.extend_from_slice(buffer.get(..n).unwrap_or_default());
                if n < buffer.len() || sys::readable_bytes(b.as_fd())? == 0 {
                    break;
                }
            }
        }
        same(&whole, &received)?;
        // Whatever the kernel answers there, outside it tells all.
        a.write_all(b"after")?;
        wait(&epoll)?;
        let past = self.bytes(Turn::Shortcut)?;
        let told = sys::readable_bytes(b.as_fd())?;
        if told != 5 {
            let message = format!("FIONREAD says {told} of 5 bytes, {past} past TCP");
            return Err(io::Error::other(message));
        }
        Ok(())
    }

    /// Within the bounds that flows have. What is written behind bytes that wait fills the queue, and
    /// goes on by TCP; what comes when all is read is past TCP again.
    fn large_write(&mut self) -> io::Result<()> {
        let limits = bounded(abi::SHORTCUT_FLOW_BYTES, abi::SHORTCUT_BULK_BYTES);
        self.shortcut.set_limits(limits).map_err(io::Error::other)?;
        let (mut a, mut b) = self.pair()?;
        let before = (self.bytes(Turn::Shortcut)?, self.bytes(Turn::FlowFull)?);
        a.write_all(b"first")?;
        let mut writer = a.try_clone()?;
        let writing = thread::Builder::new().name("canary".into());
        let writing = writing.spawn(move || probe_traffic::write_large(&mut writer, STREAM))?;
        // Nobody reads before.
        let deadline = Instant::now() + PATIENCE;
        while self.bytes(Turn::FlowFull)? == before.1 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let epoll = level(&b)?;
        b.set_nonblocking(true)?;
        let mut first = [0; 5];
        read_all(&mut b, &epoll, &mut first)?;
        same(b"first", &first)?;
        let mut chunk = vec![0; CHUNK];
        let mut read = 0;
        while read < LARGE_WRITE_BYTES {
            let most = CHUNK.min(LARGE_WRITE_BYTES - read);
            let chunk = chunk.get_mut(..most).unwrap_or_default();
            read_all(&mut b, &epoll, chunk)?;
            same(&bytes(STREAM, read, most), chunk)?;
            read += most;
        }
        let wrote = writing.join();
        wrote.map_err(|_| io::Error::other("its writer panicked"))??;
        let (past, full) = (self.bytes(Turn::Shortcut)?, self.bytes(Turn::FlowFull)?);
        if past == before.0 || full == before.1 {
            return Err(io::Error::other("its bytes did not take both ways"));
        }
        a.write_all(b"again")?;
        read_all(&mut b, &epoll, &mut first)?;
        same(b"again", &first)?;
        if self.bytes(Turn::Shortcut)? != past + 5 {
            return Err(io::Error::other("it did not come back from TCP"));
        }
        Ok(())
    }

    fn kill(&mut self) -> io::Result<()> {
        let (mut a, mut b) = self.pair()?;
        let sent = bytes(STREAM, 0, 1000);
        a.write_all(&sent)?;
        SockRef::from(&a).set_linger(Some(Duration::ZERO))?;
        drop(a);
        let mut received = vec![0; sent.len()];
        b.read_exact(&mut received)?;
        same(&sent, &received)?;
        match b.read(&mut received) {
            Err(e) if e.kind() == ErrorKind::ConnectionReset => Ok(()),
            other => Err(io::Error::other(format!("it was read as {other:?}"))),
        }
    }
}

fn bounded(flow_bytes: u32, bulk_bytes: u32) -> abi::ShortcutLimits {
    abi::ShortcutLimits {
        until_ns: u64::MAX,
        host_pages: i64::MAX.cast_unsigned(),
        flow_bytes,
        bulk_bytes,
    }
}

/// Within [`PATIENCE`].
fn wait(epoll: &Epoll) -> io::Result<()> {
    let limit = EpollTimeout::try_from(PATIENCE).map_err(io::Error::other)?;
    match epoll.wait(&mut [EpollEvent::empty()], limit)? {
        0 => Err(io::Error::other("no edge")),
        _ => Ok(()),
    }
}

/// A level-triggered epoll, which sees what is in either queue.
fn level(socket: &TcpStream) -> io::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    Ok(epoll)
}

/// Fills `into` from a socket that does not block.
fn read_all(from: &mut TcpStream, epoll: &Epoll, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        match from.read(into) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => into = into.get_mut(n..).unwrap_or_default(),
            Err(e) if e.kind() == ErrorKind::WouldBlock => wait(epoll)?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A stream in one direction, whose bytes tell where in it they belong.
#[derive(Default)]
struct Stream {
    sent: usize,
    read: usize,
}

impl Stream {
    fn send(&mut self, from: &mut TcpStream, random: &mut Random) -> io::Result<()> {
        let n = (1 + random.below(3000)).min(STREAM_BYTES - self.sent);
        if n > 0 {
            self.sent += unless_blocked(from.write(&bytes(STREAM, self.sent, n)))?;
        }
        Ok(())
    }

    fn receive(&mut self, to: &mut TcpStream, random: &mut Random) -> io::Result<()> {
        let mut chunk = vec![0; 1 + random.below(64 * 1024)];
        let n = unless_blocked(to.read(&mut chunk))?;
        let read = chunk.get(..n).unwrap_or_default();
        same(&bytes(STREAM, self.read, n), read)?;
        self.read += n;
        Ok(())
    }
}

fn unless_blocked(done: io::Result<usize>) -> io::Result<usize> {
    match done {
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

fn same(sent: &[u8], received: &[u8]) -> io::Result<()> {
    if sent == received {
        Ok(())
    } else {
        Err(io::Error::other("other bytes arrived than were sent"))
    }
}

/// `/proc/thread-self/cgroup`: the sockets that this thread makes are in it.
fn own_cgroup() -> io::Result<File> {
    let none = || io::Error::other("it is in no cgroup2");
    let root = host::cgroup2_root()?.ok_or_else(none)?;
    let lines = std::fs::read_to_string("/proc/thread-self/cgroup")?;
    let path = lines.lines().find_map(|l| l.strip_prefix("0::"));
    let path = Path::new(path.ok_or_else(none)?);
    File::open(root.join(path.strip_prefix("/").unwrap_or(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_the_shortcut() {
        let begun = Instant::now();
        try_out(None).unwrap();
        println!("it took {:?}", begun.elapsed());
    }

    /// And takes the way back when it has, in order.
    #[test]
    fn bytes_take_tcp_while_the_host_has_no_memory_for_more() {
        let mut canary = Canary::new(None).unwrap();
        let (mut a, mut b) = canary.pair().unwrap();
        let has_room = (i64::MAX, Turn::Shortcut);
        // Less than any host's TCP has: the kernel counts each processor's apart, and may say -1.
        let has_none = (i64::MIN, Turn::HostFull);
        for (n, (pages, turn)) in [has_room, has_none, has_room, has_none, has_room]
            .into_iter()
            .enumerate()
        {
            let limits = abi::ShortcutLimits {
                host_pages: pages.cast_unsigned(),
                ..bounded(FLOW_BYTES, u32::MAX)
            };
            canary.shortcut.set_limits(limits).unwrap();
            let before = canary.bytes(turn).unwrap();
            for piece in 0..20 {
                let sent = bytes(STREAM, (n * 20 + piece) * 1000, 1000);
                a.write_all(&sent).unwrap();
                let mut received = vec![0; sent.len()];
                b.read_exact(&mut received).unwrap();
                same(&sent, &received).unwrap();
            }
            assert_eq!(
                canary.bytes(turn).unwrap() - before,
                20_000,
                "{turn:?}, {n}"
            );
        }
    }

    #[test]
    fn other_bytes_are_seen() {
        assert!(same(b"ab", b"ab").is_ok());
        assert!(same(b"ab", b"ba").is_err());
    }
}
