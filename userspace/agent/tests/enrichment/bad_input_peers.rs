//! Peers that misbehave without a bad byte: they say nothing, do not read, come and go.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::common::{
    eventually,
    host::{self, Host, Pair, on_a_host},
};

/// Bytes that are sent to a peer that does not read.
const FLOOD_BYTES: usize = 200 << 20;
/// After so long without a byte taken, a writer is stopped.
const STOPPED_AFTER: Duration = Duration::from_millis(500);
/// Growth of the agent while it holds a flood back: a chunk, and the allocator's ways.
const FLOOD_GROWTH_KIB: u64 = 2048;

/// An AUTH_RESPONSE and an AUTH_SUCCESS without a body: the bystander sends none.
const REQUEST: [u8; 9] = [0x04, 0, 0, 1, 0x0F, 0, 0, 0, 0];
const RESPONSE: [u8; 9] = [0x84, 0, 0, 1, 0x10, 0, 0, 0, 0];

#[test]
fn clients_that_say_nothing_cost_nothing() {
    const CLIENTS: u64 = 200;
    /// A flow's task, sockets and entries.
    const GROWTH_KIB: u64 = 16 * CLIENTS;
    /// The bystander's requests, and the metrics that this test asks for.
    const WATCH: Duration = Duration::from_secs(2);
    on_a_host(|host| {
        host.goes_on();
        let before = Usage::of(host);
        let silent: Vec<Pair> = (0..CLIENTS).map(|_| host.pair()).collect();
        host.goes_on();
        let after = Usage::of(host);
        assert!(
            after.rss_kib < before.rss_kib + GROWTH_KIB,
            "{before:?}, {after:?}"
        );
        // Wake-ups on account of silent flows would show against what was used without them.
        let with_them = Usage::over(host, WATCH);
        assert_eq!(host.flows(), CLIENTS);
        host.counts(&[]);
        for mut pair in silent {
            pair.client_sends(&REQUEST);
            pair.server_sends(&RESPONSE);
            pair.ends();
        }
        eventually("the flows end", || host.flows() == 0);
        let without = Usage::over(host, WATCH);
        assert!(
            with_them <= without * 2 + Duration::from_millis(200),
            "{with_them:?} of CPU with {CLIENTS} silent flows, {without:?} without"
        );
    });
}

#[test]
fn a_client_that_does_not_read_stops_the_database() {
    on_a_host(|host| {
        let Pair {
            mut client,
            mut server,
        } = host.pair();
        // One RESULT of 200 MB.
        client.write_all(&frame_header(0x04, 0x07, 0)).unwrap();
        server.read_exact(&mut [0; 9]).unwrap();
        let head = frame_header(0x84, 0x08, FLOOD_BYTES);
        let sent = stopped(host, &mut server, &head);
        arrives(server, client, &head, sent);
        host.counts(&[
            ("anomalies", "malformed_body", 1), // the empty QUERY
            ("flows_closed", "both_ended", 1),
        ]);
    });
}

#[test]
fn a_database_that_does_not_read_stops_the_client() {
    on_a_host(|host| {
        let Pair { mut client, server } = host.pair();
        // One AUTH_RESPONSE of 200 MB.
        let head = frame_header(0x04, 0x0F, FLOOD_BYTES);
        let sent = stopped(host, &mut client, &head);
        arrives(client, server, &head, sent);
        host.counts(&[("flows_closed", "both_ended", 1)]);
    });
}

/// Writes a flood until nobody takes any more; the agent holds next to nothing of it and
/// other flows go on. How much of the body was written.
fn stopped(host: &Host<'_>, from: &mut TcpStream, head: &[u8]) -> usize {
    let before = Usage::of(host);
    from.write_all(head).unwrap();
    from.set_write_timeout(Some(STOPPED_AFTER)).unwrap();
    let mut sent = 0;
    while sent < FLOOD_BYTES {
        match from.write(flood(sent, FLOOD_BYTES - sent)) {
            Ok(n) => sent += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => panic!("{e}"),
        }
        let now = Usage::of(host);
        assert!(
            now.rss_kib < before.rss_kib + FLOOD_GROWTH_KIB,
            "{before:?}, {now:?} after {sent} bytes"
        );
    }
    assert!(sent < FLOOD_BYTES, "the writer was never stopped");
    host.goes_on();
    assert_eq!(host.flows(), 1);
    sent
}

