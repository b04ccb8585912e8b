//! `path = "tap"`: the reporters tell of copies what they tell of the bytes themselves, and the application's
//! connection is its own.

use std::{
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    time::Instant,
};

use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::trace::v1::Span;
use sandbox::{Agent, Sandbox};
use socket2::SockRef;

use super::*;
use crate::{
    common::{BINARY, PATIENCE, accept, eventually_within, wire::host_with, without_descriptors},
    trace::collector::{Collector, Says, listen, text},
};

fn tapped(path: &str, pipeline: &str) -> String {
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
fn what_has_no_room_is_counted_and_reading_goes_on() {
    const REQUESTS: u64 = 3_000;
    host_with("tap_ring_bytes = 65536", |host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        let asks = |c: &mut Conversation| {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&rows(4, 1, 100));
        };
        let counted = || {
            let list = host.agent.json("/statements").unwrap();
            let rows = list.as_array().unwrap();
            let row = rows.iter().find(|row| row["table"] == "orders");
            row.map_or(0, |row| {
                // No request is given another's response.
                let count = row["count"].as_u64().unwrap();
                assert_eq!(row["rows"], 100 * count);
                count
            })
        };
        asks(&mut c);
        eventually("it is read", || counted() == 1);
        host.agent.signal(Signal::SIGSTOP).unwrap();
        for _ in 0..REQUESTS {
            asks(&mut c);
        }
        host.agent.signal(Signal::SIGCONT).unwrap();
        let by = |what: &str, direction: &str| {
            host.metric(
                &format!("observed_{what}"),
                &format!("direction=\"{direction}\",rule=\"r\""),
            )
        };
        // The kernel counts whatever is read.
        let requests = || host.metric("observed_requests", "opcode=\"query\",rule=\"r\"");
        assert_eq!(requests(), REQUESTS + 1);
        assert!(by("uncopied_bytes", "to_client") > 0);
        let uncopied = by("uncopied_frames", "to_database");
        assert!(uncopied > 0 && uncopied < REQUESTS, "{uncopied}");
        let mut before = counted();
        eventually("all copies are read", || {
            let now = counted();
            now == std::mem::replace(&mut before, now)
        });
        assert!(before < REQUESTS, "{before}");
        // The first one shows what is missing; its response is behind that, and paired with nothing.
        for _ in 0..11 {
            asks(&mut c);
        }
        eventually("reading goes on", || counted() == before + 10);
        assert!(host.metric("tap_gaps", "rule=\"r\"") > 0);
        c.ends();
    });
}

