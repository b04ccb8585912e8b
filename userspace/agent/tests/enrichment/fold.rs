//! Rules with `fold`: flows that are alike share a connection, everyone has their own answers, and nobody sees another's
//! session.

mod bounds;
mod encrypted;
mod hostile;
mod long;
mod peer;
mod scripted;
mod short;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::SocketAddr,
    time::Duration,
};

use cql_node::{Client, Delays, NodeOptions};
use nix::sys::signal::Signal;
use peer::Peer;
use scripted::has;
use scylla::client::session_builder::SessionBuilder;

use crate::common::{
    eventually,
    frames::{self, query},
    world::{ERROR, World, plain, world, world_of},
};

const RESULT: u8 = frames::RESULT;
const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 1";

/// A rule `r` for this database, with these steps.
fn rule(world: &World<'_>, to: SocketAddr, steps: &str) {
    rule_with(world, to, steps, "");
}

/// Sets a policy of one rule with `fold` and more of its keys.
fn rule_with(world: &World<'_>, to: SocketAddr, steps: &str, keys: &str) {
    policy(world, &format!("\":{}\"", to.port()), steps, keys);
}

/// Sets a policy of one rule for these databases.
fn policy(world: &World<'_>, to: &str, steps: &str, keys: &str) {
    let policy = format!(
        "[[rule]]\nname = \"r\"\nto = [{to}]\naction = \"enrich\"\npipeline = [{steps}]\n{keys}\n"
    );
    let loaded = "underpass_reloads_total{result=\"ok\"}";
    let before = world.agent.metric(loaded).unwrap();
    world.agent.write_policy(&policy).unwrap();
    world.agent.signal(Signal::SIGHUP).unwrap();
    eventually("the policy is in force", || {
        world.agent.metric(loaded).unwrap() > before
    });
}

const FOLD: &str = "{ transform = \"fold\" }";

fn folds(world: &World<'_>) {
    rule(world, world.database.addr(), FOLD);
}

fn sample(world: &World<'_>, metric: &str, labels: &str) -> u64 {
    let sample = format!("underpass_fold_{metric}{{{labels}}}");
    world.agent.metric(&sample).unwrap_or(0.0) as u64
}

fn became(world: &World<'_>, outcome: &str) -> u64 {
    let labels = format!("outcome=\"{outcome}\",rule=\"r\"");
    sample(world, "requests_total", &labels)
}

fn ended(world: &World<'_>, why: &str) -> u64 {
    let labels = format!("rule=\"r\",why=\"{why}\"");
    sample(world, "ended_total", &labels)
}

fn shared(world: &World<'_>) -> u64 {
    sample(world, "connections", "rule=\"r\"")
}

/// A client of the database that is reached at this address.
fn peer_at(world: &World<'_>, to: SocketAddr, version: u8) -> Peer {
    let stream = world.sandbox.client(|| peer::connect(to)).unwrap();
    Peer::begin(stream, version, None)
}

/// Asks until one of its requests was folded.
fn until_folded<S: Read + Write>(world: &World<'_>, peer: &mut Peer<S>) {
    let before = became(world, "folded");
    eventually("a request is folded", || {
        let asked = query(peer.version, 1, SELECT);
        assert_eq!(peer.ask(&asked).0, RESULT);
        became(world, "folded") > before
    });
    for counted in ["writes_total", "reads_total"] {
        assert!(sample(world, counted, "rule=\"r\"") > 0, "{counted}");
    }
}

/// Requests that the database has got, by connection.
fn asked(world: &World<'_>) -> Vec<Client> {
    world.database.clients()
}

fn insert(id: usize) -> String {
    format!("INSERT INTO shop.orders (id, v) VALUES ({id}, 'value {id}')")
}

fn select(id: usize) -> String {
    format!("SELECT id, v FROM shop.orders WHERE id = {id}")
}

/// Eight clients with twenty requests each, all under way at once.
fn everybody(world: &World<'_>, version: u8) {
    everybody_at(world, world.database.addr(), version);
}

