//! CQL clients that know every answer, and connections that come and go.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::Ordering::Relaxed,
    thread,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    log::TroubleKind,
    routes::{Needs, ROUTES, Route, place},
    run::Run,
};
use crate::common::{
    self,
    frames::{self, RESPONSE, RESULT, query, segment, startup},
    world::ERROR,
};

/// The clients of each route, which speak versions 4 and 5 in turns.
pub const CLIENTS: usize = 2;

/// The requests of a client that are out at a time.
const WINDOW: i16 = 4;

/// The pause after they are answered: the machine has other work.
const PAUSE: Duration = Duration::from_millis(40);

/// The pause between two attempts, and between two connections that come and go.
const RETRY: Duration = Duration::from_millis(20);

/// The rounds from one statement that a guard refuses to the next.
const REFUSED_EVERY: usize = 16;

/// The stream of such a statement.
const REFUSED: i16 = 99;

/// The longest that a client waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest padding of a value, in bytes.
const PADDING: usize = 3_000;

/// Asks until the run is over, on each connection as long as it lasts. For a thread in the sandbox.
pub fn asks(run: &Run<'_>, route: usize, client: usize) {
    let version = [4, 5][client % 2];
    let of = of(&ROUTES[route]);
    while !run.is_over() {
        let begun = run.log.now();
        let (asked, what) = match Connection::dial(run.addrs[route], version) {
            Ok(mut connection) => {
                let asked = converse(run, route, client, &mut connection);
                (asked, TroubleKind::Cut)
            }
            Err(error) => (Err((begun, error)), TroubleKind::Refused),
        };
        if let Err((from, error)) = asked {
            let text = format!("client {client}, version {version}: {error}");
            match error.kind() {
                ErrorKind::InvalidData => run.log.finding(format!("{}: {text}", of.0)),
                ErrorKind::TimedOut => run.log.trouble(of, TroubleKind::Waited, from, text),
                _ => run.log.trouble(of, what, from, text),
            }
            thread::sleep(RETRY);
        }
    }
}

/// The beginning of what has failed, and why it has.
type Failed = (Duration, io::Error);

