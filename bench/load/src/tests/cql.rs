//! CQL on the embedded node, raw and by its driver.

use cql_node::{Node, NodeOptions};

use super::{binds, connect, job, operation, statement, work};
use crate::{
    clear,
    order::{Credentials, Hello, Order, Seed},
    prepare,
    raw::cql::session::Session,
    version_of_cassandra,
    workload::{Client, Distribution, Job, Keys, Operation, Protocol, Step},
};

const INSERT: &str = "INSERT INTO k.t (key, a, b, c, d) VALUES (?, ?, ?, ?, ?)";

/// Reads and writes of a table with a column for every kind of value.
fn table() -> Job {
    let insert = statement(INSERT, &["key:text", "value:34", "text:9", "bigint", "now"]);
    let read = statement("SELECT * FROM k.t WHERE key = ?", &["key:text"]);
    Job {
        create: vec![
            "CREATE KEYSPACE k WITH replication = \
             {'class': 'SimpleStrategy', 'replication_factor': 1}"
                .into(),
            "CREATE TABLE k.t (key text PRIMARY KEY, a blob, b text, c bigint, d timestamp)".into(),
        ],
        clear: vec!["DROP KEYSPACE k".into()],
        fill: Some("write".into()),
        ..job(
            Protocol::Cql,
            vec![
                operation("write", vec![insert]),
                operation("read", vec![read]),
            ],
        )
    }
}

fn rows(node: &Node) -> i32 {
    let mut session = Session::open(node.addr(), None).unwrap();
    session.rows("SELECT key FROM k.t").unwrap()
}

#[test]
fn tables_are_made_filled_and_taken_away() {
    let node = Node::start(NodeOptions::default()).unwrap();
    let job = table();
    prepare(&job, &[node.addr()], None).unwrap();
    assert_eq!(rows(&node), 1_000);
    // The tables of a run before this one are taken away first.
    prepare(&job, &[node.addr()], None).unwrap();
    assert_eq!(rows(&node), 1_000);
    let twice = Job {
        create: [job.create.clone(), job.create.clone()].concat(),
        ..job.clone()
    };
    let twice = prepare(&twice, &[node.addr()], None).unwrap_err();
    assert!(
        format!("{twice:#}").contains("CREATE KEYSPACE"),
        "{twice:#}"
    );
    prepare(&job, &[node.addr()], None).unwrap();
    for client in [Client::Raw, Client::Driver] {
        let job = Job {
            client,
            ..job.clone()
        };
        let answer = work(&job, &[node.addr()], 0.2).unwrap();
        assert_eq!((answer.errors, answer.first_error), (0, None));
        assert!(answer.latencies.count() > 20, "{client:?}");
    }
    assert_eq!(rows(&node), 1_000);
    clear(&job, &[node.addr()], None).unwrap();
    let gone = work(&job, &[node.addr()], 0.1).unwrap_err();
    assert!(format!("{gone:#}").contains("INSERT INTO k.t"), "{gone:#}");
    let version = version_of_cassandra(node.addr(), None).unwrap();
    assert!(version.starts_with("5.0"), "{version}");
}

#[test]
fn new_rows_batches_conditions_and_several_steps() {
    let node = Node::start(NodeOptions::default()).unwrap();
    let mut job = table();
    prepare(&job, &[node.addr()], None).unwrap();
    let few = &["key:text", "text:5"];
    let batch = |logged, keys| Step::Batch {
        cql: "INSERT INTO k.t (key, b) VALUES (?, ?)".into(),
        bind: binds(few),
        count: 5,
        logged,
        keys,
    };
    let read = statement("SELECT * FROM k.t WHERE key = ?", &["key:text"]);
    let write = statement(
        "UPDATE k.t SET b = ? WHERE key = ?",
        &["text:5", "key:text"],
    );
    let lwt = statement("INSERT INTO k.t (key, b) VALUES (?, ?) IF NOT EXISTS", few);
    let added = |node: &Node, steps: Vec<Step>, new_key, client| {
        let before = rows(node);
        job.client = client;
        job.operations = vec![Operation {
            new_key,
            ..operation("write", steps)
        }];
        let answer = work(&job, &[node.addr()], 0.1).unwrap();
        assert_eq!((answer.errors, &answer.first_error), (0, &None));
        let ops = i32::try_from(answer.ops()).unwrap();
        assert!(ops > 3);
        let added = rows(node) - before;
        prepare_again(node);
        (ops, added)
    };
    let mut added = added;
    for client in [Client::Raw, Client::Driver] {
        let (_, none) = added(&node, vec![read.clone(), write.clone()], false, client);
        assert_eq!(none, 0);
        let (ops, new) = added(&node, vec![batch(true, true)], true, client);
        assert_eq!(new, ops * 5);
        let (ops, new) = added(&node, vec![batch(false, false)], true, client);
        assert_eq!(new, ops);
        let (ops, new) = added(&node, vec![lwt.clone()], true, client);
        assert_eq!(new, ops);
        // A write that is not applied is no error.
        let (_, none) = added(&node, vec![lwt.clone()], false, client);
        assert_eq!(none, 0);
    }
}

