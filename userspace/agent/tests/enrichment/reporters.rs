//! Rules with reporters: what they tell of what passes, which stays as it is.

mod adopted;
mod asked;
mod captured;
mod counted;
mod explained;
mod lossy;
mod matrix;
mod not_adopted;
mod page;
mod prometheus;
mod shown;
mod slow;
mod tail;
mod tap_reader;
mod tapped;
mod thousands;
mod top;

use std::{
    fs,
    io::{Read, Write},
    process::Command,
    thread,
    time::Duration,
};

use cassandra_protocol::compression::Compression as Codec;
use cql::Compression;
use cql_edit::in_segments_of;
use sandbox::run_in;
use serde_json::{Value, json};

use crate::common::{
    self, eventually,
    frames::{RESPONSE, RESULT, frame, query, ready, startup, void},
    wire::{
        Conversation, Host, PREPARE, auth_response, auth_success, authenticate, host, host_with,
        set_keyspace,
    },
};

/// Flows come to the agent. Reporters tell the same on the path `tap`: see `tapped`.
const INLINE: &str = "path = \"inline\"";

/// One rule, `r`.
fn policy(conditions: &str, pipeline: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\n{conditions}\naction = \"enrich\"\n\
         pipeline = [{pipeline}]\n"
    )
}

fn begin(host: &Host<'_>, version: u8) -> Conversation {
    let mut c = host.connect();
    c.client_sends(&startup(version, &[("CQL_VERSION", "3.0.0")]));
    c.server_sends(&ready(version));
    c.in_segments = version >= 5;
    c
}

/// A frame as it travels once STARTUP has been answered.
fn framed(version: u8, codec: Option<Codec>, frame: &[u8]) -> Vec<u8> {
    match (version, codec) {
        (5.., None) => in_segments_of(Compression::None, frame),
        (5.., Some(_)) => in_segments_of(Compression::Lz4, frame),
        (_, None) => frame.to_vec(),
        (_, Some(codec)) => {
            let (header, body) = frame.split_at(9);
            let body = codec.encode(body).unwrap();
            let length = (body.len() as u32).to_be_bytes();
            [
                &[header[0], header[1] | 1],
                &header[2..5],
                &length,
                &body[..],
            ]
            .concat()
        }
    }
}

const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 1";

#[test]
fn a_flow_keeps_the_reporters_that_it_began_with() {
    host(|host| {
        let asked_at_one = || {
            let rows = host.agent.json("/statements").unwrap();
            let mut rows = rows.as_array().unwrap().iter();
            let row = rows.find(|row| row["table"] == "orders").unwrap();
            row["consistency"]["one"].clone()
        };
        host.policy(&policy(INLINE, "{ transform = \"stats\" }"));
        let mut before = begin(host, 4);
        host.policy(&policy("", ""));
        let mut after = begin(host, 5);
        let asks = |c: &mut Conversation, version| {
            c.client_sends(&query(version, 1, SELECT));
            c.server_sends(&void(version, 1));
            asked_at_one()
        };
        assert_eq!(asks(&mut before, 4), 1);
        assert_eq!(asks(&mut after, 5), 1);
        assert_eq!(asks(&mut before, 4), 2);
        before.ends();
        after.ends();
    });
}

const ID: &[u8] = b"0123456789abcdef";

fn prepare(version: u8, stream: i16, text: &str) -> Vec<u8> {
    let mut body = (text.len() as i32).to_be_bytes().to_vec();
    body.extend(text.as_bytes());
    body.extend(if version < 5 { &[][..] } else { &[0; 4] });
    frame(version, stream, PREPARE, &body)
}

/// A RESULT of kind Prepared, as much of it as is read.
fn prepared(version: u8, stream: i16) -> Vec<u8> {
    let body = [&4_i32.to_be_bytes()[..], &[0, 16], ID, &[0; 100]].concat();
    frame(RESPONSE | version, stream, RESULT, &body)
}

/// An EXECUTE with a short value.
fn execute(version: u8, stream: i16) -> Vec<u8> {
    execute_with(version, stream, b"secret")
}

