//! Rules with `coalesce`: writes to one partition reach the database as one batch, each stream has its own answer, and
//! the table is what it would have been.

mod steps;

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, mpsc},
};

use nix::sys::signal::Signal;
use scylla::client::session_builder::SessionBuilder;

use crate::common::{
    PATIENCE, eventually,
    frames::{RESPONSE, RESULT, frame, query, segment, void},
    world::{Client, ERROR, EXECUTE, World, bound, scripted, short, world},
};

const INSERT: &str = "INSERT INTO shop.events (device, at, v) VALUES (?, ?, ?)";
const DELETE: &str = "DELETE FROM shop.events WHERE device = ? AND at = ?";
const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS shop.events (device int, at int, v text, PRIMARY KEY (device, at))";
const SELECT: &str = "SELECT at, v FROM shop.events WHERE device = 1";

/// A rule with these settings, and the table; some connection has made it.
fn begin(world: &World<'_>, settings: &str) {
    rule(world, world.database.addr(), &step(settings));
    world.client(4).does(TABLE);
}

/// The step with these settings.
fn step(settings: &str) -> String {
    format!(
        "{{ transform = \"coalesce\", tables = {{ \"shop.events\" = {{ partition_key = [\"device\"], clustering = \
         [\"at\"], columns = [\"v\"] }} }}, {settings} }}"
    )
}

/// A rule with these steps.
fn rule(world: &World<'_>, to: SocketAddr, steps: &str) {
    let port = to.port();
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

fn windows(world: &World<'_>, ended: &str) -> u64 {
    let sample = format!("underpass_coalesce_windows_total{{ended=\"{ended}\",rule=\"r\"}}");
    world.agent.metric(&sample).unwrap() as u64
}

fn writes(world: &World<'_>, outcome: &str) -> u64 {
    let sample = format!("underpass_coalesce_writes_total{{outcome=\"{outcome}\",rule=\"r\"}}");
    world.agent.metric(&sample).unwrap() as u64
}

fn execute(version: u8, stream: i16, id: &[u8], flags: u8, behind: &[u8]) -> Vec<u8> {
    let mut body = short(id);
    if version == 5 {
        body.extend(short(id));
    }
    body.extend([0, 1]);
    if version == 5 {
        body.extend([0; 3]);
    }
    body.push(flags);
    body.extend(behind);
    frame(version, stream, EXECUTE, &body)
}

fn insert(version: u8, stream: i16, id: &[u8], (device, at): (i32, i32), v: &str) -> Vec<u8> {
    let key = [device.to_be_bytes(), at.to_be_bytes()];
    let values = bound(&[&key[0], &key[1], v.as_bytes()]);
    execute(version, stream, id, 1, &values)
}

fn delete(version: u8, stream: i16, id: &[u8], (device, at): (i32, i32)) -> Vec<u8> {
    let key = [device.to_be_bytes(), at.to_be_bytes()];
    execute(version, stream, id, 1, &bound(&[&key[0], &key[1]]))
}

/// All in one piece.
fn send(client: &mut Client, frames: &[Vec<u8>]) {
    let all: Vec<u8> = match client.version {
        5 => frames
            .chunks(8)
            .flat_map(|some| segment(&some.concat()))
            .collect(),
        _ => frames.concat(),
    };
    client.stream.write_all(&all).unwrap();
}

/// Reads so many responses, by stream; in v5 some share a segment.
fn answers(client: &mut Client, n: usize) -> BTreeMap<i16, (u8, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut bytes = VecDeque::new();
    let mut take = |client: &mut Client, n: usize| {
        while bytes.len() < n {
            let mut piece = match client.version {
                5 => {
                    let mut header = [0; 6];
                    client.stream.read_exact(&mut header).unwrap();
                    let word = u32::from_le_bytes([header[0], header[1], header[2], 0]);
                    vec![0; (word & 0x1FFFF) as usize]
                }
                _ => vec![0; n - bytes.len()],
            };
            client.stream.read_exact(&mut piece).unwrap();
            bytes.extend(piece);
            if client.version == 5 {
                client.stream.read_exact(&mut [0; 4]).unwrap();
            }
        }
        bytes.drain(..n).collect::<Vec<u8>>()
    };
    for _ in 0..n {
        let header = take(client, 9);
        assert_eq!(header[0], RESPONSE | client.version);
        let stream = i16::from_be_bytes([header[2], header[3]]);
        let length = u32::from_be_bytes(header[5..].try_into().unwrap());
        let body = take(client, length as usize);
        let before = found.insert(stream, (header[4], body));
        assert_eq!(before, None, "stream {stream} was answered twice");
    }
    found
}

fn rows(body: &[u8]) -> BTreeMap<i32, String> {
    let page = cql_edit::Page::read(body).unwrap();
    let rows = page.rows.iter().map(|row| {
        let at = i32::from_be_bytes(row[0].unwrap().try_into().unwrap());
        (at, String::from_utf8(row[1].unwrap().to_vec()).unwrap())
    });
    rows.collect()
}

fn table(client: &mut Client) -> BTreeMap<i32, String> {
    let (opcode, body) = client.ask(&query(client.version, 1, SELECT));
    assert_eq!(opcode, RESULT);
    rows(&body)
}

/// The body of a RESULT of kind Prepared, as much of it as is read.
fn prepared(id: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 4][..], &short(id), &[0; 12]].concat()
}

