//! An etcd with users: agents and operators have the roles of `docs/fleet.md`, and may do what they have to, and no more.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use sandbox::{Agent, Etcd, Sandbox};
use serde_json::Value;

use crate::common::{BINARY, eventually, operating::blocks_of};

/// The port at which `etcdctl` asks unless it is told.
const USUAL_PORT: u16 = 2379;

/// The kind of the page's block of commands without output.
const COMMANDS: &str = "sh";

const RULES: &str = "[[rule]]\nname = \"quota\"\nto = [\":9042\"]\naction = \"enrich\"\nfail = \"closed\"\n\
                     pipeline = [{ transform = \"throttle\", rate = 1000, per = \"user\", scope = \"fleet\", mode = \"overloaded\" }]\n";

struct Hosts {
    sandbox: Sandbox,
    folder: tempfile::TempDir,
}

impl Hosts {
    /// Writes a file that only its owner can read.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// The table `[policy]` for a user.
    fn source(&self, etcd: &Etcd<'_>, user: &str) -> String {
        let password = self.write(user, &format!("{user}s\n"));
        let cache = self.folder.path().join("kept.json");
        format!(
            "[host]\nname = \"h\"\n[policy]\nsource = \"etcd\"\nendpoints = {:?}\nuser = {user:?}\npassword_file = {password:?}\n\
             cache = {cache:?}\n",
            etcd.endpoints()
        )
    }

    /// Runs `underpass policy` as a user.
    fn policy(&self, etcd: &Etcd<'_>, user: &str, args: &[&str]) -> Output {
        let config = self.write(&format!("{user}.toml"), &self.source(etcd, user));
        let mut command = Command::new(BINARY);
        command.arg("policy").args(args).arg("--config").arg(config);
        self.sandbox.server(|| command.output()).unwrap().unwrap()
    }

    fn status(&self, etcd: &Etcd<'_>) -> Value {
        let said = self.policy(etcd, "operator", &["status", "--json"]);
        serde_json::from_slice(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"))
    }
}

#[test]
fn an_agent_with_the_role_of_the_page_follows_tells_and_shares_and_writes_no_rule() {
    let hosts = Hosts {
        sandbox: Sandbox::new().unwrap(),
        folder: tempfile::tempdir().unwrap(),
    };
    let etcd = Etcd::start_at(Some(&hosts.sandbox.netns), &[USUAL_PORT]).unwrap();
    let blocks = blocks_of("fleet.md");
    let mut commands = blocks.iter().filter(|block| block.kind == COMMANDS);
    let (Some(roles), None) = (commands.next(), commands.next()) else {
        panic!("the page has one block of commands without output");
    };
    let mut shell = Command::new("sh");
    shell.env("ETCDCTL_API", "3").args(["-ec", &roles.text]);
    let made = hosts.sandbox.server(|| shell.output()).unwrap().unwrap();
    assert!(made.status.success(), "{made:?}");
    for args in [
        &["user", "add", "root:roots"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "agent:agents"],
        &["user", "grant-role", "agent", "underpass-agent"],
        &["user", "add", "operator:operators"],
        &["user", "grant-role", "operator", "underpass-operator"],
        &["auth", "enable"],
    ] {
        etcd.ctl(0, args).unwrap();
    }
    let (netns, cgroup) = (Some(&hosts.sandbox.netns), &hosts.sandbox.cgroup);
    let source = hosts.source(&etcd, "agent");
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &source).unwrap();
    let is_one = |metric: &str| agent.metric(metric).unwrap() == 1.0;

    let rules = hosts.write("quota.toml", RULES);
    let push = |user: &str| hosts.policy(&etcd, user, &["push", rules.to_str().unwrap()]);
    let pushed = push("operator");
    assert!(pushed.status.success(), "{pushed:?}");
    let path = rules.to_str().unwrap();
    let other = hosts.policy(&etcd, "operator", &["push", path, "--on", "7"]);
    let why = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(
        !other.status.success() && why.contains("the latest version is 1"),
        "{why}"
    );
    eventually("it follows, and tells of it", || {
        let expected = ["status", "--expect", "1"];
        let status = hosts.policy(&etcd, "operator", &expected);
        status.status.success()
    });
    let told = &hosts.status(&etcd)["hosts"][0];
    assert_eq!([&told["version"], &told["in_force_version"]], [1, 1]);
    eventually("it shares, and leads", || {
        is_one("underpass_limits_in_step")
            && is_one("underpass_limits_leads")
            && is_one("underpass_limits_hosts{limit=\"quota.user\"}")
    });
    assert!(is_one("underpass_policy_source_in_step"));

    // Whoever has an agent's password decides for no host.
    let refused = push("agent");
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && why.contains("permission denied"),
        "{why}"
    );
    let as_agent = |args: &[&str]| etcd.ctl(0, &[&["--user", "agent:agents"], args].concat());
    for args in [
        &["put", "/underpass/rules/quota.toml", ""][..],
        &["put", "/underpass/rules/other.toml", ""],
        &["del", "/underpass/rules/quota.toml"],
        &["del", "--prefix", "/underpass/"],
        &["put", "/underpass/head", "7"],
        &["put", "/underpass/pushed", "{}"],
        &["get", "--prefix", "/underpass/history/"],
        &["role", "list"],
    ] {
        let said = as_agent(args).map_err(|error| error.to_string());
        let is_denied = said
            .as_ref()
            .is_err_and(|why| why.contains("permission denied"));
        assert!(is_denied, "{args:?}: {said:?}");
    }
    assert!(as_agent(&["put", "/underpass/status/h", "{}"]).is_ok());

    // A role that was made before hosts told their version: they follow all the same.
    let may_not = [
        "role",
        "revoke-permission",
        "underpass-agent",
        "/underpass/pushed",
    ];
    etcd.ctl(0, &[&["--user", "root:roots"], &may_not[..]].concat())
        .unwrap();
    hosts.write("quota.toml", &RULES.replace("1000", "2000"));
    assert!(push("operator").status.success());
    eventually("it follows still", || {
        let status = hosts.status(&etcd);
        status["in_force"] == 1 && status["hosts"][0]["version"].is_null()
    });
    assert!(is_one("underpass_policy_source_in_step"));
}
