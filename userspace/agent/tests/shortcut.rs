//! The shortcut: bytes skip TCP between two sockets of this host, and neither application notices
//! but where this file says so.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

mod common;
#[path = "shortcut/listed.rs"]
mod listed;
#[path = "shortcut/storms.rs"]
mod storms;

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant},
};

use common::*;
use dataplane::trial::Random;
use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    signal::Signal,
    socket::{MsgFlags, recv},
};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use testkit::sandbox::{Agent, run_in};

/// `UP_SHORTCUT_FLOW_BYTES`.
const FLOW_BYTES: usize = 1 << 20;

/// `UP_SHORTCUT_MARKS` times `UP_SHORTCUT_MARK_STEP`.
const FLOW_MESSAGES: u64 = 1024;

/// A database beneath the cgroup that the agent is attached to.
fn listen(hosts: &Hosts, family: Family) -> TcpListener {
    hosts.client(|| TcpListener::bind((family.loopback(), 0)).unwrap())
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}

fn shortcut(ports: &[u16]) -> String {
    rule("bypass", &format!("{}\nshortcut = true", to(ports)))
}

fn pair(hosts: &Hosts, listener: &TcpListener, family: Family) -> (TcpStream, TcpStream) {
    let dialled = family.dialled(family.loopback(), port(listener));
    let client = hosts.client(|| connect(family, dialled).unwrap());
    let (server, _) = accept(listener);
    for end in [&client, &server] {
        end.set_nodelay(true).unwrap();
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (client, server)
}

fn messages(agent: &Agent<'_>, way: &str) -> u64 {
    let name = format!("underpass_shortcut_messages_total{{way=\"{way}\"}}");
    agent.metric(&name).unwrap() as u64
}

fn bytes(agent: &Agent<'_>, way: &str) -> u64 {
    let name = format!("underpass_shortcut_bytes_total{{way=\"{way}\"}}");
    agent.metric(&name).unwrap() as u64
}

fn flows(agent: &Agent<'_>) -> u64 {
    agent.metric("underpass_shortcut_flows").unwrap() as u64
}

fn safer(agent: &Agent<'_>, cause: &str) -> u64 {
    let name = format!("underpass_safer_path_total{{cause=\"{cause}\"}}");
    agent.metric(&name).unwrap() as u64
}

fn exchange(client: &mut TcpStream, server: &mut TcpStream) {
    let mut seen = [0; 8];
    for _ in 0..100 {
        client.write_all(b"question").unwrap();
        server.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"question");
        server.write_all(b"response").unwrap();
        client.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"response");
    }
}

/// Any eight bytes in a row are elsewhere others.
fn pattern(from: usize, bytes: usize) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(bytes + 8);
    let mut at = from / 8;
    while pattern.len() < bytes + from % 8 {
        let word = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        pattern.extend_from_slice(&word.to_le_bytes());
        at += 1;
    }
    pattern.drain(..from % 8);
    pattern.truncate(bytes);
    pattern
}

#[test]
fn both_ends_of_every_family_take_it() {
    let hosts = Hosts::new();
    let listeners = FAMILIES.map(|family| (family, listen(&hosts, family)));
    let ports: Vec<u16> = listeners.iter().map(|(_, l)| port(l)).collect();
    let other = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&ports));
    let mut open = Vec::new();
    for (n, (family, listener)) in listeners.iter().enumerate() {
        let before = messages(&agent, "shortcut");
        let (mut client, mut server) = pair(&hosts, listener, *family);
        exchange(&mut client, &mut server);
        assert_eq!(messages(&agent, "shortcut") - before, 200, "{family:?}");
        assert_eq!(flows(&agent), n as u64 + 1, "{family:?}");
        open.push((client, server));
    }
    // Nobody else's socket is touched.
    let before = agent.metrics().unwrap();
    let (mut client, mut server) = pair(&hosts, &other, Family::V4);
    exchange(&mut client, &mut server);
    assert_eq!(flows(&agent), 3);
    let after = agent.metrics().unwrap();
    for (name, value) in before.iter().filter(|(n, _)| n.contains("_shortcut_")) {
        assert_eq!(after.get(name), Some(value), "{name}");
    }
    drop(open);
    eventually("all flows are gone", || flows(&agent) == 0);
}

