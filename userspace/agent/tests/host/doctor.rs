//! `doctor` about programs and sockmaps that are not an agent's.

use std::{path::Path, process::Command};

use dataplane::Splicer;
use sandbox::{Agent, Sandbox};
use serde_json::Value;

use crate::common::{self, BINARY, rule, to};

/// Findings of `doctor`: name and state.
struct Found(Vec<(String, String)>);

impl Found {
    fn by(command: &mut Command) -> Self {
        let output = loop {
            match command.output() {
                // Another test's fork still holds the file open for writing.
                Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                output => break output.unwrap(),
            }
        };
        let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = findings.as_array().unwrap().iter();
        let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
        Self(
            findings
                .map(|f| (text(f, "what"), text(f, "detail")))
                .collect(),
        )
    }

    fn here(args: &[&str]) -> Self {
        Self::by(Command::new(BINARY).args(["doctor", "--json"]).args(args))
    }

    /// Findings of this name that mention `text`.
    fn all(&self, what: &str, text: &str) -> Vec<&str> {
        let of = self.0.iter().filter(|(found, _)| found == what);
        of.map(|(_, detail)| detail.as_str())
            .filter(|detail| detail.contains(text))
            .collect()
    }
}

#[tokio::test]
async fn sockmaps_and_their_programs_are_found_with_whoever_holds_them() {
    let me = format!("[{}]", std::process::id());
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let holder = format!("{}{me}", name.trim_end());
    assert_eq!(Found::here(&[]).all("other sockhash", &me), [""; 0]);
    // Programs of ours, in a process that is no agent.
    let spliced = Splicer::open().unwrap();
    let found = Found::here(&[]);
    for (what, name, says) in [
        (
            "other sockhash",
            "near_apps#",
            "are relayed, and stay on TCP",
        ),
        ("other sockhash", "near_legs#", "are relayed"),
        ("other sockhash", "far_apps#", "are relayed"),
        ("other sockhash", "far_sinks#", "are relayed"),
        ("other sockhash", "far_legs#", "are relayed"),
        ("other sk_msg", "splice_up#", "at near_apps#"),
        ("other sk_msg", "splice_back#", "at far_apps#"),
        ("other sk_skb", "splice_down#", "at far_legs#"),
        (
            "other sk_skb",
            "splice_down#",
            "splice and shortcut are refused",
        ),
    ] {
        let mine = found.all(what, &me);
        let mine = mine.iter().find(|detail| detail.starts_with(name));
        let mine = mine.unwrap_or_else(|| panic!("{what} {name}"));
        assert!(
            mine.contains("held by ") && mine.contains(&holder) && mine.contains(says),
            "{mine}"
        );
    }
    assert_eq!(found.all("other BPF programs", "sockmaps: below").len(), 1);
    drop(spliced);
    common::eventually("they are gone", || {
        Found::here(&[]).all("other sockhash", &me).is_empty()
    });
}

#[test]
fn hooks_that_are_pinned_are_found_at_their_cgroup_and_ours_are_not_others() {
    let sandbox = Sandbox::new().unwrap();
    let netns = Some(&sandbox.netns);
    let policy = rule("enrich", &to(&[9042]));
    let mut agent = Agent::start(Path::new(BINARY), netns, &sandbox.cgroup, "", &policy).unwrap();
    let pin = agent.pins().join("1/connect4").display().to_string();
    let cgroup = sandbox.cgroup.path().file_name().unwrap().to_str().unwrap();
    let place = format!(", at /{cgroup} (connect4)");
    let what = "other cgroup_sock_addr";
    let none = [""; 0];
    assert_eq!(
        Found::here(&[]).all(what, &place),
        none,
        "an agent's are not others'"
    );
    agent.kill().unwrap();
    let left = Found::here(&[]);
    let left = left.all(what, &place);
    let says = format!("pinned at {pin}{place}: what it rewrites");
    assert!(
        left.len() == 1 && left.iter().all(|d| d.contains(&says)),
        "{left:?}"
    );
    let file = agent.file().display().to_string();
    let ours = Found::here(&["--config", &file]);
    assert_eq!(ours.all(what, &place), none, "pinned where ours pin");
}

/// Asks bpftool about one thing.
fn bpftool(args: &[&str]) -> Value {
    let output = Command::new("bpftool")
        .arg("-j")
        .args(args)
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn maps_that_only_our_programs_hold_are_ours() {
    let sandbox = Sandbox::new().unwrap();
    let netns = Some(&sandbox.netns);
    let policy = rule("enrich", &to(&[9042]));
    let mut agent = Agent::start(Path::new(BINARY), netns, &sandbox.cgroup, "", &policy).unwrap();
    let pins = agent.pins().join("1");
    let links = std::fs::read_dir(&pins)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    // One of the pins is a map.
    let programs = links.filter_map(|pin| {
        bpftool(&["link", "show", "pinned", pin.to_str().unwrap()])["prog_id"].as_u64()
    });
    let maps: Vec<u64> = programs
        .flat_map(|id| {
            bpftool(&["prog", "show", "id", &id.to_string()])["map_ids"]
                .as_array()
                .unwrap()
                .clone()
        })
        .map(|id| id.as_u64().unwrap())
        .collect();
    assert!(!maps.is_empty());
    agent.kill().unwrap();
    let file = agent.file().display().to_string();
    let found = Found::here(&["--config", &file]);
    for map in maps {
        for kind in ["other sockhash", "other sockmap"] {
            let listed = found.all(kind, &format!("#{map},"));
            assert_eq!(
                listed, [""; 0],
                "they are held by what is pinned where ours pin"
            );
        }
    }
}

#[test]
fn what_incoming_connections_need_is_tried_out() {
    let found = Found::here(&[]);
    for (what, says) in [
        ("sk_lookup hook", "the kernel has it"),
        (
            "incoming clients' addresses",
            "the routing rules can be had",
        ),
    ] {
        assert_eq!(found.all(what, says).len(), 1, "{what}");
    }
}

#[test]
fn without_root_doctor_says_that_it_cannot_look() {
    let program = sandbox::program::Reachable::of(BINARY).unwrap();
    let found = Found::by(&mut program.as_nobody(&["doctor", "--json"]));
    assert_eq!(found.all("other BPF programs", "run as root").len(), 1);
    let addresses = found.all("incoming clients' addresses", "see this host's address");
    assert_eq!(addresses.len(), 1);
}
