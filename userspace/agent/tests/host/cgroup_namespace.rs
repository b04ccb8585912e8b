//! An agent in a container, which has a cgroup namespace of its own. In a pod there is no other.

use std::{
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
};

use sandbox::{Agent, Cgroup, Sandbox, program};
use tempfile::TempDir;

use crate::common::*;

/// A cgroup, and the agent's program, which runs in it and sees it as the root of all.
struct Apart {
    folder: TempDir,
    _cgroup: Cgroup,
}

impl Apart {
    /// `unshare`: the options for namespaces.
    fn new(unshare: &str) -> Self {
        let (folder, cgroup) = (tempfile::tempdir().unwrap(), Cgroup::new().unwrap());
        let processes = cgroup.path().join("cgroup.procs");
        let enters = format!("echo $$ > {}", processes.display());
        let runs = format!("exec unshare {unshare} {BINARY} \"$@\"");
        let apart = Self {
            folder,
            _cgroup: cgroup,
        };
        program::script(&apart.program(), &format!("{enters}\n{runs}")).unwrap();
        apart
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("underpass")
    }

    /// The line of `doctor` about cgroups.
    fn doctor(&self) -> String {
        let output = Command::new(self.program()).arg("doctor").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let line = said.lines().find(|line| line.contains("cgroup2"));
        line.unwrap_or(&said).to_owned()
    }
}

#[test]
fn an_agent_in_a_cgroup_namespace_of_its_own_knows_the_hosts_cgroups() {
    let apart = Apart::new("--cgroup");
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let cgroup = sandbox.cgroup.rule_path();
    let port = to.port();
    let policy = format!(
        "[[rule]]\nname = \"r\"\nto = [\":{port}\"]\ncgroup = [{cgroup:?}]\naction = \"deny\"\n"
    );
    let netns = Some(&sandbox.netns);
    let agent = Agent::start(&apart.program(), netns, &sandbox.cgroup, "", &policy).unwrap();
    let connect = || TcpStream::connect(to);
    assert!(sandbox.client(connect).unwrap().is_err());
    assert!(sandbox.server(connect).unwrap().is_ok());
    let said = apart.doctor();
    assert!(!said.contains("missing"), "{said}");
    drop(agent);
}

/// Without the host's processes nothing says where the host's cgroups begin.
#[test]
fn an_agent_that_cannot_know_them_says_what_to_do() {
    let said = Apart::new("--cgroup --pid --fork --mount-proc").doctor();
    assert!(said.contains("cgroup namespace of its own"), "{said}");
    assert!(said.contains("--cgroupns host"), "{said}");
}