/// Runs everybody's requests, where the database is reached at this address.
fn everybody_at(world: &World<'_>, to: SocketAddr, version: u8) {
    const CLIENTS: usize = 8;
    const EACH: usize = 20;
    let direct = || {
        world
            .sandbox
            .server(|| peer::connect(world.database.addr()))
    };
    let mut without = Peer::begin(direct().unwrap(), version, None);
    for id in 0..CLIENTS * EACH {
        assert_eq!(without.ask(&query(version, 1, &insert(id))).0, RESULT);
    }
    let connect = || world.sandbox.client(|| peer::connect(to));
    let mut clients: Vec<Peer> = (0..CLIENTS)
        .map(|_| Peer::begin(connect().unwrap(), version, None))
        .collect();
    for client in &mut clients {
        until_folded(world, client);
    }
    assert_eq!(shared(world), 1);
    let (before, own) = (became(world, "folded"), asked(world));
    for round in 0..3 {
        for (n, client) in clients.iter_mut().enumerate() {
            let asked = (0..EACH).map(|k| {
                let stream = (k + 5 * round) as i16;
                query(version, stream, &select(n * EACH + k))
            });
            client.send(&asked.collect::<Vec<_>>());
        }
        for (n, client) in clients.iter_mut().enumerate() {
            let answers: BTreeMap<i16, Vec<u8>> = (0..EACH).map(|_| client.next()).collect();
            for k in 0..EACH {
                let stream = (k + 5 * round) as i16;
                let asked = query(version, stream, &select(n * EACH + k));
                without.send(&[asked]);
                let expected = without.next();
                assert_eq!((stream, &answers[&stream]), (expected.0, &expected.1));
            }
        }
    }
    let folded = became(world, "folded") - before;
    assert_eq!(folded, (3 * CLIENTS * EACH) as u64);
    // One connection was asked by all of them, and theirs not at all.
    let counts = |clients: &[Client]| -> BTreeMap<SocketAddr, u64> {
        clients.iter().map(|c| (c.peer, c.requests)).collect()
    };
    let (own, now) = (counts(&own), counts(&asked(world)));
    let more: Vec<u64> = now
        .iter()
        .map(|(peer, requests)| requests - own[peer])
        .filter(|more| *more > 0)
        .collect();
    // The other one is that without an agent.
    assert_eq!(more, [folded, folded]);
}

#[test]
fn everybody_has_their_own_answers_as_without_it() {
    for version in [3, 4, 5] {
        world(|world| {
            folds(world);
            everybody(world, version);
        });
    }
}

#[test]
fn answers_come_in_another_order_and_flows_are_on_several_threads() {
    let delays = Delays {
        seed: 7,
        least: Duration::ZERO,
        tail: Duration::from_millis(5),
    };
    let options = NodeOptions {
        delays: Some(delays),
        ..NodeOptions::default()
    };
    world_of(3, options, |world| {
        folds(world);
        everybody(world, 4);
        everybody(world, 5);
    });
}

#[test]
fn there_are_as_many_as_the_rule_says() {
    const CLIENTS: usize = 16;
    // Each thread would have one.
    world_of(3, NodeOptions::default(), |world| {
        let two = "{ transform = \"fold\", connections = 2 }";
        rule(world, world.database.addr(), two);
        let mut clients: Vec<Peer> = (0..CLIENTS).map(|_| Peer::of(world, 4)).collect();
        for client in &mut clients {
            until_folded(world, client);
        }
        assert_eq!(shared(world), 2);
        let (before, own) = (became(world, "folded"), asked(world));
        for client in &mut clients {
            assert_eq!(client.ask(&query(4, 1, SELECT)).0, RESULT);
        }
        assert_eq!(became(world, "folded"), before + CLIENTS as u64);
        // Both are asked, and nobody's own.
        let more = asked(world).into_iter().filter_map(|now| {
            let was = own.iter().find(|was| was.peer == now.peer);
            let more = now.requests - was.map_or(0, |was| was.requests);
            (more > 0).then_some(more)
        });
        let more: Vec<u64> = more.collect();
        assert_eq!((more.len(), more.iter().sum()), (2, CLIENTS as u64));
    });
}

