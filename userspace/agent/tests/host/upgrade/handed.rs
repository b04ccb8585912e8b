//! Flows that are read, or changed, go to the agent that takes over: no answer is lost, given twice or to another request.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    ops::ControlFlow,
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

use cql_node::{Delays, Node, NodeOptions};
use sandbox::{Netns, Sandbox, run_in};
use scylla::{client::session_builder::SessionBuilder, response::PagingState};

use super::{
    DRAINED, Host,
    speaker::{Client, KINDS, serve},
};
use crate::common::*;

/// Steps that change each request, and some that only look at it.
const PIPELINE: &str = "pipeline = [
  { transform = \"throttle\", rate = 1000000, mode = \"overloaded\" },
  { transform = \"guard\", refuse = [\"unknown\", \"roles\"] },
  { transform = \"consistency\", at_least = \"QUORUM\" },
  { transform = \"paging\", at_most = 5000 },
  { transform = \"stats\" },
]\n";

pub(super) const TAKEN: &str = "underpass_taken_over_flows_total";

/// Flows of each kind.
const OF_EACH: usize = 2;

#[test]
fn no_answer_is_lost_or_anybody_elses_in_any_version_and_compression() {
    for (pipeline, upgrades) in [(PIPELINE, 2), ("", 1)] {
        let sandbox = Sandbox::new().unwrap();
        let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap().unwrap();
        let addr = listener.local_addr().unwrap();
        let policy = enrich(&[addr.port()]) + "fail = \"closed\"\npath = \"inline\"\n" + pipeline;
        let netns = Some(&sandbox.netns);
        let started = sandbox::Agent::start(
            std::path::Path::new(BINARY),
            netns,
            &sandbox.cgroup,
            "",
            &policy,
        );
        let mut agent = started.unwrap();
        let of_all = KINDS.len() * OF_EACH;
        let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| serve(&listener, of_all));
            let clients = KINDS.iter().flat_map(|kind| [*kind; OF_EACH]);
            let clients: Vec<Client> = clients
                .map(|kind| {
                    let dialled = sandbox.client(|| TcpStream::connect(addr));
                    Client::log_in(kind, dialled.unwrap().unwrap())
                })
                .collect();
            for mut client in clients {
                let (stop, done) = (&stop, &done);
                scope.spawn(move || {
                    client.asks(stop, done);
                    assert_eq!(client.peer(), addr, "the address that it dialled");
                });
            }
            for _ in 0..upgrades {
                let before = done.load(Relaxed);
                eventually("they are answered", || done.load(Relaxed) > before + 500);
                let mut former = agent.take_over("").unwrap();
                let log = former.ends_within(DRAINED).unwrap();
                assert!(log.contains("why=Drained"), "{log}");
                assert_eq!(agent.metric(TAKEN).unwrap(), of_all as f64);
            }
            let before = done.load(Relaxed);
            eventually("they are answered", || done.load(Relaxed) > before + 500);
            stop.store(true, Relaxed);
        });
        eventually("they have ended", || {
            agent.metric("underpass_flows").unwrap() == 0.0
        });
        let log = agent.log();
        assert!(
            !log.contains("panicked") && !log.contains(" ERROR "),
            "{log}"
        );
        if !pipeline.is_empty() {
            let metrics = agent.metrics().unwrap();
            let changed: Vec<_> = metrics
                .iter()
                .filter(|(name, n)| name.contains("consistency") && **n > 0.0)
                .collect();
            assert!(!changed.is_empty(), "{changed:?}");
        }
    }
}

/// A table of a hundred rows, in a node.
pub(super) fn node(sandbox: &Sandbox, delays: Option<Delays>) -> Node {
    let schema = [
        "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TABLE shop.paged (p int, c int, PRIMARY KEY (p, c))",
    ];
    let options = NodeOptions {
        schema: schema.map(str::to_owned).to_vec(),
        delays,
        ..NodeOptions::default()
    };
    sandbox.server(|| Node::start(options)).unwrap().unwrap()
}

pub(super) fn of_node(pipeline: &str, delays: Option<Delays>) -> Host {
    let sandbox = Sandbox::new().unwrap();
    let node = node(&sandbox, delays);
    Host {
        sandbox,
        node,
        steps: format!("path = \"inline\"\n{pipeline}"),
    }
}

#[test]
fn a_driver_goes_on_with_its_pages_its_statements_and_its_events() {
    let host = of_node(PIPELINE, None);
    let mut agent = host.agent("");
    let (to_agent, orders) = std::sync::mpsc::channel::<()>();
    let (done, answers) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        let host = &host;
        let application = scope.spawn(move || {
            let work = move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                runtime.unwrap().block_on(async {
                    let session = SessionBuilder::new().known_node_addr(host.node.addr());
                    let session = session.build().await.unwrap();
                    session.use_keyspace("shop", false).await.unwrap();
                    let insert = session.prepare("INSERT INTO paged (p, c) VALUES (1, ?)");
                    let insert = insert.await.unwrap();
                    for c in 0..50 {
                        session.execute_unpaged(&insert, (c,)).await.unwrap();
                    }
                    let mut select = session
                        .prepare("SELECT c FROM paged WHERE p = 1")
                        .await
                        .unwrap();
                    select.set_page_size(10);
                    let (mut seen, mut state) = (Vec::new(), PagingState::start());
                    let mut pages = 0;
                    loop {
                        let page = session.execute_single_page(&select, (), state).await;
                        let (page, next) = page.unwrap();
                        let page = page.into_rows_result().unwrap();
                        seen.extend(page.rows::<(i32,)>().unwrap().map(|row| row.unwrap().0));
                        pages += 1;
                        if pages == 2 {
                            // In the midst of it.
                            done.send(()).unwrap();
                            orders.recv().unwrap();
                        }
                        match next.into_paging_control_flow() {
                            ControlFlow::Break(()) => break,
                            ControlFlow::Continue(next) => state = next,
                        }
                    }
                    assert_eq!(seen, (0..50).collect::<Vec<_>>());
                    for c in 50..60 {
                        session.execute_unpaged(&insert, (c,)).await.unwrap();
                    }
                });
            };
            host.sandbox.client(work).unwrap();
        });
        let mut client = host.dial();
        super::log_in(&mut client);
        register(&mut client);
        answers.recv().unwrap();
        let mut former = agent.take_over("").unwrap();
        former.ends_within(DRAINED).unwrap();
        to_agent.send(()).unwrap();
        application.join().unwrap();
        // Somebody else's change of the schema.
        let mut other = host.dial();
        super::log_in(&mut other);
        let text = "CREATE TABLE shop.later (p int PRIMARY KEY)";
        other.write_all(&frames::query(4, 3, text)).unwrap();
        let event = whole(&mut client);
        assert_eq!((event[4], &event[2..4]), (0x0C, &[0xFF, 0xFF][..]));
        assert!(event.windows(5).any(|part| part == b"later"), "{event:?}");
        assert_eq!(whole(&mut other)[4], frames::RESULT);
    });
    let taken = agent.metric(TAKEN).unwrap();
    assert!(taken >= 3.0, "{taken}");
    let unnamed = agent.json("/statements").unwrap();
    let rows = unnamed.as_array().unwrap();
    assert!(
        rows.iter()
            .any(|row| row["table"] == "paged" && row["kind"] == "insert"),
        "statements keep their names: {rows:?}"
    );
}

