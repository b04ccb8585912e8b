//! Spliced flows: whatever the kernel carries arrives as if the agent had copied it, whoever the
//! kernel cannot carry is relayed, and nobody who stops reading fills the kernel's memory.

mod bounds;
mod gone;
mod opted_in;
mod taken;
mod trials;
mod wire;

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use integrity::{Choices, Cql, Helper, Options, Plan, Report, Server, child, drive};
use sandbox::{Agent, Sandbox};
use socket2::{Domain, Socket, Type};

use crate::common::{BINARY, kernel_bytes, ways::PAST_TCP};

/// Tests run side by side, on whatever machine there is.
const LOADED: Duration = Duration::from_secs(5);

/// Known violation: FIONREAD of a socket in a sockmap leaves out the bytes in TCP's queue.
const COST: &str = "fionread";

const DRIVER: &str = "underpass-integrity";

const ENGINES: [&str; 2] = ["sender", "egress"];

/// Flows of one driver are bypassed, all others enriched.
fn policy(port: u16) -> String {
    format!(
        "[[rule]]\nname = \"bypassed\"\nto = [\":{port}\"]\ndriver = [\"{DRIVER}\"]\n\
         action = \"bypass\"\n\
         [[rule]]\nname = \"rest\"\nto = [\":{port}\"]\naction = \"enrich\"\n"
    )
}

fn agent<'a>(sandbox: &'a Sandbox, engine: &str, port: u16) -> Agent<'a> {
    agent_as(Path::new(BINARY), sandbox, engine, port)
}

fn agent_as<'a>(binary: &Path, sandbox: &'a Sandbox, engine: &str, port: u16) -> Agent<'a> {
    let settings = format!("splice = \"{engine}\"");
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let agent = Agent::start(binary, netns, cgroup, &settings, &policy(port)).unwrap();
    // Flows are relayed until the last one was tried out.
    let last = match engine {
        "off" => return agent,
        "auto" => "egress",
        named => named,
    };
    agent
        .wait_for_log(&format!("path works path=\"splice_{last}\""))
        .unwrap();
    agent
}

/// The agent, with a switch for tests set.
fn switched(folder: &Path, switch: &str) -> PathBuf {
    let script = folder.join("switched");
    sandbox::program::switched(&script, BINARY, switch).unwrap();
    script
}

/// Played by the helper; by itself it does nothing.
#[test]
fn an_end_that_is_killed() {
    child().unwrap();
}

/// Outcome of 256 MiB, and how they were carried.
struct Driven {
    report: Report,
    /// Spliced to the database, and to the client.
    bytes: [f64; 2],
    handovers: f64,
}

impl Driven {
    fn is_spliced(&self) -> bool {
        self.bytes.iter().all(|bytes| *bytes > 0.0)
    }

    fn handovers_each(&self) -> f64 {
        self.handovers / self.report.connections as f64
    }
}

fn driven(engine: &str, waiting: &[&str], drivers: &[&str]) -> Driven {
    driven_by(Path::new(BINARY), engine, waiting, drivers)
}

fn driven_by(binary: &Path, engine: &str, waiting: &[&str], drivers: &[&str]) -> Driven {
    let helper = Helper::test("splice::an_end_that_is_killed").unwrap();
    let sandbox = Sandbox::new().unwrap();
    let options = Options {
        helper: Some(helper.clone()),
        never_blocks: waiting.starts_with(&NEVER_BLOCKS),
        ..Options::default()
    };
    let server = sandbox.server(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Server::start_with(listener, options).unwrap()
    });
    let server = server.unwrap();
    let agent = agent_as(binary, &sandbox, engine, server.addr().port());
    let plan = Plan {
        choices: Choices::named(waiting).unwrap(),
        bytes: 256 << 20,
        connection_max: 8 << 20,
        connections: (1, 64),
        hang_limit: LOADED,
        helper: Some(helper),
        cql: Some(Cql {
            drivers: drivers.iter().map(|d| (*d).to_owned()).collect(),
            ..Cql::default()
        }),
        ..Plan::new(server.addr())
    };
    let report = sandbox.client(|| drive(&plan)).unwrap();
    // Where it is in its frames was known all the time.
    let lost = agent.metric("underpass_safer_path_total{cause=\"splice_position_lost\"}");
    assert_eq!(lost.unwrap(), 0.0, "{engine}");
    let bytes = ["to_database", "to_client"].map(|direction| {
        let name = format!("underpass_spliced_bytes_total{{direction=\"{direction}\"}}");
        agent.metric(&name).unwrap()
    });
    Driven {
        report,
        bytes,
        handovers: agent.metric("underpass_handovers_total").unwrap(),
    }
}

