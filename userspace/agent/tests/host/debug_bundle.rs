//! `underpass debug-bundle`, as somebody who reports a fault runs it, and as whoever gets the file opens it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use sandbox::{Agent, Sandbox};
use serde_json::Value;

use crate::common::{operator::output, *};

/// The files that need an agent.
const OF_THE_AGENT: [&str; 12] = [
    "metrics.txt",
    "flows.json",
    "names.json",
    "statements.json",
    "top.json",
    "backends.json",
    "namespaces.json",
    "denied.json",
    "marks.json",
    "level.json",
    "process.txt",
    "maps.json",
];

fn bundle(sandbox: &Sandbox, agent: &Agent<'_>, out: &Path) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("debug-bundle").arg("--out").arg(out);
    command.arg("--config").arg(agent.file());
    command.arg("--admin").arg(agent.admin_socket());
    command.arg("--control").arg(agent.control());
    sandbox.server(|| output(&mut command)).unwrap()
}

/// The files of a bundle, by name.
fn opened(bundle: &Path) -> Vec<(String, String)> {
    let tar = |action: &[&str], file: Option<&str>| {
        let mut tar = Command::new("tar");
        tar.args(action).arg("--gzip").arg("--file").arg(bundle);
        let output = output(tar.args(file));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let listed = tar(&["--list"], None);
    let texts = listed.lines().map(|path| {
        let (_, name) = path.rsplit_once('/').unwrap();
        (
            name.to_owned(),
            tar(&["--extract", "--to-stdout"], Some(path)),
        )
    });
    texts.collect()
}

#[test]
fn a_bundle_has_what_a_report_needs_and_no_secret() {
    let sandbox = Sandbox::new().unwrap();
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let policy = format!("# hunter2\n{}", rule("observe", &to(&[9])));
    let mut agent =
        Agent::start(Path::new(BINARY), netns, cgroup, "max_flows = 100", &policy).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("bundle.tar.gz");
    let made = bundle(&sandbox, &agent, &out);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(
        fs::metadata(&out).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let files = opened(&out);
    let text = |name: &str| {
        let file = files.iter().find(|(file, _)| file == name);
        file.map(|(_, text)| text.as_str())
    };
    let said = String::from_utf8(made.stdout).unwrap();
    assert_eq!(files[0].0, "CONTENTS.txt");
    assert_eq!(said, format!("{}\n{}\n", files[0].1, out.display()));
    for (name, text) in &files {
        assert!(
            files[0].1.contains(&format!("{name}: ")) || name == "CONTENTS.txt",
            "{name}"
        );
        assert!(!text.contains("hunter2"), "{name}: {text}");
    }
    for name in OF_THE_AGENT {
        assert!(!text(name).unwrap().is_empty(), "{name}");
    }
    assert!(text("metrics.txt").unwrap().contains("underpass_flows 0"));
    assert!(
        text("policy.toml")
            .unwrap()
            .contains("action = \"observe\"")
    );
    assert!(
        text("process.txt")
            .unwrap()
            .contains(&format!("process {}\n", agent.pid()))
    );
    let json = |name: &str| serde_json::from_str::<Value>(text(name).unwrap()).unwrap();
    let findings = json("doctor.json");
    assert!(
        findings
            .as_array()
            .unwrap()
            .iter()
            .any(|f| f["what"] == "kernel"),
        "{findings}"
    );
    let maps = json("maps.json");
    let maps = maps.as_array().unwrap();
    let sizes = maps.iter().map(|map| map["bytes"].as_u64().unwrap());
    assert!(maps.len() > 10 && sizes.sum::<u64>() > 1 << 20, "{maps:?}");
    assert!(
        maps.iter()
            .any(|map| !map["name"].as_str().unwrap().is_empty()),
        "{maps:?}"
    );

    // What is there is not written over.
    let again = bundle(&sandbox, &agent, &out);
    let complaint = String::from_utf8(again.stderr).unwrap();
    assert!(
        !again.status.success() && complaint.contains("name another by --out"),
        "{complaint}"
    );

    // Of an agent that is gone the bundle says so, and has the rest.
    agent.stop().unwrap();
    let out = folder.path().join("without.tar.gz");
    assert!(bundle(&sandbox, &agent, &out).status.success());
    let files = opened(&out);
    for name in OF_THE_AGENT {
        assert!(
            files[0].1.contains(&format!("{name} is missing (")),
            "{}",
            files[0].1
        );
        assert!(files.iter().all(|(file, _)| file != name), "{name}");
    }
    for name in ["version.txt", "policy.toml", "doctor.json", "kernel.txt"] {
        assert!(files.iter().any(|(file, _)| file == name), "{name}");
    }
}
