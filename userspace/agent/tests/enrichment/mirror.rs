//! Rules with `mirror`: what reaches the second cluster, what is told of differences, and that one which is not there,
//! hangs or dies is nobody else's trouble.

mod copied;
mod dual;
mod encrypted;
mod played;

use std::{net::TcpStream, thread, time::Duration};

use cql_node::{Delays, NodeOptions};
use nix::sys::signal::Signal;

use crate::common::{
    eventually,
    frames::{RESULT, frame, query},
    world::{Client, ERROR, EXECUTE, bound, hangs, insert, nobody, node, short, world},
};

const BATCH: u8 = 0x0D;

#[test]
fn writes_reach_both_however_they_are_asked_for() {
    writes_reach_both("inline");
}

fn writes_reach_both(path: &str) {
    world(|world| {
        let mirror = world.mirror();
        world.rule_by(path, mirror.addr(), ", timeout = \"10s\"");
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
fn what_it_has_not_seen_prepared_is_to_be_prepared() {
    world(|world| {
        let mirror = world.mirror();
        world.rule(mirror.addr(), ", timeout = \"10s\"");
        let refused = "outcome=\"refused\",reason=\"unprepared\",rule=\"r\",transform=\"mirror\"";
        let refused = format!("underpass_transforms_total{{{refused}}}");
        for (nth, version) in (1..).zip([3, 4, 5]) {
            let mut client = world.client(version);
            let execute = client.execute(b"nobody's", &[]);
            let (opcode, body) = client.ask(&execute);
            assert_eq!((opcode, &body[..4]), (ERROR, &0x2500_u32.to_be_bytes()[..]));
            assert!(body.ends_with(&short(b"nobody's")), "{body:?}");
            assert_eq!(world.agent.metric(&refused).unwrap(), f64::from(nth));
            // What comes behind it reaches both.
            client.inserts(nth, "behind");
            eventually("the mirror has acknowledged", || {
                world.fate("acknowledged") == nth as u64
            });
            for node in [&world.database, &mirror] {
                assert_eq!(node.tally().requests[usize::from(EXECUTE)], 0);
            }
        }
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
        let mirror = node(world.sandbox, NodeOptions::of_user("mirror", "s3cret"));
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
    finds_what_differs("inline");
}

fn finds_what_differs(path: &str) {
    const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 1";
    world(|world| {
        let mirror = world.mirror();
        let settings = ", what = [\"reads\", \"writes\"], compare = true, timeout = \"10s\"";
        world.rule_by(path, mirror.addr(), settings);
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
        world.rule_by(
            path,
            mirror.addr(),
            &format!("{settings}, show_values = true"),
        );
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
