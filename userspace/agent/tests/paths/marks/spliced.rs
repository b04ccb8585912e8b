//! Flows that the kernel carries, and why each flow is on its path.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    time::Instant,
};

use sandbox::{Agent, Sandbox};
use serde_json::Value;

use super::{BY_KEYSPACE, ENRICH, OBSERVE, OPTS_IN, SELECT, begin, exchange};
use crate::common::{
    BINARY, PATIENCE, eventually,
    frames::{query, void},
    operator::Operator,
    wire::{Conversation, Host},
};

const ENGINES: &str = "underpass_path_available{path=\"splice_";

/// A host whose agent splices by `splice`.
fn host(splice: &str, body: impl FnOnce(&Host<'_>)) {
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let (netns, settings) = (
        Some(&sandbox.netns),
        format!("workers = 1\nsplice = \"{splice}\""),
    );
    let agent = Agent::start(BINARY.as_ref(), netns, &sandbox.cgroup, &settings, OPTS_IN).unwrap();
    body(&Host {
        agent,
        sandbox: &sandbox,
        listener,
        clients: None,
    });
}

/// Whether this kernel splices; a skip that is counted, where it does not.
fn splices(host: &Host<'_>) -> bool {
    let sample = |value: f64| {
        let metrics = host.agent.metrics().unwrap();
        metrics
            .iter()
            .filter(|(k, v)| k.starts_with(ENGINES) && **v == value)
            .count()
    };
    eventually("the engines are tried out", || {
        sample(0.0) + sample(1.0) == 2
    });
    if sample(1.0) == 0 {
        sandbox::skip::skip(
            "a_spliced_flow_is_marked_too",
            "this kernel does not splice",
        );
    }
    sample(1.0) > 0
}

/// A flow that was marked to be relayed, and is spliced since.
fn spliced(host: &Host<'_>, operator: &Operator) -> Conversation {
    let mut c = host.connect();
    for end in [&c.client, &c.server] {
        end.set_nonblocking(true).unwrap();
    }
    let id = flow(host, &c)["id"].to_string();
    assert_eq!(operator.mark(&[&id, "bypass"])["counts"]["changed"], 1);
    eventually("it is spliced", || flow(host, &c)["path"] == "splice");
    pass(&mut c);
    c
}

fn flow(host: &Host<'_>, c: &Conversation) -> Value {
    host.flow(c)
}

/// Bytes both ways.
fn pass(c: &mut Conversation) {
    for n in 0..20_u8 {
        write(&c.client, &[n; 100]);
        c.server_gets(&[n; 100]);
        write(&c.server, &[n; 300]);
        read(&c.client, &[n; 300]);
    }
}

fn expect_reset(c: &mut Conversation) {
    // In a sockmap a recv(2) that blocks may return EAGAIN.
    eventually("the client is reset", || {
        let end = c.client.read(&mut [0; 64]).map_err(|e| e.kind());
        end == Err(ErrorKind::ConnectionReset)
    });
    eventually("and the database", || {
        let end = c.server.read(&mut [0; 64]).map_err(|e| e.kind());
        end == Err(ErrorKind::ConnectionReset)
    });
}

#[test]
fn a_spliced_flow_is_marked_too() {
    host("auto", |host| {
        if !splices(host) {
            return;
        }
        let operator = Operator::of(host);
        host.policy(ENRICH);
        let mut c = spliced(host, &operator);
        let id = flow(host, &c)["id"].to_string();
        assert_eq!(
            flow(host, &c)["why"],
            "decided in the agent; what is faster is decided at connect(); by engine sender"
        );
        assert_eq!(operator.mark(&[&id, "bypass"])["counts"]["already"], 1);
        // Nobody has seen a handshake; the agent takes it back to look.
        assert!(
            operator
                .refused(&["mark", &id, "enrich"])
                .contains("nobody knows where in a frame it is: its handshake was not over")
        );
        eventually("it is spliced", || flow(host, &c)["path"] == "splice");
        assert!(
            operator
                .refused(&["mark", &id, "observe"])
                .contains("decided at connect()")
        );
        assert_eq!(flow(host, &c)["path"], "splice", "it was left where it is");
        pass(&mut c);
        let marked = operator.mark(&[&id, "enrich", "--reset"]);
        assert_eq!(marked["counts"]["reset"], 1);
        expect_reset(&mut c);

        let mut c = spliced(host, &operator);
        assert_eq!(operator.mark(&["to=:PORT", "deny"])["counts"]["changed"], 1);
        expect_reset(&mut c);
        eventually("no flow is left", || {
            host.agent.metric("underpass_flows").unwrap() == 0.0
        });
        assert_eq!(host.metric("flows_closed", "reason=\"marked\""), 2);
    });
}

#[test]
fn a_database_that_resets_leaves_no_place_to_lose() {
    host("auto", |host| {
        if !splices(host) {
            return;
        }
        let operator = Operator::of(host);
        host.policy(ENRICH);
        for _ in 0..20 {
            let mut c = host.connect();
            begin(&mut c);
            c.client.set_nonblocking(true).unwrap();
            operator.mark(&[&flow(host, &c)["id"].to_string(), "bypass"]);
            eventually("it is spliced", || flow(host, &c)["path"] == "splice");
            let request = query(4, 1, SELECT);
            write(&c.client, &request);
            c.server_gets(&request);
            let Conversation { client, server, .. } = c;
            server.set_nonblocking(true).unwrap();
            socket2::SockRef::from(&server)
                .set_linger(Some(std::time::Duration::ZERO))
                .unwrap();
            drop(server);
            // Whatever is refused is written again, from its first byte on.
            let part = &request[..request.len() - 1];
            eventually("it is refused", || {
                let written = (&client).write(part);
                written.is_err_and(|e| e.kind() != ErrorKind::WouldBlock)
            });
            for _ in 0..50 {
                let _ = (&client).write(part);
            }
        }
        assert_eq!(
            host.metric("safer_path", "cause=\"splice_position_lost\""),
            0
        );
    });
}

/// Requests that are written without waiting, so that a mark comes in the middle of one.
const REQUESTS: usize = 8_000;

#[test]
fn no_byte_is_lost_where_decoding_ends() {
    host("auto", |host| {
        let kernel = splices(host);
        let operator = Operator::of(host);
        host.policy(ENRICH);
        let flows: Vec<Conversation> = (0..4)
            .map(|_| {
                let mut c = host.connect();
                begin(&mut c);
                c
            })
            .collect();
        let request = |n: usize| {
            query(
                4,
                (n % 100) as i16,
                &format!("SELECT v FROM t WHERE k = {n}"),
            )
        };
        let half_way = std::sync::Barrier::new(flows.len() + 1);
        std::thread::scope(|scope| {
            for c in &flows {
                let (client, server, half_way) = (&c.client, &c.server, &half_way);
                scope.spawn(move || {
                    let requests: Vec<u8> = (0..REQUESTS).flat_map(request).collect();
                    for (n, chunk) in requests.chunks(1_009).enumerate() {
                        if n == 300 {
                            half_way.wait();
                        }
                        write(client, chunk);
                    }
                });
                scope.spawn(move || {
                    let responses: Vec<u8> = (0..REQUESTS)
                        .flat_map(|n| void(4, (n % 100) as i16))
                        .collect();
                    let mut requests = Vec::new();
                    let mut chunks = responses.chunks(13 * 200);
                    for n in 0..REQUESTS {
                        requests.extend(request(n));
                        if requests.len() > 30_000 || n + 1 == REQUESTS {
                            read(server, &requests);
                            requests.clear();
                        }
                        if n % 200 == 199 {
                            chunks
                                .next()
                                .into_iter()
                                .for_each(|chunk| write(server, chunk));
                        }
                    }
                    assert_eq!(chunks.next(), None);
                });
                scope.spawn(move || {
                    let responses: Vec<u8> = (0..REQUESTS)
                        .flat_map(|n| void(4, (n % 100) as i16))
                        .collect();
                    read(client, &responses);
                });
                // From here on as applications are that can be spliced.
                client.set_nonblocking(true).unwrap();
            }
            half_way.wait();
            assert_eq!(
                operator.mark(&["to=:PORT", "bypass"])["counts"]["changed"],
                4
            );
        });
        for c in &flows {
            let flow = host.flow(c);
            assert_eq!(flow["rule"], "mark-1", "{flow}");
            if kernel {
                eventually("it is spliced", || host.flow(c)["path"] == "splice");
            }
        }
    });
}

pub fn write(mut to: &TcpStream, mut bytes: &[u8]) {
    let mut since = Instant::now();
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(n) => (bytes, since) = (&bytes[n..], went_on(since)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => wait(since),
            Err(e) => panic!("{e}"),
        }
    }
}

