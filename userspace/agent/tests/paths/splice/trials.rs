//! The splice's engines: those that pass their trial, as the agent, metrics and `doctor` have it.

use std::path::Path;

use sandbox::{Agent, Sandbox};

use super::{BINARY, ENGINES, listener, pair, policy, switched, why_on};

/// Whether a path is available, as metrics have it.
fn available(agent: &Agent<'_>, path: &str) -> Option<f64> {
    let metrics = agent.metrics().unwrap();
    let name = format!("underpass_path_available{{path=\"{path}\"");
    let mut samples = metrics.iter().filter(|(n, _)| n.starts_with(&name));
    samples.next().map(|(_, value)| *value)
}

#[test]
fn flows_go_by_an_engine_that_works_and_are_relayed_where_none_does() {
    let sandbox = Sandbox::new().unwrap();
    let listener = listener(&sandbox);
    let folder = tempfile::tempdir().unwrap();
    let port = listener.local_addr().unwrap().port();
    for (without, works) in [
        ("none", [true, true]),
        ("splice_sender", [false, true]),
        ("splice_egress", [true, false]),
        ("splice_sender+splice_egress", [false, false]),
    ] {
        let binary = switched(
            folder.path(),
            &format!("UNDERPASS_TEST_HOOKS=without={without}"),
        );
        let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
        let settings = "splice = \"auto\"";
        let agent = Agent::start(&binary, netns, cgroup, settings, &policy(port)).unwrap();
        agent.wait_for_log("path=\"splice_egress\"").unwrap();
        for (engine, works) in ENGINES.into_iter().zip(works) {
            let available = available(&agent, &format!("splice_{engine}"));
            assert_eq!(available, Some(f64::from(works)), "{engine}");
        }
        let (mut client, mut database) = pair(&sandbox, &listener);
        let [sender, egress] = works;
        let path = if sender || egress { "splice" } else { "relay" };
        let why = why_on(&agent, path, (&mut client, &mut database));
        drop((client, database));
        agent.wait_for_log("flow closed").unwrap();
        let handovers = agent.metric("underpass_handovers_total").unwrap();
        assert_eq!(handovers > 0.0, sender || egress, "{handovers}: {without}");
        let off = "underpass_splice_refusals_total{reason=\"off\"}";
        let is_off = f64::from(!sender && !egress);
        assert_eq!(agent.metric(off).unwrap(), is_off, "{without}");
        if egress && !sender {
            assert!(
                why.contains("by engine egress: engine sender is off"),
                "{why}"
            );
        }
    }
}

#[test]
fn a_policy_does_not_get_in_the_canarys_way() {
    for action in ["deny", "enrich"] {
        let sandbox = Sandbox::new().unwrap();
        let rules = format!(
            "[[rule]]\nname = \"loopback\"\nto = [\"127.0.0.0/8\"]\naction = \"{action}\"\n\
             [[rule]]\nname = \"past\"\nto = [\":1\"]\naction = \"bypass\"\nshortcut = true\n"
        );
        let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
        let settings = "splice = \"auto\"";
        let agent = Agent::start(Path::new(BINARY), netns, cgroup, settings, &rules).unwrap();
        for path in ["splice_sender", "splice_egress", "shortcut"] {
            let said = agent.wait_for_log(&format!("path=\"{path}\"")).unwrap();
            assert!(said.contains("path works"), "{action}: {said}");
        }
    }
}

