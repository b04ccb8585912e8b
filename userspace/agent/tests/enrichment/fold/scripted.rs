//! A database that does as a test tells it.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{Shutdown, shutdown},
};

use crate::common::{
    frames::{ready, void},
    world::World,
};

const STARTUP: u8 = 0x01;

/// Reaction of the database to a request.
pub(super) enum Does {
    Says(Vec<u8>),
    Nothing,
    Ends,
}

/// A version 4 database whose every connection begins, and which then does as it is told: `does` is given the
/// connection's number and the request, also one that asks whether it is there.
pub(super) struct Scripted {
    pub(super) addr: SocketAddr,
    listener: Arc<TcpListener>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Scripted {
    pub(super) fn start(
        world: &World<'_>,
        does: impl Fn(usize, &[u8]) -> Does + Send + Sync + 'static,
    ) -> Self {
        let listener = world.sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
        let listener = Arc::new(listener.unwrap().unwrap());
        let addr = listener.local_addr().unwrap();
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (listens, streams, does) = (listener.clone(), open.clone(), Arc::new(does));
        let accepts = move || {
            let mut threads = Vec::new();
            for number in 0.. {
                let Ok((stream, _)) = listens.accept() else {
                    break;
                };
                streams.lock().unwrap().push(stream.try_clone().unwrap());
                let does = does.clone();
                threads.push(thread::spawn(move || serve(stream, number, &*does)));
            }
            for thread in threads {
                thread.join().unwrap();
            }
        };
        Self {
            addr,
            listener,
            open,
            thread: Some(thread::spawn(accepts)),
        }
    }

    /// A database that never answers a request in which `text` is, and says so many of them have come.
    /// Every other request gets an empty result.
    pub(super) fn silent_on(world: &World<'_>, text: &'static str) -> (Self, Arc<AtomicUsize>) {
        let unanswered = Arc::new(AtomicUsize::new(0));
        let counted = unanswered.clone();
        let database = Self::start(world, move |_, asked| match has(asked, text) {
            true => {
                counted.fetch_add(1, Relaxed);
                Does::Nothing
            }
            false => Does::Says(void(4, stream_of(asked))),
        });
        (database, unanswered)
    }

    /// Ends all, and waits for them.
    pub(super) fn ends(mut self) {
        self.stops();
        self.thread.take().unwrap().join().unwrap();
    }

    fn stops(&self) {
        // Whoever waits in accept() is woken.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        // As a test fails, a lock may be poisoned, and a second panic would end all tests.
        for stream in self.open.lock().iter().flat_map(|open| open.iter()) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stops();
    }
}

/// A socket that does not block, as those of databases do not.
struct Polled(TcpStream);

impl Polled {
    fn does<T>(
        &mut self,
        waits_for: PollFlags,
        mut what: impl FnMut(&mut TcpStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match what(&mut self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut waits = [PollFd::new(self.0.as_fd(), waits_for)];
                    poll(&mut waits, PollTimeout::NONE)?;
                }
                done => return done,
            }
        }
    }
}

impl Read for Polled {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.does(PollFlags::POLLIN, |stream| stream.read(buffer))
    }
}

impl Write for Polled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.does(PollFlags::POLLOUT, |stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn serve(stream: TcpStream, number: usize, does: &dyn Fn(usize, &[u8]) -> Does) {
    stream.set_nonblocking(true).unwrap();
    let mut stream = Polled(stream);
    answers(&mut stream, number, does);
    // There is another descriptor of it.
    let _ = stream.0.shutdown(std::net::Shutdown::Both);
}

fn answers(stream: &mut Polled, number: usize, does: &dyn Fn(usize, &[u8]) -> Does) {
    loop {
        let mut asked = vec![0; 9];
        if stream.read_exact(&mut asked).is_err() {
            return;
        }
        let length = u32::from_be_bytes(asked[5..].try_into().unwrap());
        asked.resize(9 + length as usize, 0);
        if stream.read_exact(&mut asked[9..]).is_err() {
            return;
        }
        let says = match asked[4] {
            STARTUP => Does::Says(ready(4)),
            _ => does(number, &asked),
        };
        match says {
            Does::Says(bytes) if stream.write_all(&bytes).is_ok() => {}
            Does::Nothing => {}
            Does::Says(_) | Does::Ends => return,
        }
    }
}

pub(super) fn stream_of(frame: &[u8]) -> i16 {
    i16::from_be_bytes([frame[2], frame[3]])
}

pub(super) fn has(asked: &[u8], text: &str) -> bool {
    asked.windows(text.len()).any(|at| at == text.as_bytes())
}
