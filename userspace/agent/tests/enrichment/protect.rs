//! Encrypted columns with a real driver: what the database has, what the application sees, and keys that
//! come, change, hang and die meanwhile.

mod kms;

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, sync::mpsc, thread};

use cql_node::{Node, NodeOptions};
use kms::{Kms, Mode};
use nix::sys::signal::Signal;
use sandbox::{Agent, run_in};
use scylla::{
    client::{session::Session, session_builder::SessionBuilder},
    statement::batch::Batch,
};
use tokio::runtime::Runtime;

use crate::common::{self, Hosts, PATIENCE, eventually};

const SECRET: &str = "DE89370400440532013000";
const OTHER_SECRET: &str = "ann@example.org's";

const INSERT: &str = "INSERT INTO shop.customers (id, iban, photo) VALUES (?, ?, ?)";

fn node(hosts: &Hosts) -> Node {
    let options = NodeOptions {
        listen: "192.0.2.2:9042".parse().unwrap(),
        schema: vec![
            "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
                .into(),
            "CREATE TABLE shop.customers (id int PRIMARY KEY, iban text, photo blob, name text)".into(),
            "CREATE TABLE shop.t (k int PRIMARY KEY, v int)".into(),
        ],
        ..NodeOptions::default()
    };
    run_in(Some(&hosts.database), None, || Node::start(options))
        .unwrap()
        .unwrap()
}

fn policy(keys: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\nfail = \"closed\"\npipeline = [\n  {{ \
         transform = \"protect\", columns = {{ \"shop.customers\" = [\"iban\", \"photo\"] }}, {keys} }}\n]\n"
    )
}

