//! `docs/topologies.md`, pasted: its blocks run as they stand, with the examples of `config/examples`,
//! on a machine of each walk's own, as far as a machine is mounts, cgroups and networks.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sandbox::Cgroup;

use crate::common::eventually;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// The longest walk takes a quarter of it.
const LIMIT: Duration = Duration::from_secs(60);

/// Before a walk: what others mount there stays theirs.
const MACHINE: &str = r#"
mount -t tmpfs none /run
mkdir /run/netns
mount -t bpf none /sys/fs/bpf
cgroups=$(findmnt -nt cgroup2 -o TARGET | head -n 1)
umount -l "$cgroups"
mount -t cgroup2 none "$cgroups"
# It is built already.
cargo() { :; }
"#;

/// The blocks of commands beneath a heading; those before the first one are everybody's.
fn blocks(page: &str, heading: &str) -> String {
    let mut commands = String::new();
    let (mut is_wanted, mut is_inside) = (true, false);
    for line in page.lines() {
        match line {
            "```sh" => is_inside = is_wanted,
            "```" => is_inside = false,
            _ if is_inside => commands.extend([line, "\n"]),
            _ => {
                if let Some(name) = line.strip_prefix("## ") {
                    is_wanted = name == heading;
                }
            }
        }
    }
    assert!(!commands.is_empty());
    commands
}

/// A checkout with nothing in it but what a walk names.
fn checkout() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = PathBuf::from(ROOT).canonicalize().unwrap();
    symlink(root.join("config"), folder.path().join("config")).unwrap();
    fs::create_dir(folder.path().join("target")).unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_underpass")).parent().unwrap();
    assert!(
        built.join("cql-node").exists(),
        "cql-node is not built: cargo build -p underpass-cql-node --bins"
    );
    symlink(built, folder.path().join("target/release")).unwrap();
    folder
}

/// Kills what a walk has left; a walk that leaves something fails by what it says.
struct Walkers(Cgroup);

impl Drop for Walkers {
    fn drop(&mut self) {
        // A threaded cgroup has no `cgroup.kill`, and does not say its processes.
        let threads = self.0.path().join("cgroup.threads");
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = fs::read_to_string(&threads).unwrap();
            if left.is_empty() {
                return;
            }
            for thread in left.lines() {
                // It may have ended.
                let _ = kill(Pid::from_raw(thread.parse().unwrap()), Signal::SIGKILL);
            }
            let what = threads.display();
            assert!(Instant::now() < deadline, "{what} is not empty");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn what_a_walk_leaves_is_killed() {
    let walkers = Walkers(Cgroup::new().unwrap());
    let path = walkers.0.path().to_owned();
    let joins = "echo $$ > \"$0/cgroup.procs\" && exec sleep 60";
    let mut left = Command::new("bash")
        .args(["-c", joins])
        .arg(&path)
        .spawn()
        .unwrap();
    let threads = path.join("cgroup.threads");
    eventually("it has joined", || {
        !fs::read_to_string(&threads).unwrap().is_empty()
    });
    drop(walkers);
    assert!(!path.exists());
    assert!(!left.wait().unwrap().success());
}

/// Output of the commands beneath a heading.
fn walk(heading: &str) -> String {
    let page = fs::read_to_string(format!("{ROOT}/docs/topologies.md")).unwrap();
    let script = format!("{MACHINE}{}", blocks(&page, heading));
    let checkout = checkout();
    let said = checkout.path().join("said");
    let output = fs::File::create(&said).unwrap();
    let walkers = Walkers(Cgroup::new().unwrap());
    // Joined before its namespace is made, whose root it then is.
    let join = "echo $$ > \"$0/cgroup.procs\" && exec unshare --mount --cgroup bash -c \"$1\"";
    let mut shell = Command::new("bash")
        .args(["-c", join])
        .arg(walkers.0.path())
        .arg(script)
        .current_dir(checkout.path())
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = shell.try_wait().unwrap() {
            break status;
        }
        let text = || fs::read_to_string(&said).unwrap();
        assert!(Instant::now() < deadline, "it does not end:\n{}", text());
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = fs::read_to_string(&said).unwrap();
    println!("{text}");
    assert!(status.success(), "{status}:\n{text}");
    text
}

/// How many SUPPORTED frames came back.
fn supported(said: &str) -> usize {
    let is_header = |line: &&str| line.starts_with("8400000106") && line.len() == 18;
    said.lines().filter(is_header).count()
}

fn says(said: &str, what: &str) {
    assert!(said.contains(what), "{what} is missing:\n{said}");
}

#[test]
fn an_application_host() {
    let said = walk("Application host");
    // Two of them in the pod.
    assert_eq!(supported(&said), 8, "{said}");
    let is_pod = |line: &str| line.starts_with("pod ");
    assert_eq!(
        said.lines().filter(|line| is_pod(line)).count(),
        1,
        "{said}"
    );
    says(&said, "10.1.0.3:9042");
    // Which nobody would know without an agent.
    says(&said, "\"rule\"");
}

#[test]
fn a_database_host() {
    let said = walk("Database host");
    assert_eq!(supported(&said), 2, "{said}");
    says(&said, "\"rule\"");
}

#[test]
fn a_gateway() {
    let said = walk("Gateway");
    assert_eq!(supported(&said), 5, "{said}");
    says(
        &said,
        "underpass_edge_connections_total{outcome=\"forwarded\",rule=\"cluster\"} 4",
    );
}