#[test]
fn doctor_tries_the_engines_out() {
    let sandbox = Sandbox::new().unwrap();
    let doctor = |without: &str| {
        let output = sandbox.server(|| {
            // Before everything else that runs here: it says how long the canaries take.
            let mut doctor = std::process::Command::new("nice");
            let doctor = doctor.args(["-n", "-20", BINARY, "doctor"]);
            doctor.env("UNDERPASS_TEST_HOOKS", format!("without={without}"));
            String::from_utf8(doctor.output().unwrap().stdout).unwrap()
        });
        output.unwrap()
    };
    let is = |output: &str, what: &str, said: &str| {
        let line = output.lines().find(|l| l.starts_with(what));
        assert!(line.is_some_and(|l| l.contains(said)), "{what}: {output}");
    };
    let paths = ["path splice_sender", "path splice_egress", "shortcut"];
    let all_paths = [&paths[..], &["observe"]].concat();
    let all = doctor("none");
    all_paths.iter().for_each(|path| is(&all, path, " ok "));
    // It stands before every start. What else the machine does may add to it, so the best counts.
    let mut tries = (0..5).map(|_| tried_in(&doctor("none"), &paths));
    assert!(tries.any(|ms| ms < 2_000), "the canaries are slow: {all}");
    let none = doctor("splice_sender+splice_egress+shortcut+observe");
    let reason = "UNDERPASS_TEST_HOOKS names it";
    all_paths.iter().for_each(|path| is(&none, path, reason));
}

/// Milliseconds, of all of these together.
fn tried_in(output: &str, paths: &[&str]) -> u64 {
    let ms = |path: &&str| {
        let line = output.lines().find(|l| l.starts_with(path)).unwrap();
        let (_, tried) = line.split_once("tried in ").unwrap();
        let (ms, _) = tried.split_once(" ms").unwrap();
        ms.parse::<u64>().unwrap()
    };
    paths.iter().map(ms).sum()
}

/// The maps have room for one flow, and the next one's would be free a second after it has ended: the
/// trial finds no room for its second flow.
const ROOM_FOR_ONE: [&str; 2] = ["UNDERPASS_TEST_HOOKS", "entries=1"];

/// The trial's reason for a flow that is refused.
const NOT_CARRIED: &str = "the kernel does not carry it";

#[test]
fn an_engine_that_fails_its_trial_is_off_and_says_why() {
    let sandbox = Sandbox::new().unwrap();
    let listener = listener(&sandbox);
    let folder = tempfile::tempdir().unwrap();
    let binary = switched(folder.path(), &ROOM_FOR_ONE.join("="));
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let policy = policy(listener.local_addr().unwrap().port());
    let agent = Agent::start(&binary, netns, cgroup, "splice = \"auto\"", &policy).unwrap();
    for engine in ENGINES {
        let path = format!("path=\"splice_{engine}\"");
        let said = agent.wait_for_log(&path).unwrap();
        assert!(said.contains("path is off"), "{said}");
        assert!(said.contains(NOT_CARRIED), "{said}");
        let metrics = agent.metrics().unwrap();
        let of_path = format!("underpass_path_available{{{path}");
        let tried = metrics
            .iter()
            .filter(|(name, _)| name.starts_with(&of_path));
        let tried: Vec<_> = tried.collect();
        let reason = format!(": {NOT_CARRIED}\"}}");
        assert!(
            matches!(tried[..], [(name, &0.0)] if name.ends_with(&reason)),
            "{tried:?}"
        );
    }
    let (mut client, mut database) = pair(&sandbox, &listener);
    // A flow looks for the kernel's way only when that was tried out.
    let why = why_on(&agent, "relay", (&mut client, &mut database));
    assert!(why.contains("splice is off: "), "{why}");
    assert!(why.contains(NOT_CARRIED), "{why}");
    drop((client, database));
    agent.wait_for_log("flow closed").unwrap();
    let off = "underpass_splice_refusals_total{reason=\"off\"}";
    assert_eq!(agent.metric(off).unwrap(), 1.0);
    assert_eq!(agent.metric("underpass_handovers_total").unwrap(), 0.0);

    let doctor = sandbox.server(|| {
        let mut doctor = std::process::Command::new(BINARY);
        let [name, value] = ROOM_FOR_ONE;
        let doctor = doctor.arg("doctor").env(name, value);
        String::from_utf8(doctor.output().unwrap().stdout).unwrap()
    });
    let doctor = doctor.unwrap();
    for engine in ENGINES {
        let path = format!("path splice_{engine}");
        let line = doctor.lines().find(|line| line.starts_with(&path));
        assert!(line.is_some_and(|l| l.contains(NOT_CARRIED)), "{doctor}");
    }
}
