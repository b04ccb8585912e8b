//! The application cannot tell, the database cannot tell: what either sees through an
//! enriched flow is what it sees without us.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{SockAddr, SockRef};

use crate::common::{self, *};

/// Everything that an application and a database can ask about a connection, and one
/// request and response over it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    peer: SocketAddr,
    local_ip: std::net::IpAddr,
    /// The database's view agrees with the application's own.
    same_source: bool,
    request: Vec<u8>,
    response: Vec<u8>,
}

fn exchange(client: &mut TcpStream, listener: &TcpListener) -> Seen {
    let (mut database, source) = accept(listener);
    let local = client.local_addr().unwrap();
    client.write_all(&options(1)).unwrap();
    let mut request = vec![0; 9];
    database.read_exact(&mut request).unwrap();
    database.write_all(&supported(1)).unwrap();
    let mut response = vec![0; 11];
    client.read_exact(&mut response).unwrap();
    let canonical = SocketAddr::new(local.ip().to_canonical(), local.port());
    Seen {
        peer: client.peer_addr().unwrap(),
        local_ip: local.ip(),
        same_source: canonical == SocketAddr::new(source.ip().to_canonical(), source.port()),
        request,
        response,
    }
}

fn for_each_place(test: impl Fn(&Hosts, Distance, Family)) {
    let hosts = Hosts::new();
    for distance in [Distance::Here, Distance::There] {
        for family in FAMILIES {
            eprintln!("{distance:?} {family:?}");
            test(&hosts, distance, family);
        }
    }
}

#[test]
fn addresses_and_bytes_are_those_of_a_direct_connection() {
    for_each_place(|hosts, distance, family| {
        let listener = hosts.listen(distance, family);
        let port = listener.local_addr().unwrap().port();
        let to = family.dialled(hosts.database_ip(distance, family), port);
        let dial = || exchange(&mut connect(family, to).unwrap(), &listener);
        let direct = hosts.direct(dial);
        let agent = hosts.agent(&enrich(&[port]));
        let enriched = hosts.client(dial);
        assert_eq!(enriched, direct);
        assert!(
            enriched.same_source,
            "the database sees the client's address and port"
        );
        let intercepted = "underpass_connections_total{outcome=\"intercepted\",rule=\"r\"}";
        assert_eq!(agent.metric(intercepted).unwrap(), 1.0);
        assert_eq!(
            agent
                .metric("underpass_source_ports_changed_total")
                .unwrap(),
            0.0
        );
    });
}

#[test]
fn bypassed_flows_never_meet_the_agent() {
    for_each_place(|hosts, distance, family| {
        let listener = hosts.listen(distance, family);
        let port = listener.local_addr().unwrap().port();
        let to = family.dialled(hosts.database_ip(distance, family), port);
        let agent = hosts.agent(&rule("bypass", &common::to(&[port])));
        let mut client = hosts.client(|| connect(family, to).unwrap());
        let (mut database, _) = accept(&listener);
        // Not CQL, not TLS: whatever it is passes untouched.
        client.write_all(&[0x16, 3, 1, 0xff, 0]).unwrap();
        let mut bytes = [0; 5];
        database.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [0x16, 3, 1, 0xff, 0]);
        let untouched = "underpass_connections_total{outcome=\"untouched\",rule=\"r\"}";
        assert_eq!(agent.metric(untouched).unwrap(), 1.0);
        assert_eq!(agent.json("/flows").unwrap().as_array().unwrap().len(), 0);
    });
}

#[test]
fn an_address_and_port_of_the_clients_choice_are_kept() {
    for_each_place(|hosts, distance, family| {
        let listener = hosts.listen(distance, family);
        let port = listener.local_addr().unwrap().port();
        let to = family.dialled(hosts.database_ip(distance, family), port);
        let own_ip = match distance {
            Distance::Here => family.loopback(),
            Distance::There => family.app(),
        };
        let _agent = hosts.agent(&enrich(&[port]));
        // One port for each family: those of closed connections are in TIME_WAIT.
        for own_port in [0, 40_010 + family as u16] {
            let bound = family.dialled(own_ip, own_port);
            let mut client: TcpStream = hosts.client(|| {
                let socket = socket(family);
                socket.bind(&SockAddr::from(bound)).unwrap();
                socket.connect(&SockAddr::from(to)).unwrap();
                socket.into()
            });
            let seen = exchange(&mut client, &listener);
            assert!(seen.same_source);
            assert_eq!(client.local_addr().unwrap().ip(), bound.ip());
            if own_port != 0 {
                assert_eq!(client.local_addr().unwrap().port(), own_port);
            }
        }
    });
}

