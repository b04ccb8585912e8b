//! Statements of 10 MB through pipelines of all steps: they pass, or their client gets what the settings say; memory is
//! bounded, and another flow does not notice.

use std::{
    fs,
    io::Write,
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use cassandra_protocol::crc::{crc24, crc32};
use nix::sys::signal::Signal;

use crate::common::{
    eventually,
    frames::{RESULT, frame, query},
    world::{Client, ERROR, PREPARE, World, insert, nobody, world},
};

const LARGE_BYTES: usize = 10 << 20;
const BATCH: u8 = 0x0D;
const INVALID: [u8; 4] = [0, 0, 0x22, 0];

/// One statement at a time is held back, in the version of each step that changes it, and copied for the mirror; so it is there
/// a dozen times at most, and buffers that grow are there twice.
const MOST_BYTES: usize = 24 * LARGE_BYTES;

/// Between two requests of the flow beside.
const PAUSE: Duration = Duration::from_millis(2);

const LONG: Duration = Duration::from_secs(120);

/// More than any line of a journal has: a record is of 64 KiB at most.
const MOST_LINE_BYTES: usize = 128 << 10;

const EVENTS: &str = "CREATE TABLE shop.events (id int, at int, v text, PRIMARY KEY (id, at))";

/// Puts a rule with these steps into force.
fn rule(world: &World<'_>, steps: &str) {
    let port = world.database.addr().port();
    let policy = format!(
        "[[rule]]\nname = \"r\"\nto = [\":{port}\"]\naction = \"enrich\"\nfail = \"closed\"\npipeline = [{steps}]\n"
    );
    let loaded = "underpass_reloads_total{result=\"ok\"}";
    let before = world.agent.metric(loaded).unwrap();
    world.agent.write_policy(&policy).unwrap();
    world.agent.signal(Signal::SIGHUP).unwrap();
    eventually("the policy is in force", || {
        world.agent.metric(loaded).unwrap() > before
    });
}

/// A part of a frame that is too large for one segment.
fn part(payload: &[u8]) -> Vec<u8> {
    let mut segment = (payload.len() as u32).to_le_bytes()[..3].to_vec();
    let crc = crc24(&segment) as u32;
    segment.extend(&crc.to_le_bytes()[..3]);
    segment.extend(payload);
    segment.extend(crc32(payload).to_le_bytes());
    segment
}

/// Sends a frame of any length; what it is answered by.
fn ask(client: &mut Client, frame: &[u8]) -> (u8, Vec<u8>) {
    match client.version {
        5 => {
            for payload in frame.chunks((1 << 17) - 1) {
                client.stream.write_all(&part(payload)).unwrap();
            }
        }
        _ => client.stream.write_all(frame).unwrap(),
    }
    let (_, opcode, body) = client.next();
    (opcode, body)
}

fn prepare(version: u8, text: &str) -> Vec<u8> {
    let mut body = [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    body.extend(if version == 5 { &[0; 4][..] } else { &[] });
    frame(version, 2, PREPARE, &body)
}

fn batch(version: u8, text: &str) -> Vec<u8> {
    let length = (text.len() as u32).to_be_bytes();
    let mut body = [&[0, 0, 1, 0][..], &length, text.as_bytes(), &[0, 0, 0, 1]].concat();
    body.extend(if version == 5 { &[0; 4][..] } else { &[0] });
    frame(version, 4, BATCH, &body)
}

/// An application that is patient: what encrypts and copies 10 MB is not optimised here, and the machine may have other
/// things to do.
fn client(world: &World<'_>, version: u8) -> Client {
    let client = world.client(version);
    client.stream.set_read_timeout(Some(LONG)).unwrap();
    client
}

/// Runs `body` beside a flow that asks all the time, and is answered.
fn beside_another(world: &World<'_>, body: impl FnOnce()) {
    let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut other = client(world, 4);
    thread::scope(|scope| {
        let bystander = scope.spawn(|| {
            while !over.load(Relaxed) {
                other.does("SELECT release_version FROM system.local");
                answers.fetch_add(1, Relaxed);
                thread::sleep(PAUSE);
            }
        });
        // Also if it fails, or the other would ask for ever.
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        over.store(true, Relaxed);
        bystander.join().unwrap();
        ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(answers.load(Relaxed) > 0);
}

/// Sends statements of 10 MB, one after the other; ids from `base` up.
fn asks_for_much(world: &World<'_>, client: &mut Client, base: i32, value: &str) {
    let version = client.version;
    let is_there = |id: i32| {
        let found = world.value_at(world.database.addr(), id);
        assert!(found.as_deref() == Some(value), "v{version}, {id}");
    };
    let (opcode, _) = ask(client, &query(version, 1, &insert(base, value)));
    assert_eq!(opcode, RESULT, "QUERY");
    is_there(base);
    let (opcode, body) = ask(client, &prepare(version, &insert(base + 1, value)));
    assert_eq!(opcode, RESULT, "PREPARE");
    let length = usize::from(u16::from_be_bytes([body[4], body[5]]));
    let execute = client.execute(&body[6..6 + length], &[]);
    assert_eq!(ask(client, &execute).0, RESULT, "EXECUTE of a long text");
    is_there(base + 1);
    let id = client.prepares("INSERT INTO shop.orders (id, v) VALUES (?, ?)");
    let execute = client.execute(&id, &[&(base + 2).to_be_bytes(), value.as_bytes()]);
    let (opcode, _) = ask(client, &execute);
    assert_eq!(opcode, RESULT, "EXECUTE with a long value");
    is_there(base + 2);
    let (opcode, _) = ask(client, &batch(version, &insert(base + 3, value)));
    assert_eq!(opcode, RESULT, "BATCH");
    is_there(base + 3);
}

#[test]
fn they_pass_all_steps_that_need_not_understand_them() {
    const CLIENTS: [(i32, u8); 5] = [(300, 3), (400, 4), (500, 5), (600, 4), (700, 5)];
    const INSERTS: usize = 5 * CLIENTS.len();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    world(|world| {
        let mirror = world.mirror();
        for node in [world.database.addr(), mirror.addr()] {
            let direct = world.sandbox.server(|| TcpStream::connect(node));
            Client::begin(direct.unwrap().unwrap(), 4).does(EVENTS);
        }
        let before = world.most_resident();
        rule(
            world,
            &format!(
                "{{ transform = \"stats\" }}, {{ transform = \"count\" }}, \
                 {{ transform = \"slowlog\", over = \"0ms\", file = {:?} }}, \
                 {{ transform = \"audit\", file = {:?}, statement = true, full = \"hold\" }}, \
                 {{ transform = \"debug\", file = {:?}, values = true, bytes = 4096 }}, \
                 {{ transform = \"trace\", endpoint = \"http://{}\", sample = 1 }}, \
                 {{ transform = \"guard\", refuse = [\"ddl\", \"roles\", \"truncate\"], max_batch = 9 }}, \
                 {{ transform = \"throttle\", rate = 1000000, per = \"table\" }}, \
                 {{ transform = \"consistency\", at_least = \"LOCAL_ONE\", kinds = [\"writes\"] }}, \
                 {{ transform = \"paging\", at_most = 100 }}, \
                 {{ transform = \"rewrite\", addresses = \"dialled\" }}, \
                 {{ transform = \"lookup\" }}, \
                 {{ transform = \"coalesce\", tables = {{ \"shop.events\" = {{ partition_key = [\"id\"], clustering = \
                 [\"at\"], columns = [\"v\"] }} }} }}, \
                 {{ transform = \"tag\", service = \"s\" }}, {{ transform = \"tracing\", one_in = 1000000 }}, \
                 {{ transform = \"mirror\", to = \"{}\", compare = true, what = [\"reads\", \"writes\"], timeout = \"10s\" }}, \
                 {{ transform = \"cache\", redis = \"{}\", tables = [\"shop.orders\"], ttl = \"1s\" }}, \
                 {{ transform = \"fold\" }}",
                file("slow"),
                file("audit"),
                file("debug"),
                nobody(world),
                mirror.addr(),
                nobody(world),
            ),
        );
        let value = "x".repeat(LARGE_BYTES);
        beside_another(world, || {
            for (base, version) in CLIENTS {
                let mut client = client(world, version);
                asks_for_much(world, &mut client, base, &value);
                let id = client.prepares("INSERT INTO shop.events (id, at, v) VALUES (?, ?, ?)");
                let values = [&base.to_be_bytes()[..], &[0; 4], value.as_bytes()];
                let execute = client.execute(&id, &values);
                assert_eq!(
                    ask(&mut client, &execute).0,
                    RESULT,
                    "of those that are merged"
                );
                client.inserts(base + 4, "and what is small");
            }
            // Back, too.
            let mut client = client(world, 4);
            let (opcode, body) =
                client.ask(&query(4, 1, "SELECT v FROM shop.orders WHERE id = 300"));
            assert_eq!((opcode, body.ends_with(value.as_bytes())), (RESULT, true));
        });
        // What the mirror has is what is not too long for it: a text that is prepared is.
        eventually("the mirror has it", || {
            world.value_at(mirror.addr(), 702).as_deref() == Some(&*value)
        });
        assert!(world.fate("too_long") > 0);
        let grown = world.most_resident().saturating_sub(before);
        assert!(grown < MOST_BYTES, "{grown} bytes");
        // Each record is written or counted; none is of 10 MB.
        for name in ["slow", "audit", "debug"] {
            let written = fs::read_to_string(file(name)).unwrap();
            let longest = written.lines().map(str::len).max();
            assert!(
                longest.is_some_and(|bytes| bytes < MOST_LINE_BYTES),
                "{name}: {longest:?}"
            );
        }
        // Each of them was written down, without a text that is too long to be shown.
        let audited = || fs::read_to_string(file("audit")).unwrap();
        eventually("each has its line", || {
            audited().matches("\"kind\":\"insert\"").count() == INSERTS
        });
        assert!(audited().contains("and what is small"));
    });
}

#[test]
fn what_has_to_understand_them_refuses_them() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.toml");
    let key = "11".repeat(32);
    fs::write(&keys, format!("active = \"k1\"\n[keys]\nk1 = \"{key}\"\n")).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let value = format!("S3CRET{}", "x".repeat(LARGE_BYTES));
    world(|world| {
        let steps = [
            format!(
                "{{ transform = \"protect\", columns = {{ \"shop.orders\" = [\"v\"] }}, keys = {keys:?} }}"
            ),
            "{ transform = \"rewrite\", tables = { \"shop.orders\" = \"shop.other\" } }".to_owned(),
            "{ transform = \"guard\", refuse = [\"unknown\"] }".to_owned(),
            "{ transform = \"guard\", max_bytes = 1000000 }".to_owned(),
            "{ transform = \"guard\", tables = [\"yard\"] }".to_owned(),
        ];
        for (step, version) in steps.iter().zip([3, 4, 5].into_iter().cycle()) {
            rule(world, step);
            beside_another(world, || {
                let mut client = client(world, version);
                for large in [
                    query(version, 1, &insert(1, &value)),
                    prepare(version, &insert(1, &value)),
                    batch(version, &insert(1, &value)),
                ] {
                    let (opcode, body) = ask(&mut client, &large);
                    assert_eq!((opcode, &body[..4]), (ERROR, &INVALID[..]), "{step}");
                    assert!(body.len() < 1000, "{step}");
                }
                assert_eq!(world.value_at(world.database.addr(), 1), None, "{step}");
                client.does("SELECT * FROM system.local");
            });
        }
        assert!(!world.agent.log().contains("S3CRET"));
    });
}

#[test]
fn what_only_looks_lets_them_pass_and_counts_them() {
    let value = "x".repeat(LARGE_BYTES);
    world(|world| {
        rule(
            world,
            "{ transform = \"guard\", max_bytes = 1000000, mode = \"shadow\" }",
        );
        let mut client = client(world, 4);
        let (opcode, _) = ask(&mut client, &query(4, 1, &insert(1, &value)));
        assert_eq!(opcode, RESULT);
        let labels = "outcome=\"would_refuse\",reason=\"bytes\",rule=\"r\",transform=\"guard\"";
        let sample = format!("underpass_transforms_total{{{labels}}}");
        assert_eq!(world.agent.metric(&sample).unwrap(), 1.0);
    });
}

#[test]
fn one_that_cannot_be_at_both_does_not_reach_the_one() {
    let value = "x".repeat(LARGE_BYTES);
    world(|world| {
        let mirror = world.mirror();
        let dual = "dual_write = true, on_failure = \"error\", timeout = \"10s\"";
        rule(
            world,
            &format!(
                "{{ transform = \"mirror\", to = \"{}\", {dual} }}",
                mirror.addr()
            ),
        );
        for version in [4, 5] {
            let mut client = client(world, version);
            let (opcode, _) = ask(&mut client, &query(version, 1, &insert(1, &value)));
            assert_eq!(opcode, RESULT);
            for node in [world.database.addr(), mirror.addr()] {
                assert!(
                    world.value_at(node, 1).as_deref() == Some(&*value),
                    "at once"
                );
            }
            // Which text it was the mirror cannot be told.
            let (opcode, body) = ask(&mut client, &prepare(version, &insert(2, &value)));
            assert_eq!(opcode, RESULT, "{}", String::from_utf8_lossy(&body));
            let length = usize::from(u16::from_be_bytes([body[4], body[5]]));
            let execute = client.execute(&body[6..6 + length], &[]);
            let (opcode, body) = ask(&mut client, &execute);
            assert_eq!((opcode, &body[..4]), (ERROR, &INVALID[..]), "v{version}");
            assert_eq!(world.value_at(world.database.addr(), 2), None);
        }
    });
}

#[test]
fn a_long_value_is_encrypted_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.toml");
    let key = "11".repeat(32);
    fs::write(&keys, format!("active = \"k1\"\n[keys]\nk1 = \"{key}\"\n")).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let value = "S3CRET, ".repeat(LARGE_BYTES / 8);
    world(|world| {
        rule(
            world,
            &format!(
                "{{ transform = \"protect\", columns = {{ \"shop.orders\" = [\"v\"] }}, keys = {keys:?} }}"
            ),
        );
        beside_another(world, || {
            for version in [3, 4, 5] {
                let mut client = client(world, version);
                let id = client.prepares("INSERT INTO shop.orders (id, v) VALUES (?, ?)");
                let execute = client.execute(&id, &[&1_i32.to_be_bytes(), value.as_bytes()]);
                assert_eq!(ask(&mut client, &execute).0, RESULT, "v{version}");
                let stored = world.value_at(world.database.addr(), 1).unwrap();
                assert!(stored.starts_with("up1.k1.") && !stored.contains("S3CRET"));
                if version < 5 {
                    let select = query(version, 1, "SELECT v FROM shop.orders WHERE id = 1");
                    let (opcode, body) = client.ask(&select);
                    assert_eq!((opcode, body.ends_with(value.as_bytes())), (RESULT, true));
                }
            }
        });
    });
}
