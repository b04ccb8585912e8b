//! Rules with a `holdout`: some connections are left alone, and `underpass overhead` says by how much the others are slower.

use std::{
    net::TcpStream,
    process::Command,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::signal::Signal,
    unistd::Pid,
};
use serde_json::Value;
use socket2::SockRef;

use crate::common::{
    BINARY, eventually,
    frames::{RESULT, frame, query},
    world::{Client, EXECUTE, World, bound, short, world},
};

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS shop.events (device int, at int, v text, PRIMARY KEY (device, at))";
const INSERT: &str = "INSERT INTO shop.events (device, at, v) VALUES (?, ?, ?)";

/// With half of them held out, fewer than twenty are in a group by chance in less than one of a million.
const CONNECTIONS: i32 = 90;
/// After so many windows with one write, `coalesce` waits no more.
const WRITES: i32 = 8;
const AT_ONCE: usize = 10;
const WINDOW: Duration = Duration::from_millis(4);

/// Puts a rule `r` for the database into force.
fn rule(world: &World<'_>, rest: &str) {
    let port = world.database.addr().port();
    let policy = format!(
        "[[rule]]\nname = \"r\"\nto = [\":{port}\"]\naction = \"enrich\"\nfail = \"open\"\n{rest}\n"
    );
    let loaded = "underpass_reloads_total{result=\"ok\"}";
    let before = world.agent.metric(loaded).unwrap();
    world.agent.write_policy(&policy).unwrap();
    world.agent.signal(Signal::SIGHUP).unwrap();
    eventually("the policy is in force", || {
        world.agent.metric(loaded).unwrap() > before
    });
}

/// Half of a rule's flows are held out, and are drawn from now on: on each processor two have begun, which ask nothing.
fn half_is_drawn(world: &World<'_>, rest: &str) {
    rule(world, &format!("{rest}\nholdout = \"50%\""));
    let to = world.database.addr();
    let processors = thread::available_parallelism().unwrap().get();
    for processor in 0..processors {
        let begin = || {
            let mut one = CpuSet::new();
            one.set(processor).unwrap();
            sched_setaffinity(Pid::from_raw(0), &one).unwrap();
            for _ in 0..2 {
                TcpStream::connect(to).unwrap();
            }
        };
        world.sandbox.client(begin).unwrap();
    }
}

/// The output of a command that asks at the admin socket.
fn asks(world: &World<'_>, args: &[&str]) -> String {
    let mut command = Command::new(BINARY);
    command
        .args(args)
        .arg("--admin")
        .arg(world.agent.admin_socket());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn overhead(world: &World<'_>) -> Value {
    let all: Value = serde_json::from_str(&asks(world, &["overhead", "--json"])).unwrap();
    all[0].clone()
}

/// A connection, and what its requests took as the application sees it.
struct Timed {
    client: Client,
    took: Vec<Duration>,
}

/// Has so many connections ask, some at once.
fn connections(
    world: &World<'_>,
    n: i32,
    asks: impl Fn(&mut Client, i32) -> Vec<Duration> + Sync,
) -> Vec<Timed> {
    let clients = (0..n).map(|nth| (nth, world.client(4)));
    let left = Mutex::new(clients.collect::<Vec<_>>());
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some((nth, mut client)) = left.lock().unwrap().pop() else {
                        return;
                    };
                    let took = asks(&mut client, nth);
                    done.lock().unwrap().push(Timed { client, took });
                }
            });
        }
    });
    done.into_inner().unwrap()
}

fn timed(ask: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    ask();
    begin.elapsed()
}

/// Prepares, and writes row by row.
fn writes(client: &mut Client, device: i32) -> Vec<Duration> {
    let id = client.prepares(INSERT);
    let write = |at: i32| {
        let key = [device.to_be_bytes(), at.to_be_bytes()];
        let body = [
            &short(&id)[..],
            &[0, 1, 1],
            &bound(&[&key[0], &key[1], b"v"]),
        ]
        .concat();
        timed(|| assert_eq!(client.ask(&frame(4, 1, EXECUTE, &body)).0, RESULT))
    };
    (0..WRITES).map(write).collect()
}

fn median(of: &[&Timed]) -> Duration {
    let mut all: Vec<_> = of.iter().flat_map(|timed| &timed.took).collect();
    all.sort_unstable();
    *all[all.len() / 2]
}

fn us(view: &Value, key: &str) -> f64 {
    view[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key}: {view}"))
}