/// Writes rows and reads them, in turns, until the run is over.
fn converse(
    run: &Run<'_>,
    route: usize,
    client: usize,
    connection: &mut Connection,
) -> Result<(), Failed> {
    for round in 0.. {
        if run.is_over() {
            return Ok(());
        }
        let begun = run.log.now();
        let failed = |error| (begun, error);
        let is_read = round % 2 == 1;
        let value = |slot: i16| value(client, slot, round / 2);
        let id = |slot: i16| client * 100 + slot as usize;
        for slot in 0..WINDOW {
            let (id, value) = (id(slot), value(slot));
            let text = match is_read {
                true => format!("SELECT v FROM shop.orders WHERE id = {id}"),
                false => format!("INSERT INTO shop.orders (id, v) VALUES ({id}, '{value}')"),
            };
            connection.send(slot, &text).map_err(failed)?;
        }
        let asks_refused = ROUTES[route].is_guarded && round % REFUSED_EVERY == 0;
        if asks_refused {
            let text = "DROP TABLE shop.never";
            connection.send(REFUSED, text).map_err(failed)?;
        }
        let mut out: Vec<i16> = (0..WINDOW).chain(asks_refused.then_some(REFUSED)).collect();
        while !out.is_empty() {
            let (stream, opcode, body) = connection.next().map_err(failed)?;
            let Some(at) = out.iter().position(|s| *s == stream) else {
                return Err(failed(wrong(format!("an answer on stream {stream}"))));
            };
            out.swap_remove(at);
            let wanted = value(stream);
            let is_right = match (stream, is_read) {
                (REFUSED, _) => opcode == ERROR,
                (_, false) => opcode == RESULT,
                (_, true) => opcode == RESULT && is_row(&body, wanted.as_bytes()),
            };
            if !is_right {
                let said = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
                let text = format!("round {round}, stream {stream}: opcode {opcode}: {said:?}");
                return Err(failed(wrong(text)));
            }
            run.answered(route, run.log.now() - begun);
        }
        let took = run.log.now() - begun;
        if took > run.log.limit {
            let text = format!("client {client}, an answer took {took:.1?}");
            let of = of(&ROUTES[route]);
            run.log.trouble(of, TroubleKind::Waited, begun, text);
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn of(route: &Route) -> (&'static str, Needs) {
    (route.name, route.needs)
}

fn wrong(text: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

/// Makes a value that no other client writes, and this one at no other time.
fn value(client: usize, slot: i16, turn: usize) -> String {
    let length = (turn * 7_919 + client * 101 + slot as usize * 13) % PADDING;
    format!("{client}:{slot}:{turn}:{}", "x".repeat(length))
}

/// Whether a RESULT has one row of one value, which is this.
fn is_row(body: &[u8], wanted: &[u8]) -> bool {
    let page = cql_edit::Page::read(body);
    page.is_some_and(|page| page.rows == [[Some(wanted)]])
}

/// A client's connection. It waits by poll: what comes past TCP, a blocking read may miss.
struct Connection {
    stream: TcpStream,
    version: u8,
    /// Bytes that have come, of what is not whole.
    bytes: Vec<u8>,
    /// Whole frames: stream, opcode and body.
    frames: VecDeque<(i16, u8, Vec<u8>)>,
}

impl Connection {
    /// Connects and logs in.
    fn dial(to: SocketAddr, version: u8) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut connection = Self {
            stream,
            // Segments begin behind READY.
            version: 4,
            bytes: Vec::new(),
            frames: VecDeque::new(),
        };
        let options = [("CQL_VERSION", "3.0.0"), ("DRIVER_NAME", "soak")];
        connection.write(&startup(version, &options))?;
        match connection.next()? {
            (0, frames::READY, _) => {
                connection.version = version;
                Ok(connection)
            }
            (_, opcode, _) => Err(wrong(format!("opcode {opcode} in place of READY"))),
        }
    }

    fn send(&mut self, stream: i16, text: &str) -> io::Result<()> {
        let frame = query(self.version, stream, text);
        match self.version {
            5 => self.write(&segment(&frame)),
            _ => self.write(&frame),
        }
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.waits(PollFlags::OUT)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until something can be done.
    fn waits(&self, flags: PollFlags) -> io::Result<()> {
        let limit = Timespec {
            tv_sec: PATIENCE.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        match poll(&mut [PollFd::new(&self.stream, flags)], Some(&limit))? {
            0 => Err(ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    /// Stream, opcode and body of the next response.
    fn next(&mut self) -> io::Result<(i16, u8, Vec<u8>)> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Ok(frame);
            }
            self.waits(PollFlags::IN)?;
            let mut chunk = [0; 16 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.bytes.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            match self.version {
                5 => self.take_segments()?,
                _ => {
                    let bytes = std::mem::take(&mut self.bytes);
                    self.bytes = self.take_frames(bytes)?;
                }
            }
        }
    }

    /// Takes whole segments, each with whole frames, as they are where answers are small.
    fn take_segments(&mut self) -> io::Result<()> {
        while let Some(header) = self.bytes.get(..3) {
            let length = usize::from(header[0]) | usize::from(header[1]) << 8;
            let whole = 6 + (length | usize::from(header[2] & 1) << 16) + 4;
            if self.bytes.len() < whole {
                break;
            }
            let rest = self.bytes.split_off(whole);
            let taken = std::mem::replace(&mut self.bytes, rest);
            let payload = taken[6..whole - 4].to_vec();
            if segment(&payload) != taken {
                return Err(wrong("a segment's checksums are not its own".to_owned()));
            }
            if !self.take_frames(payload)?.is_empty() {
                return Err(wrong("a frame is longer than its segment".to_owned()));
            }
        }
        Ok(())
    }

    /// Takes whole frames; returns what is left.
    fn take_frames(&mut self, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        while let Some(header) = bytes.get(..9) {
            let stream = i16::from_be_bytes([header[2], header[3]]);
            let (first, opcode) = (header[0], header[4]);
            if first & RESPONSE == 0 || ![4, 5].contains(&(first & !RESPONSE)) {
                return Err(wrong(format!("a frame that begins with {first}")));
            }
            let length = u32::from_be_bytes(header[5..].try_into().unwrap()) as usize;
            let Some(body) = bytes.get(9..9 + length) else {
                break;
            };
            self.frames.push_back((stream, opcode, body.to_vec()));
            bytes.drain(..9 + length);
        }
        Ok(bytes)
    }
}

/// Connects, asks once and closes, again and again. For a thread in the sandbox.
pub fn come_and_go(run: &Run<'_>, route: usize) {
    while !run.is_over() {
        comes_and_goes(run, route, 1);
        thread::sleep(RETRY);
    }
}

/// Opens so many connections, asks on each once, and closes them.
fn comes_and_goes(run: &Run<'_>, route: usize, connections: usize) {
    let of = of(&ROUTES[route]);
    let begun = run.log.now();
    let dialled = (0..connections).map(|_| {
        let stream = TcpStream::connect_timeout(&run.addrs[route], PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    });
    let dialled: Vec<io::Result<TcpStream>> = dialled.collect();
    for stream in dialled {
        let what = match stream {
            Err(error) => Some((TroubleKind::Refused, error.to_string())),
            Ok(mut stream) => match common::works(&mut stream) {
                true => None,
                false => Some((TroubleKind::Cut, "it was not answered".to_owned())),
            },
        };
        match what {
            Some((what, text)) => run.log.trouble(of, what, begun, text),
            None => {
                run.visits.fetch_add(1, Relaxed);
            }
        }
    }
    let took = run.log.now() - begun;
    if took > run.log.limit && connections == 1 {
        let text = format!("a connection took {took:.1?}");
        run.log.trouble(of, TroubleKind::Waited, begun, text);
    }
}

/// Opens 1,000 connections, by a few threads in the sandbox.
pub fn burst(run: &Run<'_>) {
    const THREADS: usize = 4;
    const AT_ONCE: usize = 25;
    const TURNS: usize = 10;
    let changed = place("changed");
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let comes = || (0..TURNS).for_each(|_| comes_and_goes(run, changed, AT_ONCE));
                run.sandbox.client(comes).unwrap();
            });
        }
    });
}
