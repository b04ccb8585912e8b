//! No byte is lost: whichever way the next one takes, and whatever becomes of the agent.

use super::*;

const STORM_BYTES: usize = 150 << 20;

/// Reads all of it, now and then pausing for long enough that the bound is reached.
fn read_storm(mut from: TcpStream, reader: Reader, bytes: usize) {
    let mut random = Random::new(3);
    let mut buffer = vec![0; 256 << 10];
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let trigger = match reader {
        Reader::TrustsEdges => EpollFlags::EPOLLET,
        _ => EpollFlags::empty(),
    };
    let interest = EpollFlags::EPOLLIN | trigger;
    epoll.add(&from, EpollEvent::new(interest, 0)).unwrap();
    from.set_nonblocking(!matches!(reader, Reader::Blocks))
        .unwrap();
    let mut received = 0;
    while received < bytes {
        if !matches!(reader, Reader::Blocks) {
            assert_eq!(ready(&epoll, 3000), 1, "{reader:?} hangs at {received}");
        }
        loop {
            let asked = 1 + random.below(buffer.len());
            let n = match from.read(&mut buffer[..asked]) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                read => read.unwrap(),
            };
            assert!(n > 0, "{reader:?}: ends at {received} of {bytes}");
            assert!(
                buffer[..n] == pattern(received, n),
                "{reader:?}: other bytes at {received}"
            );
            received += n;
            if random.below(200) == 0 {
                thread::sleep(Duration::from_millis(3));
            }
            if n < asked || !matches!(reader, Reader::TrustsEdges) {
                break;
            }
        }
    }
}

/// Writes of every size, up to twice what is bulk.
const ANY_SIZE: [usize; 4] = [100, 3000, 8000, 200_000];

fn write_storm(mut to: TcpStream, bytes: usize, sizes: [usize; 4]) {
    let mut random = Random::new(4);
    let mut sent = 0;
    while sent < bytes {
        let most = sizes[random.below(4)];
        let n = (1 + random.below(most)).min(bytes - sent);
        to.write_all(&pattern(sent, n)).unwrap();
        sent += n;
    }
}

#[test]
fn no_byte_is_lost_or_out_of_order_however_ways_change() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    for reader in [Reader::Blocks, Reader::Polls, Reader::TrustsEdges] {
        let (client, server) = pair(&hosts, &listener, Family::V4);
        let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| write_storm(client, STORM_BYTES, ANY_SIZE));
            scope.spawn(|| {
                // Until there is no more room.
                thread::sleep(Duration::from_millis(100));
                read_storm(server, reader, STORM_BYTES);
            });
            // The other direction at the same time: a socket's mode is of both.
            let (server, client) = back;
            scope.spawn(|| write_storm_waiting(server, STORM_BYTES / 8));
            scope.spawn(|| read_storm(client, Reader::Blocks, STORM_BYTES / 8));
        });
    }
    for way in ["shortcut", "behind", "bulk", "flow_full"] {
        assert!(messages(&agent, way) > 0, "{way}");
    }
}

/// Writes a storm to a socket that may be non-blocking, because its reader is.
fn write_storm_waiting(to: TcpStream, bytes: usize) {
    let mut random = Random::new(4);
    let mut sent = 0;
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let interest = EpollFlags::EPOLLOUT;
    epoll.add(&to, EpollEvent::new(interest, 0)).unwrap();
    while sent < bytes {
        assert_eq!(ready(&epoll, 3000), 1, "cannot write at {sent}");
        let n = (1 + random.below(20_000)).min(bytes - sent);
        match (&to).write(&pattern(sent, n)) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            n => sent += n.unwrap(),
        }
    }
}

/// The agent is killed, or stopped, while flows are busy.
#[test]
fn flows_outlive_the_agent() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let hosts = Hosts::new();
        let listener = listen(&hosts, Family::V4);
        let mut agent = hosts.agent(&shortcut(&[port(&listener)]));
        let (client, server) = pair(&hosts, &listener, Family::V4);
        let (mut idle, mut idles) = pair(&hosts, &listener, Family::V4);
        idle.write_all(b"unread when it died").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| write_storm(client, STORM_BYTES, [100, 3000, 8000, 8000]));
            let reads = scope.spawn(|| read_storm(server, Reader::Polls, STORM_BYTES));
            eventually("it is busy", || bytes(&agent, "shortcut") > 1 << 20);
            match signal {
                Signal::SIGKILL => agent.kill().unwrap(),
                _ => assert!(agent.stop().unwrap().success()),
            }
            assert!(!reads.is_finished(), "it was not busy any more");
        });
        let mut seen = [0; 19];
        idles.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"unread when it died");
        exchange(&mut idle, &mut idles);
        // The next agent's flows take it again, beside those that are left.
        agent.restart().unwrap();
        let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
        exchange(&mut client, &mut server);
        assert_eq!((flows(&agent), messages(&agent, "shortcut")), (1, 200));
        exchange(&mut idle, &mut idles);
    }
}

/// Nobody nudges readers while the agent sleeps: flows are on TCP meanwhile.
#[test]
fn an_agent_that_says_nothing_leaves_flows_to_tcp() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    exchange(&mut client, &mut server);
    agent.signal(Signal::SIGSTOP).unwrap();
    thread::sleep(Duration::from_secs(6));
    exchange(&mut client, &mut server);
    agent.signal(Signal::SIGCONT).unwrap();
    assert!(messages(&agent, "agent_away") > 0);
    eventually("the shortcut is taken again", || {
        let before = messages(&agent, "shortcut");
        exchange(&mut client, &mut server);
        messages(&agent, "shortcut") > before
    });
}
