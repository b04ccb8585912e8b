//! Data that arrives at the agent's listener although its handshake is done: before the connection is
//! accepted the kernel may find neither the request nor the accepted socket for a moment, and it is
//! not answered, and sent again. Later it belongs to a connection that is gone.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use sandbox::Agent;
use socket2::Socket;

use crate::{
    common::*,
    raw::{raw_socket, segment},
};

/// `UP_FRESH_NS`.
const FRESH: Duration = Duration::from_millis(100);
/// On the loopback an answer is there before the sender is back, unless the kernel has its own thread
/// see to it, and that one waits for a core.
const ANSWER: Duration = Duration::from_millis(500);
/// A busy machine may be too slow for one of them.
const ATTEMPTS: usize = 20;

const IPV4_HEADER_BYTES: usize = 20;
const RST: u8 = 0x04;
/// Flags of data, in which nothing would be expected.
const PSH_ACK: u8 = 0x18;

/// A request, protocol version 4.
const OPTIONS: [u8; 9] = [4, 0, 0, 0, 5, 0, 0, 0, 0];

/// Whether a reset comes for data from `from`, which has no socket any more.
fn is_reset(raw: &Socket, from: SocketAddr, to: SocketAddr) -> bool {
    raw.send_to(&segment(from, to, PSH_ACK, b"?"), &to.into())
        .unwrap();
    let end = Instant::now() + ANSWER;
    loop {
        let is_over = Instant::now() >= end;
        let mut packet = [0; 128];
        if (&mut &*raw).read(&mut packet).is_err() {
            match is_over {
                true => return false,
                false => continue,
            }
        }
        let tcp = &packet[IPV4_HEADER_BYTES..];
        let is_to = tcp[2..4] == from.port().to_be_bytes();
        let is_from = tcp[..2] == to.port().to_be_bytes();
        if is_to && is_from && tcp[13] & RST != 0 {
            return true;
        }
    }
}

/// Closes a client's connection with a reset. Gives the client's address.
fn reset(client: TcpStream) -> SocketAddr {
    let linger = socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO));
    linger.unwrap();
    client.local_addr().unwrap()
}

/// The agent can open one more file, until this is dropped: it dials, and cannot accept.
struct OneFile(Pid, Rlimit);

/// Files that a process may open, if it wants to.
fn most_files(pid: u32) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max open files"));
    let hard = line.unwrap().split_whitespace().nth(1).unwrap();
    hard.parse().unwrap()
}

impl OneFile {
    fn of(agent: &Agent<'_>) -> Self {
        let pid = agent.pid();
        let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let number = |f: fs::DirEntry| f.file_name().to_str().unwrap().parse::<u64>().unwrap();
        let open: Vec<_> = files.map(|f| number(f.unwrap())).collect();
        let free = (0..).find(|n| !open.contains(n)).unwrap();
        let next = (free + 1..).find(|n| !open.contains(n)).unwrap();
        let limit = Rlimit {
            current: Some(next),
            // Raised again, it would take a capability.
            maximum: Some(most_files(pid)),
        };
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let before = prlimit(Some(pid), Resource::Nofile, limit).unwrap();
        Self(pid, before)
    }
}

impl Drop for OneFile {
    fn drop(&mut self) {
        let restored = prlimit(Some(self.0), Resource::Nofile, self.1);
        assert!(restored.is_ok() || std::thread::panicking());
    }
}

#[test]
fn data_is_not_answered_right_after_its_handshake_and_reset_later() {
    let _turn = crate::turn();
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let to = listener.local_addr().unwrap();
    let agent = hosts.agent(&enrich(&[to.port()]));
    let agents = listens_at(&agent);
    let raw = raw_socket(&hosts);
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let before = cause(&agent, "overtaken");
        let one_file = OneFile::of(&agent);
        let from = hosts.client(|| reset(connect(Family::V4, to).unwrap()));
        let was_reset = is_reset(&raw, from, agents);
        drop(one_file);
        let counted = cause(&agent, "overtaken") - before;
        // Either way, and never both.
        assert_eq!(counted, f64::from(u8::from(!was_reset)));
        last = (!was_reset).then_some(from).or(last);
        if last.is_some() {
            break;
        }
    }
    let from = last.expect("one of them is in time");
    std::thread::sleep(FRESH);
    let before = cause(&agent, "overtaken");
    assert!(is_reset(&raw, from, agents));
    assert_eq!(cause(&agent, "overtaken"), before);
}

/// A client's answer to a reset that came out of order: unanswered, it would wait for ever.
#[test]
fn what_comes_of_a_connection_that_was_accepted_is_answered() {
    let _turn = crate::turn();
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let to = listener.local_addr().unwrap();
    let agent = hosts.agent(&enrich(&[to.port()]));
    let agents = listens_at(&agent);
    let raw = raw_socket(&hosts);
    let before = cause(&agent, "overtaken");
    let mut was_in_time = false;
    for _ in 0..ATTEMPTS {
        let began = Instant::now();
        let mut client = hosts.client(|| connect(Family::V4, to).unwrap());
        let (mut database, _) = listener.accept().unwrap();
        client.write_all(&OPTIONS).unwrap();
        database.read_exact(&mut [0; OPTIONS.len()]).unwrap();
        let from = reset(client);
        assert!(is_reset(&raw, from, agents));
        was_in_time |= began.elapsed() < FRESH;
    }
    assert!(was_in_time, "the machine is too slow to tell");
    assert_eq!(cause(&agent, "overtaken"), before);
}
