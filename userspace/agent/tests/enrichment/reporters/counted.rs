//! `count` and `debug`: frames by opcode, and frames written down.

use std::fs;

use serde_json::Value;

use super::{INLINE, SELECT, asks_everything, begin, policy};
use crate::common::{
    eventually,
    frames::{RESPONSE, frame, query, startup, void},
    wire::{auth_response, auth_success, authenticate, host},
};

#[test]
fn frames_are_counted_by_opcode() {
    host(|host| {
        host.policy(&policy("", "{ transform = \"count\" }"));
        for (version, nth) in [(3, 1), (4, 2), (5, 3)] {
            let mut c = begin(host, version);
            asks_everything(&mut c, version);
            // An event, for which nobody has asked.
            let event = [&[0, 13][..], b"STATUS_CHANGE"].concat();
            c.server_sends(&frame(RESPONSE | version, -1, 0x0C, &event));
            let counted = |from: &str, opcode: &str| {
                let labels = format!("from=\"{from}\",opcode=\"{opcode}\",rule=\"r\"");
                let sample = format!("underpass_frames_total{{{labels}}}");
                host.agent.metric(&sample).unwrap_or(0.0) as u64
            };
            // The last one has been read from copies, too.
            eventually("all are read", || counted("database", "event") == nth);
            for (from, opcode, each) in [
                ("client", "startup", 1),
                ("client", "query", 1),
                ("client", "prepare", 1),
                ("client", "execute", 2),
                ("client", "batch", 1),
                ("database", "ready", 1),
                ("database", "result", 4),
                ("database", "error", 1),
                ("database", "event", 1),
            ] {
                assert_eq!(
                    counted(from, opcode),
                    each * nth,
                    "{version} {from} {opcode}"
                );
            }
            c.ends();
        }
    });
}

#[test]
fn frames_are_written_down_without_what_is_in_them_unless_that_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let (bare, full) = (folder.path().join("bare"), folder.path().join("full"));
    let written = |path| -> Vec<Value> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let whole = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        whole
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    host(|host| {
        host.policy(&policy(
            INLINE,
            &format!(
                "{{ transform = \"debug\", file = {bare:?}, per_second = 100000 }}, \
                 {{ transform = \"debug\", file = {full:?}, values = true, bytes = 20, per_second = 100000 }}"
            ),
        ));
        let mut lines = 0;
        for version in [3, 4, 5] {
            let mut c = host.connect();
            c.client_sends(&startup(version, &[("CQL_VERSION", "3.0.0")]));
            c.server_sends(&authenticate(version));
            c.in_segments = version >= 5;
            c.client_sends(&auth_response(version, 0, b"\0alice\0secret"));
            c.server_sends(&auth_success(version, 0));
            let text = "SELECT v FROM shop.orders WHERE id = 7";
            c.client_sends(&query(version, 3, text));
            c.server_sends(&void(version, 3));
            let flow = host.flow(&c)["id"].clone();
            c.ends();
            lines += 6;
            for path in [&bare, &full] {
                eventually("all is written", || written(path).len() >= lines);
            }
            let (bare, full) = (written(&bare), written(&full));
            assert_eq!([bare.len(), full.len()], [lines; 2]);
            let last = bare[lines - 6..].iter();
            let opcodes: Vec<_> = last.map(|line| line["opcode"].as_str().unwrap()).collect();
            let expected = [
                "startup",
                "authenticate",
                "auth_response",
                "auth_success",
                "query",
                "result",
            ];
            assert_eq!(opcodes, expected);
            assert!(bare.iter().all(|line| line.get("body").is_none()));
            // A password is never there.
            assert_eq!(full[lines - 4].get("body"), None);
            let asked = &full[lines - 2];
            let hex =
                |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
            let body = &query(version, 3, text)[9..];
            for (key, expected) in [
                ("rule", Value::from("r")),
                ("flow", flow),
                ("from", "client".into()),
                ("version", version.into()),
                ("flags", 0.into()),
                ("stream", 3.into()),
                ("length", body.len().into()),
                ("body", hex(&body[..20]).into()),
            ] {
                assert_eq!(asked[key], expected, "{key}: {asked}");
            }
            assert_eq!(full[lines - 1]["body"], hex(&[0, 0, 0, 1]));
        }
        // More than there may be are counted.
        host.policy(&policy(
            "",
            &format!("{{ transform = \"debug\", file = {bare:?}, per_second = 1 }}"),
        ));
        let mut c = begin(host, 4);
        for _ in 0..50 {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&void(4, 1));
        }
        c.ends();
        let skipped = || host.metric("debug_skipped", "rule=\"r\"") as usize;
        eventually("each frame has a line or is counted", || {
            written(&bare).len() - lines + skipped() == 102
        });
        assert!(skipped() > 0);
    });
}