fn is_void((opcode, body): &(u8, Vec<u8>)) -> bool {
    *opcode == RESULT && body == &1_i32.to_be_bytes()
}

#[test]
fn a_full_window_is_one_batch_and_each_stream_is_answered() {
    world(|world| {
        begin(world, "window = \"1s\", max_statements = 5");
        for version in [3, 4, 5] {
            let before = (windows(world, "full"), writes(world, "merged"));
            let batches = world.database.tally().requests[0x0D];
            let mut client = world.client(version);
            let id = client.prepares(INSERT);
            let value = format!("of {version}");
            let all: Vec<Vec<u8>> = (10..15)
                .map(|n| insert(version, n, &id, (1, n.into()), &value))
                .collect();
            send(&mut client, &all);
            let got = answers(&mut client, 5);
            assert!(got.keys().copied().eq(10..15) && got.values().all(is_void));
            assert_eq!(windows(world, "full"), before.0 + 1);
            assert_eq!(writes(world, "merged"), before.1 + 5);
            assert_eq!(world.database.tally().requests[0x0D], batches + 1);
            let expected: BTreeMap<i32, String> = (10..15).map(|at| (at, value.clone())).collect();
            assert_eq!(table(&mut client), expected);
        }
    });
}

#[test]
fn each_partition_has_a_batch_of_its_own() {
    world(|world| {
        let (tells, told) = mpsc::channel();
        let (to, database) = scripted(world, 3, move |nth, asked| {
            let stream = i16::from_be_bytes([asked[2], asked[3]]);
            tells.send(asked[4..].to_vec()).unwrap();
            match nth {
                0 => frame(RESPONSE | 4, stream, RESULT, &prepared(b"id")),
                _ => void(4, stream),
            }
        });
        rule(world, to, &step("window = \"1s\", max_statements = 2"));
        let stream = world.sandbox.client(|| TcpStream::connect(to));
        let mut client = Client::begin(stream.unwrap().unwrap(), 4);
        let id = client.prepares(INSERT);
        told.recv_timeout(PATIENCE).unwrap();
        let rows = [(1, 1), (2, 1), (1, 2), (2, 2)];
        let all = (10..).zip(rows).map(|(n, row)| insert(4, n, &id, row, "v"));
        send(&mut client, &all.collect::<Vec<_>>());
        assert!(answers(&mut client, 4).values().all(is_void));
        for device in [1_i32, 2] {
            let child = |at: i32| {
                let values = [&device.to_be_bytes()[..], &at.to_be_bytes(), b"v"];
                [&[1][..], &short(&id), &bound(&values)].concat()
            };
            // An UNLOGGED one of two, at ONE.
            let body = [&[1, 0, 2][..], &child(1), &child(2), &[0, 1, 0]].concat();
            let length = (body.len() as u32).to_be_bytes();
            let expected = [&[0x0D][..], &length, &body].concat();
            assert_eq!(told.recv_timeout(PATIENCE).unwrap(), expected);
        }
        drop(client);
        database.join().unwrap();
    });
}