/// REGISTERs for changes of the schema.
fn register(client: &mut TcpStream) {
    let mut body = vec![0, 1, 0, 13];
    body.extend(b"SCHEMA_CHANGE");
    client.write_all(&frames::frame(4, 2, 0x0B, &body)).unwrap();
    assert_eq!(whole(client)[4], frames::READY);
}

/// The next frame.
pub(super) fn whole(client: &mut TcpStream) -> Vec<u8> {
    let mut frame = vec![0; 9];
    client.read_exact(&mut frame).unwrap();
    let length = u32::from_be_bytes(frame[5..9].try_into().unwrap());
    let mut body = vec![0; length as usize];
    client.read_exact(&mut body).unwrap();
    frame.extend(body);
    frame
}

/// Whether the next request gets a token.
pub(super) fn has_token(client: &mut TcpStream) -> bool {
    let text = "SELECT c FROM shop.paged WHERE p = 1";
    client.write_all(&frames::query(4, 5, text)).unwrap();
    whole(client)[4] == frames::RESULT
}

#[test]
fn no_burst_is_gained_by_an_upgrade() {
    let host = of_node(
        "pipeline = [{ transform = \"throttle\", rate = 0.001, burst = 5, mode = \"overloaded\" }]\n",
        None,
    );
    let mut agent = host.agent("");
    let mut client = host.dial();
    super::log_in(&mut client);
    for _ in 0..3 {
        assert!(has_token(&mut client));
    }
    let mut former = agent.take_over("").unwrap();
    former.ends_within(DRAINED).unwrap();
    assert_eq!(agent.metric(TAKEN).unwrap(), 1.0);
    let mut other = host.dial();
    super::log_in(&mut other);
    assert!(has_token(&mut client));
    assert!(has_token(&mut other));
    assert!(!has_token(&mut client));
    assert!(!has_token(&mut other));
    agent.take_over("").unwrap().ends_within(DRAINED).unwrap();
    assert!(!has_token(&mut client));
    assert!(!has_token(&mut other));
}