/// At LOCAL_ONE, with one value, 100 rows to a page.
fn execute_with(version: u8, stream: i16, value: &[u8]) -> Vec<u8> {
    let metadata: &[u8] = if version < 5 { &[] } else { &[0, 1, b'm'] };
    let flags: &[u8] = if version < 5 { &[5] } else { &[0, 0, 0, 5] };
    let length = (value.len() as i32).to_be_bytes();
    let value = [&[0, 1][..], &length, value].concat();
    let page = 100_i32.to_be_bytes();
    let body = [&[0, 16], ID, metadata, &[0, 10], flags, &value, &page].concat();
    frame(version, stream, 0x0A, &body)
}

/// An UNLOGGED BATCH at ONE of the prepared statement, without values, and this text.
fn batch(version: u8, stream: i16, text: &str) -> Vec<u8> {
    let length = (text.len() as i32).to_be_bytes();
    let children = [
        &[1, 0, 2, 1, 0, 16],
        ID,
        &[0, 0, 0],
        &length,
        text.as_bytes(),
        &[0, 0],
    ];
    let parameters: &[u8] = if version < 5 {
        &[0, 1, 0]
    } else {
        &[0, 1, 0, 0, 0, 0]
    };
    let body = [&children.concat(), parameters].concat();
    frame(version, stream, 0x0D, &body)
}

/// A RESULT of this many rows, each an empty value of one column that is not described.
fn rows(version: u8, stream: i16, count: i32) -> Vec<u8> {
    let head: Vec<u8> = [2, 4, 1, count]
        .iter()
        .flat_map(|n: &i32| n.to_be_bytes())
        .collect();
    let body = [head, vec![0; 4 * count as usize]].concat();
    frame(RESPONSE | version, stream, RESULT, &body)
}

/// An ERROR with this code.
fn error(version: u8, stream: i16, code: i32) -> Vec<u8> {
    let body = [&code.to_be_bytes()[..], &[0, 1, b'x']].concat();
    frame(RESPONSE | version, stream, 0x00, &body)
}

/// Requests of one conversation of each version: a statement that is prepared and executed twice, a
/// text with a value, and a batch of both; the second execution is an error.
fn asks_everything(c: &mut Conversation, version: u8) {
    c.client_sends(&prepare(
        version,
        1,
        "UPDATE shop.orders SET v = ? WHERE id = 7",
    ));
    c.server_sends(&prepared(version, 1));
    c.client_sends(&execute(version, 1));
    c.server_sends(&rows(version, 1, 3));
    c.client_sends(&execute(version, 2));
    c.server_sends(&error(version, 2, 0x1100));
    c.client_sends(&query(
        version,
        1,
        "SELECT v FROM shop.orders WHERE id = 'secret'",
    ));
    c.server_sends(&rows(version, 1, 2));
    c.client_sends(&batch(
        version,
        1,
        "DELETE FROM shop.orders WHERE id = 'secret'",
    ));
    c.server_sends(&void(version, 1));
}

fn the<'a>(list: &'a Value, key: &str, value: &str) -> &'a Value {
    let mut found = list
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row[key] == value);
    let first = found.next();
    assert_eq!(found.next(), None);
    first.unwrap_or_else(|| panic!("no {key} {value}: {list}"))
}

