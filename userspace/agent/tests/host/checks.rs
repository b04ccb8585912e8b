//! `underpass check`: it says what `run` would refuse, on this host or on any, and makes nothing.

use std::{
    fs::{self, Permissions},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    process::Command,
};

use sandbox::Sandbox;

use crate::{
    common::BINARY,
    doors::{audited, inside},
};

#[test]
fn check_says_what_run_would_refuse_and_what_is_not_meant() {
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    let file = folder.path().join("policy.toml");
    let said = |text: &str| {
        fs::write(&file, text).unwrap();
        let check = |options: &[&str]| {
            let mut command = Command::new(BINARY);
            command.arg("check").arg(&file).args(options);
            let output = command.output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            (output.status.code().unwrap(), said)
        };
        // For another host it is right, whatever this one is like.
        let (code, warnings) = check(&["--file-only"]);
        assert!(code == 0 && !warnings.contains("error:"), "{warnings}");
        let (code, said) = check(&[]);
        assert_eq!(
            code,
            i32::from(said.contains("error: `run` does not start here")),
            "{said}"
        );
        said
    };
    let journal = open.join("audit.log");
    let audited = audited(&journal).replace("closed", "open");
    let text = format!(
        "[agent]\nadmin = \"0.0.0.0:1\"\ncontrol = {:?}\ncgroup = \"/tmp\"\n{audited}\
         [[rule]]\nname = \"hidden\"\nto = [\":9\"]\nuid = [1]\naction = \"observe\"\n\
         [[rule]]\nname = \"nobody\"\nto = [\":8\"]\ncgroup = [\"/there/is/none\"]\naction = \"bypass\"\n",
        open.join("control.sock")
    );
    let warnings = said(&text);
    for part in [
        "listens on every interface",
        "agent.control: its folder is refused: others can write to",
        "agent.cgroup: /tmp is no cgroup v2 folder",
        "rule r protects by `audit`, and with fail = \"open\" connections pass it: while the agent is away",
        "rule hidden is never met: rule r above",
        "rule nobody holds for nobody in /there/is/none",
        "a journal cannot be written: others can write to",
    ] {
        assert!(warnings.contains(part), "{part}: {warnings}");
    }
    assert!(!journal.exists());
    assert_eq!(
        said("[[rule]]\nname = \"r\"\nto = [\":9\"]\naction = \"enrich\"\n"),
        ""
    );
}

/// `check` names whatever keeps `run` from starting on this host, and makes nothing.
#[test]
fn check_names_everything_that_keeps_run_from_starting() {
    let sandbox = Sandbox::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("plain"), "").unwrap();
    fs::write(path("keys.toml"), "").unwrap();
    fs::set_permissions(path("keys.toml"), Permissions::from_mode(0o666)).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let pins = format!("/sys/fs/bpf/underpass-doubts-{}", std::process::id());
    let (control, admin) = (path("c.sock"), path("a.sock"));
    let agent = |rest: &str| {
        let keys = [("control", &control), ("admin_socket", &admin)];
        let missing = keys
            .iter()
            .filter(|(key, _)| !rest.contains(&format!("{key} = ")));
        let keys: String = missing
            .map(|(key, path)| format!("{key} = {path:?}\n"))
            .collect();
        let cgroup = sandbox.cgroup.path();
        format!("[agent]\n{keys}pins = {pins:?}\ncgroup = {cgroup:?}\n{rest}\n")
    };
    let protect = format!(
        "[[rule]]\nname = \"r\"\nto = [\":9\"]\naction = \"enrich\"\nfail = \"closed\"\n\
         pipeline = [{{ transform = \"protect\", keys = {:?}, columns = {{ \"a.b\" = [\"c\"] }} }}]\n",
        path("keys.toml")
    );
    for (text, said) in [
        (
            agent(&format!("control = {:?}", path("plain"))),
            "agent.control: ",
        ),
        (
            agent(&format!("admin_socket = {:?}", path("plain"))),
            "agent.admin_socket: ",
        ),
        (
            agent("admin = \"192.0.2.7:9180\""),
            "agent.admin: 192.0.2.7:9180: this host has no such address",
        ),
        (
            agent(&format!("admin = \"{taken}\"")),
            "somebody listens there",
        ),
        (
            agent("") + "[[xdp]]\ninterface = \"nowhere0\"\n",
            "xdp.interface: there is no nowhere0",
        ),
        (
            agent("") + "[[incoming]]\nnetns = \"/run/netns/nowhere\"\n",
            "incoming.netns: there is no /run/netns/nowhere",
        ),
        (agent("") + &protect, "rule r: protect: "),
        (
            agent("").replace("/sys/fs/bpf/", "/run/"),
            "is in no BPF file system: choose a folder beneath /sys/fs/bpf",
        ),
        (
            agent(&format!("control = {admin:?}")),
            "agent.control: expected another path than agent.admin_socket",
        ),
        (
            agent("") + &audited(&path("policy.toml")),
            "is no journal, whose lines are JSON",
        ),
        (
            agent("") + &audited(&sandbox.cgroup.path().join("cgroup.procs")),
            "is a file of the kernel's",
        ),
        (
            agent("") + &audited(&sandbox.cgroup.path().join("new")),
            "is a file of the kernel's",
        ),
    ] {
        let file = path("policy.toml");
        fs::write(&file, &text).unwrap();
        let underpass = |args: &[&str]| {
            let mut command = Command::new(BINARY);
            inside(&sandbox, || command.args(args).arg(&file).output().unwrap())
        };
        let keep = taken_for(&sandbox, taken, said);
        let checked = underpass(&["check"]);
        let warnings = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(warnings.contains(said), "{text}\n{said}: {warnings}");
        assert_eq!(checked.status.code(), Some(1), "{text}\n{warnings}");
        assert!(!control.exists() && !admin.exists(), "{text}");
        let ran = underpass(&["run", "--config"]);
        assert!(!ran.status.success(), "{text}");
        drop(keep);
    }
}

/// The address, taken in the sandbox too, if that is what is tried.
fn taken_for(sandbox: &Sandbox, address: SocketAddr, said: &str) -> Option<TcpListener> {
    let is_tried = said.contains("somebody listens");
    is_tried.then(|| inside(sandbox, || TcpListener::bind(address).unwrap()))
}
