//! `docs/fleet.md`, its part on Kubernetes: every command that it shows is run, in the order of the page, at a real API server, and says
//! what the page has it say but for times. `UPDATE_DOCS=1` writes what they say.

use std::{fs, os::unix::fs::symlink, path::Path};

use sandbox::{Sandbox, skip::skip};
use serde_json::Value;

use super::{Counter, Cri, cluster::Cluster, in_time, start, token};
use crate::common::operating::blocks_of;

/// The kind of the blocks. Those of etcd are run by `package::fleet`.
const KIND: &str = "console kubernetes";

/// Files of the page that a `cat` shows: they are written from it.
const SHOWS: &str = "cat ";

/// Whether each node has said what it makes of each policy, and that is counted.
fn all_have_answered(cluster: &Cluster<'_>) -> bool {
    let kinds = "underpasspolicies,clusterunderpasspolicies";
    let said = cluster.does(&["get", kinds, "-A", "-o", "json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    said["items"].as_array().unwrap().iter().all(|policy| {
        let status = &policy["status"];
        let nodes = |name: &str| status[name].as_u64().unwrap_or_default();
        status["observedGeneration"] == policy["metadata"]["generation"]
            && nodes("nodes") > 0
            && nodes("nodesInForce") + nodes("nodesRefused") == nodes("nodes")
    })
}

/// Runs a block's commands in a folder, and returns what they say.
fn said(cluster: &Cluster<'_>, block: &str, folder: &Path) -> String {
    let mut said = String::new();
    for line in block.lines() {
        let Some(command) = line.strip_prefix("# ") else {
            continue;
        };
        if let Some(file) = command.strip_prefix(SHOWS) {
            let after = &block[block.find(line).unwrap() + line.len() + 1..];
            let text = after.split("\n# ").next().unwrap();
            let text = format!("{}\n", text.trim_end_matches('\n'));
            fs::write(folder.join(file), text).unwrap();
        }
        said += &format!("{line}\n{}", cluster.shell(folder, command));
        if command.starts_with("kubectl apply") {
            in_time("each node has answered", || all_have_answered(cluster));
        }
    }
    said
}

#[test]
fn every_command_of_the_fleets_page_in_kubernetes_says_what_the_page_has_it_say() {
    let host = Sandbox::new().unwrap();
    let Some(cluster) = Cluster::start(&host.netns) else {
        skip(
            "every_command_of_the_fleets_page_in_kubernetes_says_what_the_page_has_it_say",
            "UNDERPASS_KUBERNETES names no API server: `cargo xtask kubernetes` builds one",
        );
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    symlink(deploy.canonicalize().unwrap(), folder.path().join("deploy")).unwrap();
    let _cri = Cri::start(&folder.path().join("cri.sock"));
    let mut running = None;
    let blocks = blocks_of("fleet.md");
    let blocks: Vec<_> = blocks.iter().filter(|block| block.kind == KIND).collect();
    assert!(blocks.len() > 1);
    for block in blocks {
        block.holds(&said(&cluster, &block.text, folder.path()));
        // The first one installs the chart; no kubelet starts what is in it.
        running.get_or_insert_with(|| {
            token(&cluster, "underpass", &folder.path().join("token"));
            token(
                &cluster,
                "underpass-counter",
                &folder.path().join("counter.token"),
            );
            let ca = cluster.path("ca.crt");
            let agent = start(&host, folder.path(), &ca);
            let counter = Counter::start(&host, folder.path(), &ca, "underpass");
            (agent, counter)
        });
    }
}