/// Shapes that do not choose their own way to wait.
const BLOCKS: [&str; 5] = ["blocking", "ping-pong", "duplex", "bulk-up", "bulk-down"];

const NEVER_BLOCKS: [&str; 2] = ["epoll-edge", "epoll-level"];

#[test]
fn every_byte_arrives_by_either_engine() {
    for engine in ENGINES {
        let driven = driven(engine, &NEVER_BLOCKS, &[DRIVER]);
        let report = &driven.report;
        assert!(report.passed(&[COST.into()]), "{engine}: {report}");
        assert!(driven.is_spliced(), "{engine}: {:?}", driven.bytes);
    }
}

/// Hand-overs of each connection, most of which are over soon. Where nobody takes them back it is two.
const OFTEN: f64 = 2.5;

#[test]
fn every_byte_arrives_however_often_a_flow_is_handed_over() {
    let folder = tempfile::tempdir().unwrap();
    // Taken back and handed over again every millisecond.
    let binary = switched(folder.path(), "UNDERPASS_TEST_HOOKS=recall_ms=1");
    for engine in ENGINES {
        let driven = driven_by(&binary, engine, &NEVER_BLOCKS, &[DRIVER]);
        let report = &driven.report;
        assert!(report.passed(&[COST.into()]), "{engine}: {report}");
        assert!(driven.is_spliced(), "{engine}: {:?}", driven.bytes);
        let each = driven.handovers_each();
        assert!(each > OFTEN, "{engine}: {each} hand-overs a connection");
    }
}

/// Waits until the one flow is on a path, and gives the reason.
fn why_on(agent: &Agent<'_>, path: &str, ends: (&mut TcpStream, &mut TcpStream)) -> String {
    let deadline = std::time::Instant::now() + LOADED;
    loop {
        ping_pong(ends.0, ends.1);
        let flow = agent.json("/flows").unwrap()[0].clone();
        let why = flow["why"].as_str().unwrap();
        // It may rest, whatever else is said of it.
        if flow["path"] == path && !why.contains("resting") && !why.contains("under way") {
            return why.to_owned();
        }
        assert!(std::time::Instant::now() < deadline, "{flow}");
    }
}

#[test]
fn a_flow_goes_by_its_sender_where_the_databases_socket_is_here_and_does_not_block() {
    let sandbox = Sandbox::new().unwrap();
    let listener = listener(&sandbox);
    let port = listener.local_addr().unwrap().port();
    let faster = "decided in the agent; what is faster is decided at connect(); by engine ";
    let blocking = "egress: the database's socket blocks (it is not O_NONBLOCK)";
    let no_way = "refused: the database's socket is not on this host, or blocks, and no other engine \
                  may carry it";
    for (engine, blocks, path, why) in [
        ("auto", false, "splice", faster.to_owned() + "sender"),
        ("auto", true, "splice", faster.to_owned() + blocking),
        ("sender", true, "relay", no_way.to_owned()),
    ] {
        let agent = agent(&sandbox, engine, port);
        let (mut client, mut database) = pair(&sandbox, &listener);
        database.set_nonblocking(!blocks).unwrap();
        let said = why_on(&agent, path, (&mut client, &mut database));
        assert!(said.ends_with(&why), "{said}");
        drop((client, database));
        agent.wait_for_log("flow closed").unwrap();
        let refused = "underpass_splice_refusals_total{reason=\"no_engine\"}";
        assert_eq!(agent.metric(refused).unwrap(), f64::from(path == "relay"));
    }
}

