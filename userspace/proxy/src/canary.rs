//! The splice's canary: tries the splice out on this very kernel, on loopback sockets of the
//! agent's own, with the code that carries flows.
//!
//! Both ends are non-blocking sockets, each on a thread of its own. Every byte is known by its
//! position in its stream, so a byte that is lost, doubled, swapped or foreign is seen at once.

use std::{
    io::{self, ErrorKind, IoSlice, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use dataplane::{
    Application, ClientAddr, Near, OrigDst, Process, Splicer,
    probe_traffic::{self, LARGE_WRITE_BYTES, Random},
};
use flow::Flow;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use policy::{RuleName, Shortcut};
use prometheus::Registry;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use telemetry::Metrics;
use tokio::{sync::oneshot, task::JoinHandle, time};

use super::{
    close::{self, FlowEnd},
    relay::{self, Relay},
    splice::{Counters, KernelCarry, SpliceSource},
};

/// A read or a write that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(1);

/// The largest random chunk, and the size of the one large write.
const LARGEST_CHUNK: usize = 300_000;
const STREAM_BYTES: usize = 4 << 20;

/// A sender whose receiver does not read must be stopped before it has sent this much: TCP's
/// buffers on three sockets, and the bytes that may be redirected.
const STALLED_BYTES: usize = 32 << 20;
/// A sender that cannot go on for this long counts as stopped.
const STALL: Duration = Duration::from_millis(30);

/// The time within which the kernel must have carried some of the short exchanges. Usually it
/// carries the first ones. On a very busy host a flow may come back at once a few times, and then
/// backs off for up to 64 ms. Two engines that fail take less than 2 s.
const WARM_UP: Duration = Duration::from_millis(500);

/// Flows are taken back and handed over again as often as this while they are busy.
const RECALL_EVERY: Duration = Duration::from_micros(700);

/// Tries every property of the splice. The error says which one failed.
pub async fn try_out(splices: &Splicer) -> anyhow::Result<()> {
    let begun = Instant::now();
    both_ways(splices).await.context("streams both ways")?;
    tracing::debug!(took = ?begun.elapsed(), "streams both ways");
    large_write(splices).await.context("64 MiB in one write")?;
    tracing::debug!(took = ?begun.elapsed(), "64 MiB in one write");
    slow_reader(splices).await.context("a slow reader")?;
    tracing::debug!(took = ?begun.elapsed(), "a slow reader");
    killed(splices).await.context("an end that is killed")
}

/// A flow of the canary's own, carried by the agent's code.
struct Try {
    client: TcpStream,
    database: TcpStream,
    flow: Arc<Flow>,
    metrics: Metrics,
    carried: Task,
}

/// A task that is aborted when its owner is dropped, so that a probe_traffic that hangs ends.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Try {
    /// Makes a flow and lets a few short exchanges get it spliced.
    async fn begin(splices: &Splicer) -> anyhow::Result<Self> {
        // On a thread of its own: another agent that intercepts these connections would have to
        // answer them from this runtime.
        let marking = splices.clone();
        let ((client, accepted), (dialled, database)) =
            aside(move || Ok((connected(&marking)?, connected(&marking)?))).await?;
        let metrics = Metrics::register(&Registry::new(), &flow::CloseReason::labels())?;
        let flow = Arc::new(Flow::begin(
            0,
            ClientAddr::new(client.local_addr()?),
            Process {
                pid: std::process::id(),
                uid: 0,
                gid: 0,
                name: "canary".into(),
                cgroup_id: 0,
                holder: None,
            },
            OrigDst::new(dialled.peer_addr()?),
            RuleName::new("canary"),
        ));
        flow.opt_in(Shortcut::Both);
        let client_socket = Application::Client(dataplane::cookie(&SockRef::from(&client))?, None);
        let mut relay = Relay::new(None, &flow, &metrics);
        let counters = Counters::Own(Box::new(metrics.clone()));
        let mut ride = KernelCarry::new(
            SpliceSource::Trial(splices.clone()),
            Some(client_socket),
            &flow,
            counters,
        );
        let accepted = tokio::net::TcpStream::from_std(accepted)?;
        let dialled = tokio::net::TcpStream::from_std(dialled)?;
        let carried = Task(tokio::spawn(async move {
            let end = relay::to_the_end(&mut relay, &mut ride, &accepted, dialled).await;
            ride.count(&relay);
            if let FlowEnd::Closed { reason, far } = end {
                close::sides(Near::Client, reason, accepted, far).await;
            }
        }));
        let mut begun = Self {
            client,
            database,
            flow,
            metrics,
            carried,
        };
        begun.warm_up().await?;
        Ok(begun)
    }

    /// Exchanges short messages until the kernel has carried bytes in both directions.
    async fn warm_up(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + WARM_UP;
        while Instant::now() < end {
            let (client, database) = self.ends()?;
            let exchanged = aside(move || {
                let (mut client, mut database) = (patient(&client), patient(&database));
                for _ in 0..8 {
                    let mut bytes = [0; 4];
                    client.write_all(b"ping")?;
                    database.read_exact(&mut bytes)?;
                    database.write_all(b"pong")?;
                    client.read_exact(&mut bytes)?;
                    ensure!(&bytes == b"pong", "an answer was changed");
                }
                Ok(())
            });
            exchanged.await.context("short exchanges")?;
            // Bytes are counted when a flow comes back.
            self.flow.recall();
            time::sleep(RECALL_EVERY).await;
            if self.has_been_carried() {
                return Ok(());
            }
        }
        bail!("the kernel does not carry it")
    }

    fn has_been_carried(&self) -> bool {
        let carried = &self.metrics.splice;
        carried.to_database.get() > 0 && carried.to_client.get() > 0
    }

    fn ends(&self) -> io::Result<(TcpStream, TcpStream)> {
        Ok((self.client.try_clone()?, self.database.try_clone()?))
    }

    /// Takes the flow back again and again until it ends.
    fn recall_often(&self) -> Task {
        let flow = self.flow.clone();
        Task(tokio::spawn(async move {
            loop {
                time::sleep(RECALL_EVERY).await;
                flow.recall();
            }
        }))
    }

    /// Closes both ends and waits for the relay to notice.
    async fn end(self) -> anyhow::Result<()> {
        let Self {
            client,
            database,
            mut carried,
            ..
        } = self;
        drop((client, database));
        let ended = time::timeout(PATIENCE, &mut carried.0).await;
        Ok(ended.context("the flow does not end")??)
    }
}

fn connected(splices: &Splicer) -> anyhow::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    splices.mark(SockRef::from(&near))?;
    near.connect_timeout(&listener.local_addr()?.into(), PATIENCE)
        .context("cannot connect over the loopback (another agent's policy?)")?;
    let near = TcpStream::from(near);
    let (far, peer) = listener.accept()?;
    ensure!(peer == near.local_addr()?, "somebody else connected");
    for end in [&near, &far] {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    Ok((near, far))
}

/// A non-blocking socket that waits in poll(2) for up to the given time, not in recv(2) or send(2).
struct Patient<'a>(&'a TcpStream, Duration);