#[test]
fn what_is_prepared_by_one_is_executed_for_all() {
    world(|world| {
        folds(world);
        for version in [3, 4, 5] {
            let mut clients = [world.client(version), world.client(version)];
            let id = clients[0].prepares("INSERT INTO shop.orders (id, v) VALUES (?, ?)");
            let before = became(world, "folded");
            eventually("both are folded", || {
                for client in &mut clients {
                    let execute = client.execute(&id, &[&7_i32.to_be_bytes(), b"seven"]);
                    assert_eq!(client.ask(&execute).0, RESULT);
                }
                became(world, "folded") >= before + 2
            });
            let before = became(world, "unprepared");
            let unknown = clients[1].execute(b"nobody's", &[]);
            let (opcode, body) = clients[1].ask(&unknown);
            assert_eq!((opcode, &body[..4]), (ERROR, &0x2500_u32.to_be_bytes()[..]));
            assert_eq!(became(world, "unprepared"), before + 1);
        }
    });
}

#[test]
fn a_session_that_would_show_stays_its_own() {
    world(|world| {
        folds(world);
        let mut plain = Peer::of(world, 4);
        let mut uses = Peer::of(world, 4);
        until_folded(world, &mut plain);
        until_folded(world, &mut uses);
        assert_eq!(shared(world), 1);
        let in_keyspace = query(4, 9, "SELECT v FROM orders WHERE id = 1");
        assert_eq!(plain.ask(&in_keyspace).0, ERROR);
        assert_eq!(uses.ask(&query(4, 9, "USE shop")).0, RESULT);
        let before = became(world, "folded");
        eventually("it is folded with those of its keyspace", || {
            assert_eq!(uses.ask(&in_keyspace).0, RESULT);
            assert_eq!(plain.ask(&in_keyspace).0, ERROR);
            shared(world) == 2
        });
        assert!(became(world, "folded") > before);
        let of_keyspace = |name: Option<&str>| {
            let clients = asked(world);
            let those = clients.iter().filter(|c| c.keyspace.as_deref() == name);
            those.count()
        };
        assert_eq!((of_keyspace(Some("shop")), of_keyspace(None)), (2, 2));
        // What does more than read or write is asked by a flow's own.
        let (before, not) = (became(world, "folded"), became(world, "statement"));
        for text in [
            "SELECT * FROM system.local",
            "CREATE TABLE shop.other (k int PRIMARY KEY)",
            "TRUNCATE shop.other",
            "!",
        ] {
            plain.ask(&query(4, 9, text));
        }
        assert_eq!(became(world, "statement"), not + 4);
        let mut traced = query(4, 9, SELECT);
        traced[1] |= 2;
        plain.ask(&traced);
        assert_eq!(became(world, "traced"), 1);
        assert_eq!(became(world, "folded"), before);
        // It is left with the last of those who have it.
        drop(uses);
        eventually("the connection of the keyspace has gone", || {
            shared(world) == 1
        });
        assert_eq!(ended(world, "unused"), 1);
    });
}