fn key(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

fn write_keys(path: &Path, active: &str, keys: &[(&str, u8)]) {
    let keys: String = keys
        .iter()
        .map(|(id, byte)| format!("{id} = \"{}\"\n", key(*byte)))
        .collect();
    fs::write(path, format!("active = \"{active}\"\n[keys]\n{keys}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

async fn session(to: SocketAddr) -> Session {
    SessionBuilder::new()
        .known_node_addr(to)
        .build()
        .await
        .unwrap()
}

type Row = (i32, Option<String>, Option<Vec<u8>>);

async fn rows(session: &Session) -> Vec<Row> {
    let text = "SELECT id, iban, photo FROM shop.customers";
    let found = session.query_unpaged(text, ()).await.unwrap();
    let found = found.into_rows_result().unwrap();
    let mut rows: Vec<Row> = found.rows().unwrap().map(Result::unwrap).collect();
    rows.sort();
    rows
}

/// Runs an application, which can see what the database has past the agent, too.
fn application(
    hosts: &Hosts,
    to: SocketAddr,
    body: impl FnOnce(&(dyn Fn() -> Vec<Row> + Sync)) + Send,
) {
    let (ask, asked) = mpsc::channel::<mpsc::Sender<Vec<Row>>>();
    let looks = || hosts.direct(|| runtime().block_on(async { rows(&session(to).await).await }));
    thread::scope(|scope| {
        // Begun here: an application's threads are all in its cgroup.
        scope.spawn(move || asked.iter().for_each(|tell| tell.send(looks()).unwrap()));
        hosts.client(move || {
            body(&|| {
                let (tell, told) = mpsc::channel();
                ask.send(tell).unwrap();
                told.recv().unwrap()
            });
        });
    });
}

fn row(id: i32, iban: &str, photo: &[u8]) -> Row {
    (id, Some(iban.to_owned()), Some(photo.to_owned()))
}

fn reload(agent: &Agent<'_>, result: &str) {
    let metric = format!("underpass_reloads_total{{result=\"{result}\"}}");
    let before = agent.metric(&metric).unwrap();
    agent.signal(Signal::SIGHUP).unwrap();
    eventually("it was read again", || {
        agent.metric(&metric).unwrap() > before
    });
}

fn values(agent: &Agent<'_>, outcome: &str) -> u64 {
    let metric = format!("underpass_protect_values_total{{outcome=\"{outcome}\"}}");
    agent.metric(&metric).unwrap() as u64
}

/// Neither values nor keys are in what the agent has logged.
fn says_nothing(agent: &Agent<'_>) {
    let log = agent.log();
    for secret in [SECRET, "ann@example.org", &key(1), &key(2), " ERROR "] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn an_application_sees_plain_what_is_stored_encrypted_while_keys_are_rotated() {
    let hosts = Hosts::new();
    let node = node(&hosts);
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.toml");
    write_keys(&keys, "k1", &[("k1", 1)]);
    let agent = hosts.agent(&policy(&format!("keys = {keys:?}")));
    let to = node.addr();
    application(&hosts, to, |stored| {
        let runtime = runtime();
        let session = runtime.block_on(session(to));
        let insert = runtime.block_on(session.prepare(INSERT)).unwrap();
        runtime.block_on(async {
            let photo = &b"\xFF\xD8\xFF"[..];
            let values = (1, SECRET, photo);
            session.execute_unpaged(&insert, values).await.unwrap();
            let text = "UPDATE shop.customers SET iban = 'ann@example.org''s', photo = 0xFFD8FF WHERE id = 2";
            session.query_unpaged(text, ()).await.unwrap();
            let mut batch = Batch::default();
            batch.append_statement(insert.clone());
            batch.append_statement("INSERT INTO shop.t (k, v) VALUES (1, 1)");
            session
                .batch(&batch, ((3, SECRET, photo), ()))
                .await
                .unwrap();
            let expected = [(1, SECRET), (2, OTHER_SECRET), (3, SECRET)];
            let expected = expected.map(|(id, iban)| row(id, iban, photo));
            assert_eq!(rows(&session).await, expected);
            let text = "SELECT iban AS name, id FROM shop.customers WHERE id = ?";
            let found = session.query_unpaged(text, (1,)).await.unwrap();
            let found = found.into_rows_result().unwrap();
            let found = found.single_row::<(String, i32)>().unwrap();
            assert_eq!(found, (SECRET.to_owned(), 1));
            let text = "SELECT id FROM shop.customers WHERE iban = ? ALLOW FILTERING";
            let refused = session.query_unpaged(text, (SECRET,)).await.unwrap_err();
            let refused = refused.to_string();
            assert!(refused.contains("shop.customers.iban is encrypted and cannot be compared"), "{refused}");
        });
        let first = stored();
        assert_eq!(first.len(), 3);
        for (_, iban, photo) in &first {
            assert!(iban.as_ref().unwrap().starts_with("up1.k1."), "{iban:?}");
            assert!(photo.as_ref().unwrap().starts_with(b"up1.k1."), "{photo:?}");
        }
        assert_ne!(first[0].1, first[2].1, "the same value twice");

        // Another key, on the connections that there are.
        write_keys(&keys, "k2", &[("k1", 1), ("k2", 2)]);
        reload(&agent, "ok");
        runtime.block_on(async {
            session
                .execute_unpaged(&insert, (4, SECRET, &b""[..]))
                .await
                .unwrap();
            assert_eq!(rows(&session).await[3], row(4, SECRET, b""));
            assert_eq!(rows(&session).await[0].1.as_deref(), Some(SECRET));
        });
        assert_eq!(stored()[..3], first);
        assert!(stored()[3].1.as_ref().unwrap().starts_with("up1.k2."));

        // A file that cannot be, or that would lose what was written, changes nothing.
        fs::write(&keys, "active = \"k3\"\n[keys]\nk3 = \"short\"\n").unwrap();
        reload(&agent, "error");
        agent.wait_for_log("key k3: expected 32 bytes").unwrap();
        write_keys(&keys, "k1", &[("k1", 9)]);
        reload(&agent, "error");
        agent.wait_for_log("key k1 is another than before").unwrap();
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).unwrap();
        reload(&agent, "error");
        agent.wait_for_log("chmod 600").unwrap();
        runtime.block_on(async {
            assert_eq!(rows(&session).await[0].1.as_deref(), Some(SECRET));
        });

        // A key that is gone.
        write_keys(&keys, "k2", &[("k2", 2)]);
        reload(&agent, "ok");
        runtime.block_on(async {
            let text = "SELECT iban FROM shop.customers WHERE id = ";
            let refused = session.query_unpaged(format!("{text}1"), ()).await;
            let refused = refused.unwrap_err().to_string();
            assert!(
                refused.contains("has the key k1, which is not there"),
                "{refused}"
            );
            session.query_unpaged(format!("{text}4"), ()).await.unwrap();
        });
    });
    assert_eq!(values(&agent, "encrypted"), 8);
    assert_eq!(values(&agent, "unknown_key"), 1);
    assert!(values(&agent, "decrypted") >= 20);
    let refused = "underpass_transforms_total{outcome=\"refused\",reason=\"predicate\",rule=\"r\",transform=\"protect\"}";
    assert!(agent.metric(refused).unwrap() >= 1.0);
    let log = agent.log();
    for secret in [SECRET, "ann@example.org", &key(1), &key(2), &key(9)] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn an_agent_without_its_keys_does_not_start() {
    let hosts = Hosts::new();
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("keys.toml");
    let (netns, cgroup) = (Some(&hosts.app.netns), &hosts.app.cgroup);
    let policy = policy(&format!("keys = {absent:?}"));
    let error = Agent::start(Path::new(common::BINARY), netns, cgroup, "", &policy).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("rule r: protect: "), "{error}");
    assert!(error.contains("keys.toml: it cannot be read"), "{error}");
}

/// One write to an encrypted column, and one elsewhere, which never fails.
struct Writer {
    runtime: Runtime,
    session: Session,
}

impl Writer {
    fn new(to: SocketAddr) -> Self {
        let runtime = runtime();
        let session = runtime.block_on(session(to));
        Self { runtime, session }
    }

    fn writes(&self) -> Result<(), String> {
        let asks = |text: String| {
            self.runtime.block_on(async {
                let asked = self.session.query_unpaged(text, ());
                let answered = tokio::time::timeout(PATIENCE, asked).await;
                answered.unwrap().map(drop).map_err(|e| e.to_string())
            })
        };
        asks("INSERT INTO shop.t (k, v) VALUES (1, 1)".to_owned()).unwrap();
        asks(format!(
            "INSERT INTO shop.customers (id, iban) VALUES (1, '{SECRET}')"
        ))
    }

    fn reads(&self) -> Vec<Row> {
        self.runtime.block_on(rows(&self.session))
    }
}

fn fetches(agent: &Agent<'_>, result: &str) -> u64 {
    let metric = format!("underpass_protect_key_fetches_total{{result=\"{result}\"}}");
    agent.metric(&metric).unwrap() as u64
}

#[test]
fn a_key_server_that_is_absent_hangs_dies_and_returns() {
    let hosts = Hosts::new();
    let node = node(&hosts);
    // A port at which nobody listens any more.
    let address = hosts.direct(|| Kms::start("127.0.0.1:0".parse().unwrap()).address());
    let agent = hosts.agent(&policy(&format!(
        "kms = \"http://{address}/keys\", refresh = \"100ms\", max_age = \"1s\", timeout = \"300ms\""
    )));
    let to = node.addr();
    application(&hosts, to, |stored| {
        let writer = Writer::new(to);
        let fails = || {
            let error = writer.writes().err();
            error.is_some_and(|e| e.contains("there are no keys for the encrypted columns now"))
        };
        assert!(fails(), "it is absent");
        agent.wait_for_log("the key server gives no keys").unwrap();
        let kms = hosts.direct(|| Kms::start(address));
        let one = Mode::Gives(format!(
            "{{\"active\": \"k1\", \"keys\": {{\"k1\": \"{}\"}}}}",
            key(1)
        ));
        kms.becomes(one.clone());
        eventually("it is there", || writer.writes().is_ok());
        for mode in [
            Mode::Hangs,
            Mode::Drips,
            Mode::Dies,
            Mode::Fails,
            Mode::Gives("{\"active\": \"k1\"}".to_owned()),
            Mode::Gives("x".repeat(1 << 20)),
            // Another key under an id that is known.
            Mode::Gives(format!(
                "{{\"active\": \"k1\", \"keys\": {{\"k1\": \"{}\"}}}}",
                key(3)
            )),
        ] {
            let is_another = matches!(&mode, Mode::Gives(text) if text.contains(&key(3)));
            kms.becomes(mode);
            match is_another {
                // Until the first one is too old.
                true => eventually("it is refused", || fetches(&agent, "changed") > 0),
                false => eventually("its keys are too old", fails),
            }
            kms.becomes(one.clone());
            eventually("it gives keys again", || writer.writes().is_ok());
        }
        let two = format!(
            "{{\"active\": \"k2\", \"keys\": {{\"k1\": \"{}\", \"k2\": \"{}\"}}}}",
            key(1),
            key(2)
        );
        kms.becomes(Mode::Gives(two));
        eventually("it has another key", || {
            writer.writes().is_ok() && stored()[0].1.as_ref().unwrap().starts_with("up1.k2.")
        });
        drop(kms);
        eventually("it has died, and its keys are too old", fails);
    });
    assert!(fetches(&agent, "unanswered") > 0 && fetches(&agent, "malformed") > 0);
    says_nothing(&agent);
}

#[test]
fn a_key_server_that_hangs_is_not_missed_while_its_keys_are_good() {
    let hosts = Hosts::new();
    let node = node(&hosts);
    let kms = hosts.direct(|| Kms::start("127.0.0.1:0".parse().unwrap()));
    let one = format!(
        "{{\"active\": \"k1\", \"keys\": {{\"k1\": \"{}\"}}}}",
        key(1)
    );
    kms.becomes(Mode::Gives(one));
    let agent = hosts.agent(&policy(&format!(
        "kms = \"http://{}/keys\", refresh = \"100ms\", max_age = \"60m\", timeout = \"300ms\"",
        kms.address()
    )));
    let to = node.addr();
    hosts.client(|| {
        let writer = Writer::new(to);
        eventually("there are keys", || writer.writes().is_ok());
        kms.becomes(Mode::Hangs);
        let before = fetches(&agent, "unanswered");
        eventually("it was asked, more than once", || {
            fetches(&agent, "unanswered") > before + 1
        });
        writer.writes().unwrap();
        assert_eq!(writer.reads()[0].1.as_deref(), Some(SECRET));
        // A reload goes on with the keys that there are.
        reload(&agent, "ok");
        let later = Writer::new(to);
        later.writes().unwrap();
        assert_eq!(later.reads()[0].1.as_deref(), Some(SECRET));
    });
    says_nothing(&agent);
}
