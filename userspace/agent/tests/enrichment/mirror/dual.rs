//! Writes that wait for the mirror, too.

use std::{net::SocketAddr, sync::Arc};

use scylla::client::{Compression, session_builder::SessionBuilder};

use crate::common::{
    eventually,
    frames::{RESULT, frame, query},
    world::{ERROR, hangs, insert, nobody, world},
};

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
