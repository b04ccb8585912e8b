//! Redis; connections, targets and errors in general.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpListener,
    thread,
};

use super::{command, connect, job, operation, server::Server, work};
use crate::{
    order::Order,
    prepare,
    workload::{Distribution, Job, Keys, Operation, Protocol, Step},
};

fn redis(steps: Vec<Step>) -> Job {
    job(Protocol::Redis, vec![operation("only", steps)])
}

fn ok() -> Server {
    Server::start(|_, _| Some("+OK\r\n".into()))
}

#[test]
fn commands_have_their_words() {
    let server = ok();
    let words = ["HSET", "h:{key:text}", "f{bigint}", "{text:8}"];
    let answer = work(&redis(vec![command(&words, 3)]), &[server.addr], 0.1).unwrap();
    assert_eq!((answer.errors, answer.first_error), (0, None));
    let asked = server.asked();
    assert_eq!(asked.len() % 3, 0);
    assert_eq!(asked.len() as u64 / 3, answer.latencies.count());
    let mut keys = BTreeSet::new();
    for (_, words) in asked {
        keys.insert(words[1].clone());
        assert!(words[1].starts_with("h:user"), "{words:?}");
        assert!(words[2].len() > 1 && words[3].len() == 8, "{words:?}");
    }
    // Each of a pipeline has a key of its own.
    assert!(keys.len() > 2, "{keys:?}");
    assert!(answer.bytes > 0);
}

#[test]
fn errors_are_counted_and_the_connection_goes_on() {
    let server = Server::start(|_, words| {
        let answer = match &*words[0] {
            "GET" => "-WRONGTYPE no\r\n",
            _ => "*2\r\n:1\r\n$1\r\nx\r\n",
        };
        Some(answer.into())
    });
    let mut job = redis(vec![command(&["GET", "{key}"], 1)]);
    job.operations
        .push(operation("other", vec![command(&["TIME"], 2)]));
    let answer = work(&job, &[server.addr], 0.2).unwrap();
    assert!(answer.errors > 5 && answer.ops() > 5, "{answer:?}");
    let why = answer.first_error.unwrap();
    assert!(why.contains("WRONGTYPE"), "{why}");
}

#[test]
fn a_lost_connection_ends_the_work() {
    let server = Server::start(|nth, _| (nth < 20).then(|| "+OK\r\n".into()));
    let error = work(&redis(vec![command(&["PING"], 1)]), &[server.addr], 5.0);
    let error = format!("{:#}", error.unwrap_err());
    assert!(error.contains("connection"), "{error}");
    let server = Server::start(|_, _| Some("what?\r\n".into()));
    let error = work(&redis(vec![command(&["PING"], 1)]), &[server.addr], 5.0);
    let error = format!("{:#}", error.unwrap_err());
    assert!(error.contains("framing is lost"), "{error}");
}

#[test]
fn operations_have_their_connections() {
    let server = ok();
    let own = |name: &str, connections| Operation {
        weight: 0,
        connections,
        ..operation(name, vec![command(&[name, "{key}"], 1)])
    };
    let mix = |name: &str, weight| Operation {
        weight,
        ..operation(name, vec![command(&[name, "{key}"], 1)])
    };
    let job = Job {
        threads: 2,
        connections: 7,
        depth: 2,
        ..job(
            Protocol::Redis,
            vec![own("READ", 3), own("WRITE", 2), mix("A", 9), mix("B", 1)],
        )
    };
    work(&job, &[server.addr], 0.3).unwrap();
    let mut by_connection: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    for (connection, words) in server.asked() {
        by_connection
            .entry(connection)
            .or_default()
            .insert(words[0].clone());
        *counts.entry(words[0].clone()).or_default() += 1.0;
    }
    let of = |names: &[&str]| {
        let names: BTreeSet<String> = names.iter().map(|n| (*n).into()).collect();
        by_connection.values().filter(|did| **did == names).count()
    };
    assert_eq!((of(&["READ"]), of(&["WRITE"]), of(&["A", "B"])), (3, 2, 2));
    let share = counts["B"] / (counts["A"] + counts["B"]);
    assert!((0.06..0.14).contains(&share), "{share}");
}

