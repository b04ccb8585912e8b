//! A key server that does as the test says.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

#[derive(Clone, Debug)]
pub enum Mode {
    /// The key server answers with this document.
    Gives(String),
    /// Nothing, and the connection stays.
    Hangs,
    /// A byte now and then.
    Drips,
    /// The connection ends.
    Dies,
    /// 500.
    Fails,
}

/// See the module. Dropped, it listens no more.
pub struct Kms {
    address: SocketAddr,
    mode: Arc<Mutex<Mode>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kms {
    pub fn start(at: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, ends) = (
            Arc::new(Mutex::new(Mode::Dies)),
            Arc::new(AtomicBool::new(false)),
        );
        let (its_mode, its_end) = (mode.clone(), ends.clone());
        let thread = thread::spawn(move || {
            // Those that it hangs on.
            let mut hung = Vec::new();
            while !its_end.load(Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let mode = its_mode.lock().unwrap().clone();
                        hung.extend(answer(stream, &mode, &its_end));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Self {
            address,
            mode,
            ends,
            thread: Some(thread),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn becomes(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }
}

impl Drop for Kms {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// The stream, if it is to stay.
fn answer(mut stream: TcpStream, mode: &Mode, ends: &AtomicBool) -> Option<TcpStream> {
    let patience = Some(Duration::from_secs(5));
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(patience).unwrap();
    stream.set_write_timeout(patience).unwrap();
    let mut asked = Vec::new();
    let mut byte = [0];
    while !asked.ends_with(b"\r\n\r\n") && stream.read(&mut byte).ok()? > 0 {
        asked.push(byte[0]);
    }
    assert!(asked.starts_with(b"GET /keys HTTP/1.1\r\n"), "{asked:?}");
    // Whoever does not want the answer has gone.
    let mut says = |text: &str| stream.write_all(text.as_bytes()).is_ok();
    match mode {
        Mode::Gives(document) => {
            let length = document.len();
            says(&format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{document}"
            ));
            None
        }
        Mode::Fails => {
            says("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            None
        }
        Mode::Drips => {
            says("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
            while !ends.load(Relaxed) && says(" ") {
                thread::sleep(Duration::from_millis(20));
            }
            None
        }
        Mode::Hangs => Some(stream),
        Mode::Dies => None,
    }
}