impl Patient<'_> {
    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let patience = PollTimeout::try_from(self.1).unwrap_or(PollTimeout::NONE);
        let mut fds = [PollFd::new(self.0.as_fd(), events)];
        match poll(&mut fds, patience)? {
            0 => Err(ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match (&mut &*self.0).read(buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::POLLIN)?,
                read => return read,
            }
        }
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            match (&mut &*self.0).write_vectored(bytes) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::POLLOUT)?,
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn patient(socket: &TcpStream) -> Patient<'_> {
    Patient(socket, PATIENCE)
}

/// Runs blocking work on a thread of its own, because the runtime is the agent's.
async fn aside<T: Send + 'static>(
    body: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (done, outcome) = oneshot::channel();
    thread::Builder::new()
        .name("canary".into())
        .spawn(move || drop(done.send(body())))?;
    outcome.await.context("a thread of the canary's ended")?
}

/// Streams in chunks of any size, in both directions at once, while the flow is handed over again
/// and again, with a half-close at the end.
async fn both_ways(splices: &Splicer) -> anyhow::Result<()> {
    let begun = Try::begin(splices).await?;
    let recalling = begun.recall_often();
    let (client, database) = begun.ends()?;
    let (to, from) = (client.try_clone()?, database.try_clone()?);
    let outcome = tokio::try_join!(
        aside(move || send(&to, Stream::new(1), STREAM_BYTES, true)),
        aside(move || receive(&from, Stream::new(1), STREAM_BYTES, true)),
        aside(move || send(&database, Stream::new(2), STREAM_BYTES, true)),
        aside(move || receive(&client, Stream::new(2), STREAM_BYTES, true)),
    );
    drop(recalling);
    outcome?;
    begun.end().await
}

async fn large_write(splices: &Splicer) -> anyhow::Result<()> {
    let begun = Try::begin(splices).await?;
    for up in [true, false] {
        let (client, database) = begun.ends()?;
        let (from, to) = if up {
            (client, database)
        } else {
            (database, client)
        };
        tokio::try_join!(
            aside(move || Ok(probe_traffic::write_large(&mut patient(&from), 4)?)),
            aside(move || receive(&to, Stream::new(4), LARGE_WRITE_BYTES, false)),
        )?;
    }
    begun.end().await
}