/// Now the other side reads: everything is there, in order.
fn arrives(mut from: TcpStream, mut to: TcpStream, head: &[u8], sent: usize) {
    from.set_write_timeout(None).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut sent = sent;
            while sent < FLOOD_BYTES {
                let chunk = flood(sent, FLOOD_BYTES - sent);
                from.write_all(chunk).unwrap();
                sent += chunk.len();
            }
            from.shutdown(Shutdown::Write).unwrap();
            assert_eq!(host::rest(&mut from), b"");
        });
        let mut arrived = vec![0; head.len()];
        to.read_exact(&mut arrived).unwrap();
        assert_eq!(arrived, head);
        let mut at = 0;
        while at < FLOOD_BYTES {
            let wanted = flood(at, FLOOD_BYTES - at);
            let mut chunk = vec![0; wanted.len()];
            to.read_exact(&mut chunk).unwrap();
            assert!(chunk == wanted, "at {at}");
            at += chunk.len();
        }
        assert_eq!(host::rest(&mut to), b"");
        to.shutdown(Shutdown::Write).unwrap();
    });
}

/// At most `most` bytes of the flood, from `at` on. Its period is a prime: no loss or
/// repetition of a buffer's size goes unseen.
fn flood(at: usize, most: usize) -> &'static [u8] {
    const PERIOD: usize = 65_521;
    static TWICE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let places = (0..2 * PERIOD).map(|n| n % PERIOD);
        places.map(|n| (n ^ n >> 8) as u8).collect()
    });
    let from = at % PERIOD;
    &TWICE[from..from + most.min(PERIOD)]
}

fn frame_header(first: u8, opcode: u8, length: usize) -> [u8; 9] {
    let [l0, l1, l2, l3] = (length as u32).to_be_bytes();
    [first, 0, 0, 1, opcode, l0, l1, l2, l3]
}

#[test]
fn requests_that_are_never_answered_are_bounded() {
    const REQUESTS: usize = 40_000;
    /// A request that waits takes 80 bytes or less, in a table of twice the size.
    const GROWTH_KIB: u64 = 8192;
    on_a_host(|host| {
        let mut pair = host.pair();
        let before = Usage::of(host);
        let requests = (0..REQUESTS).flat_map(|n| {
            let [high, low] = (n as u16).to_be_bytes();
            [0x04, 0, high, low, 0x05, 0, 0, 0, 0]
        });
        let requests: Vec<u8> = requests.collect();
        for chunk in requests.chunks(9000) {
            pair.client_sends(chunk);
        }
        let after = Usage::of(host);
        assert!(
            after.rss_kib < before.rss_kib + GROWTH_KIB,
            "{before:?}, {after:?}"
        );
        pair.ends();
        let untracked = (REQUESTS - cql::MAX_IN_FLIGHT) as u64;
        host.counts(&[
            ("anomalies", "too_many_in_flight", untracked),
            ("flows_closed", "both_ended", 1),
        ]);
    });
}

#[test]
fn two_thousand_that_come_and_go_leave_nothing() {
    const THREADS: usize = 4;
    const EACH: usize = 500;
    on_a_host(|host| {
        host.goes_on();
        let before = Usage::of(host);
        let all_gone = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| accept_and_close(host, &all_gone));
            let clients: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let come_and_go = || (0..EACH).for_each(|n| come_and_go(host, n));
                        host.sandbox.client(come_and_go).unwrap();
                    })
                })
                .collect();
            for client in clients {
                client.join().unwrap();
            }
            // A client that gave up during its handshake is waited for for five seconds.
            eventually("the flows end", || host.flows() == 0);
            all_gone.store(true, Relaxed);
        });
        eventually("the descriptors are closed", || {
            Usage::of(host).descriptors <= before.descriptors
        });
        eventually("each has ended for a reason", || {
            let metrics = host.agent.metrics().unwrap();
            let sum = |name: &str| -> f64 {
                let samples = metrics
                    .iter()
                    .filter(|(sample, _)| sample.starts_with(name));
                samples.map(|(_, value)| value).sum()
            };
            let intercepted = sum("underpass_connections_total{outcome=\"intercepted\"");
            assert_eq!(
                intercepted,
                (THREADS * EACH + 1) as f64,
                "and the bystander"
            );
            let ended = sum("underpass_flows_closed_total")
                + sum("underpass_clients_gone_total")
                + sum("underpass_dial_failures_total");
            ended == intercepted - 1.0
        });
        // A client that gives up when its SYN is let pass: the SYN meets the listener, and is nobody's. It is one
        // of those that have gone, and no connection comes of it.
        let metric = |name: &str| host.agent.metric(name).unwrap();
        let nobodys = metric("underpass_safer_path_total{cause=\"stranger\"}");
        assert!(
            nobodys <= metric("underpass_clients_gone_total"),
            "{nobodys}"
        );
        assert_eq!(metric("underpass_strangers_total"), 0.0);
    });
}

