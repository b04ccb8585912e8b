//! A rule for a cluster's nodes, which the agent reads of a real Cassandra.

use std::{
    fs,
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use sandbox::{Agent, Cgroup, run_in};

use super::cassandra::Cassandra;

/// A log-in takes tenths of a second, and is tried again after a second or two.
const PATIENCE: Duration = Duration::from_secs(30);

fn is_denied(cgroup: &Cgroup, at: SocketAddr) -> bool {
    let dialled = run_in(None, Some(cgroup), || TcpStream::connect(at)).unwrap();
    dialled.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

#[test]
fn a_rule_follows_the_nodes_of_a_cassandra() {
    let Some(cassandra) = Cassandra::provided("cluster::a_rule_follows_the_nodes_of_a_cassandra")
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let write = |password: &str| {
        fs::write(&file, password).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    };
    let policy = format!(
        "[[cluster]]\nname = \"shop\"\ncontact_points = [\"{}\"]\nuser = {:?}\npassword_file = {file:?}\n\
         [[rule]]\nname = \"shop\"\nto = [\"cluster:shop\"]\naction = \"deny\"\nfail = \"closed\"\n",
        cassandra.addr, cassandra.user
    );
    let cgroup = Cgroup::new().unwrap();
    write("wrong");
    let binary = Path::new(env!("CARGO_BIN_EXE_underpass"));
    let agent = Agent::start(binary, None, &cgroup, "max_flows = 1000", &policy).unwrap();
    agent.wait_for_log("password are incorrect").unwrap();
    assert!(!is_denied(&cgroup, cassandra.addr));
    write(&cassandra.password);
    let begun = Instant::now();
    while !is_denied(&cgroup, cassandra.addr) {
        assert!(begun.elapsed() < PATIENCE, "the cluster is not known");
        thread::sleep(Duration::from_millis(50));
    }
    let names = agent.json("/names").unwrap();
    assert!(
        names.to_string().contains(&cassandra.addr.to_string()),
        "{names}"
    );
}
