//! A connect() that fails, fails as it would without us: the same errno, in connect().

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use socket2::SockAddr;

use crate::common::{self, *};

/// How a connect() ended, and how long it took.
#[derive(Debug)]
struct Outcome {
    errno: Option<i32>,
    took: Duration,
}

fn blocking(family: Family, to: SocketAddr) -> Outcome {
    let start = Instant::now();
    let result = socket(family).connect(&SockAddr::from(to));
    Outcome {
        errno: result.err().and_then(|e| e.raw_os_error()),
        took: start.elapsed(),
    }
}

/// connect(), wait for writable, SO_ERROR.
fn non_blocking(family: Family, to: SocketAddr) -> Outcome {
    let start = Instant::now();
    let socket = socket(family);
    socket.set_nonblocking(true).unwrap();
    let result = socket.connect(&SockAddr::from(to));
    let errno = match result.err().and_then(|e| e.raw_os_error()) {
        Some(libc::EINPROGRESS) => {
            let mut fds = [PollFd::new(
                std::os::fd::AsFd::as_fd(&socket),
                PollFlags::POLLOUT,
            )];
            assert_eq!(poll(&mut fds, PollTimeout::from(30_000_u16)).unwrap(), 1);
            socket.take_error().unwrap().and_then(|e| e.raw_os_error())
        }
        at_once => at_once,
    };
    Outcome {
        errno,
        took: start.elapsed(),
    }
}

/// Checks that the errno is the same with and without us, blocking and not, in about the same time.
fn same(hosts: &Hosts, family: Family, to: SocketAddr, errno: i32) {
    for dial in [blocking, non_blocking] {
        let direct = hosts.direct(|| dial(family, to));
        let enriched = hosts.client(|| dial(family, to));
        eprintln!("{family:?} {to}: direct {direct:?}, enriched {enriched:?}");
        assert_eq!(
            direct.errno,
            Some(errno),
            "the test's own idea of a direct connect"
        );
        assert_eq!(enriched.errno, direct.errno);
        let difference = enriched.took.abs_diff(direct.took);
        assert!(difference < Duration::from_millis(1_500), "{difference:?}");
    }
}

#[test]
fn a_refused_connection_is_refused_at_once() {
    let hosts = Hosts::new();
    // A port that was free a moment ago, in namespaces where nobody else listens.
    let agent = hosts.agent(&enrich(&[9]));
    for family in FAMILIES {
        for distance in [Distance::Here, Distance::There] {
            let to = family.dialled(hosts.database_ip(distance, family), 9);
            same(&hosts, family, to, libc::ECONNREFUSED);
        }
    }
    let refused = "underpass_dial_failures_total{answer=\"refused\"}";
    assert_eq!(agent.metric(refused).unwrap(), 12.0);
    assert_eq!(agent.metric("underpass_flows").unwrap(), 0.0);
}

#[test]
fn a_network_without_a_route_is_unreachable() {
    let hosts = Hosts::new();
    let _agent = hosts.agent(&enrich(&[9]));
    for (family, ip) in [
        (Family::V4, "198.51.100.1"),
        (Family::V6, "2001:db8:1::1"),
        (Family::Mapped, "198.51.100.1"),
    ] {
        let to = family.dialled(ip.parse().unwrap(), 9);
        same(&hosts, family, to, libc::ENETUNREACH);
    }
}

#[test]
fn a_host_that_does_not_answer_on_its_link_is_unreachable() {
    let hosts = Hosts::new();
    let _agent = hosts.agent(&enrich(&[9]));
    for (family, ip) in [(Family::V4, "192.0.2.77"), (Family::V6, "2001:db8::77")] {
        let to = family.dialled(ip.parse().unwrap(), 9);
        same(&hosts, family, to, libc::EHOSTUNREACH);
    }
}

#[test]
fn a_silent_database_times_out_and_leaves_nothing_behind() {
    let hosts = Hosts::new();
    // Two tries in all, so that a connect gives up after three seconds.
    hosts.client(|| std::fs::write("/proc/sys/net/ipv4/tcp_syn_retries", "1").unwrap());
    hosts
        .app
        .netns
        .ip(&["route", "add", "198.51.100.0/24", "via", "192.0.2.2"])
        .unwrap();
    // The database's host takes the packets and says nothing: no forwarding there.
    let agent = hosts.agent(&enrich(&[9]));
    same(
        &hosts,
        Family::V4,
        "198.51.100.1:9".parse().unwrap(),
        libc::ETIMEDOUT,
    );
    eventually("the agent has given up, too", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });
}

#[test]
fn a_client_whose_patience_ends_first_is_counted_and_its_dial_given_up() {
    let hosts = Hosts::new();
    hosts
        .app
        .netns
        .ip(&["route", "add", "198.51.100.0/24", "via", "192.0.2.2"])
        .unwrap();
    let agent = hosts.agent(&enrich(&[9]));
    let to: SocketAddr = "198.51.100.1:9".parse().unwrap();
    let start = Instant::now();
    let result = hosts.client(|| TcpStream::connect_timeout(&to, Duration::from_millis(300)));
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "the timeout is the application's own"
    );
    eventually("the dial is given up", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });
    assert_eq!(agent.metric("underpass_clients_gone_total").unwrap(), 1.0);
}

