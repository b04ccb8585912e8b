//! Merged writes and the other steps of the pipeline; and a mark that comes meanwhile.

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
};

use cql_node::Node;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::common::{BINARY, PATIENCE, frames::void, world::scripted};

const BATCH: u8 = 0x0D;
const OVERLOADED: i32 = 0x1001;
const WRITE_TIMEOUT: i32 = 0x1100;

/// A connection that no rule is for.
fn direct(world: &World<'_>, node: &Node) -> Client {
    let stream = world.sandbox.server(|| TcpStream::connect(node.addr()));
    Client::begin(stream.unwrap().unwrap(), 4)
}

/// Three writes of the same partition in one piece, which fill a window, and their answers.
fn three(client: &mut Client, id: &[u8], v: &str) -> BTreeMap<i16, (u8, Vec<u8>)> {
    let version = client.version;
    let all = (10..13).map(|n| insert(version, n, id, (1, n.into()), v));
    send(client, &all.collect::<Vec<_>>());
    let got = answers(client, 3);
    assert!(got.keys().copied().eq(10..13));
    got
}

fn are_all(got: &BTreeMap<i16, (u8, Vec<u8>)>, code: i32) -> bool {
    got.values()
        .all(|(opcode, body)| *opcode == ERROR && body.starts_with(&code.to_be_bytes()))
}

#[test]
fn what_is_encrypted_is_merged() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.toml");
    let key = "07".repeat(32);
    fs::write(&keys, format!("active = \"k\"\n[keys]\nk = \"{key}\"\n")).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    world(|world| {
        let protect = format!(
            "{{ transform = \"protect\", columns = {{ \"shop.events\" = [\"v\"] }}, keys = \"{}\" }}",
            keys.display()
        );
        let steps = format!("{protect}, {}", step("window = \"1s\", max_statements = 3"));
        rule(world, world.database.addr(), &steps);
        world.client(4).does(TABLE);
        for (round, version) in (1..).zip([3, 4, 5]) {
            let mut client = world.client(version);
            let id = client.prepares(INSERT);
            let value = format!("of {version}");
            assert!(three(&mut client, &id, &value).values().all(is_void));
            assert_eq!(writes(world, "merged"), 3 * round);
            let expected: BTreeMap<i32, String> = (10..13).map(|at| (at, value.clone())).collect();
            assert_eq!(table(&mut client), expected);
            let stored = table(&mut direct(world, &world.database));
            assert_eq!(stored.len(), 3);
            assert!(
                stored.values().all(|v| v.starts_with("up1.k.")),
                "{stored:?}"
            );
        }
        // NULL is not encrypted, and waits like the others.
        let mut client = world.client(4);
        let id = client.prepares(INSERT);
        let key = 1_i32.to_be_bytes();
        let null = [&bound(&[&key, &key])[2..], &(-1_i32).to_be_bytes()].concat();
        let null = execute(4, 9, &id, 1, &[&[0, 3][..], &null].concat());
        send(
            &mut client,
            &[
                null,
                insert(4, 10, &id, (1, 2), "a"),
                insert(4, 11, &id, (1, 3), "b"),
            ],
        );
        assert!(answers(&mut client, 3).values().all(is_void));
        assert_eq!(windows(world, "full"), 4);
    });
}