/// Times that the thread which reads copies has run and gone to sleep.
fn wake_ups(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut threads = threads.map(|thread| thread.unwrap().path());
    let is_readers = |thread: &PathBuf| fs::read_to_string(thread.join("comm")).unwrap() == "tap\n";
    let reader = threads.find(is_readers).unwrap();
    let status = fs::read_to_string(reader.join("status")).unwrap();
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

#[test]
fn idle_connections_wake_nobody() {
    const CONNECTIONS: usize = 1_000;
    host(|host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let idle = [(); CONNECTIONS].map(|()| begin(host, 4));
        eventually("all are read", || {
            host.agent.metric("underpass_tap_flows").unwrap() == CONNECTIONS as f64
        });
        let pid = host.agent.pid();
        // Five seconds after the last copy it looks once for flows whose end it was not told of.
        thread::sleep(Duration::from_secs(6));
        let mut before = wake_ups(pid);
        eventually("its reader sleeps", || {
            thread::sleep(Duration::from_millis(50));
            let now = wake_ups(pid);
            now == std::mem::replace(&mut before, now)
        });
        thread::sleep(Duration::from_millis(1_500));
        assert_eq!(wake_ups(pid), before);
        let [mut first, ..] = idle;
        first.client_sends(&query(4, 1, SELECT));
        first.server_sends(&void(4, 1));
        eventually("it wakes", || {
            let rows = host.agent.json("/statements").unwrap();
            rows.as_array().unwrap().iter().any(|row| row["count"] == 1)
        });
        assert!(wake_ups(pid) > before);
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

/// Flows that are left out send nothing that could wake their reader.
#[test]
fn who_was_left_out_is_read_again_when_it_is_quiet() {
    const CONNECTIONS: usize = 8;
    const LEFT_OUT: &str = "underpass_tap_left_out{rule=\"r\"}";
    host_with("tap_cpu = \"2%\"", |host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut busy = [(); CONNECTIONS].map(|()| begin(host, 4));
        let mut asks_all = || {
            for c in &mut busy {
                c.client_sends(&query(4, 1, SELECT));
                c.server_sends(&rows(4, 1, 1));
            }
        };
        let left_out = || {
            let flows = host.agent.json("/flows").unwrap();
            let why = flows
                .as_array()
                .unwrap()
                .iter()
                .map(|f| f["why"].as_str().unwrap());
            why.filter(|why| why.ends_with("not read now, because `tap_cpu` is used up"))
                .count()
        };
        eventually("some are left out", || {
            asks_all();
            host.agent.metric(LEFT_OUT).unwrap_or_default() > 0.0
        });
        eventually("it is said of some", || {
            asks_all();
            left_out() > 0
        });
        let said =
            "reading copies takes more than `tap_cpu`: some of the rule's flows are not read";
        host.agent.wait_for_log(said).unwrap();
        eventually_within("none is left out", 3 * PATIENCE, || {
            host.agent.metric(LEFT_OUT).unwrap() == 0.0
        });
        host.agent
            .wait_for_log("all of the rule's flows are read again")
            .unwrap();
        eventually("it is said of none", || left_out() == 0);
        let before = told_selects(host);
        // Requests that were not read leave a gap, and the first one behind it may have no response.
        (0..2).for_each(|_| asks_all());
        eventually("all are read", || {
            told_selects(host) >= before + CONNECTIONS as u64
        });
        busy.into_iter().for_each(Conversation::ends);
    });
}

/// Nothing passes on them: all that takes time is that they begin and end.
#[test]
fn connections_that_come_and_go_are_left_out_when_they_take_too_much() {
    const AT_ONCE: usize = 32;
    const LEFT_OUT: &str = "underpass_tap_left_out{rule=\"r\"}";
    host_with("tap_cpu = \"1%\"", |host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        eventually("some are left out", || {
            (0..AT_ONCE).for_each(|_| host.connect().ends());
            host.agent.metric(LEFT_OUT).unwrap_or_default() > 0.0
        });
        eventually_within("none is left out", 3 * PATIENCE, || {
            host.agent.metric(LEFT_OUT).unwrap() == 0.0
        });
        let mut c = begin(host, 4);
        c.client_sends(&query(4, 1, SELECT));
        c.server_sends(&rows(4, 1, 1));
        eventually("it is read", || told_selects(host) == 1);
        c.ends();
    });
}

#[test]
fn a_reader_that_cannot_wait_reads_on() {
    host(|host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        let mut ask = || {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&rows(4, 1, 1));
        };
        ask();
        eventually("it is read", || told_selects(host) == 1);
        let failure = "copies of tapped flows cannot be waited for";
        without_descriptors(&host.agent, || {
            // It sleeps, and finds out when it is to wait again.
            ask();
            host.agent.wait_for_log(failure).unwrap();
            ask();
        });
        eventually("all is read", || told_selects(host) == 3);
        ask();
        eventually("it reads on", || told_selects(host) == 4);
        assert_eq!(host.agent.log().matches(failure).count(), 1);
        let failed = host.agent.metric("underpass_tap_failed_waits_total");
        assert_eq!(failed.unwrap(), 1.0);
        c.ends();
    });
}

/// The longest that a request may take on busy processors.
const PATIENT: Duration = Duration::from_secs(1);