/// A sender whose peer does not read must be stopped, and lose nothing; tried for both directions.
async fn slow_reader(splices: &Splicer) -> anyhow::Result<()> {
    let begun = Try::begin(splices).await?;
    for up in [false, true] {
        let (client, database) = begun.ends()?;
        let (from, to) = if up {
            (client, database)
        } else {
            (database, client)
        };
        let sent = aside(move || {
            let sent = send_until_stopped(&from)?;
            from.shutdown_if(up)?;
            Ok(sent)
        })
        .await?;
        aside(move || receive(&to, Stream::new(3), sent, up)).await?;
    }
    begun.end().await
}

trait ShutdownIf {
    fn shutdown_if(&self, wanted: bool) -> io::Result<()>;
}

impl ShutdownIf for TcpStream {
    fn shutdown_if(&self, wanted: bool) -> io::Result<()> {
        if wanted {
            self.shutdown(Shutdown::Write)
        } else {
            Ok(())
        }
    }
}

fn send_until_stopped(to: &TcpStream) -> anyhow::Result<usize> {
    let mut to = Patient(to, STALL);
    let mut stream = Stream::new(3);
    let mut sent = 0;
    loop {
        ensure!(sent < STALLED_BYTES, "{sent} bytes wait for a reader");
        let chunk = stream.next(LARGEST_CHUNK);
        match to.write(&chunk) {
            Ok(n) => {
                stream.back(chunk.len() - n);
                sent += n;
            }
            Err(e) if e.kind() == ErrorKind::TimedOut => return Ok(sent),
            Err(e) => return Err(e.into()),
        }
    }
}

/// A reset on one side must become a reset on the other.
async fn killed(splices: &Splicer) -> anyhow::Result<()> {
    for client_dies in [true, false] {
        let begun = Try::begin(splices).await?;
        let Try {
            client,
            database,
            mut carried,
            ..
        } = begun;
        let (dies, lives) = if client_dies {
            (client, database)
        } else {
            (database, client)
        };
        SockRef::from(&dies).set_linger(Some(Duration::ZERO))?;
        drop(dies);
        aside(move || match patient(&lives).read(&mut [0; 8]) {
            Err(e) if e.kind() == ErrorKind::ConnectionReset => Ok(()),
            other => bail!("instead of a reset: {other:?}"),
        })
        .await?;
        let ended = time::timeout(PATIENCE, &mut carried.0).await;
        ended.context("the flow does not end")??;
    }
    Ok(())
}

/// Sends `bytes` of a stream in chunks of any size; the last one is followed by a half-close.
fn send(to: &TcpStream, mut stream: Stream, bytes: usize, end: bool) -> anyhow::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let chunk = stream.next_of_any_size(left);
        patient(to)
            .write_all(&chunk)
            .with_context(|| format!("{left} bytes cannot be sent"))?;
        left -= chunk.len();
    }
    Ok(to.shutdown_if(end)?)
}

fn receive(from: &TcpStream, mut stream: Stream, bytes: usize, end: bool) -> anyhow::Result<()> {
    let mut chunk = vec![0; LARGEST_CHUNK];
    let mut left = bytes;
    while left > 0 {
        let most = left.min(chunk.len());
        let n = patient(from)
            .read(chunk.get_mut(..most).unwrap_or_default())
            .with_context(|| format!("{left} bytes do not arrive"))?;
        ensure!(n > 0, "{left} bytes are missing");
        let read = chunk.get(..n).unwrap_or_default();
        ensure!(
            stream.next(n) == read,
            "bytes changed {left} bytes before the end"
        );
        left -= n;
    }
    if end {
        ensure!(
            patient(from).read(&mut chunk)? == 0,
            "more bytes than were sent"
        );
    }
    Ok(())
}

/// A position in a numbered stream.
struct Stream {
    number: usize,
    at: usize,
    sizes: Random,
}

impl Stream {
    fn new(number: usize) -> Self {
        Self {
            number,
            at: 0,
            sizes: Random::new(number as u64),
        }
    }

    fn next(&mut self, count: usize) -> Vec<u8> {
        let next = probe_traffic::bytes(self.number, self.at, count);
        self.at += count;
        next
    }

    fn next_of_any_size(&mut self, most: usize) -> Vec<u8> {
        let scale = LARGEST_CHUNK >> self.sizes.below(16);
        let count = 1 + self.sizes.below(scale);
        self.next(count.min(most))
    }

    fn back(&mut self, count: usize) {
        self.at -= count;
    }
}
