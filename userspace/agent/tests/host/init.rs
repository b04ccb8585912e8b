//! `underpass init`, on a host whose application was there before.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Output},
    thread,
};

use sandbox::{Agent, Cgroup, Netns, Resident, Sandbox, run_in};

use crate::common::*;

/// SUPPORTED of version 4, with nothing in it.
const SUPPORTED: &[u8] = &[0x84, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0];

/// Answers every request as if it were OPTIONS, until the process ends.
fn database(sandbox: &Sandbox) -> u16 {
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut request = [0; 9];
                while client.read_exact(&mut request).is_ok() && client.write_all(SUPPORTED).is_ok()
                {
                }
            });
        }
    });
    port
}

#[test]
fn the_policy_that_init_writes_shows_an_application_that_was_there_before() {
    let sandbox = Sandbox::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("underpass.toml");
    let port = database(&sandbox);
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let _application = sandbox.client(connect).unwrap();
    let (port_text, file_text) = (port.to_string(), file.to_str().unwrap());
    let init = |args: &[&str]| -> Output {
        let mut command = Command::new(BINARY);
        command.arg("init").args(args);
        sandbox.server(|| command.output().unwrap()).unwrap()
    };
    // Nobody is connected to a well-known port.
    let cgroup = sandbox.cgroup.path().to_str().unwrap();
    let nothing = init(&["--cgroup", cgroup]);
    assert!(nothing.status.success(), "{nothing:?}");
    let said = String::from_utf8_lossy(&nothing.stderr);
    assert!(
        said.contains("with --port N others are looked for"),
        "{said}"
    );
    let written = init(&[
        "--port", &port_text, "--output", file_text, "--cgroup", cgroup,
    ]);
    assert!(
        written.status.success() && written.stderr.is_empty(),
        "{written:?}"
    );
    let policy = fs::read_to_string(&file).unwrap();
    let process = fs::read_to_string("/proc/self/comm").unwrap();
    let process = process.trim_end();
    for part in [
        format!("# 127.0.0.1:{port} speaks CQL."),
        format!("#   1 of {process}, uid 0"),
        format!("process = [\"{process}\"]"),
    ] {
        assert!(policy.contains(&part), "no {part:?} in\n{policy}");
    }
    // Others are none of its business that are asked for by their cgroup.
    let elsewhere = Cgroup::new().unwrap();
    let elsewhere = elsewhere.path().to_str().unwrap();
    let of_others = init(&["--port", &port_text, "--cgroup", elsewhere]);
    let of_others = String::from_utf8(of_others.stdout).unwrap();
    assert!(!of_others.contains(process), "{of_others}");
    let wrong = init(&["--cgroup", "/nowhere"]);
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        said.contains("/nowhere is no cgroup of version 2"),
        "{said}"
    );
    // What is there is kept.
    let again = init(&["--port", &port_text, "--output", file_text]);
    assert_eq!(again.status.code(), Some(1));
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(
        said.contains("is there already: name another file"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), policy);
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap();
    eventually("the running connection is read", || {
        let flows = agent.json("/flows").unwrap();
        let mut flows = flows.as_array().unwrap().iter();
        flows.any(|flow| flow["path"] == "tap" && flow["rule"] == process)
    });
}

#[test]
fn applications_in_containers_are_in_the_policy() {
    let sandbox = Sandbox::new().unwrap();
    let netns = Netns::new().unwrap();
    let _resident = Resident::start(&netns, None).unwrap();
    let listener = run_in(Some(&netns), None, || TcpListener::bind("127.0.0.1:0"));
    let at = listener.as_ref().unwrap().as_ref().unwrap().local_addr();
    let port = at.unwrap().port();
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let _application = run_in(Some(&netns), Some(&sandbox.cgroup), connect).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["init", "--port", &port.to_string()]);
    let output = sandbox.server(|| command.output().unwrap()).unwrap();
    let process = fs::read_to_string("/proc/self/comm").unwrap();
    let policy = String::from_utf8(output.stdout).unwrap();
    let rule = format!("process = [\"{}\"]", process.trim_end());
    let at = format!("# 127.0.0.1:{port} is in another network namespace, and was not asked.");
    for part in [rule, at] {
        assert!(policy.contains(&part), "no {part:?} in\n{policy}");
    }
}

#[test]
fn a_server_that_is_no_database_is_not_called_one() {
    let sandbox = Sandbox::new().unwrap();
    let silent = sandbox
        .server(|| TcpListener::bind("127.0.0.1:0"))
        .unwrap()
        .unwrap();
    let port = silent.local_addr().unwrap().port();
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let _client = sandbox.client(connect).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["init", "--port", &port.to_string()]);
    let output = sandbox.server(|| command.output().unwrap()).unwrap();
    let policy = String::from_utf8(output.stdout).unwrap();
    let said = format!("# 127.0.0.1:{port} does not answer CQL in the clear");
    assert!(policy.contains(&said), "{policy}");
}
