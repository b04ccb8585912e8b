//! `doctor`, when nothing else of ours is on the host.

use std::process::Command;

use serde_json::Value;

use crate::{common::BINARY, turn};

fn findings() -> Vec<(String, String)> {
    let output = Command::new(BINARY).args(["doctor", "--json"]).output();
    let findings: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let findings = findings.as_array().unwrap().iter();
    findings
        .map(|f| (text(f, "what"), text(f, "detail")))
        .collect()
}

/// The kernel takes a moment to forget what a canary has had, and `doctor` is asked again at once.
#[test]
fn what_it_has_tried_out_itself_is_nobody_elses() {
    let _turn = turn();
    for _ in 0..3 {
        let found = findings();
        let others = found.iter().filter(|(what, detail)| {
            let is_canarys = [
                "other sockhash",
                "other sockmap",
                "other sk_msg",
                "other sk_skb",
            ];
            is_canarys.contains(&what.as_str()) || detail.contains("held by underpass")
        });
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&(String, String)>::new());
        // It has tried something out.
        let says = |what: &str, says: &str| {
            let mut found = found.iter();
            assert!(
                found.any(|(found, detail)| found == what && detail.contains(says)),
                "{what} does not say {says}"
            );
        };
        says("shortcut", "in a sockmap FIONREAD tells ");
        says("names", "getpeername()");
    }
}