/// Plays a short-lived client, in one of four ways.
fn come_and_go(host: &Host<'_>, n: usize) {
    match n % 4 {
        0 => drop(host.dial()),
        1 => {
            let socket = Socket::from(host.dial());
            socket.set_linger(Some(Duration::ZERO)).unwrap();
        }
        2 => drop(host.dial().write_all(&REQUEST)),
        // Gone before its connection is there.
        _ => {
            let to: SocketAddr = host.listener.local_addr().unwrap();
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&SockAddr::from(to));
        }
    }
}

fn accept_and_close(host: &Host<'_>, stop: &AtomicBool) {
    host.listener.set_nonblocking(true).unwrap();
    while !stop.load(Relaxed) {
        match host.listener.accept() {
            Ok((stream, _)) => drop(stream),
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// A database that is stuck must not keep the flows of clients that gave up.
#[test]
fn a_client_that_resets_is_noticed_while_the_database_does_not_read() {
    on_a_host(|host| {
        let Pair {
            mut client,
            mut server,
        } = host.pair();
        stopped(host, &mut client, &frame_header(0x04, 0x0F, FLOOD_BYTES));
        let client = Socket::from(client);
        client.set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        eventually("the flow ends", || host.flows() == 0);
        // The database sees the reset as well, behind what its kernel already has.
        let mut buffer = vec![0; 1 << 20];
        let end = loop {
            match server.read(&mut buffer) {
                Ok(n) if n > 0 => {}
                end => break end.map_err(|e| e.kind()),
            }
        };
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
        host.counts(&[("flows_closed", "client_reset", 1)]);
    });
}

/// Cassandra sets SO_LINGER to 0: once a client has ended, its connection is reset. That is
/// how every good flow ends, and no reset that an operator should look at.
#[test]
fn a_reset_that_answers_the_clients_end_is_a_good_end() {
    on_a_host(|host| {
        let mut pair = host.pair();
        pair.client_sends(&REQUEST);
        pair.server_sends(&RESPONSE);
        let Pair {
            mut client,
            mut server,
        } = pair;
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(host::rest(&mut server), b"");
        let server = Socket::from(server);
        server.set_linger(Some(Duration::ZERO)).unwrap();
        drop(server);
        // The client sees what it would have seen without us.
        let end = client.read(&mut [0; 1]).map_err(|e| e.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
        host.counts(&[("flows_closed", "both_ended", 1)]);
    });
}

/// Resources that the agent uses.
#[derive(Clone, Copy, Debug)]
struct Usage {
    rss_kib: u64,
    descriptors: usize,
    cpu: Duration,
}

impl Usage {
    fn of(host: &Host<'_>) -> Self {
        let process = format!("/proc/{}", host.agent.pid());
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        let rss = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let rss = rss.unwrap().trim().trim_end_matches(" kB");
        // proc_pid_stat(5): behind the name, utime and stime are the 12th and 13th, in 1/100 s.
        let stat = fs::read_to_string(format!("{process}/stat")).unwrap();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        let ticks: u64 = fields
            .skip(11)
            .take(2)
            .map(|t| t.parse::<u64>().unwrap())
            .sum();
        Self {
            rss_kib: rss.parse().unwrap(),
            descriptors: fs::read_dir(format!("{process}/fd")).unwrap().count(),
            cpu: Duration::from_millis(ticks * 10),
        }
    }

    /// CPU used while nothing but the bystander asks anything.
    fn over(host: &Host<'_>, time: Duration) -> Duration {
        let start = Instant::now();
        let before = Self::of(host).cpu;
        thread::sleep(time.saturating_sub(start.elapsed()));
        Self::of(host).cpu - before
    }
}
