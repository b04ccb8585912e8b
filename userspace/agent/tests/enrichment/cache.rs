//! Rules with `cache`, and a real Redis: what is read twice is asked once, nothing old is read behind a write, and a
//! Redis that hangs, dies or has been changed is nobody else's trouble.

mod bombs;
mod login;
mod merged;
mod troubled;

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    thread,
    time::Duration,
};

use cql_node::NodeOptions;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::common::{
    PATIENCE, eventually,
    frames::{RESULT, frame, query, startup},
    world::{
        AUTH_RESPONSE, AUTH_SUCCESS, Client, ERROR, EXECUTE, World, bound, insert, node, plain,
        short, world,
    },
};

const PROGRAM: &str = "redis-server";
/// In a namespace of the test's own.
const REDIS: &str = "127.0.0.1:6379";
const BATCH: u8 = 0x0D;
const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 1";

/// A redis-server, until it is dropped.
struct Redis<'w> {
    child: Child,
    world: &'w World<'w>,
}

impl<'w> Redis<'w> {
    fn start(world: &'w World<'w>) -> Self {
        let spawned = world.sandbox.server(|| {
            let mut command = Command::new(PROGRAM);
            command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
            command.args(["--dir", "/tmp", "--loglevel", "warning"]);
            command.stdout(Stdio::null()).spawn()
        });
        let redis = Self {
            child: spawned.unwrap().unwrap(),
            world,
        };
        eventually("Redis listens", || redis.connect().is_ok());
        redis
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let connect = || TcpStream::connect(REDIS);
        self.world.sandbox.server(connect).unwrap()
    }

