//! A cache behind `coalesce`: what was written in a batch makes its table old like any other write.

use std::collections::BTreeMap;

use super::*;

const TABLE: &str =
    "CREATE TABLE shop.events (device int, at int, v text, PRIMARY KEY (device, at))";
const INSERT: &str = "INSERT INTO shop.events (device, at, v) VALUES (?, ?, ?)";
const EVENTS: &str = "SELECT at, v FROM shop.events WHERE device = 1";

fn events(client: &mut Client) -> BTreeMap<i32, String> {
    let (opcode, body) = client.ask(&query(4, 1, EVENTS));
    assert_eq!(opcode, RESULT, "{}", String::from_utf8_lossy(&body));
    let rows = cql_edit::Page::read(&body).unwrap().rows;
    let rows = rows.iter().map(|row| {
        let at = i32::from_be_bytes(row[0].unwrap().try_into().unwrap());
        (at, String::from_utf8(row[1].unwrap().to_vec()).unwrap())
    });
    rows.collect()
}

#[test]
fn what_was_written_in_a_batch_is_read_by_everybody() {
    with_redis("cache_merged", |world, _redis| {
        let to = world.database.addr();
        let direct = world.sandbox.server(|| TcpStream::connect(to));
        Client::begin(direct.unwrap().unwrap(), 4).does(TABLE);
        let coalesce = "{ transform = \"coalesce\", window = \"1s\", max_statements = 2, tables = { \"shop.events\" = { \
                        partition_key = [\"device\"], clustering = [\"at\"], columns = [\"v\"] } } }, ";
        let cache = "tables = [\"shop.events\"], ttl = \"10m\", timeout = \"10s\"";
        world.caches_behind(&format!("\":{}\"", to.port()), coalesce, cache);
        let (mut one, mut two) = (world.client(4), world.client(4));
        let id = one.prepares(INSERT);
        let mut expected = BTreeMap::new();
        for round in 0..3 {
            assert_eq!(events(&mut two), expected);
            let hits = world.reads("hit");
            assert_eq!(events(&mut one), expected);
            assert_eq!(world.reads("hit"), hits + 1, "it is kept");
            let batches = world.database.tally().requests[usize::from(BATCH)];
            for at in [1_i32, 2] {
                let value = format!("{round}.{at}");
                let mut write = one.execute(
                    &id,
                    &[&1_i32.to_be_bytes(), &at.to_be_bytes(), value.as_bytes()],
                );
                // A stream of its own.
                write[3] = 10 + at as u8;
                one.send(&write);
                expected.insert(at, value);
            }
            let streams = [one.next(), one.next()].map(|(stream, opcode, _)| {
                assert_eq!(opcode, RESULT);
                stream
            });
            assert!(streams.contains(&11) && streams.contains(&12));
            assert_eq!(
                world.database.tally().requests[usize::from(BATCH)],
                batches + 1
            );
            assert_eq!(events(&mut two), expected);
        }
        assert_eq!(world.reads("bad") + world.reads("failed"), 0);
    });
}