#[test]
fn what_a_step_adds_is_measured_against_connections_that_are_left_alone() {
    world(|world| {
        world.client(4).does(TABLE);
        let ms = WINDOW.as_millis();
        let coalesce = format!(
            "pipeline = [{{ transform = \"coalesce\", window = \"{ms}ms\", tables = {{ \"shop.events\" = {{ partition_key = \
             [\"device\"], clustering = [\"at\"], columns = [\"v\"] }} }} }}]"
        );
        half_is_drawn(world, &coalesce);
        let all = connections(world, CONNECTIONS, writes);

        // Those that were left alone are listed as such, and are not the agent's.
        let flows = world.agent.json("/flows").unwrap();
        // A port may be that of two connections: to the kernel, one that the agent took goes elsewhere.
        let is_held_out = |timed: &Timed| {
            let own = SockRef::from(&timed.client.stream).cookie().unwrap();
            let own = format!("socket-{own}");
            let mut flows = flows.as_array().unwrap().iter();
            flows.any(|flow| flow["id"] == own && flow["path"] == "untouched")
        };
        let (held_out, treated): (Vec<_>, Vec<_>) =
            all.iter().partition(|timed| is_held_out(timed));
        let why = asks(world, &["flows", "--why", "--filter", "path=untouched"]);
        assert!(
            why.contains("rule r says enrich; left alone by `holdout`"),
            "{why}"
        );
        assert_eq!(
            world.agent.metric("underpass_flows").unwrap() as usize,
            treated.len()
        );

        // Half of them end: what is said does not change.
        let seen = overhead(world);
        let [found, low, high] = ["value", "low", "high"].map(|key| us(&seen["p50"], key));
        assert_eq!(seen["held_out"]["connections"], held_out.len());
        assert_eq!(seen["treated"]["connections"], treated.len());
        // Beside the writes a STARTUP and a PREPARE.
        assert_eq!(
            seen["treated"]["requests"],
            treated.len() as i32 * (WRITES + 2)
        );
        assert!(low > 0.0, "{seen}");
        // The application sees the same difference, at its own clock.
        let own = median(&treated).saturating_sub(median(&held_out));
        let own = own.as_secs_f64() * 1e6;
        assert!(own > WINDOW.as_secs_f64() * 0.9e6, "{own} µs");
        assert!(
            (found / own - 1.0).abs() < 0.2,
            "{own} µs of the application, {seen}"
        );
        assert!(
            low < own * 1.2 && own * 0.8 < high,
            "{own} µs of the application, {seen}"
        );
        let text = asks(world, &["overhead"]);
        assert!(
            text.contains("r     held out (50 %)")
                && text.contains("difference: treated less held out"),
            "{text}"
        );
        let by_quantile = "{quantile=\"0.5\",rule=\"r\"}";
        let metric = |name: &str| {
            world
                .agent
                .metric(&format!("underpass_overhead_{name}"))
                .unwrap()
        };
        assert!((metric(&format!("added_seconds{by_quantile}")) * 1e6 / found - 1.0).abs() < 1e-3);
        assert!(metric(&format!("added_low_seconds{by_quantile}")) > 0.0);

        let treated = treated.len();
        drop(all);
        eventually("every flow ends", || {
            world.agent.metric("underpass_flows").unwrap() == 0.0
        });
        let ended = overhead(world);
        assert_eq!(
            (&ended["p50"], &ended["treated"]["connections"]),
            (&seen["p50"], &treated.into())
        );
        rule(world, &format!("{coalesce}\nholdout = \"0%\""));
        assert_eq!(overhead(world)["holdout"], Value::Null);
        let taken_in = world.client(4);
        eventually("it is the agent's", || {
            world.agent.metric("underpass_flows").unwrap() == 1.0
        });
        drop(taken_in);
    });
}

#[test]
fn copies_add_nothing_that_could_be_told_from_noise() {
    world(|world| {
        half_is_drawn(world, "pipeline = [{ transform = \"stats\" }]");
        let few = connections(world, 3, |client, _| {
            vec![timed(|| {
                assert_eq!(
                    client
                        .ask(&query(4, 1, "SELECT v FROM shop.orders WHERE id = 1"))
                        .0,
                    RESULT
                )
            })]
        });
        let said = asks(world, &["overhead"]);
        assert!(
            said.contains("r, p50: not enough yet: needs ")
                && said.contains("more connections that are held out"),
            "{said}"
        );
        drop(few);
        let all = connections(world, CONNECTIONS, |client, _| {
            let ask = |_| {
                timed(|| {
                    assert_eq!(
                        client
                            .ask(&query(4, 1, "SELECT v FROM shop.orders WHERE id = 1"))
                            .0,
                        RESULT
                    )
                })
            };
            (0..20).map(ask).collect()
        });
        let seen = overhead(world);
        let both =
            ["held_out", "treated"].map(|group| seen[group]["connections"].as_u64().unwrap());
        assert_eq!(both.iter().sum::<u64>(), 3 + CONNECTIONS as u64, "{seen}");
        let [found, low, high] = ["value", "low", "high"].map(|key| us(&seen["p50"], key));
        assert!(low <= found && found <= high, "{seen}");
        // One interval of twenty does not hold 0; and a debug build's readers take the processors that answers need.
        assert!(low <= 0.0 && 0.0 <= high || found.abs() < 100.0, "{seen}");
        assert_eq!(us(&seen["errors"], "value"), 0.0, "{seen}");
        drop(all);
    });
}

#[test]
fn whoever_has_few_connections_misses_none() {
    /// The number of connections of which one would be held out on average.
    const FEW: usize = 5;
    /// So many that by chance none would be held out in less than one case of a million.
    const POLICIES: usize = 12;
    world(|world| {
        let to = world.database.addr();
        for _ in 0..POLICIES {
            rule(
                world,
                "pipeline = [{ transform = \"stats\" }]\nholdout = \"20%\"",
            );
            let connect = || TcpStream::connect(to).unwrap();
            let few = [(); FEW].map(|()| world.sandbox.client(connect).unwrap());
            for flow in world.agent.json("/flows").unwrap().as_array().unwrap() {
                assert_eq!(flow["path"], "tap", "{flow}");
            }
            drop(few);
        }
    });
}