    /// The first line that it says to an inline command.
    fn does(&self, command: &str) -> String {
        let mut stream = self.connect().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(command.as_bytes()).unwrap();
        stream.write_all(b"\r\n").unwrap();
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            line.extend(byte);
        }
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    /// Does this, in Lua, for each answer `k` that it keeps; says how many there are.
    fn each(&self, what: &str) -> u64 {
        let script = format!(
            "local all = redis.call('keys', '*:e:*') for _, k in ipairs(all) do {what} end return #all"
        );
        let said = self.does(&format!("EVAL \"{script}\" 0"));
        said.strip_prefix(':').unwrap().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

impl Drop for Redis<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A world with a Redis. Without the program the test is skipped, and counted.
fn with_redis(name: &str, body: impl FnOnce(&World<'_>, Redis<'_>)) {
    if let Err(error) = Command::new(PROGRAM).arg("--version").output() {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        return sandbox::skip::skip(name, "redis-server is not installed");
    }
    world(|world| body(world, Redis::start(world)));
}

impl World<'_> {
    /// A rule `r` for these databases, with a cache.
    fn caches(&self, databases: &[SocketAddr], settings: &str) {
        let ports = databases.iter().map(|to| format!("\":{}\"", to.port()));
        let ports = ports.collect::<Vec<_>>().join(", ");
        let cache = format!("tables = [\"shop.orders\"]{settings}");
        self.caches_behind(&ports, "", &cache);
    }

    /// Sets a policy with `cache` behind other steps.
    fn caches_behind(&self, ports: &str, steps: &str, settings: &str) {
        let policy = format!(
            "[[rule]]\nname = \"r\"\nto = [{ports}]\naction = \"enrich\"\npipeline = [{steps}{{ transform = \"cache\", \
             redis = \"{REDIS}\", {settings} }}]\n"
        );
        let there = || self.agent.log().matches("the cache is there").count();
        let before = there();
        self.puts(&policy);
        eventually("the cache is there", || there() > before);
    }

    /// Puts a policy into force.
    fn puts(&self, policy: &str) {
        let loaded = "underpass_reloads_total{result=\"ok\"}";
        let before = self.agent.metric(loaded).unwrap();
        self.agent.write_policy(policy).unwrap();
        self.agent.signal(Signal::SIGHUP).unwrap();
        eventually("the policy is in force", || {
            self.agent.metric(loaded).unwrap() > before
        });
    }

    fn caches_here(&self, settings: &str) {
        self.caches(&[self.database.addr()], settings);
    }

    fn cached(&self, metric: &str, label: &str) -> u64 {
        let labels = match label {
            "" => "rule=\"r\"".to_owned(),
            label => format!("{label},rule=\"r\""),
        };
        let sample = format!("underpass_cache_{metric}_total{{{labels}}}");
        self.agent.metric(&sample).unwrap() as u64
    }

    fn reads(&self, outcome: &str) -> u64 {
        self.cached("reads", &format!("outcome=\"{outcome}\""))
    }

    /// QUERYs and EXECUTEs that the database has had.
    fn asked(&self) -> u64 {
        let requests = self.database.tally().requests;
        requests[0x07] + requests[0x0A]
    }
}

/// The value in the only row.
fn value(body: &[u8]) -> String {
    let rows = cql_edit::Page::read(body).unwrap().rows;
    String::from_utf8(rows[0][0].unwrap().to_vec()).unwrap()
}

fn reads(client: &mut Client) -> String {
    let (opcode, body) = client.ask(&query(client.version, 1, SELECT));
    assert_eq!(opcode, RESULT, "{}", String::from_utf8_lossy(&body));
    value(&body)
}

const LONG: &str = ", ttl = \"10m\", timeout = \"10s\"";

#[test]
fn what_is_read_twice_is_asked_once_until_a_write() {
    with_redis("cache_reads", |world, _redis| {
        world.caches_here(LONG);
        for version in [3, 4, 5] {
            let (mut one, mut two) = (world.client(version), world.client(version));
            one.inserts(1, "first");
            let id = one.prepares("SELECT v FROM shop.orders WHERE id = ?");
            let execute = one.execute(&id, &[&1_i32.to_be_bytes()]);
            let ask = |client: &mut Client, asked: &[u8]| {
                let (opcode, body) = client.ask(asked);
                assert_eq!(opcode, RESULT);
                body
            };
            for asked in [query(version, 7, SELECT), execute] {
                let (before, hits) = (world.asked(), world.reads("hit"));
                let body = ask(&mut one, &asked);
                assert_eq!(value(&body), "first");
                assert_eq!(ask(&mut one, &asked), body, "the same flow");
                assert_eq!(ask(&mut two, &asked), body, "another");
                assert_eq!(world.asked(), before + 1, "v{version}");
                assert_eq!(world.reads("hit"), hits + 2);
            }
            // Another key, another level, and a page are other questions.
            let before = world.asked();
            let other = one.execute(&id, &[&2_i32.to_be_bytes()]);
            ask(&mut one, &other);
            let mut level = query(version, 7, SELECT);
            let at = 9 + 4 + SELECT.len() + 1;
            level[at] = 4;
            ask(&mut one, &level);
            assert_eq!(world.asked(), before + 2);
            // However it is written.
            let write = one.prepares("INSERT INTO shop.orders (id, v) VALUES (1, ?)");
            let mut batch = vec![0, 0, 1, 1];
            batch.extend(short(&write));
            batch.extend(bound(&[b"batched"]));
            batch.extend([0, 1]);
            batch.extend(if version == 5 { &[0; 4][..] } else { &[0] });
            let writes = [
                (query(version, 3, &insert(1, "text")), "text"),
                (one.execute(&write, &[b"bound"]), "bound"),
                (frame(version, 4, BATCH, &batch), "batched"),
                (
                    query(version, 5, "UPDATE shop.orders SET v = 'set' WHERE id = 1"),
                    "set",
                ),
            ];
            for (write, expected) in writes {
                ask(&mut one, &write);
                for client in [&mut two, &mut one] {
                    assert_eq!(reads(client), expected, "v{version}");
                }
            }
            // A definition; and what nobody understands, which the database refuses.
            reads(&mut one);
            for odd in [
                format!("CREATE TABLE shop.t{version} (k int PRIMARY KEY)"),
                "!".to_owned(),
            ] {
                let before = world.asked();
                one.ask(&query(version, 6, &odd));
                reads(&mut one);
                assert_eq!(world.asked(), before + 2, "{odd}");
            }
        }
        assert_eq!(world.reads("bad") + world.reads("failed"), 0);
        assert!(world.cached("invalidations", "") > 0);
        assert!(!world.agent.log().contains("batched"));
    });
}

#[test]
fn what_it_has_not_seen_prepared_is_to_be_prepared() {
    with_redis("cache_unprepared", |world, redis| {
        world.caches_here(LONG);
        // How often it was asked for an answer.
        let asked = || {
            let found = "string.match(redis.call('info', 'commandstats'), 'getrange:calls=(%d+)')";
            let said = redis.does(&format!("EVAL \"return tonumber({found} or 0)\" 0"));
            said.strip_prefix(':').unwrap().parse::<u64>().unwrap()
        };
        let refused = "outcome=\"refused\",reason=\"unprepared\",rule=\"r\",transform=\"cache\"";
        let refused = format!("underpass_transforms_total{{{refused}}}");
        for (nth, version) in (1..).zip([3, 4, 5]) {
            let mut client = world.client(version);
            client.inserts(1, "one");
            let before = asked();
            let execute = client.execute(b"nobody's", &[&1_i32.to_be_bytes()]);
            let (opcode, body) = client.ask(&execute);
            assert_eq!((opcode, &body[..4]), (ERROR, &0x2500_u32.to_be_bytes()[..]));
            assert!(body.ends_with(&short(b"nobody's")), "{body:?}");
            assert_eq!(world.agent.metric(&refused).unwrap(), f64::from(nth));
            assert_eq!(asked(), before);
            assert_eq!(world.database.tally().requests[usize::from(EXECUTE)], 0);
            // What comes behind it is looked for.
            assert_eq!(reads(&mut client), "one");
            assert!(asked() > before);
        }
    });
}

#[test]
fn what_may_change_by_itself_is_not_kept() {
    with_redis("cache_bypass", |world, _redis| {
        world.caches_here(", ttl = \"10m\", timeout = \"10s\", max_bytes = 256");
        let mut client = world.client(4);
        client.inserts(1, &"x".repeat(300));
        for _ in 0..2 {
            reads(&mut client);
        }
        assert_eq!(world.cached("stores", "outcome=\"too_large\""), 2);
        client.does("SELECT v FROM shop.orders WHERE id = 1 LIMIT 1");
        client.ask(&query(4, 1, "SELECT writetime(v) FROM shop.orders"));
        assert_eq!(world.cached("bypassed", "reason=\"function\""), 1);
        // Nothing that is there: an error.
        for _ in 0..2 {
            client.ask(&query(4, 1, "SELECT nothing FROM shop.orders"));
        }
        assert_eq!(world.cached("stores", "outcome=\"unfit\""), 2);
        // Traced.
        let mut traced = query(4, 1, SELECT);
        traced[1] = 0x02;
        client.ask(&traced);
        assert_eq!(world.cached("bypassed", "reason=\"traced\""), 1);
        // One of several pages.
        client.inserts(1, "short");
        client.inserts(2, "short");
        let text = "SELECT v FROM shop.orders";
        let mut body = (text.len() as u32).to_be_bytes().to_vec();
        body.extend(text.as_bytes());
        body.extend([0, 1, 0x04, 0, 0, 0, 1]);
        for _ in 0..2 {
            client.ask(&frame(4, 1, 0x07, &body));
        }
        assert_eq!(world.cached("stores", "outcome=\"unfit\""), 4);
        assert_eq!(world.reads("hit"), 0);
        // A USE could overtake it while it waits. A statement that is prepared is where it was prepared, and a write
        // is seen.
        client.does("USE shop");
        for _ in 0..2 {
            client.does("SELECT v FROM orders WHERE id = 1");
        }
        assert_eq!(world.cached("bypassed", "reason=\"keyspace\""), 2);
        let id = client.prepares("SELECT v FROM orders WHERE id = ?");
        let execute = client.execute(&id, &[&1_i32.to_be_bytes()]);
        for expected in ["short", "short", "unqualified"] {
            assert_eq!(value(&client.ask(&execute).1), expected);
            if world.reads("hit") == 1 {
                client.does("INSERT INTO orders (id, v) VALUES (1, 'unqualified')");
            }
        }
        assert_eq!(world.reads("hit"), 1);
    });
}

#[test]
fn what_is_far_too_long_is_not_kept_and_its_write_is_seen() {
    const LARGE_BYTES: usize = 10 << 20;
    with_redis("cache_large", |world, _redis| {
        world.caches_here(LONG);
        let mut client = world.client(4);
        client.inserts(1, "short");
        for _ in 0..2 {
            assert_eq!(reads(&mut client), "short");
        }
        assert_eq!(world.reads("hit"), 1);
        let value = "x".repeat(LARGE_BYTES);
        client.inserts(1, &value);
        for _ in 0..2 {
            assert!(reads(&mut client) == value);
        }
        assert_eq!(world.reads("hit"), 1);
        assert_eq!(world.cached("stores", "outcome=\"too_large\""), 2);
        client.inserts(1, "short again");
        assert_eq!(reads(&mut client), "short again");
    });
}

#[test]
fn it_is_read_again_when_its_time_is_over() {
    with_redis("cache_ttl", |world, _redis| {
        world.caches_here(", ttl = \"200ms\", timeout = \"10s\"");
        let mut client = world.client(4);
        client.inserts(1, "old");
        assert_eq!(reads(&mut client), "old");
        // By somebody whom the agent does not see.
        let direct = world
            .sandbox
            .server(|| TcpStream::connect(world.database.addr()));
        Client::begin(direct.unwrap().unwrap(), 4).inserts(1, "new");
        eventually("the new one is read", || reads(&mut client) == "new");
    });
}

#[test]
fn what_somebody_else_may_read_is_not_given_to_another() {
    with_redis("cache_users", |world, _redis| {
        let of = |user: &str| node(world.sandbox, NodeOptions::of_user(user, "s3cret"));
        // Two of a cluster, as far as the rule knows.
        let (anns, bobs) = (of("ann"), of("bob"));
        let settings = format!("{LONG}, prefix = \"shop\"");
        world.caches(&[anns.addr(), bobs.addr()], &settings);
        let mut ann = logs_in(world, anns.addr(), "ann");
        let mut bob = logs_in(world, bobs.addr(), "bob");
        ann.inserts(1, "anns");
        bob.inserts(1, "bobs");
        for _ in 0..2 {
            assert_eq!(reads(&mut ann), "anns");
            assert_eq!(reads(&mut bob), "bobs");
        }
        assert_eq!(world.reads("hit"), 2);
        // The same user at another address is given what is there.
        assert_eq!(reads(&mut logs_in(world, anns.addr(), "ann")), "anns");
        assert_eq!(world.reads("hit"), 3);
        // Nobody is given anything before the database has let them in.
        let stream = world.sandbox.client(|| TcpStream::connect(anns.addr()));
        let mut nobody = Client {
            stream: stream.unwrap().unwrap(),
            version: 4,
        };
        nobody.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        nobody.ask(&startup(4, &[("CQL_VERSION", "3.0.0")]));
        assert_ne!(nobody.ask(&query(4, 1, SELECT)).0, RESULT);
    });
}

fn logs_in(world: &World<'_>, to: SocketAddr, user: &str) -> Client {
    let stream = world.sandbox.client(|| TcpStream::connect(to));
    let mut client = Client {
        stream: stream.unwrap().unwrap(),
        version: 4,
    };
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    client.ask(&startup(4, &[("CQL_VERSION", "3.0.0")]));
    let response = frame(4, 0, AUTH_RESPONSE, &plain("", user, "s3cret"));
    assert_eq!(client.ask(&response).0, AUTH_SUCCESS);
    client
}

#[test]
fn a_use_that_was_prepared_is_seen() {
    with_redis("cache_use", |world, _redis| {
        world.caches_here(LONG);
        for version in [4, 5] {
            let mut writer = world.client(version);
            let mut reader = world.client(version);
            let elsewhere = format!("elsewhere{version}");
            writer.does(&format!(
                "CREATE KEYSPACE {elsewhere} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
            ));
            writer.does(&format!("USE {elsewhere}"));
            writer.inserts(1, "old");
            assert_eq!(reads(&mut reader), "old");
            let uses = writer.prepares("USE shop");
            let uses = writer.execute(&uses, &[]);
            assert_eq!(writer.ask(&uses).0, RESULT);
            writer.does("INSERT INTO orders (id, v) VALUES (1, 'new')");
            assert_eq!(reads(&mut reader), "new", "v{version}");
        }
    });
}

#[test]
fn nothing_old_is_read_behind_a_write() {
    const WRITES: u32 = 500;
    with_redis("cache_race", |world, _redis| {
        world.caches_here(LONG);
        let mut writer = world.client(4);
        writer.inserts(1, "0");
        let (acknowledged, over) = (AtomicU32::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut reader = world.client(4);
                    while !over.load(Relaxed) {
                        let least = acknowledged.load(Relaxed);
                        let found: u32 = reads(&mut reader).parse().unwrap();
                        if found < least {
                            over.store(true, Relaxed);
                            panic!("{found} was read behind {least}");
                        }
                    }
                });
            }
            for n in 1..=WRITES {
                writer.inserts(1, &n.to_string());
                acknowledged.store(n, Relaxed);
                if over.load(Relaxed) {
                    break;
                }
                assert_eq!(reads(&mut writer), n.to_string());
            }
            over.store(true, Relaxed);
        });
        assert!(world.reads("hit") > 0);
    });
}