#[test]
fn an_agent_that_dies_while_a_syn_is_held_has_it_refused_at_the_next_one() {
    let hosts = Hosts::new();
    hosts
        .app
        .netns
        .ip(&["route", "add", "198.51.100.0/24", "via", "192.0.2.2"])
        .unwrap();
    let mut agent = hosts.agent(&enrich(&[9]));
    let to: SocketAddr = "198.51.100.1:9".parse().unwrap();
    let outcome = std::thread::scope(|scope| {
        let client = scope.spawn(|| hosts.client(|| blocking(Family::V4, to)));
        eventually("it is dialled", || {
            agent.metric("underpass_flows").unwrap() == 1.0
        });
        agent.kill().unwrap();
        client.join().unwrap()
    });
    assert_eq!(outcome.errno, Some(libc::ECONNREFUSED), "{outcome:?}");
    // It is sent again after one second, after two more, and so on.
    assert!(outcome.took < Duration::from_secs(5), "{outcome:?}");
}

#[test]
fn a_socket_that_was_refused_can_be_used_again() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let other = hosts.listen(Distance::Here, Family::V4);
    let port = listener.local_addr().unwrap().port();
    let _agent = hosts.agent(&enrich(&[9, port]));
    hosts.client(|| {
        let socket = socket(Family::V4);
        let refused = socket.connect(&"127.0.0.1:9".parse::<SocketAddr>().unwrap().into());
        assert_eq!(
            refused.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        socket
            .connect(&listener.local_addr().unwrap().into())
            .unwrap();
        assert_eq!(
            socket.peer_addr().unwrap().as_socket(),
            listener.local_addr().ok()
        );
    });
    accept(&listener);
    // And once more to where nobody intercepts: nothing of the past may show.
    hosts.client(|| {
        let socket = socket(Family::V4);
        let refused = socket.connect(&"127.0.0.1:9".parse::<SocketAddr>().unwrap().into());
        assert_eq!(
            refused.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        socket.connect(&other.local_addr().unwrap().into()).unwrap();
        assert_eq!(
            socket.peer_addr().unwrap().as_socket(),
            other.local_addr().ok()
        );
    });
}

#[test]
fn deny_is_eperm_and_nothing_reaches_the_database() {
    let hosts = Hosts::new();
    for family in FAMILIES {
        let listener = hosts.listen(Distance::There, family);
        let port = listener.local_addr().unwrap().port();
        let to = family.dialled(family.database(), port);
        let agent = hosts.agent(&rule("deny", &common::to(&[port])));
        for dial in [blocking, non_blocking] {
            assert_eq!(hosts.client(|| dial(family, to)).errno, Some(libc::EPERM));
        }
        listener.set_nonblocking(true).unwrap();
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        let denied = "underpass_connections_total{outcome=\"denied\",rule=\"r\"}";
        assert_eq!(agent.metric(denied).unwrap(), 2.0);
    }
}

#[test]
fn the_unspecified_address_is_no_way_around_a_rule() {
    let hosts = Hosts::new();
    let policy = rule("deny", "to = [\"127.0.0.0/8:9\", \"[::1]:9\"]");
    let _agent = hosts.agent(&policy);
    for (family, ip) in [
        (Family::V4, "0.0.0.0"),
        (Family::V6, "::"),
        (Family::Mapped, "0.0.0.0"),
    ] {
        let to = family.dialled(ip.parse().unwrap(), 9);
        let direct = hosts.direct(|| blocking(family, to));
        assert_eq!(direct.errno, Some(libc::ECONNREFUSED));
        let denied = hosts.client(|| blocking(family, to));
        assert_eq!(denied.errno, Some(libc::EPERM), "{to}");
    }
}

#[test]
fn neither_is_an_ipv6_socket_that_is_bound_to_an_ipv4_address() {
    let hosts = Hosts::new();
    let policy = rule("deny", "to = [\"127.0.0.0/8:9\", \"192.0.2.1:9\"]");
    let _agent = hosts.agent(&policy);
    for (bound, to) in [
        ("[::ffff:127.0.0.1]:0", "[::]:9"),
        ("[::ffff:192.0.2.1]:0", "[::ffff:0.0.0.0]:9"),
    ] {
        let bound: SocketAddr = bound.parse().unwrap();
        let to: SocketAddr = to.parse().unwrap();
        let dial = || {
            let socket = socket(Family::V6);
            socket.bind(&bound.into()).unwrap();
            socket.connect(&to.into()).map_err(|e| e.raw_os_error())
        };
        assert_eq!(hosts.direct(dial), Err(Some(libc::ECONNREFUSED)));
        assert_eq!(hosts.client(dial), Err(Some(libc::EPERM)), "{bound} {to}");
    }
}

#[test]
fn a_prohibited_route_is_refused_as_it_is_without_us() {
    let hosts = Hosts::new();
    hosts
        .app
        .netns
        .ip(&["-6", "route", "add", "prohibit", "2001:db8:7::/48"])
        .unwrap();
    let _agent = hosts.agent(&enrich(&[9]));
    same(
        &hosts,
        Family::V6,
        "[2001:db8:7::1]:9".parse().unwrap(),
        libc::EACCES,
    );
}