#[test]
fn a_port_that_is_taken_towards_the_database_is_replaced_and_counted() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let to = listener.local_addr().unwrap();
    let own: SocketAddr = "127.0.0.1:40002".parse().unwrap();
    let dial = || -> TcpStream {
        let socket = socket(Family::V4);
        socket.set_reuse_address(true).unwrap();
        socket.bind(&own.into()).unwrap();
        socket.connect(&to.into()).unwrap();
        socket.into()
    };
    let _holder = hosts.direct(dial);
    accept(&listener);
    let agent = hosts.agent(&enrich(&[to.port()]));
    let client = hosts.client(dial);
    let (_database, source) = accept(&listener);
    assert_ne!(source.port(), own.port());
    assert_eq!(
        client.local_addr().unwrap(),
        own,
        "the application keeps its own"
    );
    assert_eq!(
        agent
            .metric("underpass_source_ports_changed_total")
            .unwrap(),
        1.0
    );
}

#[test]
fn a_non_blocking_connect_is_in_progress_and_then_writable() {
    for_each_place(|hosts, distance, family| {
        let listener = hosts.listen(distance, family);
        let port = listener.local_addr().unwrap().port();
        let to = family.dialled(hosts.database_ip(distance, family), port);
        let _agent = hosts.agent(&enrich(&[port]));
        let mut client: TcpStream = hosts.client(|| {
            let socket = socket(family);
            socket.set_nonblocking(true).unwrap();
            let error = socket.connect(&SockAddr::from(to)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(nix::libc::EINPROGRESS));
            let mut fds = [PollFd::new(
                std::os::fd::AsFd::as_fd(&socket),
                PollFlags::POLLOUT,
            )];
            assert_eq!(poll(&mut fds, PollTimeout::from(10_000_u16)).unwrap(), 1);
            assert!(socket.take_error().unwrap().is_none());
            socket.set_nonblocking(false).unwrap();
            socket.into()
        });
        assert!(exchange(&mut client, &listener).same_source);
    });
}

#[test]
fn a_connect_with_a_timeout_succeeds_in_time() {
    let hosts = Hosts::new();
    for family in [Family::V4, Family::V6] {
        let listener = hosts.listen(Distance::There, family);
        let to = listener.local_addr().unwrap();
        let _agent = hosts.agent(&enrich(&[to.port()]));
        let dial = || TcpStream::connect_timeout(&to, Duration::from_secs(2)).unwrap();
        let mut client = hosts.client(dial);
        assert!(exchange(&mut client, &listener).same_source);
    }
}

fn dial_with_options(family: Family, to: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let socket = socket(family);
    ip_options::set(&socket, family);
    socket.connect_timeout(&to.into(), within)?;
    Ok(socket.into())
}