#[test]
fn the_fill_misses_no_key_and_no_key_is_added_twice() {
    const KEYS: u64 = 500;
    let servers: Vec<_> = (0..3).map(|_| ok()).collect();
    let targets: Vec<_> = servers.iter().map(|s| s.addr).collect();
    for distribution in [
        Distribution::Uniform,
        Distribution::Zipfian,
        Distribution::Latest,
        Distribution::Sequential,
    ] {
        let mut job = Job {
            threads: 2,
            connections: 6,
            fill: Some("only".into()),
            keys: Keys {
                count: KEYS,
                distribution,
            },
            ..redis(vec![command(&["SET", "{key}", "{value:9}"], 2)])
        };
        let add = Operation {
            new_key: true,
            ..operation("add", vec![command(&["ADD", "{key}"], 1)])
        };
        job.operations.push(add);
        let seen = |server: &Server, kind: &str| {
            let log = std::mem::take(&mut *server.log.lock().unwrap());
            let of_kind = log.into_iter().filter(|(_, words)| words[0] == kind);
            let mut keys: Vec<u64> = of_kind.map(|(_, w)| w[1].parse().unwrap()).collect();
            keys.sort_unstable();
            keys
        };
        // The fill writes every key everywhere; a pipeline's last request may do one twice.
        prepare(&job, &targets, None).unwrap();
        for server in &servers {
            let mut filled = seen(server, "SET");
            assert!(filled.len() < KEYS as usize + 20, "{}", filled.len());
            filled.dedup();
            assert_eq!(filled, (0..KEYS).collect::<Vec<_>>());
        }
        // Taking the log forgets the others: look at what was added in a run of its own.
        work(&job, &targets, 0.1).unwrap();
        let read: Vec<u64> = servers.iter().flat_map(|s| seen(s, "SET")).collect();
        let is_new_read = distribution == Distribution::Latest;
        assert!(read.len() > 50);
        assert!(is_new_read || read.iter().all(|key| *key < KEYS));
        work(&job, &targets, 0.1).unwrap();
        let mut added: Vec<u64> = servers.iter().flat_map(|s| seen(s, "ADD")).collect();
        added.sort_unstable();
        assert!(added.len() > 20 && added.iter().all(|key| *key >= KEYS));
        let count = added.len();
        added.dedup();
        assert_eq!(added.len(), count, "a key was added twice");
    }
}

#[test]
fn too_few_connections_for_the_targets_are_refused() {
    let server = ok();
    let job = Job {
        connections: 2,
        ..redis(vec![command(&["PING"], 1)])
    };
    let error = work(&job, &[server.addr; 3], 0.1).unwrap_err().to_string();
    assert!(error.contains("too few for 3 targets"), "{error}");
}

#[test]
fn connecting_is_an_operation() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || crate::null::serve_on(listener));
    let connects = job(Protocol::Connect, vec![operation("connect", Vec::new())]);
    let answer = work(&connects, &[addr], 0.2).unwrap();
    assert!(answer.ops() > 50 && answer.errors == 0, "{answer:?}");
    let job = Job {
        rate: Some(200.0),
        ..connects
    };
    let answer = work(&job, &[addr], 0.5).unwrap();
    assert_eq!((answer.scheduled, answer.ops()), (Some(100), 100));
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let answer = work(&job, &[nobody], 0.1).unwrap();
    assert_eq!((answer.ops(), answer.errors), (0, 20));
}

#[test]
fn the_null_server_takes_whole_pipelines() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || crate::null::serve_on(listener));
    let large = Job {
        threads: 2,
        connections: 4,
        depth: 64,
        ..redis(vec![command(&["SET", "{key}", "{value:20000}"], 10)])
    };
    let mut generator = connect(&large, &[addr]).unwrap();
    for _ in 0..2 {
        let answer = generator.obey(Order::Work { seconds: 0.3 }).unwrap();
        assert_eq!((answer.errors, answer.first_error), (0, None));
        // A request is 200 kB: sockets were full, and all was sent all the same.
        assert!(answer.latencies.count() >= 256);
        assert!(answer.bytes > answer.latencies.count() * 200_000);
    }
    let mut cql = crate::workload::tests::job(&["key", "value:100"]);
    cql.depth = 16;
    let answer = work(&cql, &[addr], 0.2).unwrap();
    assert!(answer.ops() > 64 && answer.errors == 0, "{answer:?}");
}