#[test]
fn what_is_not_beneath_the_cgroup_or_not_here_stays_on_tcp() {
    let hosts = Hosts::new();
    let unseen = hosts.listen(Distance::Here, Family::V4);
    let far = hosts.listen(Distance::There, Family::V4);
    let elsewhere = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let elsewhere = run_in(Some(&hosts.database), Some(&hosts.app.cgroup), elsewhere).unwrap();
    let agent = hosts.agent(&shortcut(&[port(&unseen), port(&far), port(&elsewhere)]));

    let (mut client, mut server) = pair(&hosts, &unseen, Family::V4);
    exchange(&mut client, &mut server);
    assert_eq!(messages(&agent, "alone"), 100);

    let to = far.local_addr().unwrap();
    let mut client = hosts.client(|| connect(Family::V4, to).unwrap());
    exchange(&mut client, &mut accept(&far).0);
    assert_eq!(safer(&agent, "shortcut_remote"), 1);

    let to = elsewhere.local_addr().unwrap();
    let dial = || connect(Family::V4, to).unwrap();
    let mut client = run_in(Some(&hosts.database), Some(&hosts.app.cgroup), dial).unwrap();
    exchange(&mut client, &mut accept(&elsewhere).0);
    assert_eq!(safer(&agent, "foreign_netns"), 1);
    assert_eq!((flows(&agent), messages(&agent, "shortcut")), (0, 0));
}

#[test]
fn what_an_application_sees_is_what_tcp_shows() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    let mut bytes = [0; 64];

    client.write_all(b"hello").unwrap();
    assert_eq!(rustix::io::ioctl_fionread(&server).unwrap(), 5);
    assert_eq!(server.peek(&mut bytes).unwrap(), 5);
    assert_eq!(server.read(&mut bytes).unwrap(), 5);
    assert_eq!(&bytes[..5], b"hello");

    server.set_nonblocking(true).unwrap();
    let empty = server.read(&mut bytes).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    server.set_nonblocking(false).unwrap();

    let limit = Duration::from_millis(50);
    server.set_read_timeout(Some(limit)).unwrap();
    let begun = Instant::now();
    let empty = server.read(&mut bytes).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    assert!(begun.elapsed() >= limit);
    server.set_read_timeout(Some(PATIENCE)).unwrap();

    // A reader that blocks is woken.
    let waiting = blocked_read(&server);
    client.write_all(b"wake").unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), 4);

    for trigger in [EpollFlags::empty(), EpollFlags::EPOLLET] {
        let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
        let interest = EpollFlags::EPOLLIN | trigger;
        epoll.add(&server, EpollEvent::new(interest, 0)).unwrap();
        assert_eq!(ready(&epoll, 0), 0);
        client.write_all(b"event").unwrap();
        assert_eq!(ready(&epoll, 1000), 1, "{trigger:?}");
        let again = usize::from(trigger.is_empty());
        assert_eq!(ready(&epoll, 0), again, "{trigger:?}");
        assert_eq!(server.read(&mut bytes).unwrap(), 5);
        assert_eq!(ready(&epoll, 0), 0, "{trigger:?}");
    }

    // A FIN travels by TCP, and is not seen before the bytes that were sent before it.
    let sent = pattern(0, 100_000);
    for piece in sent.chunks(1000) {
        client.write_all(piece).unwrap();
    }
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert!(sent == received);
    server.write_all(b"answer").unwrap();
    drop(server);
    received.clear();
    client.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"answer");

    // A reset is seen behind the bytes that were sent before it.
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    client.write_all(b"last words").unwrap();
    reset(client);
    assert_eq!(server.read(&mut bytes).unwrap(), 10);
    let reset = server.read(&mut bytes).unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);

    // Nobody reads any more.
    let (mut client, server) = pair(&hosts, &listener, Family::V4);
    drop(server);
    eventually("the client is told", || client.write_all(b"x").is_err());
    assert!(messages(&agent, "shortcut") > 100);
}