#[test]
fn a_client_with_options_in_its_packets_connects_at_once() {
    // A second is when a SYN that has been lost is sent again.
    const AT_ONCE: Duration = Duration::from_millis(500);
    let hosts = Hosts::new();
    let family_and_places =
        [Distance::Here, Distance::There].map(|at| [(at, Family::V4), (at, Family::V6)]);
    for (distance, family) in family_and_places.concat() {
        eprintln!("{distance:?} {family:?}");
        let listener = hosts.listen(distance, family);
        let to = SocketAddr::new(
            hosts.database_ip(distance, family),
            listener.local_addr().unwrap().port(),
        );
        let agent = hosts.agent(&enrich(&[to.port()]));
        let mut client = hosts.client(|| dial_with_options(family, to, AT_ONCE).unwrap());
        assert!(exchange(&mut client, &listener).same_source);
        let odd = agent.metric("underpass_safer_path_total{cause=\"odd_syn\"}");
        assert_eq!(odd.unwrap(), 0.0);
        // Nobody listens there any more.
        drop(client);
        stop_listening(listener);
        let refused = hosts
            .client(|| dial_with_options(family, to, AT_ONCE))
            .unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}

#[test]
fn so_original_dst_is_what_was_dialled() {
    for_each_place(|hosts, distance, family| {
        let listener = hosts.listen(distance, family);
        let port = listener.local_addr().unwrap().port();
        let ip = hosts.database_ip(distance, family);
        let to = family.dialled(ip, port);
        let _agent = hosts.agent(&enrich(&[port]));
        let client = hosts.client(|| connect(family, to).unwrap());
        accept(&listener);
        let sock = SockRef::from(&client);
        let original = match family {
            Family::V4 => sock.original_dst_v4(),
            _ => sock.original_dst_v6(),
        };
        assert_eq!(original.unwrap().as_socket().unwrap(), to);
    });
}

#[test]
fn the_unspecified_address_is_this_host() {
    let hosts = Hosts::new();
    for (family, any) in [(Family::V4, "0.0.0.0"), (Family::V6, "::")] {
        let listener = hosts.listen(Distance::Here, family);
        let to = SocketAddr::new(any.parse().unwrap(), listener.local_addr().unwrap().port());
        let dial = || exchange(&mut connect(family, to).unwrap(), &listener);
        let direct = hosts.direct(dial);
        let _agent = hosts.agent(&enrich(&[to.port()]));
        assert_eq!(hosts.client(dial), direct);
    }
}

#[test]
fn names_last_as_long_as_the_socket() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::There, Family::V4);
    let to = listener.local_addr().unwrap();
    let agent = hosts.agent(&enrich(&[to.port()]));
    let client = hosts.client(|| connect(Family::V4, to).unwrap());
    let (database, source) = accept(&listener);
    drop(database);
    client.shutdown(Shutdown::Write).unwrap();
    eventually("the flow is over", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });
    assert_eq!(client.local_addr().unwrap(), source);
}

#[test]
fn half_close_works_both_ways() {
    for_each_place(|hosts, distance, family| {
        let listener = hosts.listen(distance, family);
        let port = listener.local_addr().unwrap().port();
        let to = family.dialled(hosts.database_ip(distance, family), port);
        let agent = hosts.agent(&enrich(&[port]));
        let mut client = hosts.client(|| connect(family, to).unwrap());
        let (mut database, _) = accept(&listener);
        client.write_all(&options(1)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        database.read_to_end(&mut all).unwrap();
        assert_eq!(all, options(1), "the client's end arrives, after its bytes");
        database.write_all(&supported(1)).unwrap();
        drop(database);
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        assert_eq!(
            all,
            supported(1),
            "the other way was open until the database ended it"
        );
        eventually("the flow is closed", || {
            agent
                .metric("underpass_flows_closed_total{reason=\"both_ended\"}")
                .unwrap()
                == 1.0
        });
    });
}

#[test]
fn a_reset_on_one_side_is_a_reset_on_the_other() {
    for_each_place(|hosts, distance, family| {
        let listener = hosts.listen(distance, family);
        let port = listener.local_addr().unwrap().port();
        let to = family.dialled(hosts.database_ip(distance, family), port);
        let agent = hosts.agent(&enrich(&[port]));
        let reset = |stream: TcpStream| {
            SockRef::from(&stream)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
        };
        let sees_reset = |mut stream: TcpStream, after: &[u8]| {
            let mut all = Vec::new();
            let error = stream.read_to_end(&mut all).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            assert_eq!(all, after, "what was sent before it comes before it");
        };
        let pair = || {
            (
                hosts.client(|| connect(family, to).unwrap()),
                accept(&listener).0,
            )
        };
        let (client, database) = pair();
        reset(client);
        sees_reset(database, &[]);
        let (mut client, mut database) = pair();
        client.write_all(&options(1)).unwrap();
        database.read_exact(&mut vec![0; options(1).len()]).unwrap();
        // In one go, so that the agent learns of both in one turn.
        database.write_all(&supported(1)).unwrap();
        reset(database);
        sees_reset(client, &supported(1));
        for reason in ["client_reset", "database_reset"] {
            eventually(reason, || {
                let name = format!("underpass_flows_closed_total{{reason=\"{reason}\"}}");
                agent.metric(&name).unwrap() == 1.0
            });
        }
    });
}

#[test]
fn keep_alive_is_on_towards_the_database_and_answered_towards_the_client() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::There, Family::V4);
    let to = listener.local_addr().unwrap();
    let _agent = hosts.agent(&enrich(&[to.port()]));
    let mut client: TcpStream = hosts.client(|| {
        let socket = socket(Family::V4);
        let probes = socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(1))
            .with_interval(Duration::from_secs(1))
            .with_retries(1);
        socket.set_tcp_keepalive(&probes).unwrap();
        socket.connect(&to.into()).unwrap();
        socket.into()
    });
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(
        exchange(&mut client, &listener).same_source,
        "probes were answered"
    );
}

