//! A rule lets applications' sockets into sockmaps side by side, and no other socket of an application
//! is ever in one.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::AsRawFd,
    path::Path,
    thread,
};

use aya::{
    Ebpf,
    maps::{MapData, SockHash},
};
use ebpf::abi;
use sandbox::{Agent, Sandbox};

use super::{BINARY, ENGINES, agent, listener, pair, why_on};
use crate::common::{asking::read_asking, eventually};

type DatabaseKey = [u8; size_of::<abi::DatabaseKey>()];

/// Bytes that FIONREAD leaves out on a socket that is in a sockmap.
const WAITS: &[u8] = b"waits in TCP's own queue";

/// A rule's `shortcut`, the path of its flows, and the sides whose sockets are in a sockmap then.
const OPTED_IN: [(&str, &str, bool, bool); 4] = [
    ("false", "relay", false, false),
    ("\"database\"", "relay", false, false),
    ("\"client\"", "splice", true, false),
    ("true", "splice", true, true),
];

/// Whether FIONREAD tells of all bytes that wait, as on any socket.
fn tells_all(reader: &mut TcpStream) -> bool {
    let mut bytes = [0; WAITS.len()];
    eventually("its bytes are there", || {
        reader.peek(&mut bytes).is_ok_and(|n| n == WAITS.len())
    });
    let told = rustix::io::ioctl_fionread(&*reader).unwrap();
    reader.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, WAITS);
    told == WAITS.len() as u64
}

#[test]
fn only_sockets_that_the_rule_lets_in_enter_a_sockmap() {
    for (shortcut, path, client_in, database_in) in OPTED_IN {
        let sandbox = Sandbox::new().unwrap();
        let listener = listener(&sandbox);
        let port = listener.local_addr().unwrap().port();
        let policy = format!(
            "[[rule]]\nname = \"r\"\nto = [\":{port}\"]\naction = \"enrich\"\nshortcut = {shortcut}\n"
        );
        let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
        let agent = Agent::start(
            Path::new(BINARY),
            netns,
            cgroup,
            "splice = \"auto\"",
            &policy,
        )
        .unwrap();
        if shortcut != "false" {
            agent
                .wait_for_log("path works path=\"splice_egress\"")
                .unwrap();
        }
        let (mut client, mut database) = pair(&sandbox, &listener);
        let why = why_on(&agent, path, (&mut client, &mut database));
        if path == "relay" {
            assert!(
                why.contains("its rule lets the client's socket into no sockmap (`shortcut`)"),
                "{shortcut}: {why}"
            );
            let name = "underpass_splice_refusals_total{reason=\"not_opted_in\"}";
            assert_eq!(agent.metric(name).unwrap(), 1.0);
        } else if !database_in {
            let said = "by engine egress: its rule lets the database's socket into no sockmap";
            assert!(why.contains(said), "{shortcut}: {why}");
        }
        database.write_all(WAITS).unwrap();
        assert_eq!(!tells_all(&mut client), client_in, "{shortcut}: the client");
        client.write_all(WAITS).unwrap();
        let is_in = !tells_all(&mut database);
        assert_eq!(is_in, database_in, "{shortcut}: the database");
    }
}

/// Readers that ask FIONREAD first, whom it tells nothing there: their flows leave the sockmaps, and nobody
/// waits for ever.
#[test]
fn a_reader_that_asks_first_gets_everything_by_either_engine() {
    for engine in ENGINES {
        let sandbox = Sandbox::new().unwrap();
        let listener = listener(&sandbox);
        let agent = agent(&sandbox, engine, listener.local_addr().unwrap().port());
        for is_client in [true, false] {
            let (mut client, mut database) = pair(&sandbox, &listener);
            why_on(&agent, "splice", (&mut client, &mut database));
            for answer in [1 << 10, 3_000_000, 16 << 20] {
                let (reader, mut writer) = match is_client {
                    true => (&client, &database),
                    false => (&database, &client),
                };
                let sent = dataplane::probe_traffic::bytes(1, 0, answer);
                let read = thread::scope(|scope| {
                    writer.set_nonblocking(false).unwrap();
                    scope.spawn(|| writer.write_all(&sent).unwrap());
                    read_asking(reader, answer)
                });
                assert!(read == sent, "{engine} {is_client} {answer}: other bytes");
            }
            // The database's socket is in by one of the engines only.
            if is_client {
                eventually("`flows --why` says so", || {
                    let flows = agent.json("/flows").unwrap();
                    let why = flows[0]["why"].as_str().unwrap();
                    why.contains("of which FIONREAD does not tell it in a sockmap: its flow has left for good")
                });
            }
        }
        let stalled = "underpass_safer_path_total{cause=\"reader_stalled\"}";
        assert!(agent.metric(stalled).unwrap() > 0.0, "{engine}");
    }
}