/// What opting in costs: each of these differs from TCP on this kernel. The list is in
/// docs/decisions/0005-shortcut.md, too.
#[test]
fn what_an_application_sees_otherwise_than_with_tcp() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let _agent = hosts.agent(&shortcut(&[port(&listener)]));
    let mut bytes = [0; 64];

    // MSG_WAITALL returns what there is.
    let (mut client, server) = pair(&hosts, &listener, Family::V4);
    client.write_all(b"abc").unwrap();
    let all = recv(server.as_raw_fd(), &mut bytes[..6], MsgFlags::MSG_WAITALL);
    assert_eq!(all.unwrap(), 3);

    // splice(2) and sendfile(2) find nothing to take from the socket.
    client.write_all(b"abc").unwrap();
    let (_reads, pipe) = rustix::pipe::pipe().unwrap();
    let flags = rustix::pipe::SpliceFlags::NONBLOCK;
    server.set_nonblocking(true).unwrap();
    let spliced = rustix::pipe::splice(&server, None, &pipe, None, 3, flags);
    assert_eq!(spliced.unwrap_err(), rustix::io::Errno::AGAIN);

    // A read that blocks is told of a reset at the second try.
    let (client, mut server) = pair(&hosts, &listener, Family::V4);
    let waiting = blocked_read(&server);
    reset(client);
    let first = waiting.join().unwrap().unwrap_err();
    assert_eq!(first.kind(), ErrorKind::WouldBlock);
    let second = server.read(&mut bytes).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::ConnectionReset);

    // A read that blocks is woken when another thread of it may send on, and says that there is
    // nothing to read.
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    let waiting = blocked_read(&client);
    let much = 16 << 20;
    thread::scope(|scope| {
        scope.spawn(|| client.write_all(&pattern(0, much)).unwrap());
        let mut received = vec![0; much];
        server.read_exact(&mut received).unwrap();
        assert!(received == pattern(0, much));
    });
    let woken = waiting.join().unwrap().unwrap_err();
    assert_eq!(woken.kind(), ErrorKind::WouldBlock);

    // To close with bytes unread ends the flow for the peer, and does not reset it.
    let (mut client, server) = pair(&hosts, &listener, Family::V4);
    client.write_all(b"unread").unwrap();
    drop(server);
    assert_eq!(client.read(&mut bytes).unwrap(), 0);
}

/// What a flow may hold in the kernel.
const KERNEL_BYTES: u64 = 8 << 20;
const TCP_BUFFER_BYTES: usize = 256 << 10;

fn fill_and_drain(
    (hosts, agent): (&Hosts, &Agent<'_>),
    client: &mut TcpStream,
    server: &mut TcpStream,
    epoll: &Epoll,
) {
    let (past_tcp, refused) = (bytes(agent, "shortcut"), messages(agent, "flow_full"));
    let (mut sent, mut blocked) = (0, 0);
    // TCP's own buffers take a moment to be full.
    while blocked < 100 {
        match client.write(&pattern(sent, 8000)) {
            Ok(n) => (sent, blocked) = (sent + n, 0),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                blocked += 1;
                thread::yield_now();
            }
            Err(e) => panic!("{e}"),
        }
    }
    let queued = bytes(agent, "shortcut") - past_tcp;
    // Or the agent was looking after this very socket when the first one came, and all took TCP.
    if queued > 0 {
        let told = rustix::io::ioctl_fionread(&*server).unwrap();
        assert_eq!(told, queued);
        let bound = FLOW_BYTES as u64;
        assert!(queued > bound - 8000 && queued <= bound, "{queued}");
        assert!(messages(agent, "flow_full") > refused);
        assert!(sent as u64 > queued, "{sent}");
    }
    // Both ends are here.
    let held = kernel_bytes(&hosts.app);
    println!(
        "{sent} bytes were taken, {queued} of them past TCP; the kernel holds {held} for them"
    );
    assert!(held < KERNEL_BYTES, "{held}");
    assert!(sent < 16 << 20, "{sent}");

    let mut received = 0;
    // As much as there may be: the read that empties the queue is short.
    let mut buffer = vec![0; 16 << 20];
    while received < sent {
        assert_eq!(ready(epoll, 1000), 1, "no edge after {received} of {sent}");
        let n = server.read(&mut buffer).unwrap();
        assert!(buffer[..n] == pattern(received, n), "at {received}");
        received += n;
    }
}

