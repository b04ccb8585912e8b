//! Bytes both ways at once, each known by its place in its stream.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Nothing here takes as long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A sender is never further ahead of its receiver, nor its chunks smaller: a flow that spills is
/// one that ends with the agent.
const WINDOW: u64 = 64 << 10;
const SMALLEST: u64 = 4 << 10;
const LARGEST: u64 = 32 << 10;
const PERIOD: usize = 65_521;

/// After each chunk: tests run side by side, and others measure.
const PAUSE: Duration = Duration::from_millis(1);

/// A period of a stream, twice.
fn stream(seed: u64) -> Vec<u8> {
    let byte = |at: u64| {
        let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ seed.rotate_left(17));
        (mixed >> 32) as u8
    };
    let period: Vec<u8> = (0..PERIOD as u64).map(byte).collect();
    [period.as_slice(), &period].concat()
}

/// Bytes of the stream from a position on.
fn at(stream: &[u8], place: u64) -> &[u8] {
    &stream[place as usize % PERIOD..][..LARGEST as usize]
}

#[derive(Default)]
struct Way {
    sent: AtomicU64,
    received: AtomicU64,
    /// Nobody receives any more.
    over: AtomicBool,
}

struct Receiver<'a>(&'a Way);

impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, SeqCst);
    }
}

/// Traffic on one connection.
pub struct Traffic {
    client: TcpStream,
    database: TcpStream,
    stop: Arc<AtomicBool>,
    ways: [Arc<Way>; 2],
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Traffic {
    /// Begins; `seed` tells connections apart.
    pub fn begin(client: TcpStream, database: TcpStream, seed: u64) -> Self {
        for end in [&client, &database] {
            end.set_nonblocking(true).unwrap();
            end.set_nodelay(true).unwrap();
        }
        let stop = Arc::new(AtomicBool::new(false));
        let ways = [Arc::new(Way::default()), Arc::new(Way::default())];
        let mut threads = Vec::new();
        let [up, down] = &ways;
        for (from, to, way, seed) in [
            (&client, &database, up, seed * 2),
            (&database, &client, down, seed * 2 + 1),
        ] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let (sending, receiving, stopped) = (way.clone(), way.clone(), stop.clone());
            threads.push(thread::spawn(move || send(from, seed, &sending, &stopped)));
            threads.push(thread::spawn(move || receive(to, seed, &receiving)));
        }
        Self {
            client,
            database,
            stop,
            ways,
            threads,
        }
    }

    /// Bytes that have arrived, both ways.
    pub fn arrived(&self) -> [u64; 2] {
        self.ways.each_ref().map(|way| way.received.load(SeqCst))
    }

    /// Port of the client's own socket.
    pub fn client_port(&self) -> u16 {
        self.client.local_addr().unwrap().port()
    }

    /// Waits until so many more bytes have arrived each way.
    pub fn flows_on(&self, bytes: u64) {
        assert!(self.goes_on(bytes), "it has ended");
    }

    /// Whether so many bytes more are exchanged; false if a connection ends before.
    pub fn goes_on(&self, bytes: u64) -> bool {
        let wanted = self.arrived().map(|n| n + bytes);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let arrived = self.arrived();
            if arrived.iter().zip(wanted).all(|(n, wanted)| *n >= wanted) {
                return true;
            }
            if self.threads.iter().any(JoinHandle::is_finished) {
                return false;
            }
            assert!(
                Instant::now() < deadline,
                "no bytes: {arrived:?} of {wanted:?}"
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Both sides end, one after the other; every byte that was sent has to arrive.
    pub fn end(self) {
        self.stop.store(true, SeqCst);
        let (client, database) = (self.client, self.database);
        for thread in self.threads {
            thread.join().unwrap().unwrap();
        }
        for way in &self.ways {
            assert_eq!(way.sent.load(SeqCst), way.received.load(SeqCst));
        }
        drop((client, database));
    }

    /// Whether a side has seen an end.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Both sides see that it was closed.
    pub fn sees_the_end(self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.threads.iter().all(JoinHandle::is_finished) {
            assert!(Instant::now() < deadline, "the flow is not closed");
            thread::sleep(Duration::from_millis(1));
        }
        for thread in self.threads {
            // A panic is about bytes that are not those that were sent.
            let _ = thread.join().unwrap();
        }
    }
}

fn send(mut to: TcpStream, seed: u64, way: &Way, stop: &AtomicBool) -> io::Result<()> {
    let (stream, mut dice) = (stream(seed), seed);
    while !stop.load(SeqCst) {
        let sent = way.sent.load(SeqCst);
        if way.over.load(SeqCst) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if sent - way.received.load(SeqCst) >= WINDOW {
            thread::sleep(PAUSE);
            continue;
        }
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let size = SMALLEST + (dice >> 33) % (LARGEST - SMALLEST);
        let mut rest = &at(&stream, sent)[..size as usize];
        while !rest.is_empty() {
            match to.write(rest) {
                Ok(n) => {
                    way.sent.fetch_add(n as u64, SeqCst);
                    rest = &rest[n..];
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
                Err(e) => return Err(e),
            }
        }
        thread::sleep(PAUSE);
    }
    to.shutdown(Shutdown::Write)
}

fn receive(mut from: TcpStream, seed: u64, way: &Way) -> io::Result<()> {
    let _receiver = Receiver(way);
    let stream = stream(seed);
    let mut buffer = vec![0; LARGEST as usize];
    let mut last = Instant::now();
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                let place = way.received.load(SeqCst);
                let expected = &at(&stream, place)[..n];
                assert!(buffer[..n] == *expected, "bytes changed behind {place}");
                way.received.fetch_add(n as u64, SeqCst);
                last = Instant::now();
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                assert!(last.elapsed() < PATIENCE, "nothing comes");
                thread::sleep(PAUSE);
            }
            Err(e) => return Err(e),
        }
    }
}