#[test]
fn statistics_know_statements_without_their_values() {
    host(|host| {
        host.policy(&policy("", "{ transform = \"stats\" }"));
        for (version, nth) in [(3, 1), (4, 2), (5, 3)] {
            let mut c = begin(host, version);
            asks_everything(&mut c, version);
            let batches = || {
                let list = host.agent.json("/statements").unwrap();
                let mut rows = list.as_array().unwrap().iter();
                let row = rows.find(|row| row["kind"] == "batch");
                row.map_or(0, |row| row["count"].as_u64().unwrap())
            };
            eventually("all of it is read", || batches() == nth);
            let list = host.agent.json("/statements").unwrap();
            let updates = the(&list, "kind", "update");
            assert_eq!(updates["count"], 2 * nth, "{list}");
            assert_eq!(updates["rows"], 3 * nth);
            assert_eq!(updates["errors"]["write_timeout"], nth);
            assert_eq!(updates["consistency"]["local_one"], 2 * nth);
            let selects = the(&list, "kind", "select");
            assert_eq!(selects["rows"], 2 * nth);
            assert_eq!(selects["consistency"]["one"], nth);
            assert_eq!(selects["bytes_to_client"], (9 + 16 + 8) * nth);

            let top = host.agent.json("/statements/top").unwrap();
            let select = "SELECT v FROM shop.orders WHERE id = ?";
            let update = "UPDATE shop.orders SET v = ? WHERE id = ?";
            let delete = "DELETE FROM shop.orders WHERE id = ?";
            let batch = format!("BEGIN UNLOGGED BATCH {update}; {delete}; APPLY BATCH");
            for (fingerprint, count, errors) in
                [(select, nth, 0), (update, 2 * nth, nth), (&batch, nth, 0)]
            {
                let entry = the(&top, "fingerprint", fingerprint);
                assert_eq!(entry["count"], count, "{entry}");
                assert_eq!(entry["errors"], errors, "{entry}");
                assert_eq!(entry["over"], 0);
                assert_eq!(entry["rule"], "r");
                assert!(
                    entry["p99_us"].as_u64() <= entry["max_us"].as_u64().map(|us| us + us / 16)
                );
            }
            assert_eq!(top.as_array().unwrap().len(), 3, "{top}");
            assert!(!top.to_string().contains("secret"));
            c.ends();
        }
        let labels =
            "code=\"write_timeout\",keyspace=\"shop\",kind=\"update\",rule=\"r\",table=\"orders\"";
        assert_eq!(host.metric("stats_errors", labels), 3);
        let admin = host.agent.admin().to_string();
        let list = |more: &[&str]| {
            let args = [&["statements", "--admin", &admin], more].concat();
            let told = || Command::new(common::BINARY).args(args).output();
            let told = run_in(Some(&host.sandbox.netns), None, told);
            let told = told.unwrap().unwrap();
            assert!(told.status.success());
            String::from_utf8(told.stdout).unwrap()
        };
        let row = |list: &str, of: &str| {
            let row = list
                .lines()
                .find(|line| line.contains(of))
                .unwrap()
                .to_owned();
            let cells = row.split_whitespace();
            cells.map(str::to_owned).collect::<Vec<_>>()
        };
        let (rows, top) = (list(&[]), list(&["--top"]));
        let sent: usize = [3, 4, 5].map(|v| 2 * execute(v, 1).len()).iter().sum();
        let sent = sent.to_string();
        let updates = ["r", "shop", "orders", "update", "6", "3", "9", &sent];
        assert_eq!(row(&rows, " update ")[..8], updates);
        let update = "UPDATE shop.orders SET v = ? WHERE id = ?";
        let process = host.agent.json("/statements/top").unwrap()[0]["process"].clone();
        let process = process.as_str().unwrap();
        assert_eq!(
            row(&top, update)[..9],
            ["r", process, "shop", "orders", "update", "6", "0", "3", "9"]
        );
    });
}

