//! `path = "tap"`: the reporters tell of copies what they tell of the bytes themselves, and the application's
//! connection is its own.

use std::path::Path;

use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::trace::v1::Span;
use socket2::SockRef;

use super::*;
use crate::trace::collector::{Collector, Says, listen, text};

pub(super) fn tapped(path: &str, pipeline: &str) -> String {
    policy(&format!("fail = \"open\"\npath = \"{path}\""), pipeline)
}

/// Everything that the reporters told, but for times and what is of this run alone.
fn told(path: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let [audit, slow] = ["audit.log", "slow.log"].map(|name| folder.path().join(name));
    let mut told = json!({});
    host(|host| {
        let listener = listen(host.sandbox);
        let at = listener.local_addr().unwrap();
        let collector = Collector::start(listener, Says::Thanks);
        let steps = format!(
            "{{ transform = \"stats\" }}, {{ transform = \"count\" }}, \
             {{ transform = \"audit\", file = {audit:?}, full = \"drop\" }}, \
             {{ transform = \"slowlog\", file = {slow:?}, over = \"0ms\" }}, \
             {{ transform = \"trace\", endpoint = \"http://{at}\", sample = 1.0 }}"
        );
        host.policy(&tapped(path, &steps));
        let mut flows = Vec::new();
        for version in [3, 4, 5] {
            let mut c = host.connect();
            converses(&mut c, version);
            let flow = host.flow(&c);
            let travels = if path == "tap" { "tap" } else { "enrich" };
            assert_eq!(
                (&flow["path"], &flow["action"]),
                (&json!(travels), &json!("enrich"))
            );
            flows.push(flow["id"].clone());
            c.ends();
        }
        // A STARTUP and a log-in, one of each kind, two that are long, eight at once.
        let asked = 3 * (2 + 5 + 2 + 8);
        eventually("every line is written", || lines_of(&audit).len() >= asked);
        let lines = lines_of(&audit);
        // STARTUP and log-in have no place in the other two.
        let of_data = asked - 3 * 2;
        eventually("every span is there", || collector.spans().len() >= of_data);
        let spans: Value = collector.spans().iter().map(span).collect();
        eventually("every entry is written", || {
            lines_of(&slow).len() >= of_data - 3
        });
        let entries = lines_of(&slow);
        for one in lines.iter().chain(&entries) {
            assert!(flows.contains(&one["flow"]), "{flows:?}: {one}");
        }
        for one in spans.as_array().unwrap() {
            let of = one["underpass.flow"].as_str().unwrap();
            assert!(flows.iter().any(|flow| *flow.to_string() == *of), "{one}");
        }
        told["lines"] = lines.into_iter().map(without_times).collect();
        told["entries"] = entries.into_iter().map(without_times).collect();
        told["spans"] = spans
            .as_array()
            .unwrap()
            .iter()
            .cloned()
            .map(without_times)
            .collect();
        told["rows"] = listed(&host.agent.json("/statements").unwrap());
        told["top"] = listed(&host.agent.json("/statements/top").unwrap());
        let frames = [
            "query",
            "execute",
            "batch",
            "prepare",
            "startup",
            "auth_response",
        ];
        told["frames"] = frames
            .map(|opcode| {
                host.metric(
                    "frames",
                    &format!("from=\"client\",opcode=\"{opcode}\",rule=\"r\""),
                )
            })
            .into_iter()
            .collect();
    });
    told
}

/// A span without its times and the ids of its trace.
fn span(span: &Span) -> Value {
    let mut says =
        json!({ "name": span.name, "kind": span.kind, "status": format!("{:?}", span.status) });
    for attribute in &span.attributes {
        says[&attribute.key] = text(&span.attributes, &attribute.key).into();
    }
    says
}

/// A log-in, every kind of request, an answer and a request that are not read to their ends, and requests that are
/// answered in another order than asked.
fn converses(c: &mut Conversation, version: u8) {
    c.client_sends(&startup(
        version,
        &[("CQL_VERSION", "3.0.0"), ("DRIVER_NAME", "d")],
    ));
    c.server_sends(&authenticate(version));
    c.in_segments = version >= 5;
    c.client_sends(&auth_response(version, 1, b"\0app\0secret"));
    c.server_sends(&auth_success(version, 1));
    asks_everything(c, version);
    c.client_sends(&query(version, 1, SELECT));
    c.server_sends(&rows(version, 1, 25_000));
    let long = format!("{SELECT} /*{}*/", " ".repeat(80_000));
    c.client_sends(&query(version, 1, &long));
    c.server_sends(&void(version, 1));
    for stream in 0..8 {
        c.client_sends(&query(version, stream, SELECT));
    }
    for stream in (0..8).rev() {
        let answer = match stream % 3 {
            0 => error(version, stream, 0x1000),
            _ => rows(version, stream, 1 + i32::from(stream)),
        };
        c.server_sends(&answer);
    }
}