#[test]
fn every_byte_of_a_large_exchange_arrives_in_order() {
    let hosts = Hosts::new();
    for distance in [Distance::Here, Distance::There] {
        let listener = hosts.listen(distance, Family::V4);
        let to = listener.local_addr().unwrap();
        let _agent = hosts.agent(&enrich(&[to.port()]));
        let mut client = hosts.client(|| connect(Family::V4, to).unwrap());
        let (mut database, _) = accept(&listener);
        // A QUERY of 20 MB and its echo as a RESULT, both ways at the same time.
        let body: Vec<u8> = (0..20_000_000_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let length = (body.len() as u32).to_be_bytes();
        let request = [[0x04, 0, 0, 1, 0x07].as_slice(), &length, &body].concat();
        let response = [[0x84, 0, 0, 1, 0x08].as_slice(), &length, &body].concat();
        std::thread::scope(|scope| {
            let mut upstream = client.try_clone().unwrap();
            let request = &request;
            scope.spawn(move || upstream.write_all(request).unwrap());
            let response = &response;
            scope.spawn(move || {
                let mut got = vec![0; request.len()];
                database.read_exact(&mut got).unwrap();
                assert!(got == *request, "the request differs");
                database.write_all(response).unwrap();
            });
            let mut got = vec![0; response.len()];
            client.read_exact(&mut got).unwrap();
            assert!(got == *response, "the response differs");
        });
    }
}

#[test]
fn what_is_not_tcp_is_left_alone() {
    let hosts = Hosts::new();
    let server = hosts.direct(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let to = server.local_addr().unwrap();
    let _agent = hosts.agent(&enrich(&[to.port()]));
    hosts.client(|| {
        let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(to).unwrap();
        assert_eq!(client.peer_addr().unwrap(), to);
        client.send(b"ping").unwrap();
    });
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 4];
    server.recv(&mut bytes).unwrap();
    assert_eq!(&bytes, b"ping");
}

#[test]
fn an_enriched_flow_shares_its_port_with_connections_to_elsewhere() {
    let hosts = Hosts::new();
    hosts.client(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40100 40139").unwrap();
    });
    let [database, elsewhere] = [(); 2].map(|()| hosts.listen(Distance::There, Family::V4));
    let (to, other) = (
        database.local_addr().unwrap(),
        elsewhere.local_addr().unwrap(),
    );
    let agent = hosts.agent(&enrich(&[to.port()]));
    // Most ports of the host, and then as many again towards another address. (The rest is
    // for the agent's admin interface and for those who ask it.)
    let dial = |to: SocketAddr| hosts.client(|| connect(Family::V4, to));
    let enriched: Vec<_> = (0..30).map(|_| dial(to).unwrap()).collect();
    let untouched: Vec<_> = (0..30).map(|_| dial(other).unwrap()).collect();
    assert_eq!(
        agent
            .metric("underpass_source_ports_changed_total")
            .unwrap(),
        0.0
    );
    drop((enriched, untouched));
}