#[test]
fn what_begins_as_tls_is_relayed() {
    let sandbox = Sandbox::new().unwrap();
    let listener = listener(&sandbox);
    let agent = agent(&sandbox, "auto", listener.local_addr().unwrap().port());
    let (mut client, mut database) = pair(&sandbox, &listener);
    let mut bytes = [0; 6];
    client.write_all(b"\x16\x03\x01\x00\x01\x01").unwrap();
    read_now(&mut database, &mut bytes);
    let refused = "underpass_splice_refusals_total{reason=\"tls\"}";
    for _ in 0..1000 {
        if agent.metric(refused).unwrap() > 0.0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it was not refused");
}

/// A port of the sandbox's that nobody has.
fn free_port(sandbox: &Sandbox) -> u16 {
    listener(sandbox).local_addr().unwrap().port()
}

/// kTLS that is set up on a spliced flow, which the kernel need not have: a switch has the client's
/// socket, or the database's, pass for such.
#[test]
fn what_is_encrypted_after_the_splice_goes_through_the_agent() {
    const BYTES: usize = 1 << 20;
    for (engine, is_clients) in [("egress", true), ("sender", true), ("sender", false)] {
        let sandbox = Sandbox::new().unwrap();
        let listener = listener(&sandbox);
        let to = listener.local_addr().unwrap();
        let clients = free_port(&sandbox);
        let folder = tempfile::tempdir().unwrap();
        let encrypts = if is_clients { clients } else { to.port() };
        let binary = switched(
            folder.path(),
            &format!("UNDERPASS_TEST_HOOKS=upper_layer_port={encrypts}"),
        );
        let agent = agent_as(&binary, &sandbox, engine, to.port());
        let client = sandbox.client(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let own = std::net::SocketAddr::from(([127, 0, 0, 1], clients));
            socket.bind(&own.into()).unwrap();
            socket.connect(&to.into()).unwrap();
            TcpStream::from(socket)
        });
        let (mut client, mut database) = ready(client.unwrap(), listener.accept().unwrap().0);
        ping_pong(&mut client, &mut database);
        let safer = || {
            let cause = "underpass_safer_path_total{cause=\"splice_tls\"}";
            agent.metric(cause).unwrap()
        };
        let deadline = std::time::Instant::now() + LOADED;
        while safer() == 0.0 {
            assert!(std::time::Instant::now() < deadline, "{engine}");
            ping_pong(&mut client, &mut database);
        }
        for (from, into) in [(&client, &database), (&database, &client)] {
            let sent = dataplane::probe_traffic::bytes(1, 0, BYTES);
            let (mut from, mut into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
            let mut received = vec![0; BYTES];
            std::thread::scope(|scope| {
                scope.spawn(|| write_now(&mut from, &sent));
                read_now(&mut into, &mut received);
            });
            assert!(sent == received, "{engine}");
        }
        drop((client, database));
        agent.wait_for_log("flow closed").unwrap();
        let spliced = |direction: &str| {
            let name = format!("underpass_spliced_bytes_total{{direction=\"{direction}\"}}");
            agent.metric(&name).unwrap()
        };
        let way = if is_clients {
            "to_database"
        } else {
            "to_client"
        };
        assert_eq!(spliced(way), 0.0, "{engine}: {way}");
    }
}

fn write_now(to: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock);
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn only_flows_of_which_the_rule_says_so_are_spliced() {
    // The legs of the others are short, past which splice(2) finds nothing.
    let driven = driven("auto", &PAST_TCP, &["another"]);
    assert!(
        driven.report.passed(&["fionread".into()]),
        "{}",
        driven.report
    );
    assert_eq!(driven.bytes, [0.0; 2]);
}

#[test]
fn a_client_that_blocks_is_relayed() {
    let driven = driven("auto", &BLOCKS, &[DRIVER]);
    assert!(driven.report.passed(&[]), "{}", driven.report);
    assert_eq!(driven.bytes, [0.0; 2]);
}

#[test]
fn without_the_splice_flows_are_relayed() {
    let driven = driven("off", &NEVER_BLOCKS, &[DRIVER]);
    assert!(driven.report.passed(&[]), "{}", driven.report);
    assert_eq!(driven.bytes, [0.0; 2]);
}

/// No CQL: flows that the decoder does not understand are spliced, too.
fn ping_pong(client: &mut TcpStream, database: &mut TcpStream) {
    for _ in 0..200 {
        let mut bytes = [0; 4];
        client.write_all(b"ping").unwrap();
        read_now(database, &mut bytes);
        database.write_all(b"pong").unwrap();
        read_now(client, &mut bytes);
        assert_eq!(&bytes, b"pong");
    }
}

/// Reads these bytes from a socket that may not block.
fn read_now(from: &mut TcpStream, mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        match from.read(bytes) {
            Ok(0) => panic!("{} bytes are missing", bytes.len()),
            Ok(n) => bytes = &mut bytes[n..],
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock);
                std::thread::yield_now();
            }
        }
    }
}

fn pair(sandbox: &Sandbox, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let to = listener.local_addr().unwrap();
    let client = sandbox.client(|| TcpStream::connect(to)).unwrap().unwrap();
    ready(client, listener.accept().unwrap().0)
}

fn ready(client: TcpStream, database: TcpStream) -> (TcpStream, TcpStream) {
    for end in [&client, &database] {
        end.set_nodelay(true).unwrap();
        end.set_nonblocking(true).unwrap();
    }
    database.set_read_timeout(Some(LOADED)).unwrap();
    (client, database)
}

fn listener(sandbox: &Sandbox) -> TcpListener {
    let bound = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    bound.unwrap().unwrap()
}