/// A flow that has ended looks after nobody; its client has the answer yet to read.
#[test]
fn a_reader_that_asks_first_gets_what_was_sent_before_the_end() {
    for engine in ENGINES {
        let sandbox = Sandbox::new().unwrap();
        let listener = listener(&sandbox);
        let agent = agent(&sandbox, engine, listener.local_addr().unwrap().port());
        let (mut client, mut database) = pair(&sandbox, &listener);
        why_on(&agent, "splice", (&mut client, &mut database));
        client.shutdown(Shutdown::Write).unwrap();
        // It fits into the client's window.
        let sent = dataplane::probe_traffic::bytes(1, 0, 48 << 10);
        database.set_nonblocking(false).unwrap();
        database.write_all(&sent).unwrap();
        drop(database);
        agent.wait_for_log("flow closed").unwrap();
        assert!(read_asking(&client, sent.len()) == sent, "{engine}");
    }
}

/// Only when the client's socket is in does the kernel find that no engine can carry the flow.
#[test]
fn the_sockets_of_a_flow_that_is_refused_are_in_no_sockmap() {
    let sandbox = Sandbox::new().unwrap();
    let listener = listener(&sandbox);
    let agent = agent(&sandbox, "sender", listener.local_addr().unwrap().port());
    let (mut client, mut database) = pair(&sandbox, &listener);
    database.set_nonblocking(false).unwrap();
    let why = why_on(&agent, "relay", (&mut client, &mut database));
    assert!(why.contains("no other engine may carry it"), "{why}");
    client.write_all(WAITS).unwrap();
    assert!(tells_all(&mut database), "the database is in a sockmap");
    database.write_all(WAITS).unwrap();
    assert!(tells_all(&mut client), "the client is in a sockmap");
}

/// The databases' listening sockets are in a sockhash, and connections to them are not: this kernel gives
/// what they accept TCP's own operations.
#[test]
fn what_a_listener_in_a_sockhash_accepts_is_in_none() {
    let mut object = Ebpf::load(ebpf::OBJECT).unwrap();
    let map = object.take_map("databases").unwrap();
    let mut databases: SockHash<MapData, DatabaseKey> = SockHash::try_from(map).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let key = [0; size_of::<DatabaseKey>()];
    databases.insert(key, listener.as_raw_fd(), 0).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    client.write_all(WAITS).unwrap();
    assert!(tells_all(&mut accepted));
    // Were it in, it would not: that is what is looked for here.
    databases.remove(&key).unwrap();
    databases.insert(key, accepted.as_raw_fd(), 0).unwrap();
    client.write_all(WAITS).unwrap();
    assert!(!tells_all(&mut accepted));
}

/// An agent whose file says nothing of sockmaps enters no socket of an application into one, and tries
/// nothing out.
#[test]
fn by_default_nobody_is_in_a_sockmap() {
    let sandbox = Sandbox::new().unwrap();
    let listener = listener(&sandbox);
    let port = listener.local_addr().unwrap().port();
    let policy = format!(
        "[[rule]]\nname = \"r\"\nto = [\":{port}\"]\naction = \"enrich\"\nshortcut = false\n"
    );
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    // Not a word of the splice but in a comment, without which the sandbox switches it off.
    let settings = "# splice: its default";
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, settings, &policy).unwrap();
    let (mut client, mut database) = pair(&sandbox, &listener);
    let why = why_on(&agent, "relay", (&mut client, &mut database));
    assert!(why.contains("into no sockmap"), "{why}");
    database.write_all(WAITS).unwrap();
    assert!(tells_all(&mut client));
    client.write_all(WAITS).unwrap();
    assert!(tells_all(&mut database));
    assert!(!agent.log().contains("path=\"splice"), "{}", agent.log());
}
