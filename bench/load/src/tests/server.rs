//! A small RESP server: a thread for each connection, and a log of all requests.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// The log of requests: the connection's number, and the words.
pub type Log = Arc<Mutex<Vec<(usize, Vec<String>)>>>;

/// A server that ends with its clients.
pub struct Server {
    pub addr: SocketAddr,
    pub log: Log,
}

impl Server {
    /// Answers each command with what this says of its number (in all connections) and words;
    /// None: it closes the connection.
    pub fn start(
        answer: impl Fn(usize, &[String]) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let log = Log::default();
        let (answer, to_log) = (Arc::new(answer), log.clone());
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (answer, log) = (answer.clone(), to_log.clone());
                thread::spawn(move || serve(number, stream.unwrap(), &*answer, &log));
            }
        });
        Self { addr, log }
    }

    /// All that was asked.
    pub fn asked(&self) -> Vec<(usize, Vec<String>)> {
        self.log.lock().unwrap().clone()
    }
}

fn serve(
    number: usize,
    mut stream: TcpStream,
    answer: &dyn Fn(usize, &[String]) -> Option<String>,
    log: &Log,
) {
    stream.set_nodelay(true).unwrap();
    let mut input = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let mut out = String::new();
        while let Some((words, bytes)) = command(&input) {
            input.drain(..bytes);
            let nth = {
                let mut log = log.lock().unwrap();
                log.push((number, words.clone()));
                log.len()
            };
            match answer(nth, &words) {
                Some(answer) => out.push_str(&answer),
                None => return,
            }
        }
        if stream.write_all(out.as_bytes()).is_err() {
            return;
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(read) => input.extend_from_slice(&piece[..read]),
        }
    }
}

/// The command at the front, and its length.
pub fn command(input: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let number = |kind: u8, at: &mut usize| {
        let rest = &input[*at..];
        let end = rest.iter().position(|b| *b == b'\n')?;
        assert_eq!(rest[0], kind);
        *at += end + 1;
        let digits = std::str::from_utf8(&rest[1..end - 1]).unwrap();
        Some(digits.parse::<usize>().unwrap())
    };
    let count = number(b'*', &mut at)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(b'$', &mut at)?;
        let word = input.get(at..at + length)?;
        input.get(at + length + 1)?;
        words.push(String::from_utf8_lossy(word).into_owned());
        at += length + 2;
    }
    Some((words, at))
}
