//! A relay between client and server that does one thing wrong, once.

use std::{
    io::{ErrorKind::WouldBlock, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use socket2::SockRef;

/// Fault of the middlebox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Bytes are left out: so many.
    Drop(usize),
    /// Bytes are sent twice: so many.
    Duplicate(usize),
    /// Two pieces of so many bytes change places.
    Swap(usize),
    /// Bytes of another connection come in between: so many.
    Foreign(usize),
    /// One bit is flipped.
    Flip,
    /// Nothing goes on for a while.
    Stall(Duration),
    /// The client's end becomes a reset.
    ResetForEnd,
    /// Nothing.
    None,
}

/// Position of the fault in a direction's bytes: well beyond the first messages.
const AT: usize = 50_000;
const CHUNK: usize = 64 << 10;

struct Middlebox {
    fault: Fault,
    done: AtomicBool,
    /// Bytes of a connection, for another.
    sample: Mutex<Option<(usize, Vec<u8>)>>,
}

/// Starts one before `server`; where to connect to.
pub fn start(server: SocketAddr, fault: Fault) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let middlebox = Arc::new(Middlebox {
        fault,
        done: AtomicBool::new(false),
        sample: Mutex::new(None),
    });
    let number = AtomicUsize::new(0);
    // Lives as long as the test's process.
    thread::spawn(move || {
        for client in listener.incoming() {
            let (middlebox, number) = (Arc::clone(&middlebox), number.fetch_add(1, SeqCst));
            thread::spawn(move || middlebox.relay(number, client.unwrap(), server));
        }
    });
    address
}

impl Middlebox {
    fn relay(self: Arc<Self>, number: usize, client: TcpStream, server: SocketAddr) {
        let server = TcpStream::connect(server).unwrap();
        // So that a thread that reads notices when the other is to close.
        let short = (self.fault == Fault::ResetForEnd).then_some(Duration::from_millis(20));
        for socket in [&client, &server] {
            socket.set_read_timeout(short).unwrap();
        }
        let reset = Arc::new(AtomicBool::new(false));
        let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let (other, flag) = (Arc::clone(&self), Arc::clone(&reset));
        let down = thread::spawn(move || {
            other.pump(number, from, &to, &flag);
            if !flag.load(SeqCst) {
                let _ = to.shutdown(Shutdown::Write);
            }
        });
        let all = self.pump(number, client, &server, &reset);
        let resets = self.fault == Fault::ResetForEnd && all > AT;
        if resets && !self.done.swap(true, SeqCst) {
            reset.store(true, SeqCst);
            down.join().unwrap();
            let socket = SockRef::from(&server);
            socket.set_linger(Some(Duration::ZERO)).unwrap();
        } else {
            let _ = server.shutdown(Shutdown::Write);
            down.join().unwrap();
        }
    }

    /// Passes on what comes, up to the end; how much it was.
    fn pump(
        &self,
        number: usize,
        mut from: TcpStream,
        mut to: &TcpStream,
        reset: &AtomicBool,
    ) -> usize {
        let mut chunk = vec![0; CHUNK];
        let mut all = 0;
        loop {
            let count = match from.read(&mut chunk) {
                Err(error) if error.kind() == WouldBlock => match reset.load(SeqCst) {
                    true => return all,
                    false => continue,
                },
                Ok(0) | Err(_) => return all,
                Ok(count) => count,
            };
            let mut bytes = chunk[..count].to_vec();
            if all > AT && count > 4096 {
                self.sample(number, &bytes);
                self.harm(number, &mut bytes);
            }
            all += count;
            if to.write_all(&bytes).is_err() {
                let _ = from.shutdown(Shutdown::Read);
                return all;
            }
        }
    }

    fn sample(&self, number: usize, bytes: &[u8]) {
        let mut sample = self.sample.lock().unwrap();
        if sample.is_none() {
            *sample = Some((number, bytes.to_vec()));
        }
    }

    fn harm(&self, number: usize, bytes: &mut Vec<u8>) {
        let foreign = match (&*self.sample.lock().unwrap(), self.fault) {
            (Some((other, sample)), Fault::Foreign(n)) if *other != number => sample[..n].to_vec(),
            (_, Fault::Foreign(_)) => return,
            _ => Vec::new(),
        };
        if self.fault == Fault::ResetForEnd || self.done.swap(true, SeqCst) {
            return;
        }
        match self.fault {
            Fault::Drop(n) => drop(bytes.drain(100..100 + n)),
            Fault::Duplicate(n) => bytes.extend_from_within(bytes.len() - n..),
            Fault::Swap(n) => bytes[..2 * n].rotate_left(n),
            Fault::Foreign(_) => drop(bytes.splice(200..200, foreign)),
            Fault::Flip => bytes[300] ^= 0x10,
            Fault::Stall(time) => thread::sleep(time),
            Fault::ResetForEnd | Fault::None => {}
        }
    }
}