/// The lines of a file, each a JSON object.
fn lines(path: &std::path::Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    assert!(!text.contains("secret"), "{text}");
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn latencies_are_counted_in_buckets_by_what_was_asked() {
    const SLOW: Duration = Duration::from_millis(1_100);
    host(|host| {
        host.policy(&policy("", "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        for takes in [Duration::ZERO, SLOW, Duration::ZERO] {
            c.client_sends(&query(4, 1, SELECT));
            thread::sleep(takes);
            c.server_sends(&void(4, 1));
        }
        c.client_sends(&query(4, 1, "DELETE FROM shop.items WHERE id = 1"));
        c.server_sends(&void(4, 1));
        let seconds = |what: &str, kind: &str, table: &str, le: &str| {
            let labels = format!("keyspace=\"shop\",kind=\"{kind}\",rule=\"r\",table=\"{table}\"");
            let sample = format!("underpass_statement_seconds_{what}{{{labels}{le}}}");
            host.agent.metric(&sample).unwrap()
        };
        eventually("all of it is read", || {
            let list = host.agent.json("/statements").unwrap();
            let mut rows = list.as_array().unwrap().iter();
            rows.any(|row| row["kind"] == "delete" && row["count"] == 1)
        });
        for (kind, table, to_1, to_2, all) in [
            ("select", "orders", 2.0, 3.0, 3.0),
            ("delete", "items", 1.0, 1.0, 1.0),
        ] {
            let bucket = |le: &str| seconds("bucket", kind, table, &format!(",le=\"{le}\""));
            assert_eq!(
                [bucket("1"), bucket("2"), bucket("+Inf")],
                [to_1, to_2, all]
            );
            assert_eq!(seconds("count", kind, table, ""), all);
        }
        let sum = seconds("sum", "select", "orders", "");
        assert!((SLOW.as_secs_f64()..3.0).contains(&sum), "{sum}");
        c.ends();
    });
}

#[test]
fn what_a_guard_refuses_is_told_and_so_is_who_was_decided_by_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.log");
    host(|host| {
        // The order makes no difference.
        let pipeline = format!(
            "{{ transform = \"slowlog\", over = \"0ms\", file = {path:?} }}, \
             {{ transform = \"guard\", refuse = [\"ddl\"] }}"
        );
        let rules = policy("user = [\"alice\"]", &pipeline);
        let rest = "[[rule]]\nname = \"rest\"\nto = [\":PORT\"]\naction = \"bypass\"\n";
        host.policy(&(rules + rest));
        let mut c = host.connect();
        c.client_sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
        c.server_sends(&authenticate(4));
        c.client_sends(&auth_response(4, 0, b"\0alice\0secret"));
        c.server_sends(&auth_success(4, 0));
        let drop = query(4, 7, "DROP TABLE shop.orders");
        c.client.write_all(&drop).unwrap();
        let mut header = [0; 9];
        c.client.read_exact(&mut header).unwrap();
        assert_eq!((header[3], header[4]), (7, 0), "an ERROR on its stream");
        c.client.read_exact(&mut vec![0; header[8].into()]).unwrap();
        c.server_gets_nothing();
        eventually("it is written", || !lines(&path).is_empty());
        let written = lines(&path);
        let line = the(&written.clone().into(), "kind", "drop").clone();
        for (key, expected) in [
            ("fingerprint", "DROP TABLE shop.orders"),
            ("error", "invalid"),
            ("user", "alice"),
            ("rule", "r"),
        ] {
            assert_eq!(line[key], expected, "{line}");
        }
        c.ends();
    });
}

#[test]
fn a_thousand_flows_with_stats_are_small() {
    const FLOWS: usize = 1_000;
    const MOST_MIB: usize = 24;
    host(|host| {
        host.policy(&policy(INLINE, "{ transform = \"stats\" }"));
        // The peak until now is that of loading programs (proc(5), clear_refs).
        fs::write(format!("/proc/{}/clear_refs", host.agent.pid()), "5").unwrap();
        let mut flows: Vec<Conversation> = (0..FLOWS).map(|_| begin(host, 4)).collect();
        for (n, c) in flows.iter_mut().enumerate() {
            for stream in 0..4 {
                let table = (n + usize::from(stream as u16)) % 50;
                let text = format!("SELECT v FROM shop.orders{table} WHERE id = {n}");
                c.client_sends(&query(4, stream, &text));
                c.server_sends(&rows(4, stream, 3));
            }
        }
        let flowing = host.agent.metric("underpass_flows").unwrap();
        assert_eq!(flowing, FLOWS as f64);
        let status = fs::read_to_string(format!("/proc/{}/status", host.agent.pid())).unwrap();
        let kib = |key: &str| -> usize {
            let value = status.lines().find_map(|line| line.strip_prefix(key));
            let value = value.and_then(|value| value.trim().strip_suffix(" kB"));
            value.unwrap().parse().unwrap()
        };
        // Without the program's own pages, which are the page cache's.
        let kib = kib("VmHWM:") - kib("RssFile:");
        assert!(kib < MOST_MIB << 10, "{kib} KiB");
    });
}