/// A reader that has stopped costs the kernel no more than with TCP and the bound, and misses
/// nothing when it goes on, whichever way the bytes took: it trusts edges and short reads, as
/// netty's and tokio's do.
#[test]
fn a_reader_that_stops_is_bounded_and_misses_nothing() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    // Of themselves TCP's buffers grow from round to round, beyond what is asserted of the whole.
    let (sends, reads) = (SockRef::from(&client), SockRef::from(&server));
    sends.set_send_buffer_size(TCP_BUFFER_BYTES).unwrap();
    reads.set_recv_buffer_size(TCP_BUFFER_BYTES).unwrap();
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    epoll.add(&server, EpollEvent::new(interest, 0)).unwrap();
    // TCP's own edge may come before the agent's, which then is not needed.
    for round in 1.. {
        fill_and_drain((&hosts, &agent), &mut client, &mut server, &epoll);
        if agent.metric("underpass_shortcut_nudges_total").unwrap() > 0.0 {
            break;
        }
        assert!(round < 30, "no reader was nudged");
    }
    // And back, but for what is sent while the agent looks after this very socket.
    let (before, mut again) = (messages(&agent, "shortcut"), [0; 5]);
    eventually("it is on the shortcut again", || {
        client.write_all(b"again").unwrap();
        assert_eq!(ready(&epoll, 1000), 1);
        assert_eq!(server.read(&mut again).unwrap(), 5);
        messages(&agent, "shortcut") == before + 1
    });
}

/// On a kernel that cannot have it.
#[test]
fn without_the_shortcut_flows_stay_on_tcp() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let policy = shortcut(&[port(&listener)]);
    let agent = hosts.switched("UNDERPASS_TEST_WITHOUT=shortcut", "", &policy);
    let reason = "UNDERPASS_TEST_WITHOUT names it";
    let off = format!("underpass_path_available{{path=\"shortcut\",reason=\"{reason}\"}}");
    eventually("it is said", || {
        agent.metrics().unwrap().get(&off) == Some(&0.0)
    });
    let said = agent.wait_for_log("path=\"shortcut\"").unwrap();
    assert!(
        said.contains("path is off") && said.contains(reason),
        "{said}"
    );
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    exchange(&mut client, &mut server);
    assert_eq!(safer(&agent, "shortcut_off"), 1);
    assert_eq!((flows(&agent), messages(&agent, "shortcut")), (0, 0));
}

/// Where the host's TCP has no memory to spare, bytes take TCP, in order.
#[test]
fn on_a_host_that_is_short_of_memory_bytes_take_tcp() {
    let hosts = Hosts::new();
    let (listener, other) = (listen(&hosts, Family::V4), listen(&hosts, Family::V4));
    let policy = shortcut(&[port(&listener)]);
    let agent = hosts.switched("UNDERPASS_TEST_HOST_PAGES=0", "", &policy);
    // Somebody has some of it, whoever else is on this host.
    let (holder, _reader) = pair(&hosts, &other, Family::V4);
    holder.set_nonblocking(true).unwrap();
    while (&holder).write(&[0; 1 << 16]).is_ok() {}
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    exchange(&mut client, &mut server);
    assert_eq!(flows(&agent), 1);
    assert_eq!(messages(&agent, "shortcut"), 0);
    assert_eq!(messages(&agent, "host_full"), 200);
    let sent = pattern(0, 4 << 20);
    thread::scope(|scope| {
        scope.spawn(|| client.write_all(&sent).unwrap());
        let mut received = vec![0; sent.len()];
        server.read_exact(&mut received).unwrap();
        assert!(received == sent, "other bytes than were sent");
    });
    assert_eq!(bytes(&agent, "shortcut"), 0);
}