/// A table as after the fill.
fn prepare_again(node: &Node) {
    clear(&table(), &[node.addr()], None).unwrap();
    prepare(&table(), &[node.addr()], None).unwrap();
}

#[test]
fn errors_of_the_database_are_counted() {
    let node = Node::start(NodeOptions::default()).unwrap();
    let mut job = table();
    prepare(&job, &[node.addr()], None).unwrap();
    // A bigint of ten bytes.
    let wrong = statement("UPDATE k.t SET c = ? WHERE key = ?", &["key", "key:text"]);
    job.operations.push(operation("wrong", vec![wrong]));
    for client in [Client::Raw, Client::Driver] {
        job.client = client;
        let answer = work(&job, &[node.addr()], 0.2).unwrap();
        assert!(answer.errors > 3 && answer.ops() > 3, "{answer:?}");
        let why = answer.first_error.unwrap();
        assert!(client == Client::Driver || why.contains("0x2200"), "{why}");
    }
}

#[test]
fn a_driver_keeps_a_rate_over_few_connections() {
    let node = Node::start(NodeOptions::default()).unwrap();
    let job = Job {
        client: Client::Driver,
        threads: 2,
        connections: 2,
        depth: 50,
        rate: Some(500.0),
        ..table()
    };
    prepare(&job, &[node.addr()], None).unwrap();
    let before = node.connections_total();
    let mut generator = connect(&job, &[node.addr()]).unwrap();
    for _ in 0..2 {
        let answer = generator.obey(Order::Work { seconds: 0.5 }).unwrap();
        assert_eq!((answer.scheduled, answer.ops()), (Some(250), 250));
        assert!(answer.lateness.count() > 100);
    }
    // The driver's pool, and the connection by which it watches the cluster.
    let opened = node.connections_total() - before;
    assert!(opened <= 4, "{opened}");
}

#[test]
fn several_nodes_hold_all_keys() {
    let nodes: Vec<_> = (0..3)
        .map(|_| Node::start(NodeOptions::default()).unwrap())
        .collect();
    let targets: Vec<_> = nodes.iter().map(Node::addr).collect();
    let mut job = Job {
        threads: 2,
        connections: 6,
        depth: 4,
        keys: Keys {
            count: 900,
            distribution: Distribution::Zipfian,
        },
        ..table()
    };
    prepare(&job, &targets, None).unwrap();
    let held: Vec<_> = nodes.iter().map(rows).collect();
    assert_eq!(held, [900; 3]);
    for client in [Client::Raw, Client::Driver] {
        job.client = client;
        let answer = work(&job, &targets, 0.2).unwrap();
        assert_eq!((answer.errors, answer.first_error), (0, None));
        // Writes made no new rows: every key was there.
        assert_eq!(nodes.iter().map(rows).collect::<Vec<_>>(), held);
    }
}

#[test]
fn generators_log_in() {
    let options = NodeOptions {
        credentials: Some(cql_node::Credentials {
            user: "ann".into(),
            password: "secret".into(),
        }),
        ..NodeOptions::default()
    };
    let node = Node::start(options).unwrap();
    let credentials = Some(Credentials {
        user: "ann".into(),
        password: "secret".into(),
    });
    prepare(&table(), &[node.addr()], credentials.as_ref()).unwrap();
    for client in [Client::Raw, Client::Driver] {
        let mut hello = Hello {
            job: Job { client, ..table() },
            targets: vec![node.addr()],
            credentials: credentials.clone(),
            seed: Seed {
                value: 1,
                number: 1,
            },
            introduce: false,
        };
        let mut generator = crate::Generator::new(&hello).unwrap();
        let answer = generator.obey(Order::Work { seconds: 0.1 }).unwrap();
        assert!(answer.ops() > 3 && answer.errors == 0);
        hello.credentials = None;
        assert!(crate::Generator::new(&hello).is_err());
    }
    let mut wrong = credentials.clone().unwrap();
    wrong.password = "wrong".into();
    for (given, said) in [(Some(&wrong), "0x0100"), (None, "wants a user")] {
        let refused = Session::open(node.addr(), given).err().unwrap();
        assert!(format!("{refused:#}").contains(said), "{refused:#}");
    }
}