/// The ring is smaller than what passes while the agent is stopped.
#[test]
fn an_agent_that_stops_for_seconds_is_not_noticed_and_each_frame_is_accounted_for() {
    const STOPPED: Duration = Duration::from_secs(5);
    host_with("tap_ring_bytes = 1048576", |host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        let ask = |c: &mut Conversation| {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&rows(4, 1, 1));
        };
        ask(&mut c);
        eventually("it is read", || told_selects(host) == 1);
        host.agent.signal(Signal::SIGSTOP).unwrap();
        let (mut asked, mut slowest) = (1, Duration::ZERO);
        let stopped = Instant::now();
        while stopped.elapsed() < STOPPED {
            let began = Instant::now();
            // Panics when a byte is missing or wrong.
            ask(&mut c);
            slowest = slowest.max(began.elapsed());
            asked += 1;
        }
        host.agent.signal(Signal::SIGCONT).unwrap();
        assert!(slowest < PATIENT, "{slowest:?}");
        let mut before = told_selects(host);
        eventually("all copies are read", || {
            let now = told_selects(host);
            now == std::mem::replace(&mut before, now)
        });
        let passed = |direction: &str, opcode: &str| {
            let name = format!("observed_{direction}");
            host.metric(&name, &format!("opcode=\"{opcode}\",rule=\"r\""))
        };
        assert_eq!(passed("requests", "query"), asked);
        assert_eq!(passed("responses", "result"), asked);
        let uncopied = |direction: &str| {
            let labels = format!("direction=\"{direction}\",rule=\"r\"");
            host.metric("observed_uncopied_frames", &labels)
        };
        let [requests, responses] = ["to_database", "to_client"].map(uncopied);
        let abandoned = host.metric("tap_abandoned", "rule=\"r\"");
        let counts = format!(
            "{before} of {asked} told, {abandoned} abandoned, {requests} and {responses} not copied"
        );
        assert!(requests + responses > 0, "the ring has held all: {counts}");
        // What was told has both its frames; what was not has lost one of them, or was waiting when others were lost.
        assert!(before + requests.max(responses) <= asked, "{counts}");
        assert!(
            before + abandoned + requests + responses >= asked,
            "{counts}"
        );
        c.ends();
    });
}

/// The word of its end is lost with what there is no room for, and nothing comes that could wake the reader.
#[test]
fn a_flow_whose_end_was_lost_is_found_though_nothing_comes_any_more() {
    const REQUESTS: usize = 2_000;
    const CONNECTIONS: usize = 8;
    host_with("tap_ring_bytes = 65536", |host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut all = [(); CONNECTIONS].map(|()| begin(host, 4));
        let ask = |c: &mut Conversation| {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&rows(4, 1, 1));
        };
        all.iter_mut().for_each(ask);
        eventually("all are read", || told_selects(host) == CONNECTIONS as u64);
        host.agent.signal(Signal::SIGSTOP).unwrap();
        (0..REQUESTS).for_each(|_| ask(&mut all[0]));
        // There may be room for one or two.
        all.into_iter().for_each(Conversation::ends);
        host.agent.signal(Signal::SIGCONT).unwrap();
        eventually_within("their ends are found", 3 * PATIENCE, || {
            host.agent.metric("underpass_tap_flows").unwrap() == 0.0
        });
        let uncopied = host.metric(
            "observed_uncopied_frames",
            "direction=\"to_database\",rule=\"r\"",
        );
        assert!(uncopied > 0);
    });
}

/// Selects that were told, each with one row or more.
fn told_selects(host: &Host<'_>) -> u64 {
    let list = host.agent.json("/statements").unwrap();
    let mut rows = list.as_array().unwrap().iter();
    let row = rows.find(|row| row["table"] == "orders");
    row.map_or(0, |row| row["count"].as_u64().unwrap())
}

#[test]
fn the_agents_death_is_not_noticed() {
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let rules = tapped("tap", "{ transform = \"stats\" }").replace("PORT", &port);
    let netns = Some(&sandbox.netns);
    let mut agent = Agent::start(Path::new(BINARY), netns, &sandbox.cgroup, "", &rules).unwrap();
    let connect = || {
        let to = listener.local_addr().unwrap();
        let client = sandbox.client(|| TcpStream::connect(to));
        Conversation {
            client: client.unwrap().unwrap(),
            server: accept(&listener).0,
            in_segments: false,
        }
    };
    let mut before = connect();
    before.client_sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
    before.server_sends(&ready(4));
    eventually("it is read", || {
        agent.metric("underpass_tap_flows").unwrap() == 1.0
    });
    agent.kill().unwrap();
    // Neither the connection nor a new one notices.
    for mut c in [before, connect()] {
        c.client_sends(&query(4, 1, SELECT));
        c.server_sends(&void(4, 1));
        c.ends();
    }
}
