//! Captures, and lists of statements, that are running when another agent takes over: they end, and say why.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use super::{DRAINED, handed};
use crate::common::*;

/// Waits for a command that fails because of the other agent.
fn ends_told(command: Child) {
    let output = command.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("another agent has taken over"), "{said}");
}

#[test]
fn a_capture_and_a_list_end_when_another_agent_takes_over() {
    let host = handed::of_node("pipeline = [{ transform = \"stats\" }]\n", None);
    let mut agent = host.agent("");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let begins = |args: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(args).arg("--admin").arg(agent.admin_socket());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let out = file.to_str().unwrap();
    let capture = begins(&["capture", "--rule", "r", "--for", "1m", "--out", out]);
    let tail = begins(&["tail"]);
    let metric = |name: &str| agent.metric(name).unwrap();
    eventually("both are told", || {
        metric("underpass_captures") == 1.0 && metric("underpass_tail_watchers") == 1.0
    });
    let mut former = agent.take_over("").unwrap();
    ends_told(capture);
    ends_told(tail);
    let text = fs::read_to_string(&file).unwrap();
    let end: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(end["end"], "taken_over", "{text}");
    former.ends_within(DRAINED).unwrap();
}