#[test]
fn a_flow_of_a_container_goes_over_and_over() {
    let host = of_node(PIPELINE, None);
    let mut agent = host.agent("");
    let (container, cgroup) = (Netns::new().unwrap(), Some(&host.sandbox.cgroup));
    let at = host.node.addr();
    // A process keeps the namespace.
    let there = run_in(Some(&container), cgroup, || {
        let resident = Command::new("sleep").arg("60").spawn().unwrap();
        (TcpListener::bind(at).unwrap(), resident)
    });
    let (listener, mut resident) = there.unwrap();
    let dial = || run_in(Some(&container), cgroup, || TcpStream::connect(at)).unwrap();
    let mut dialled = None;
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    eventually("its namespace is served", || {
        dialled = dialled.take().or_else(|| dial().ok());
        dialled.is_some()
    });
    thread::scope(|scope| {
        scope.spawn(|| serve(&listener, 1));
        let mut client = Client::log_in(KINDS[0], dialled.take().unwrap());
        let (stop, done) = (&stop, &done);
        scope.spawn(move || client.asks(stop, done));
        for _ in 0..2 {
            let mut former = agent.take_over("").unwrap();
            let log = former.ends_within(DRAINED).unwrap();
            assert!(log.contains("why=Drained"), "{log}");
            assert_eq!(agent.metric(TAKEN).unwrap(), 1.0);
            let before = done.load(Relaxed);
            eventually("it is answered", || done.load(Relaxed) > before + 100);
        }
        stop.store(true, Relaxed);
    });
    resident.kill().unwrap();
    resident.wait().unwrap();
}

#[test]
fn what_takes_long_is_answered_first() {
    let delays = Delays {
        seed: 1,
        least: Duration::from_secs(4),
        tail: Duration::ZERO,
    };
    let host = of_node(PIPELINE, Some(delays));
    let mut agent = host.agent("");
    let mut client = host.dial();
    super::log_in(&mut client);
    let text = "SELECT c FROM shop.paged WHERE p = 1";
    client.write_all(&frames::query(4, 5, text)).unwrap();
    let mut former = agent.take_over("").unwrap();
    // It is held for half a second, and then goes on where it is.
    thread::sleep(Duration::from_millis(2500));
    client.write_all(&frames::query(4, 6, text)).unwrap();
    for stream in [5, 6] {
        let answer = whole(&mut client);
        assert_eq!((answer[3], answer[4]), (stream, frames::RESULT));
    }
    let log = former.ends_within(DRAINED).unwrap();
    assert!(log.contains("why=Drained"), "{log}");
    assert_eq!(agent.metric(TAKEN).unwrap(), 1.0);
}
