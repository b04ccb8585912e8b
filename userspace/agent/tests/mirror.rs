//! Rules with `mirror`: what reaches the second cluster, what is told of differences, and that one which is not there,
//! hangs or dies is nobody else's trouble.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "what it shares with other tests has more than it needs"
)]

#[path = "tls/certs.rs"]
mod certs;
mod common;
#[path = "mirror/encrypted.rs"]
mod encrypted;
#[path = "drivers/raw/frames.rs"]
mod frames;
#[path = "mirror/world.rs"]
mod world;

use std::{
    net::{SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use common::eventually;
use frames::{RESPONSE, RESULT, frame, query};
use nix::sys::signal::Signal;
use scylla::client::{Compression, session_builder::SessionBuilder};
use testkit::node::{Credentials, Delays, NodeOptions};
use world::{
    Client, ERROR, EXECUTE, PREPARE, bound, hangs, insert, nobody, node, scripted, short, world,
};

const BATCH: u8 = 0x0D;

#[test]
fn writes_reach_both_however_they_are_asked_for() {
    world(|world| {
        let mirror = world.mirror();
        world.rule(mirror.addr(), ", timeout = \"10s\"");
        for version in [3, 4, 5] {
            let base = i32::from(version) * 10;
            let before = world.fate("acknowledged");
            let mut client = world.client(version);
            client.inserts(base, "text");
            client.does("USE shop");
            client.does(&format!(
                "INSERT INTO orders (id, v) VALUES ({}, 'used')",
                base + 1
            ));
            let id = client.prepares("INSERT INTO orders (id, v) VALUES (?, ?)");
            let key = (base + 2).to_be_bytes();
            let execute = client.execute(&id, &[&key, b"bound"]);
            assert_eq!(client.ask(&execute).0, RESULT);
            // A batch of a text and a prepared statement.
            let text = insert(base + 3, "batched");
            let mut body = [
                &[0, 0, 2, 0][..],
                &(text.len() as u32).to_be_bytes(),
                text.as_bytes(),
                &[0, 0],
            ]
            .concat();
            body.push(1);
            body.extend(short(&id));
            body.extend(bound(&[&(base + 4).to_be_bytes(), b"bound"]));
            body.extend([0, 1]);
            body.extend(match version {
                5 => &[0; 4][..],
                _ => &[0],
            });
            assert_eq!(client.ask(&frame(version, 4, BATCH, &body)).0, RESULT);
            // Neither a read, nor a definition, nor what drivers ask.
            client.does("SELECT v FROM shop.orders WHERE id = 1");
            client.does("SELECT * FROM system.local");
            client.does(&format!("CREATE TABLE shop.t{version} (k int PRIMARY KEY)"));
            eventually("the mirror has acknowledged", || {
                world.fate("acknowledged") == before + 4
            });
            for (n, value) in [
                (0, "text"),
                (1, "used"),
                (2, "bound"),
                (3, "batched"),
                (4, "bound"),
            ] {
                for node in [world.database.addr(), mirror.addr()] {
                    let found = world.value_at(node, base + n);
                    assert_eq!(found.as_deref(), Some(value), "v{version}, {n} at {node}");
                }
            }
        }
        assert_eq!(world.fate("refused"), 0);
    });
}

#[test]
fn a_mirror_that_is_away_and_returns_is_nobody_elses_trouble() {
    world(|world| {
        let addr = nobody(world);
        world.rule(addr, ", timeout = \"1s\"");
        let mut client = world.client(4);
        client.inserts(1, "one");
        eventually("it is away", || world.fate("away") == 1);
        eventually("it is told", || {
            world.agent.log().contains("the mirror is away")
        });
        // It comes.
        let options = || NodeOptions {
            listen: addr,
            ..NodeOptions::default()
        };
        let mirror = node(world.sandbox, options());
        let mut next = 2;
        eventually("it is asked again", || {
            client.inserts(next, "again");
            next += 1;
            world.fate("acknowledged") > 0
        });
        eventually("it is told", || {
            world.agent.log().contains("the mirror is there again")
        });
        // It goes, and another is there, which has nothing prepared.
        let id = client.prepares("INSERT INTO shop.orders (id, v) VALUES (?, ?)");
        let execute = client.execute(&id, &[&1_000_i32.to_be_bytes(), b"prepared"]);
        let before = world.fate("acknowledged");
        client.ask(&execute);
        eventually("it has it", || world.fate("acknowledged") > before);
        drop(mirror);
        let mirror = node(world.sandbox, options());
        eventually("the new one has it", || {
            assert_eq!(client.ask(&execute).0, RESULT);
            world.value_at(mirror.addr(), 1_000).is_some()
        });
    });
}

#[test]
fn a_mirror_that_hangs_or_dies_is_nobody_elses_trouble() {
    world(|world| {
        let mirror = hangs(world);
        world.rule(mirror.addr, ", timeout = \"50ms\"");
        let mut client = world.client(4);
        for id in 0..10 {
            client.inserts(id, "x");
        }
        eventually("all are late", || world.fate("late") == 10);
        mirror.dies();
        let mirror = hangs(world);
        world.rule(mirror.addr, ", timeout = \"10s\"");
        let mut client = world.client(4);
        client.inserts(1, "x");
        mirror.dies();
        eventually("it is lost", || world.fate("lost") + world.fate("away") > 0);
    });
}

#[test]
fn a_mirror_that_is_slow_is_late_and_its_answers_are_nobody_elses() {
    const REQUESTS: i32 = 10;
    const TAKES: Duration = Duration::from_millis(400);
    let slow = || NodeOptions {
        delays: Some(Delays {
            seed: 1,
            least: TAKES,
            tail: Duration::ZERO,
        }),
        ..NodeOptions::default()
    };
    world(|world| {
        let mirror = node(world.sandbox, slow());
        let settings = ", what = [\"reads\", \"writes\"], compare = true, timeout = \"50ms\"";
        world.rule(mirror.addr(), settings);
        let mut client = world.client(4);
        for id in 0..REQUESTS {
            client.inserts(id, "x");
        }
        eventually("all are late", || world.fate("late") == REQUESTS as u64);
        // What it says afterwards is no answer to what is asked then.
        world.rule(
            mirror.addr(),
            ", what = [\"reads\", \"writes\"], compare = true, timeout = \"10s\"",
        );
        let mut patient = world.client(4);
        for id in 0..REQUESTS {
            client.inserts(id, "late");
            patient.does(&format!(
                "SELECT v FROM shop.orders WHERE id = {}",
                id + REQUESTS
            ));
        }
        let all = REQUESTS as u64;
        eventually("it is compared", || world.compared("same") >= all);
        assert_eq!(world.compared("values") + world.compared("rows"), 0);

        // A write that both are to have waits for it, as long as it may.
        for (timeout, on_failure, expected) in [
            ("50ms", "error", ERROR),
            ("50ms", "pass", RESULT),
            ("10s", "error", RESULT),
        ] {
            let dual = format!(
                ", dual_write = true, on_failure = \"{on_failure}\", timeout = \"{timeout}\""
            );
            world.rule(mirror.addr(), &dual);
            let mut client = world.client(4);
            for stream in 1..4 {
                client.send(&query(4, stream, &insert(stream.into(), timeout)));
            }
            let mut streams: Vec<i16> = (1..4)
                .map(|_| {
                    let (stream, opcode, _) = client.next();
                    assert_eq!(opcode, expected, "{timeout} {on_failure}");
                    stream
                })
                .collect();
            streams.sort_unstable();
            assert_eq!(streams, [1, 2, 3]);
        }
    });
}

#[test]
fn a_flood_is_dropped_and_its_flow_is_unharmed() {
    // More than the mirror may have in hand.
    const MANY: usize = 100;
    const EACH_BYTES: usize = 1 << 20;
    world(|world| {
        let mirror = hangs(world);
        world.rule(mirror.addr, ", timeout = \"10s\"");
        let mut client = world.client(4);
        let mut reader = Client {
            stream: client.stream.try_clone().unwrap(),
            version: 4,
        };
        let text = insert(1, &"x".repeat(EACH_BYTES));
        thread::scope(|scope| {
            scope.spawn(|| {
                for stream in 0..MANY {
                    client.send(&query(4, stream as i16, &text));
                }
            });
            for stream in 0..MANY {
                let (of, opcode, _) = reader.next();
                assert_eq!((of, opcode), (stream as i16, RESULT));
            }
        });
        let full = world.fate("full");
        assert!((1..MANY as u64).contains(&full), "{full}");
        assert_eq!(world.waited("passed"), 0, "nothing waits");
        mirror.dies();
    });
}

#[test]
fn it_logs_in_and_says_who_cannot() {
    world(|world| {
        let (user, password) = ("mirror".to_owned(), "s3cret".to_owned());
        let credentials = Some(Credentials { user, password });
        let mirror = node(
            world.sandbox,
            NodeOptions {
                credentials,
                ..NodeOptions::default()
            },
        );
        world.rule(mirror.addr(), "");
        let mut client = world.client(4);
        client.inserts(1, "x");
        eventually("it is not let in", || world.fate("away") == 1);
        eventually("it is told", || {
            world.agent.log().contains("it wants a log-in")
        });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "s3cret\n").unwrap();
        let login = format!(", username = \"mirror\", password_file = {file:?}, timeout = \"10s\"");
        world.rule(mirror.addr(), &login);
        let mut client = world.client(4);
        client.inserts(2, "x");
        eventually("it is", || world.fate("acknowledged") == 1);
        assert!(!world.agent.log().contains("s3cret"));
        // A file that is not there leaves the policy that is in force.
        std::fs::remove_file(&file).unwrap();
        let failed = "underpass_reloads_total{result=\"error\"}";
        let before = world.agent.metric(failed).unwrap();
        world.agent.signal(Signal::SIGHUP).unwrap();
        eventually("it is refused", || {
            world.agent.metric(failed).unwrap() > before
        });
        assert!(world.agent.log().contains("password_file"));
    });
}

#[test]
fn what_differs_is_found_and_told_without_values() {
    const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 1";
    world(|world| {
        let mirror = world.mirror();
        let settings = ", what = [\"reads\", \"writes\"], compare = true, timeout = \"10s\"";
        world.rule(mirror.addr(), settings);
        for version in [4, 5] {
            let same = world.compared("same");
            let mut client = world.client(version);
            client.inserts(1, "alike");
            // In this order at the mirror, too.
            eventually("it is there", || world.compared("same") == same + 1);
            client.does(SELECT);
            let id = client.prepares("SELECT v FROM shop.orders WHERE id = ?");
            let execute = client.execute(&id, &[&1_i32.to_be_bytes()]);
            assert_eq!(client.ask(&execute).0, RESULT);
            eventually("both are alike", || world.compared("same") == same + 3);

            let direct = || {
                let stream = world.sandbox.server(|| TcpStream::connect(mirror.addr()));
                Client::begin(stream.unwrap().unwrap(), 4)
            };
            let different = |kind: &str, there: &str, here: &str, client: &mut Client| {
                direct().does(there);
                let before = world.compared(kind);
                client.ask(&query(version, 9, here));
                eventually(kind, || world.compared(kind) == before + 1);
            };
            different("values", &insert(1, "s3cret"), SELECT, &mut client);
            different(
                "rows",
                "DELETE FROM shop.orders WHERE id = 1",
                SELECT,
                &mut client,
            );
            let select_none = "SELECT v FROM shop.none WHERE id = 1";
            // Both refuse that, alike.
            let same = world.compared("same");
            assert_eq!(client.ask(&query(version, 9, select_none)).0, ERROR);
            eventually("both refuse it", || world.compared("same") == same + 1);
            let create = format!("CREATE TABLE shop.only{version} (id int PRIMARY KEY)");
            let select = format!("SELECT * FROM shop.only{version}");
            different("database_error", &create, &select, &mut client);
            // Some of it only this database has.
            let create = format!("CREATE TABLE shop.here{version} (id int PRIMARY KEY)");
            client.does(&create);
            let before = world.compared("mirror_error");
            client.does(&format!("SELECT * FROM shop.here{version}"));
            eventually("the mirror refuses", || {
                world.compared("mirror_error") == before + 1
            });
        }
        let log = world.agent.log();
        assert!(log.contains("the mirror differs"), "{log}");
        assert!(
            log.contains("SELECT v FROM shop.orders WHERE id = ?"),
            "{log}"
        );
        for value in ["s3cret", "733363726574"] {
            assert!(!log.contains(value), "{log}");
        }
        world.rule(mirror.addr(), &format!("{settings}, show_values = true"));
        let mut client = world.client(4);
        client.inserts(2, "here");
        eventually("it is there", || world.value_at(mirror.addr(), 2).is_some());
        let stream = world.sandbox.server(|| TcpStream::connect(mirror.addr()));
        Client::begin(stream.unwrap().unwrap(), 4).does(&insert(2, "there"));
        client.does("SELECT v FROM shop.orders WHERE id = 2");
        eventually("values are told", || {
            let log = world.agent.log();
            log.contains("0x68657265") && log.contains("0x7468657265")
        });
    });
}

#[test]
fn a_write_is_acknowledged_when_both_have_it() {
    world(|world| {
        let mirror = world.mirror();
        world.rule(
            mirror.addr(),
            ", dual_write = true, on_failure = \"error\", timeout = \"10s\"",
        );
        for version in [3, 4, 5] {
            let mut client = world.client(version);
            for n in 0..20 {
                let id = i32::from(version) * 100 + n;
                client.inserts(id, "both");
                let found = world.value_at(mirror.addr(), id);
                assert_eq!(found.as_deref(), Some("both"), "v{version}: at once");
            }
        }
        // What the mirror refuses is not acknowledged; what the database refuses is its own matter.
        let mut client = world.client(4);
        client.does("CREATE TABLE shop.here (id int PRIMARY KEY)");
        let (opcode, body) = client.ask(&query(4, 1, "INSERT INTO shop.here (id) VALUES (1)"));
        assert_eq!((opcode, &body[..4]), (ERROR, &[0, 0, 0x11, 0][..]));
        let (opcode, body) = client.ask(&query(4, 1, "INSERT INTO shop.none (id) VALUES (1)"));
        assert_eq!((opcode, &body[..4]), (ERROR, &[0, 0, 0x22, 0][..]));
    });
}

#[test]
fn a_write_that_the_mirror_has_not_is_an_error_or_not_as_is_wanted() {
    world(|world| {
        let away = nobody(world);
        for (on_failure, expected) in [("pass", RESULT), ("error", ERROR)] {
            let settings = format!(", dual_write = true, on_failure = \"{on_failure}\"");
            let before = world.agent.metric("underpass_reloads_total{result=\"ok\"}");
            assert!(before.is_ok());
            world.rule(away, &format!("{settings}, timeout = \"10s\""));
            for version in [3, 4, 5] {
                let mut client = world.client(version);
                let (opcode, body) = client.ask(&query(version, 1, &insert(1, "x")));
                assert_eq!(opcode, expected, "v{version} {on_failure}");
                if opcode == ERROR {
                    assert_eq!(body[..4], [0, 0, 0x11, 0], "a write timeout");
                    let text = String::from_utf8_lossy(&body);
                    assert!(
                        text.contains("not acknowledged by the mirror: away"),
                        "{text}"
                    );
                    assert!(body.ends_with(b"\0\x01\0\0\0\x01\0\0\0\x02\0\x06SIMPLE"));
                }
            }
            // One that hangs.
            let mirror = hangs(world);
            world.rule(mirror.addr, &format!("{settings}, timeout = \"100ms\""));
            let mut client = world.client(4);
            assert_eq!(client.ask(&query(4, 1, &insert(2, "x"))).0, expected);
            assert_eq!(client.ask(&query(4, 1, &insert(3, "x"))).0, expected);
            mirror.dies();
        }
        assert!(world.waited("passed") > 0 && world.waited("refused") > 0);
    });
}

#[test]
fn only_the_write_waits_and_a_flow_that_ends_abandons_it() {
    world(|world| {
        let mirror = hangs(world);
        world.rule(mirror.addr, ", dual_write = true, timeout = \"10s\"");
        let mut client = world.client(4);
        let mut other = world.client(4);
        client.send(&query(4, 7, &insert(1, "x")));
        // Others on the same connection do not, and their answers come first.
        for stream in [1, 2] {
            client.send(&query(4, stream, "SELECT v FROM shop.orders WHERE id = 1"));
            assert_eq!(client.next().0, stream);
        }
        other.does("SELECT v FROM shop.orders WHERE id = 1");
        // One that a mark takes out of its pipeline has its answer at once.
        let mut marked = world.client(4);
        marked.send(&query(4, 5, &insert(3, "x")));
        marked.send(&query(4, 6, "SELECT v FROM shop.orders WHERE id = 1"));
        assert_eq!(marked.next().0, 6);
        world.bypass(&marked);
        assert_eq!((marked.next().0, world.waited("given_up")), (5, 1));
        marked.does("SELECT v FROM shop.orders WHERE id = 3");
        drop((client, marked));
        eventually("it is abandoned", || {
            world.waited("abandoned") + world.waited("given_up") == 2
        });
        // Who has ended its half gets the answer that it waits for.
        other.send(&query(4, 9, &insert(2, "x")));
        other.stream.shutdown(std::net::Shutdown::Write).unwrap();
        mirror.dies();
        assert_eq!(other.next().0, 9);
    });
}

#[test]
fn what_the_mirror_has_forgotten_is_prepared_again_there() {
    const TEXT: &str = "INSERT INTO shop.orders (id, v) VALUES (?, ?)";
    world(|world| {
        let prepared = |stream, id: &[u8]| {
            let body = [&[0, 0, 0, 4][..], &short(id), &[0; 12]].concat();
            frame(RESPONSE | 4, stream, RESULT, &body)
        };
        let (addr, mirror) = scripted(world, 4, move |nth, asked| {
            let stream = i16::from_be_bytes([asked[2], asked[3]]);
            let (opcode, id): (u8, &[u8]) = match nth {
                0 | 2 => (PREPARE, b""),
                1 => (EXECUTE, b"theirs"),
                _ => (EXECUTE, b"another"),
            };
            assert_eq!(asked[4], opcode, "{nth}");
            match nth {
                0 | 2 => assert!(asked.ends_with(TEXT.as_bytes())),
                _ => assert!(asked[9..].starts_with(&short(id))),
            }
            match nth {
                0 => prepared(stream, b"theirs"),
                1 => {
                    let body = [&[0, 0, 0x25, 0, 0, 0][..], &short(b"theirs")].concat();
                    frame(RESPONSE | 4, stream, ERROR, &body)
                }
                2 => prepared(stream, b"another"),
                _ => frame(RESPONSE | 4, stream, RESULT, &[0, 0, 0, 1]),
            }
        });
        world.rule(addr, ", timeout = \"10s\"");
        let mut client = world.client(5);
        let id = client.prepares(TEXT);
        let execute = client.execute(&id, &[&1_i32.to_be_bytes(), b"x"]);
        assert_eq!(client.ask(&execute).0, RESULT);
        eventually("it has it", || world.fate("acknowledged") == 1);
        // The connection ends with the rule that it was for, and its flows.
        world.rule(nobody(world), "");
        drop(client);
        mirror.join().unwrap();
    });
}

#[test]
fn a_mirror_that_talks_nonsense_is_nobody_elses_trouble() {
    world(|world| {
        for nonsense in [
            vec![0x16; 64],
            // Compressed, of another version, for a stream that nobody uses, without an end.
            frame(RESPONSE | 5, 0, RESULT, &[0; 4]),
            [&frame(RESPONSE | 4, 77, RESULT, &[0; 4])[..], &[0xFF; 64]].concat(),
        ] {
            let (addr, mirror) = scripted(world, 1, move |_, _| nonsense.clone());
            let settings = ", what = [\"writes\", \"reads\"], compare = true, timeout = \"10s\"";
            world.rule(addr, settings);
            let before = world.fate("lost");
            let mut client = world.client(4);
            client.inserts(1, "x");
            eventually("it is given up", || world.fate("lost") == before + 1);
            mirror.join().unwrap();
            client.inserts(2, "x");
        }
    });
}

#[test]
fn what_is_long_goes_there_compressed() {
    use cassandra_protocol::compression::Compression as Algorithm;

    for (name, algorithm) in [("lz4", Algorithm::Lz4), ("snappy", Algorithm::Snappy)] {
        world(|world| {
            let value = "compressed, ".repeat(100);
            let insert = insert(1, &value);
            let expected = [&(insert.len() as u32).to_be_bytes()[..], insert.as_bytes()].concat();
            // One row of one column of text, as the database has it.
            let mut rows = [2_i32, 1, 1].map(i32::to_be_bytes).concat();
            rows.extend([short(b"shop"), short(b"orders"), short(b"v")].concat());
            rows.extend([0, 0x0D, 0, 0, 0, 1]);
            rows.extend((value.len() as u32).to_be_bytes());
            rows.extend(value.as_bytes());
            let (addr, mirror) = scripted(world, 2, move |nth, asked| {
                let answer = match nth {
                    0 => {
                        assert_eq!(asked[1], 1, "compressed");
                        let body = algorithm.decode(asked[9..].to_vec()).unwrap();
                        assert!(body.starts_with(&expected) && asked.len() < expected.len());
                        1_i32.to_be_bytes().to_vec()
                    }
                    _ => {
                        assert_eq!(asked[1], 0, "too short");
                        rows.clone()
                    }
                };
                let stream = i16::from_be_bytes([asked[2], asked[3]]);
                let body = algorithm.encode(&answer).unwrap();
                let mut answer = frame(RESPONSE | 4, stream, RESULT, &body);
                answer[1] = 1;
                answer
            });
            let settings = format!(
                ", what = [\"reads\", \"writes\"], compare = true, timeout = \"10s\", compression = \"{name}\""
            );
            world.rule(addr, &settings);
            let mut client = world.client(4);
            client.does(&insert);
            client.does("SELECT v FROM shop.orders WHERE id = 1");
            eventually("both are compared", || world.compared("same") == 2);
            world.rule(nobody(world), "");
            drop(client);
            mirror.join().unwrap();
        });
    }
}

#[test]
fn what_cannot_be_at_both_does_not_reach_the_one() {
    const NOW_IN_SECONDS: [u8; 4] = [0, 0, 1, 0];
    world(|world| {
        let mirror = world.mirror();
        let dual = ", dual_write = true, timeout = \"10s\", on_failure = \"error\"";
        world.rule(mirror.addr(), dual);
        let mut client = world.client(5);
        let text = insert(1, "x");
        let length = (text.len() as u32).to_be_bytes();
        let body = [&length, text.as_bytes(), &[0, 1], &NOW_IN_SECONDS, &[0; 4]].concat();
        let (opcode, body) = client.ask(&frame(5, 1, 0x07, &body));
        assert_eq!((opcode, &body[..4]), (ERROR, &[0, 0, 0x22, 0][..]));
        assert_eq!(world.fate("version"), 1);
        for node in [world.database.addr(), mirror.addr()] {
            assert_eq!(world.value_at(node, 1), None);
        }
    });
}

#[test]
fn a_real_driver_writes_to_both_and_reads_alike() {
    const KEYS: i32 = 400;
    world(|world| {
        let mirror = world.mirror();
        let settings = ", what = [\"reads\", \"writes\"], compare = true, dual_write = true, timeout = \"10s\", \
                        on_failure = \"error\"";
        world.rule(mirror.addr(), settings);
        let ran = world.sandbox.client(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(converse(world.database.addr(), KEYS));
        });
        ran.unwrap();
        // Each has written and read each key.
        let expected = 2 * KEYS as u64;
        eventually("all is compared", || world.compared("same") == expected);
        for differs in ["values", "rows", "mirror_error", "unknown"] {
            assert_eq!(world.compared(differs), 0, "{differs}");
        }
        assert_eq!(world.fate("acknowledged"), expected);
        let found = world.value_at(mirror.addr(), KEYS - 1);
        assert_eq!(found, Some(format!("value {}", KEYS - 1)));
    });
}

async fn converse(database: SocketAddr, keys: i32) {
    let session = SessionBuilder::new()
        .known_node_addr(database)
        .compression(Some(Compression::Lz4))
        .use_keyspace("shop", false)
        .build()
        .await
        .unwrap();
    let insert = session.prepare("INSERT INTO orders (id, v) VALUES (?, ?)");
    let insert = insert.await.unwrap();
    let select = session.prepare("SELECT v FROM shop.orders WHERE id = ?");
    let select = select.await.unwrap();
    let session = Arc::new(session);
    let mut tasks = tokio::task::JoinSet::new();
    for key in 0..keys {
        let (session, insert, select) = (session.clone(), insert.clone(), select.clone());
        tasks.spawn(async move {
            let value = format!("value {key}");
            let written = session.execute_unpaged(&insert, (key, &value)).await;
            written.unwrap();
            let read = session.execute_unpaged(&select, (key,)).await.unwrap();
            let rows = read.into_rows_result().unwrap();
            let (found,) = rows.single_row::<(String,)>().unwrap();
            assert_eq!(found, value);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}