#[test]
fn another_database_or_version_has_another_connection() {
    world(|world| {
        let other = world.mirror();
        let ports = [&world.database, &other].map(|node| node.addr().port());
        let [one, two] = ports.map(|port| format!("\":{port}\""));
        policy(world, &format!("{one}, {two}"), FOLD, "");
        let at = |to: SocketAddr, version| {
            let mut peer = peer_at(world, to, version);
            until_folded(world, &mut peer);
            peer
        };
        let _own = [at(world.database.addr(), 4), at(world.database.addr(), 4)];
        assert_eq!(shared(world), 1);
        let _version = at(world.database.addr(), 5);
        assert_eq!(shared(world), 2);
        let mut others = at(other.addr(), 4);
        assert_eq!(shared(world), 3);
        // Nor has it the other's answers.
        others.ask(&query(4, 1, &insert(1)));
        let [(_, first), (_, second)] = [world.database.addr(), other.addr()].map(|to| {
            let before = became(world, "folded");
            let answer = at(to, 4).ask(&query(4, 1, &select(1)));
            assert!(became(world, "folded") > before + 1);
            answer
        });
        assert!(!has(&first, "value 1") && has(&second, "value 1"));
    });
}

#[test]
fn nobody_rides_on_another_s_log_in() {
    let options = NodeOptions::of_user("app", "secret");
    world_of(1, options, |world| {
        folds(world);
        for version in [4, 5] {
            let (one, two) = (plain("", "app", "secret"), plain("app", "app", "secret"));
            let mut alike = [
                Peer::of_user(world, version, &one),
                Peer::of_user(world, version, &one),
            ];
            for peer in &mut alike {
                until_folded(world, peer);
            }
            assert_eq!(shared(world), 1);
            let mut other = Peer::of_user(world, version, &two);
            until_folded(world, &mut other);
            assert_eq!(shared(world), 2, "another token has another connection");
            let wrong = plain("", "app", "wrong");
            let connect = world
                .sandbox
                .client(|| peer::connect(world.database.addr()));
            let before = became(world, "folded");
            assert!(Peer::begin_with(connect.unwrap(), version, &wrong).is_err());
            assert_eq!(became(world, "folded"), before);
            assert!(
                asked(world)
                    .iter()
                    .all(|c| c.user.as_deref() == Some("app"))
            );
            drop((alike, other));
            eventually("all have gone", || shared(world) == 0);
        }
        assert!(!world.agent.log().contains("secret"));
    });
}

#[test]
fn a_driver_does_not_notice() {
    world_of(2, NodeOptions::default(), |world| {
        folds(world);
        let to = world.database.addr().to_string();
        let runs = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                for _ in 0..2 {
                    let builder = SessionBuilder::new().known_node(&to);
                    let session = builder.build().await.unwrap();
                    session.use_keyspace("shop", false).await.unwrap();
                    let insert = "INSERT INTO orders (id, v) VALUES (?, ?)";
                    let insert = session.prepare(insert).await.unwrap();
                    let text = "x".repeat(2_000);
                    for id in 0..100 {
                        let bound = (id, format!("{id} {text}"));
                        session.execute_unpaged(&insert, bound).await.unwrap();
                    }
                    let select = "SELECT v FROM orders WHERE id = ?";
                    let select = session.prepare(select).await.unwrap();
                    for id in 0..100 {
                        let rows = session.execute_unpaged(&select, (id,)).await.unwrap();
                        let rows = rows.into_rows_result().unwrap();
                        let (v,) = rows.single_row::<(String,)>().unwrap();
                        assert_eq!(v, format!("{id} {text}"));
                    }
                }
            });
        };
        world.sandbox.client(runs).unwrap();
        assert!(became(world, "folded") > 300, "{}", became(world, "folded"));
    });
}

#[test]
fn steps_before_it_work_on_what_the_client_has_sent() {
    world(|world| {
        let paging = "{ transform = \"paging\", at_most = 1, without_size = \"set\" }";
        let steps = format!("{paging}, {FOLD}");
        rule(world, world.database.addr(), &steps);
        let mut peer = Peer::of(world, 5);
        for id in 0..3 {
            peer.ask(&query(5, 1, &insert(id)));
        }
        until_folded(world, &mut peer);
        let (opcode, body) = peer.ask(&query(5, 1, "SELECT id FROM shop.orders"));
        assert_eq!(opcode, RESULT);
        assert_eq!(cql_edit::Page::read(&body).unwrap().rows.len(), 1);
    });
}
