//! A daemon that speaks what is asked of Docker Engine's API.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use serde_json::json;

use super::ship::{Mood, Runtime, Told};

/// A container runtime that speaks Docker's API; it listens until it is dropped.
pub struct Docker {
    pub path: PathBuf,
    pub runtime: Arc<Runtime>,
    listening: Arc<Mutex<Vec<UnixStream>>>,
    ended: Arc<AtomicBool>,
}

impl Docker {
    pub fn start(path: &Path) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let docker = Self {
            path: path.to_owned(),
            runtime: Arc::new(Runtime::new()),
            listening: Arc::default(),
            ended: Arc::default(),
        };
        let (runtime, listening, ended) = (
            docker.runtime.clone(),
            docker.listening.clone(),
            docker.ended.clone(),
        );
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if ended.load(Relaxed) {
                    return;
                }
                let (runtime, listening) = (runtime.clone(), listening.clone());
                // A client that goes is none of its business.
                thread::spawn(move || serve(client, &runtime, &listening));
            }
        });
        docker
    }

    /// Tells whoever listens that something has happened.
    pub fn tell(&self) {
        for client in self.listening.lock().unwrap().iter_mut() {
            let _ = client.write_all(b"3\r\n{}\n\r\n");
        }
    }

    /// Whether somebody listens.
    pub fn is_heard(&self) -> bool {
        !self.listening.lock().unwrap().is_empty()
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        // Its thread looks.
        drop(UnixStream::connect(&self.path));
        let _ = std::fs::remove_file(&self.path);
        for client in self.listening.lock().unwrap().iter() {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn serve(
    mut client: UnixStream,
    runtime: &Runtime,
    listening: &Mutex<Vec<UnixStream>>,
) -> Option<()> {
    let mut requests = BufReader::new(client.try_clone().ok()?);
    loop {
        let path = request(&mut requests)?;
        match runtime.mood() {
            Mood::Well => {}
            Mood::Hanging => {
                let mut byte = String::new();
                return requests.read_line(&mut byte).ok().map(drop);
            }
            Mood::Garbage => return client.write_all(b"\xff\x00 what?\r\n\r\n[{]}").ok(),
            Mood::Endless => return endless(client),
            Mood::Cut => {
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n[{\"Id\":";
                return client.write_all(head).ok();
            }
            Mood::Refusing => {
                let head = b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n";
                client.write_all(head).ok()?;
                continue;
            }
        }
        if path.starts_with("/events?filters=") {
            let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            client.write_all(head).ok()?;
            listening.lock().unwrap().push(client);
            return None;
        }
        let (status, body) = answer(&path, &runtime.runs());
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n");
        client.write_all((head + &body).as_bytes()).ok()?;
    }
}

/// 100 MB of a list that has not ended.
fn endless(mut client: UnixStream) -> Option<()> {
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    client.write_all(head).ok()?;
    let chunk = format!("{:x}\r\n{}\r\n", 1_000_000, " ".repeat(1_000_000));
    for _ in 0..100 {
        client.write_all(chunk.as_bytes()).ok()?;
    }
    client.write_all(b"0\r\n\r\n").ok()
}

/// The path of one, whose headers are read over.
fn request(requests: &mut impl BufRead) -> Option<String> {
    let mut first = String::new();
    requests.read_line(&mut first).ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    loop {
        let mut line = String::new();
        requests.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            return Some(path);
        }
    }
}

fn answer(path: &str, runs: &[Told]) -> (&'static str, String) {
    if path == "/containers/json" {
        let listed = runs.iter().map(|told| {
            json!({
                "Id": told.id,
                "Names": [format!("/{}", told.name), "/other/alias"],
                "Image": "app:latest",
                "Labels": told.labels,
                "State": "running",
            })
        });
        return ("200 OK", listed.collect::<serde_json::Value>().to_string());
    }
    let id = path.strip_prefix("/containers/");
    let id = id.and_then(|rest| rest.strip_suffix("/json"));
    match runs.iter().find(|told| Some(told.id.as_str()) == id) {
        Some(told) => {
            let state = json!({"Status": "running", "Running": true, "Pid": told.pid});
            ("200 OK", json!({"Id": told.id, "State": state}).to_string())
        }
        None => (
            "404 Not Found",
            json!({"message": "no such container"}).to_string(),
        ),
    }
}