#[test]
fn a_mirror_gets_the_batch_and_everybody_waits_for_it() {
    world(|world| {
        let mirror = world.mirror();
        direct(world, &mirror).does(TABLE);
        let coalesce = step("window = \"1s\", max_statements = 3");
        let to = mirror.addr();
        let steps = format!(
            "{coalesce}, {{ transform = \"mirror\", to = \"{to}\", dual_write = true, on_failure = \"error\", timeout = \
             \"10s\" }}"
        );
        rule(world, world.database.addr(), &steps);
        world.client(4).does(TABLE);
        for version in [3, 4, 5] {
            let mut client = world.client(version);
            let id = client.prepares(INSERT);
            let batches = mirror.tally().requests[usize::from(BATCH)];
            let value = format!("of {version}");
            assert!(three(&mut client, &id, &value).values().all(is_void));
            // Acknowledged is what both have.
            assert_eq!(
                mirror.tally().requests[usize::from(BATCH)],
                batches + 1,
                "version {version}"
            );
            let there = table(&mut direct(world, &mirror));
            assert_eq!(there, table(&mut client));
            assert!(there.len() == 3 && there.values().all(|v| *v == value));
        }
        let mut client = world.client(4);
        let id = client.prepares(INSERT);
        drop(mirror);
        let got = three(&mut client, &id, "only here");
        assert!(are_all(&got, WRITE_TIMEOUT), "{got:?}");
        let here = table(&mut client);
        assert!(here.values().all(|v| v == "only here"), "{here:?}");
    });
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn wait_for(file: &Path, count: usize) -> Vec<Value> {
    eventually("the lines are there", || lines(file).len() >= count);
    let lines = lines(file);
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

fn folder() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    let (audit, slow) = (path("audit.log"), path("slow.log"));
    (folder, audit, slow)
}

#[test]
fn reporters_see_each_write_and_never_the_batch() {
    let (_folder, audit, slow) = folder();
    world(|world| {
        let reporters = format!(
            "{{ transform = \"audit\", file = \"{}\", tables = [\"shop.events\"], kinds = [\"writes\"] }}, {{ transform \
             = \"slowlog\", over = \"1ms\", file = \"{}\" }}",
            audit.display(),
            slow.display()
        );
        // The window has to be open for longer than what is slow.
        let coalesce = step("window = \"300ms\", max_statements = 9");
        let steps = format!("{coalesce}, {reporters}");
        rule(world, world.database.addr(), &steps);
        world.client(4).does(TABLE);
        for (round, version) in (1..).zip([3, 4, 5]) {
            let mut client = world.client(version);
            let id = client.prepares(INSERT);
            assert!(three(&mut client, &id, "v").values().all(is_void));
            let lines = wait_for(&audit, 3 * round);
            for line in &lines[3 * (round - 1)..] {
                assert_eq!(line["kind"], "insert");
                assert_eq!(line["outcome"], "ok");
                assert_eq!(line["values"], 3);
                assert_eq!(line["table"], "events");
            }
        }
        assert!(writes(world, "merged") > 0);
        let of_table = || {
            let lines = lines(&slow);
            let is_write = |line: &Value| line["kind"] == "insert";
            assert!(!lines.iter().any(|line| line["kind"] == "batch"));
            lines.into_iter().filter(is_write).collect::<Vec<_>>()
        };
        eventually("those that waited are slow", || of_table().len() == 9);
        for line in of_table() {
            assert!(line["latency_us"].as_u64().unwrap() >= 1_000, "{line}");
        }
    });
}

#[test]
fn what_a_step_behind_refuses_is_refused_to_each_and_to_the_reporters() {
    let (_folder, audit, _) = folder();
    world(|world| {
        world.database_has_the_table();
        let audited = format!(
            "{{ transform = \"audit\", file = \"{}\", tables = [\"shop.events\"], kinds = [\"writes\"] }}",
            audit.display()
        );
        // One for the PREPARE, and no more come before the test has ended.
        let throttle =
            "{ transform = \"throttle\", rate = 0.001, burst = 1, mode = \"overloaded\" }";
        let coalesce = step("window = \"1s\", max_statements = 3");
        let steps = format!("{coalesce}, {throttle}, {audited}");
        rule(world, world.database.addr(), &steps);
        let mut client = world.client(4);
        let id = client.prepares(INSERT);
        let got = three(&mut client, &id, "v");
        assert!(are_all(&got, OVERLOADED), "{got:?}");
        for line in wait_for(&audit, 3) {
            assert_eq!(line["kind"], "insert");
            assert_eq!(line["outcome"], "refused");
            assert_eq!(line["by"], "throttle");
        }
        assert_eq!(table(&mut direct(world, &world.database)).len(), 0);
    });
}

impl World<'_> {
    fn database_has_the_table(&self) {
        direct(self, &self.database).does(TABLE);
    }

    /// Says what is to become of a client's flow; it has when this returns.
    fn mark(&self, client: &Client, what: &str) {
        let own = client.stream.local_addr().unwrap().to_string();
        let flows = self.agent.json("/flows").unwrap();
        let mut flows = flows.as_array().unwrap().iter();
        let flow = flows.find(|flow| flow["client"] == own.as_str()).unwrap();
        let mut mark = Command::new(BINARY);
        mark.args(["mark", &flow["id"].to_string(), what, "--control"]);
        let marked = mark.arg(self.agent.control()).output().unwrap();
        assert!(marked.status.success(), "{marked:?}");
    }
}

/// The flow leaves its pipeline while a batch is out, and perhaps is decoded again before that is answered.
#[test]
fn a_mark_while_a_batch_is_out_leaves_nobody_waiting() {
    for marks in [&["bypass"][..], &["bypass", "enrich"]] {
        world(|world| {
            let (tells, told) = mpsc::channel();
            let (to, database) = scripted(world, 4, move |nth, asked| {
                let stream = i16::from_be_bytes([asked[2], asked[3]]);
                tells.send((asked[4], stream)).unwrap();
                match nth {
                    0 => frame(RESPONSE | 4, stream, RESULT, &prepared(b"id")),
                    1 => Vec::new(),
                    // Behind that of the batch.
                    2 => [void(4, 10), void(4, stream)].concat(),
                    _ => void(4, stream),
                }
            });
            let next = || told.recv_timeout(PATIENCE).unwrap();
            rule(world, to, &step("window = \"1s\", max_statements = 3"));
            let stream = world.sandbox.client(|| TcpStream::connect(to));
            let mut client = Client::begin(stream.unwrap().unwrap(), 4);
            let id = client.prepares(INSERT);
            next();
            let all = (10..13).map(|n| insert(4, n, &id, (1, n.into()), "v"));
            send(&mut client, &all.collect::<Vec<_>>());
            assert_eq!(next(), (BATCH, 10));
            for mark in marks {
                world.mark(&client, mark);
            }
            let before = [writes(world, "merged"), writes(world, "alone")];
            send(&mut client, &[query(4, 20, SELECT)]);
            let got = answers(&mut client, 4);
            assert!(got.keys().copied().eq([10, 11, 12, 20]), "{got:?}");
            assert!(got.values().all(is_void));
            assert_eq!(next().1, 20);
            // It is out of its pipeline, so nothing waits.
            send(&mut client, &[insert(4, 21, &id, (1, 1), "v")]);
            assert!(is_void(&answers(&mut client, 1)[&21]));
            assert_eq!(next(), (EXECUTE, 21));
            assert_eq!([writes(world, "merged"), writes(world, "alone")], before);
            drop(client);
            database.join().unwrap();
        });
    }
}
