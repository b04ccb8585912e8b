//! Rules by the group of the process that connects.

use std::{
    io::{self, ErrorKind},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Command,
};

use rustix::{process::Gid, thread::set_thread_res_gid};
use sandbox::{Agent, Sandbox};

use crate::common::{operator::output, *};

#[test]
fn a_rule_holds_for_processes_of_a_group() {
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    let to = to(&[address.port()]);
    let policy = format!(
        "[[rule]]\nname = \"shut\"\n{to}\ngid = [\"nogroup\", 50]\naction = \"deny\"\nfail = \"closed\"\n\
         [[rule]]\nname = \"asked\"\n{to}\ngid = [51]\nuser = [\"ann\"]\naction = \"enrich\"\npath = \"inline\"\n"
    );
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap();
    let dial = |gid: u32| -> io::Result<TcpStream> {
        let connect = || {
            let gid = Gid::from_raw(gid);
            set_thread_res_gid(Some(gid), Some(gid), Some(gid))?;
            TcpStream::connect(address)
        };
        sandbox.client(connect).unwrap()
    };
    for gid in [65_534, 50] {
        assert_eq!(dial(gid).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    let _others = [0, 49].map(|gid| dial(gid).unwrap());
    // The session decides this one, in the agent.
    let _asked = dial(51).unwrap();
    let flows = agent.json("/flows").unwrap();
    let rules = flows.as_array().unwrap().iter().map(|flow| &flow["rule"]);
    assert_eq!(rules.collect::<Vec<_>>(), ["asked"]);

    let mut explain = Command::new(BINARY);
    let (pid, address) = (std::process::id().to_string(), address.to_string());
    explain.args(["explain", "--pid", &pid, "--to", &address, "--admin"]);
    let said = output(explain.arg(agent.admin_socket())).stdout;
    let said = String::from_utf8(said).unwrap();
    let has = |words: &[&str]| {
        let mut lines = said.lines();
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    };
    assert!(has(&["gid 0, cgroup"]) && has(&["shut", "gid"]), "{said}");
}