#[test]
fn one_alone_goes_on_as_it_was_and_soon_nothing_waits() {
    world(|world| {
        begin(world, "window = \"1ms\"");
        let batches = world.database.tally().requests[0x0D];
        let mut client = world.client(4);
        let id = client.prepares(INSERT);
        for n in 0..12 {
            let (opcode, _) = client.ask(&insert(4, n, &id, (1, n.into()), "v"));
            assert_eq!(opcode, RESULT);
        }
        assert_eq!(windows(world, "alone"), 8);
        assert_eq!(writes(world, "resting"), 4);
        assert_eq!(world.database.tally().requests[0x0D], batches);
        assert_eq!(table(&mut client).len(), 12);
    });
}

#[test]
fn what_comes_behind_finds_what_was_written() {
    world(|world| {
        begin(world, "window = \"1s\"");
        for (round, version) in (1..).zip([4, 5]) {
            let mut client = world.client(version);
            let id = client.prepares(INSERT);
            let value = format!("of {version}");
            let all = [
                insert(version, 10, &id, (1, 1), &value),
                insert(version, 11, &id, (1, 2), &value),
                // Of the same row, so not of the same batch.
                insert(version, 12, &id, (1, 1), "later"),
                query(version, 13, SELECT),
                // Nothing overtakes it, either.
                insert(version, 14, &id, (1, 2), "last"),
            ];
            send(&mut client, &all);
            let got = answers(&mut client, 5);
            let found = rows(&got[&13].1);
            let expected = BTreeMap::from([(1, "later".to_owned()), (2, value)]);
            assert_eq!(found, expected);
            assert_eq!(table(&mut client)[&2], "last");
            // No row is twice in a batch.
            assert_eq!(writes(world, "merged"), 2 * round);
            assert_eq!(writes(world, "alone"), 2 * round);
        }
    });
}

#[test]
fn with_a_time_of_its_own_nothing_is_merged() {
    world(|world| {
        begin(world, "window = \"1s\", max_statements = 2");
        let mut client = world.client(4);
        let id = client.prepares(INSERT);
        let timed = |stream: i16, v: &str, time: i64| {
            let key = [1_i32.to_be_bytes(), 1_i32.to_be_bytes()];
            let values = bound(&[&key[0], &key[1], v.as_bytes()]);
            let behind = [values, time.to_be_bytes().to_vec()].concat();
            execute(4, stream, &id, 0x21, &behind)
        };
        send(
            &mut client,
            &[timed(10, "new", 2_000), timed(11, "old", 1_000)],
        );
        assert!(answers(&mut client, 2).values().all(is_void));
        assert_eq!(writes(world, "timestamp"), 2);
        assert_eq!(writes(world, "merged") + writes(world, "alone"), 0);
    });
}

#[test]
fn what_it_has_not_seen_prepared_passes_and_the_database_says_so() {
    world(|world| {
        begin(world, "window = \"100ms\", max_statements = 2");
        for version in [3, 4, 5] {
            let executes = || world.database.tally().requests[usize::from(EXECUTE)];
            let mut client = world.client(version);
            let before = executes();
            let unknown = insert(version, 7, b"nobody's", (1, 1), "v");
            let (opcode, body) = client.ask(&unknown);
            assert_eq!((opcode, &body[..4]), (ERROR, &0x2500_u32.to_be_bytes()[..]));
            assert!(body.ends_with(&short(b"nobody's")), "{body:?}");
            assert_eq!(executes(), before + 1);
            // What came before it goes before it: nobody knows what it is.
            let id = client.prepares(INSERT);
            let known = |stream, at| insert(version, stream, &id, (1, at), "v");
            let alone = writes(world, "alone");
            send(&mut client, &[known(10, 1), unknown, known(11, 2)]);
            let got = answers(&mut client, 3);
            assert_eq!(got[&7], (ERROR, body));
            assert!(is_void(&got[&10]) && is_void(&got[&11]));
            assert_eq!(writes(world, "alone"), alone + 2);
            assert_eq!(table(&mut client).len(), 2);
        }
    });
}

#[test]
fn an_error_is_everybodys() {
    world(|world| {
        begin(world, "window = \"1s\", max_statements = 3");
        for version in [4, 5] {
            let mut client = world.client(version);
            let id = client.prepares(INSERT);
            world.client(4).does("DROP TABLE shop.events");
            let all: Vec<Vec<u8>> = (10..13)
                .map(|n| insert(version, n, &id, (1, n.into()), "v"))
                .collect();
            send(&mut client, &all);
            let got = answers(&mut client, 3);
            assert!(got.keys().copied().eq(10..13));
            let bodies: HashSet<&(u8, Vec<u8>)> = got.values().collect();
            assert!(bodies.len() == 1 && got[&10].0 == ERROR, "{got:?}");
            begin(world, "window = \"1s\", max_statements = 3");
        }
    });
}

