//! `run --dry-run`: rules match and count, and nothing is done.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sandbox::{Agent, Sandbox};
use serde_json::Value;

use crate::common::*;

/// Two rules that would do something, and one that would not.
fn policy(refused: u16, changed: u16) -> String {
    format!(
        "[[rule]]\nname = \"refused\"\nto = [\":{refused}\"]\naction = \"deny\"\nfail = \"closed\"\n\
         [[rule]]\nname = \"changed\"\nto = [\":{changed}\"]\nuser = [\"etl\"]\naction = \"enrich\"\nfail = \"closed\"\n\
         pipeline = [{{ transform = \"guard\", refuse = [\"truncate\"] }}]\n\
         [[rule]]\nname = \"virtual\"\nto = [\"10.9.0.10:9042\"]\nbackends = [\"127.0.0.1:1\"]\naction = \"bypass\"\n"
    )
}

/// An agent that runs dry. Ends with this.
struct Dry(Child);

impl Drop for Dry {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

#[test]
fn a_dry_run_counts_and_does_nothing() {
    let sandbox = Sandbox::new().unwrap();
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let listeners = [(); 2].map(|()| sandbox.server(listen).unwrap());
    let [refused, changed] = [0, 1].map(|n: usize| listeners[n].local_addr().unwrap().port());
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let rules = policy(refused, changed);
    let mut agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &rules).unwrap();
    let dial = |port: u16| {
        sandbox
            .client(move || TcpStream::connect(("127.0.0.1", port)))
            .unwrap()
    };
    assert!(dial(refused).is_err(), "without --dry-run it is refused");
    agent.stop().unwrap();
    let log = agent.file().with_extension("log");
    let mut run = Command::new(BINARY);
    run.args(["run", "--dry-run", "--config"]).arg(agent.file());
    run.stderr(File::create(&log).unwrap());
    let dry = Dry(sandbox.server(|| run.spawn().unwrap()).unwrap());
    let says = |text: &str| fs::read_to_string(&log).unwrap().contains(text);
    eventually("it is ready", || says("ready cgroup"));
    assert!(says("dry run: rules match and count, and nothing is done"));
    // Where `--admin` is not given, the environment says where the agent is.
    let flows = || -> Vec<Value> {
        let mut flows = Command::new(BINARY);
        flows
            .args(["flows", "--json"])
            .env("UNDERPASS_ADMIN", agent.admin_socket());
        serde_json::from_slice(&flows.output().unwrap().stdout).unwrap()
    };
    let passes = |listener: &TcpListener, rule: &str| {
        let mut client = dial(listener.local_addr().unwrap().port()).unwrap();
        let (mut database, from) = listener.accept().unwrap();
        assert_eq!(
            from,
            client.local_addr().unwrap(),
            "straight to the database"
        );
        client.write_all(b"anything").unwrap();
        let mut bytes = [0; 8];
        database.read_exact(&mut bytes).unwrap();
        eventually("the rule is named", || {
            let is_met = |flow: &Value| flow["rule"] == rule && flow["action"] == "observe";
            flows().iter().any(is_met)
        });
    };
    passes(&listeners[0], "refused");
    // Copies of the handshake say that its rule holds.
    let mut client = dial(changed).unwrap();
    let (mut database, from) = listeners[1].accept().unwrap();
    assert_eq!(
        from,
        client.local_addr().unwrap(),
        "straight to the database"
    );
    let mut say = |from_client: bool, frame: Vec<u8>| {
        let (from, to) = match from_client {
            true => (&mut client, &mut database),
            false => (&mut database, &mut client),
        };
        from.write_all(&frame).unwrap();
        let mut got = vec![0; frame.len()];
        to.read_exact(&mut got).unwrap();
        assert_eq!(got, frame);
    };
    say(true, frames::startup(4, &[("CQL_VERSION", "3.0.0")]));
    say(false, wire::authenticate(4));
    say(true, wire::auth_response(4, 1, b"\0etl\0secret"));
    say(false, wire::auth_success(4, 1));
    say(true, frames::query(4, 1, "TRUNCATE shop.orders"));
    eventually("its rule counts it", || {
        let is_met = |flow: &Value| flow["rule"] == "changed" && flow["action"] == "observe";
        flows().iter().any(is_met)
    });
    // A changed file is run dry, too.
    let all = "[[rule]]\nname = \"all\"\naction = \"deny\"\nfail = \"closed\"\n";
    let text = fs::read_to_string(agent.file()).unwrap();
    fs::write(
        agent.file(),
        text.replace("name = \"refused\"", "name = \"renamed\"") + all,
    )
    .unwrap();
    kill(Pid::from_raw(dry.0.id() as i32), Signal::SIGHUP).unwrap();
    eventually("it is read again", || says("policy reloaded"));
    passes(&listeners[0], "renamed");
    let elsewhere = sandbox.server(listen).unwrap();
    passes(&elsewhere, "all");
    drop(dry);
}