/// Its subflows are TCP sockets, of which nobody reads.
#[test]
fn multipath_tcp_stays_on_tcp() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let to = listener.local_addr().unwrap();
    let mut client: TcpStream = hosts.client(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).unwrap();
        socket.connect(&to.into()).unwrap();
        socket.into()
    });
    let (mut server, _) = accept(&listener);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(safer(&agent, "shortcut_refused"), 1);
    assert_eq!((flows(&agent), messages(&agent, "shortcut")), (0, 0));
}

/// kTLS that is set up on a flow that takes the shortcut, which the kernel need not have: a switch
/// has the database's socket pass for such. What either end sends takes TCP.
#[test]
fn what_is_encrypted_after_its_enrolment_takes_tcp() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let switch = format!("UNDERPASS_TEST_ULP={}", port(&listener));
    let agent = hosts.switched(&switch, "", &shortcut(&[port(&listener)]));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    assert_eq!(flows(&agent), 1);
    exchange(&mut client, &mut server);
    assert_eq!(messages(&agent, "upper_layer"), 200);
    assert_eq!(messages(&agent, "shortcut"), 0);
}

/// Each message costs the kernel more than its bytes.
#[test]
fn short_messages_are_bounded_by_their_number() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    // A reader that keeps up is never over the bound, however many there were.
    let mut byte = [0; 1];
    for n in 0..5000_usize {
        client.write_all(&pattern(n, 1)).unwrap();
        server.read_exact(&mut byte).unwrap();
    }
    assert_eq!(messages(&agent, "shortcut"), 5000);
    for n in 5000..15_000_usize {
        client.write_all(&pattern(n, 1)).unwrap();
    }
    let put = messages(&agent, "shortcut") - 5000;
    assert!(
        (FLOW_MESSAGES - 128..=FLOW_MESSAGES + 128).contains(&put),
        "{put}"
    );
    let mut received = vec![0; 10_000];
    server.read_exact(&mut received).unwrap();
    assert!(received == pattern(5000, 10_000));
}

#[derive(Clone, Copy, Debug)]
enum Reader {
    Blocks,
    /// Told by levels.
    Polls,
    /// Told by edges, and takes a short read for the end.
    TrustsEdges,
}

/// A policy that no longer asks for it leaves flows where they are.
#[test]
fn rules_come_and_go() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&rule("bypass", &to(&[port(&listener)])));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    exchange(&mut client, &mut server);
    assert_eq!(flows(&agent), 0);
    agent.write_policy(&shortcut(&[port(&listener)])).unwrap();
    agent.signal(Signal::SIGHUP).unwrap();
    agent.wait_for_log("policy reloaded").unwrap();
    let (mut on, mut its) = pair(&hosts, &listener, Family::V4);
    exchange(&mut on, &mut its);
    exchange(&mut client, &mut server);
    assert_eq!((flows(&agent), messages(&agent, "shortcut")), (1, 200));
    let policy = rule("bypass", &to(&[port(&listener)]));
    agent.write_policy(&policy).unwrap();
    eventually("it is read", || {
        agent.log().matches("policy reloaded").count() == 2
    });
    exchange(&mut on, &mut its);
    let (mut off, mut offs) = pair(&hosts, &listener, Family::V4);
    exchange(&mut off, &mut offs);
    assert_eq!((flows(&agent), messages(&agent, "shortcut")), (1, 400));
}

/// Returns once the thread that reads sleeps.
fn blocked_read(from: &TcpStream) -> thread::JoinHandle<std::io::Result<usize>> {
    let (tell, told) = std::sync::mpsc::channel();
    let mut from = from.try_clone().unwrap();
    let reads = thread::spawn(move || {
        tell.send(nix::unistd::gettid()).unwrap();
        from.read(&mut [0; 64])
    });
    let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
    eventually("the reader sleeps", || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('S')
    });
    reads
}

fn ready(epoll: &Epoll, ms: u16) -> usize {
    let limit = EpollTimeout::from(ms);
    epoll.wait(&mut [EpollEvent::empty()], limit).unwrap()
}

fn reset(socket: TcpStream) {
    let linger = Some(Duration::ZERO);
    SockRef::from(&socket).set_linger(linger).unwrap();
}
