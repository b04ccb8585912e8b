//! `slowlog`: what is slow, whose it is, and how much of it is told.

use std::{thread, time::Duration};

use serde_json::Value;

use super::{INLINE, SELECT, asks_everything, begin, execute, lines, policy, rows};
use crate::common::{
    eventually,
    frames::{query, startup, void},
    wire::{auth_response, auth_success, authenticate, host},
};

#[test]
fn what_is_slow_is_written_down_with_whose_it_is() {
    const SLOW: Duration = Duration::from_millis(1_100);
    const STATE: [u8; 5] = [0, 0, 0, 1, b'p'];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.log");
    host(|host| {
        let step = format!("{{ transform = \"slowlog\", over = \"1s\", file = {path:?} }}");
        host.policy(&policy(INLINE, &step));
        let cgroup = host.sandbox.cgroup.rule_path();
        for (version, nth) in [(3, 1), (4, 2), (5, 3)] {
            let mut c = host.connect();
            let options = [("CQL_VERSION", "3.0.0"), ("APPLICATION_NAME", "shop")];
            c.client_sends(&startup(version, &options));
            c.server_sends(&authenticate(version));
            c.in_segments = version >= 5;
            c.client_sends(&auth_response(version, 0, b"\0alice\0secret"));
            c.server_sends(&auth_success(version, 0));
            asks_everything(&mut c, version);
            // One of them asks for a later page, and gets one that is not the last.
            let pages = version == 4;
            let (mut asked, mut answer) = (execute(version, 4), rows(version, 4, 3));
            if pages {
                // Behind an id, a level, flags, a value and the size of a page.
                asked[9 + 2 + 16 + 2] |= 8;
                asked.extend(STATE);
                asked[8] += STATE.len() as u8;
                answer[9 + 4 + 3] |= 2;
                answer.splice(9 + 12..9 + 12, STATE);
                answer[8] += STATE.len() as u8;
            }
            c.client_sends(&asked);
            thread::sleep(SLOW);
            // Traced.
            answer[1] |= 2;
            answer[8] += 16;
            answer.splice(9..9, 0..16);
            c.server_sends(&answer);
            eventually("the slow one is written", || lines(&path).len() >= nth);
            let written = lines(&path);
            assert_eq!(written.len(), nth, "{written:?}");
            let line = &written[nth - 1];
            let flow = host.flow(&c);
            for (key, expected) in [
                ("rule", Value::from("r")),
                ("flow", flow["id"].clone()),
                (
                    "fingerprint",
                    "UPDATE shop.orders SET v = ? WHERE id = ?".into(),
                ),
                ("kind", "update".into()),
                ("keyspace", "shop".into()),
                ("table", "orders".into()),
                ("statements", 1.into()),
                ("values", 1.into()),
                ("consistency", "local_one".into()),
                ("page_size", 100.into()),
                ("later_page", pages.into()),
                ("rows", 3.into()),
                ("more_pages", pages.into()),
                ("bytes_to_client", answer.len().into()),
                ("tracing_id", "00010203-0405-0607-0809-0a0b0c0d0e0f".into()),
                ("coordinator", flow["orig_dst"].clone()),
                ("client", flow["client"].clone()),
                ("user", "alice".into()),
                ("application", "shop".into()),
                ("pid", flow["pid"].clone()),
                ("process", flow["process"].clone()),
                ("cgroup", cgroup.to_str().into()),
            ] {
                assert_eq!(line[key], expected, "{key} of {line}");
            }
            let latency = u128::from(line["latency_us"].as_u64().unwrap());
            assert!(latency >= SLOW.as_micros(), "{line}");
            c.ends();
        }
        let written = "journal=\"slowlog\",outcome=\"written\"";
        assert_eq!(host.metric("journal_records", written), 3);
    });
}

#[test]
fn the_slowest_of_many_are_in_the_agents_log() {
    host(|host| {
        host.policy(&policy(
            "",
            "{ transform = \"slowlog\", slowest_one_in = 50 }",
        ));
        let mut c = begin(host, 4);
        for stream in 0..64 {
            c.client_sends(&query(4, stream, SELECT));
            c.server_sends(&void(4, stream));
        }
        c.client_sends(&query(
            4,
            1,
            "SELECT slow FROM shop.orders WHERE id = 'secret'",
        ));
        thread::sleep(Duration::from_millis(500));
        c.server_sends(&void(4, 1));
        let slow = "SELECT slow FROM shop.orders WHERE id = ?";
        eventually("it is in the log", || host.agent.log().contains(slow));
        assert!(!host.agent.log().contains("secret"));
        c.ends();
    });
}