#[test]
fn a_client_that_leaves_has_written() {
    world(|world| {
        begin(world, "window = \"1s\"");
        let mut client = world.client(4);
        let id = client.prepares(INSERT);
        let all = [1, 2].map(|n| insert(4, n, &id, (1, n.into()), "v"));
        send(&mut client, &all);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut left = Vec::new();
        let _ = client.stream.read_to_end(&mut left);
        let mut other = world.client(4);
        eventually("both are there", || table(&mut other).len() == 2);
    });
}

#[test]
fn a_driver_finds_what_it_has_written() {
    world(|world| {
        begin(world, "window = \"5ms\"");
        let database = world.database.addr();
        let found = world.sandbox.client(|| {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(converse(database))
        });
        assert_eq!(found.unwrap(), 256);
        assert!(writes(world, "merged") > 0);
    });
}

/// How many rows it finds.
async fn converse(database: SocketAddr) -> usize {
    let session = SessionBuilder::new().known_node_addr(database);
    let session = Arc::new(session.build().await.unwrap());
    let insert = session.prepare(INSERT).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..256 {
        let (session, insert) = (session.clone(), insert.clone());
        tasks.spawn(async move {
            let values = (n % 2, n, format!("value {n}"));
            session.execute_unpaged(&insert, values).await.unwrap();
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let all = session.query_unpaged("SELECT at, v FROM shop.events", ());
    let rows = all.await.unwrap().into_rows_result().unwrap();
    let rows = rows.rows::<(i32, String)>().unwrap().map(Result::unwrap);
    rows.filter(|(n, v)| *v == format!("value {n}")).count()
}

/// Writes in a row, and in pieces: a table as if each had been asked for alone, and one answer
/// each.
#[test]
fn any_mix_leaves_the_table_as_it_would_have_been() {
    world(|world| {
        begin(world, "window = \"2ms\", max_statements = 7");
        // A generator of Lehmer's; the seed is what a failure is repeated by.
        let mut seed: u64 = 48_271;
        let mut dice = move |n: u64| {
            seed = seed * 48_271 % 0x7FFF_FFFF;
            seed % n
        };
        for version in [3, 4, 5] {
            let mut client = world.client(version);
            let (writes, deletes) = (client.prepares(INSERT), client.prepares(DELETE));
            let reads = client.prepares(SELECT);
            let mut expected = table(&mut client);
            for round in 0..40 {
                let mut sent = Vec::new();
                let mut seen = BTreeMap::new();
                for stream in 10..10 + 1 + dice(60) as i16 {
                    let at = dice(20) as i32;
                    let device = 1 + i32::from(dice(4) == 0);
                    let value = format!("{round}.{stream}");
                    sent.push(match dice(12) {
                        0 => {
                            seen.insert(stream, expected.clone());
                            query(version, stream, SELECT)
                        }
                        1 => {
                            seen.insert(stream, expected.clone());
                            execute(version, stream, &reads, 0, &[])
                        }
                        2 | 3 => {
                            if device == 1 {
                                expected.remove(&at);
                            }
                            delete(version, stream, &deletes, (device, at))
                        }
                        4 => {
                            expected.insert(at, value.clone());
                            let text = format!(
                                "INSERT INTO shop.events (device, at, v) VALUES (1, {at}, '{value}')"
                            );
                            query(version, stream, &text)
                        }
                        _ => {
                            if device == 1 {
                                expected.insert(at, value.clone());
                            }
                            insert(version, stream, &writes, (device, at), &value)
                        }
                    });
                }
                let streams = sent.len();
                let (first, second) = sent.split_at(dice(streams as u64 + 1) as usize);
                send(&mut client, first);
                send(&mut client, second);
                let got = answers(&mut client, streams);
                for (stream, (opcode, body)) in &got {
                    assert_eq!(*opcode, RESULT);
                    if let Some(expected) = seen.get(stream) {
                        assert_eq!(&rows(body), expected, "read of {stream} in round {round}");
                    }
                }
                assert_eq!(table(&mut client), expected, "after round {round}");
            }
        }
        assert!(writes(world, "merged") > 0);
    });
}
