//! The last policy of the fleet, which an agent has on disk, on a host that is not what it was.

use std::{
    fs::{self, Permissions},
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use policy_source::{Fragment, Fragments};
use sandbox::Agent;

use crate::common::*;

/// Nobody listens there: the store is away.
const AWAY: &str = "http://127.0.0.1:1";

/// A rule that writes to a journal.
fn audits(name: &str, fail: &str, to: SocketAddr, audit: &Path) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nto = [\"{to}\"]\naction = \"enrich\"\nfail = \"{fail}\"\n\
         path = \"inline\"\npipeline = [{{ transform = \"audit\", file = {audit:?}, full = \"drop\" }}]\n"
    )
}

/// Connections are treated as while the agent is away, until what the rules name is there.
#[test]
fn rules_of_which_something_is_away_at_the_start_are_treated_by_their_fail() {
    let hosts = Hosts::new();
    let databases = [(); 4].map(|()| hosts.listen(Distance::Here, Family::V4));
    let [closed, open, here, denied] = databases.each_ref().map(|d| d.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (away, cache) = (
        folder.path().join("away"),
        folder.path().join("kept/policy.json"),
    );
    let audit = |name: &str| away.join(name);
    let text = [
        audits("closed", "closed", closed, &audit("closed.log")),
        audits("open", "open", open, &audit("open.log")),
        audits("here", "closed", here, &folder.path().join("here.log")),
        format!(
            "[[rule]]\nname = \"denied\"\nto = [\"{denied}\"]\naction = \"deny\"\nfail = \"open\"\n"
        ),
    ];
    let name = "all.toml".to_owned();
    let kept = Fragments::new(
        7,
        vec![Fragment {
            name,
            text: text.concat(),
        }],
    )
    .unwrap();
    fs::create_dir(cache.parent().unwrap()).unwrap();
    let before = serde_json::to_vec(&kept).unwrap();
    fs::write(&cache, &before).unwrap();
    fs::set_permissions(&cache, Permissions::from_mode(0o600)).unwrap();
    let source = format!(
        "[host]\nname = \"h\"\n[policy]\nsource = \"etcd\"\nendpoints = [\"{AWAY}\"]\ncache = {cache:?}\n"
    );
    let hook = format!("{}=try_again_ms=200", test_hooks::VARIABLE);
    let agent = hosts.switched(&hook, "", &source);
    let is_refused = |to: SocketAddr| {
        let dialled = hosts.client(|| std::net::TcpStream::connect(to));
        dialled.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    let refused = || [closed, open, here, denied].map(is_refused);
    assert_eq!(refused(), [true, false, false, true]);
    let taken = |agent: &Agent<'_>, rule: &str| {
        let name =
            format!("underpass_connections_total{{outcome=\"intercepted\",rule=\"{rule}\"}}");
        agent.metric(&name).unwrap_or(0.0)
    };
    assert_eq!((taken(&agent, "open"), taken(&agent, "here")), (0.0, 1.0));
    let source_refused = || agent.metric("underpass_policy_source_refused").unwrap();
    eventually("it is told", || source_refused() == 1.0);
    let log = agent.log();
    for rule in ["closed", "open"] {
        let told = format!("rule {rule}: audit: ");
        assert!(log.contains(&told), "{log}");
    }
    assert!(!log.contains("rule here: audit: "), "{log}");

    fs::create_dir(&away).unwrap();
    eventually("all is as it says", || {
        refused() == [false, false, false, true]
    });
    assert_eq!(source_refused(), 0.0);
    assert!(audit("closed.log").exists());
    eventually("it is read", || taken(&agent, "open") > 0.0);
    assert_eq!(fs::read(&cache).unwrap(), before, "kept as it was");
    drop::<[TcpListener; 4]>(databases);
}

/// An operator is told at once of his own rules.
#[test]
fn a_rule_of_the_hosts_own_of_which_something_is_away_keeps_the_agent_from_starting() {
    let hosts = Hosts::new();
    let database = hosts.listen(Distance::Here, Family::V4);
    let to = database.local_addr().unwrap();
    let rule = audits("own", "closed", to, "/nowhere/audit.log".as_ref());
    let (netns, cgroup) = (Some(&hosts.app.netns), &hosts.app.cgroup);
    let started = Agent::start(Path::new(BINARY), netns, cgroup, "", &rule);
    let error = format!("{:#}", started.err().unwrap());
    assert!(error.contains("rule own: audit: "), "{error}");
}