fn lines_of(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The rows of a list, whose order is that of times.
fn listed(list: &Value) -> Value {
    let rows = list.as_array().unwrap().iter().cloned();
    let mut rows: Vec<Value> = rows.map(without_times).collect();
    rows.sort_by_key(Value::to_string);
    rows.into()
}

pub fn without_times(mut of: Value) -> Value {
    let fields = of.as_object_mut().unwrap();
    let of_this_run = [
        "time",
        "unix_ms",
        "coordinator",
        "flow",
        "client",
        "pid",
        "cgroup",
        "database",
        "path",
        "underpass.flow",
        "client.port",
        "server.port",
        "network.peer.port",
    ];
    fields.retain(|name, _| !of_this_run.contains(&name.as_str()));
    fields.retain(|name, _| !name.ends_with("_us") && !name.contains("latency"));
    of
}

/// Selects that were told, each with one row or more.
pub(super) fn told_selects(host: &Host<'_>) -> u64 {
    told_of(host, "orders")
}

/// Requests of a table that were told.
pub(super) fn told_of(host: &Host<'_>, table: &str) -> u64 {
    let list = host.agent.json("/statements").unwrap();
    let mut rows = list.as_array().unwrap().iter();
    let row = rows.find(|row| row["table"] == table);
    row.map_or(0, |row| row["count"].as_u64().unwrap())
}

#[test]
fn the_same_is_told_of_copies() {
    let (inline, tapped) = (told("inline"), told("tap"));
    for what in ["lines", "entries", "spans", "rows", "top", "frames"] {
        assert_eq!(inline[what], tapped[what], "{what}");
    }
}

#[test]
fn a_flow_says_which_step_needs_its_bytes() {
    host(|host| {
        host.policy(&tapped(
            "auto",
            "{ transform = \"stats\" }, { transform = \"guard\", refuse = [\"truncate\"] }",
        ));
        let c = begin(host, 4);
        let flow = host.flow(&c);
        assert_eq!(flow["path"], "enrich");
        assert_eq!(
            flow["why"],
            "rule r says enrich; inline, because `guard` may change, answer, delay or refuse requests; through stats, guard"
        );
        c.ends();
    });
}

#[test]
fn a_tapped_flow_outlives_the_agent() {
    host(|host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        c.client_sends(&query(4, 1, SELECT));
        c.server_sends(&void(4, 1));
        // The other side of the connection is the database's own socket.
        assert!(c.is_direct());
        eventually("it is counted", || {
            let rows = host.agent.json("/statements").unwrap();
            rows.as_array().unwrap().iter().any(|row| row["count"] == 1)
        });
        host.agent.signal(Signal::SIGSTOP).unwrap();
        c.client_sends(&query(4, 1, SELECT));
        c.server_sends(&void(4, 1));
        host.agent.signal(Signal::SIGCONT).unwrap();
        eventually("what passed meanwhile is counted", || {
            let rows = host.agent.json("/statements").unwrap();
            rows.as_array().unwrap().iter().any(|row| row["count"] == 2)
        });
        c.ends();
    });
}

#[test]
fn what_is_encrypted_is_not_read_and_says_so() {
    host(|host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut c = host.connect();
        // A record with a ClientHello, as far as anybody looks.
        c.client_sends(&[0x16, 3, 1, 0, 4, 1, 0, 0, 0]);
        c.server_sends(&[0x16, 3, 3, 0, 4, 2, 0, 0, 0]);
        let stopped = "underpass_tap_stopped_total{reason=\"tls\",rule=\"r\"}";
        eventually("it is given up", || {
            host.agent.metric(stopped).unwrap_or_default() == 1.0
        });
        let why = host.flow(&c)["why"].as_str().unwrap().to_owned();
        assert!(why.contains("speaks TLS"), "{why}");
        c.ends();
    });
}

/// Where a frame begins on a connection that was open before, its packets say. On one that is encrypted none does.
#[test]
fn a_running_connection_in_which_no_frame_begins_says_so() {
    host(|host| {
        host.policy("");
        let mut c = host.connect();
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        host.finds(&c);
        let why = |c: &Conversation| host.flow(c)["why"].as_str().unwrap().to_owned();
        let says = "no frame of CQL has begun";
        assert!(!why(&c).contains(says), "{}", why(&c));
        for _ in 0..4 {
            c.client_sends(&[0x17, 3, 3, 0, 4, 1, 2, 3, 4]);
            c.server_sends(&[0x17, 3, 3, 0, 4, 5, 6, 7, 8]);
        }
        eventually("it says so", || why(&c).contains(says));
        // As if it had been none of them.
        for _ in 0..2 {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&rows(4, 1, 1));
        }
        eventually("it is read", || told_selects(host) >= 1);
        assert!(!why(&c).contains(says), "{}", why(&c));
        c.ends();
    });
}

/// A byte of urgent data is in the packets, and in no stream that anybody reads.
#[test]
fn urgent_data_cost_a_gap_and_no_more() {
    host(|host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        for version in [3, 4, 5] {
            let mut c = begin(host, version);
            for is_clients in [true, false] {
                let mut before = told_selects(host);
                eventually("all that was asked is told", || {
                    thread::sleep(Duration::from_millis(50));
                    let now = told_selects(host);
                    now == std::mem::replace(&mut before, now)
                });
                let ask = |c: &mut Conversation| {
                    c.client_sends(&query(version, 1, SELECT));
                    c.server_sends(&rows(version, 1, 1));
                };
                ask(&mut c);
                eventually("it is read", || told_selects(host) == before + 1);
                let from = if is_clients { &c.client } else { &c.server };
                assert_eq!(SockRef::from(from).send_out_of_band(b"X").unwrap(), 1);
                eventually("it is read again", || {
                    ask(&mut c);
                    told_selects(host) >= before + 2
                });
            }
            c.ends();
        }
    });
}