/// Waits a little, but not for ever: the thread on the other side may have failed. Longer than is allowed, because what comes too
/// late says who has looked for it.
fn wait(since: Instant) {
    assert!(since.elapsed() < 3 * PATIENCE, "nothing goes on");
    std::thread::yield_now();
}

/// Checks that it was in time. Returns when.
fn went_on(since: Instant) -> Instant {
    let took = since.elapsed();
    assert!(took < PATIENCE, "it went on after {took:?}");
    Instant::now()
}

/// Reads these bytes, and no others.
pub fn read(mut from: &TcpStream, bytes: &[u8]) {
    let (mut got, mut buffer) = (0, vec![0; 64 * 1024]);
    let mut since = Instant::now();
    while got < bytes.len() {
        let room = buffer.len().min(bytes.len() - got);
        match from.read(&mut buffer[..room]) {
            Ok(0) => panic!("it ended after {got} bytes"),
            Ok(n) => {
                assert!(
                    buffer[..n] == bytes[got..got + n],
                    "wrong bytes after {got}"
                );
                (got, since) = (got + n, went_on(since));
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => wait(since),
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn flows_say_why_they_are_on_their_path() {
    host("auto", |host| {
        let operator = Operator::of(host);
        host.policy(ENRICH);
        let mut c = host.connect();
        begin(&mut c);
        let why = |c: &Conversation| flow(host, c)["why"].as_str().unwrap().to_owned();
        let legs = ["client", "database"].map(|side| {
            format!(
                "; {side}'s leg is long: its application's socket blocks (it is not O_NONBLOCK)"
            )
        });
        let legs = legs.concat();
        assert_eq!(why(&c), format!("rule r says enrich{legs}"));
        if splices(host) {
            let mut blocks = host.connect();
            begin(&mut blocks);
            operator.mark(&[&flow(host, &blocks)["id"].to_string(), "bypass"]);
            let refused = "refused: the client's socket blocks (it is not O_NONBLOCK)";
            let refused = format!("{refused}{legs}");
            eventually("it is refused", || why(&blocks) == refused);
            exchange(&mut blocks);
            blocks.ends();
        }
        host.policy(BY_KEYSPACE);
        let undecided = host.connect();
        assert_eq!(why(&undecided), "waits for: keyspace");
        host.policy(OBSERVE);
        let mut observed = host.connect();
        begin(&mut observed);
        exchange(&mut observed);
        assert_eq!(why(&observed), "decided at connect(): rule r says observe");

        // As people see it.
        let admin = host.agent.admin().to_string();
        let table = |why: &[&str]| {
            let args = [&["flows", "--admin", &admin], why].concat();
            let run = || Command::new(BINARY).args(args).output().unwrap();
            String::from_utf8(host.sandbox.server(run).unwrap().stdout).unwrap()
        };
        let plain = table(&[]);
        assert!(
            !plain.contains("WHY") && !plain.contains("decided at"),
            "{plain}"
        );
        let long = table(&["--why"]);
        for text in [
            "WHY",
            "rule r says enrich",
            "waits for: keyspace",
            "decided at connect(): rule r",
        ] {
            assert!(long.contains(text), "{long}");
        }
        let columns = |line: &str| {
            line.split("  ")
                .map(str::trim)
                .filter(|c| !c.is_empty())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let mut lines = plain.lines();
        let headings = columns(lines.next().unwrap());
        let seen = lines
            .find(|line| line.contains("socket-"))
            .map(columns)
            .unwrap();
        let cell = |name: &str| seen[headings.iter().position(|h| h == name).unwrap()].as_str();
        assert_eq!(
            (
                cell("ACTION"),
                cell("REQUESTS"),
                cell("ERRORS"),
                cell("IN FLIGHT")
            ),
            ("observe", "2", "0", "0")
        );
        assert_ne!(cell("P50 µs"), "-");
        c.ends();
        undecided.ends();
        observed.ends();
    });
}

#[test]
fn where_the_splice_is_off_flows_say_so() {
    host("off", |host| {
        let operator = Operator::of(host);
        host.policy(&format!("{ENRICH}shortcut = true\n"));
        let mut c = host.connect();
        begin(&mut c);
        operator.mark(&["to=:PORT", "bypass"]);
        let flow = flow(host, &c);
        assert_eq!(flow["path"], "relay");
        let why = flow["why"].as_str().unwrap();
        assert!(
            why.starts_with("splice is off: the file says so; "),
            "{why}"
        );
        c.ends();
        // Not decodable: relayed all the same.
        operator.unmark(1);
        let mut c = host.connect();
        c.client_sends(b"\x16\x03\x01\x00\x05hello");
        let said = "not decodable: tls; splice is off: the file says so";
        // The bytes may arrive before the agent looks at what is left of them.
        eventually("it says why", || host.flow(&c)["why"] == said);
        c.ends();
    });
}
