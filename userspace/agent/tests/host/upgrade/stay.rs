//! Flows that cannot go to the agent that takes over stay with the one before, which serves them until they end, and the reason is told.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
};

use sandbox::{Agent, Sandbox};

use super::{DRAINED, Host, handed, underpass};
use crate::{
    common::{
        certs::{Authority, NAME, file},
        front::Front,
        *,
    },
    incoming::hosts::{self, Hosts},
};

/// Has another agent take over; `works` says whether the only flow does. It has to stay, for this reason, until `ends` ends it.
fn stays(
    agent: &mut Agent<'_>,
    reason: &str,
    mut works: impl FnMut() -> bool,
    ends: impl FnOnce(),
) {
    assert!(works());
    let mut former = agent.take_over("").unwrap();
    let staying = format!("underpass_staying_flows{{reason=\"{reason}\"}}");
    eventually("the reason is told", || {
        agent.metric(&staying).unwrap_or(0.0) == 1.0
    });
    let told = agent.json("/agent").unwrap();
    assert_eq!(told["before"]["stay"][reason], 1, "{told}");
    assert!(works());
    ends();
    let log = former.ends_within(DRAINED).unwrap();
    assert!(log.contains("why=Drained"), "{log}");
    eventually("it is gone", || agent.metric(&staying).unwrap() == 0.0);
    let taken = agent.metric("underpass_taken_over_flows_total");
    assert_eq!(taken.unwrap(), 0.0);
}

#[test]
fn of_a_rule_that_folds() {
    let host = handed::of_node("pipeline = [{ transform = \"fold\" }]\n", None);
    let mut agent = host.agent("");
    let mut client = host.dial();
    super::log_in(&mut client);
    let other = client.try_clone().unwrap();
    let works = || handed::has_token(&mut client);
    stays(&mut agent, "opening", works, || close(&other));
}

#[test]
fn whose_tls_ends_in_the_agent() {
    let sandbox = Sandbox::new().unwrap();
    let node = handed::node(&sandbox, None);
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let shows = Authority::server(&authority.signs(&[NAME]), None);
    let front = Front::of(&sandbox, node.addr(), &shows);
    file(folder.path(), "ca.crt", &authority.pem());
    let ca = folder.path().join("ca.crt");
    let policy = enrich(&[front.addr.port()])
        + "fail = \"closed\"\npath = \"inline\"\n"
        + &format!("upstream_tls = {{ ca = {ca:?}, server_name = {NAME:?} }}\n");
    let (binary, netns) = (Path::new(BINARY), Some(&sandbox.netns));
    let agent = Agent::start(binary, netns, &sandbox.cgroup, "", &policy);
    let mut client = dial(&sandbox, front.addr);
    super::log_in(&mut client);
    let other = client.try_clone().unwrap();
    let works = || handed::has_token(&mut client);
    stays(&mut agent.unwrap(), "tls", works, || close(&other));
}

#[test]
fn whose_client_is_on_another_host() {
    let hosts = Hosts::new();
    let listener: TcpListener = hosts.listen(Family::V4);
    let policy = enrich(&[hosts::PORT]) + "path = \"inline\"\n";
    let mut agent = hosts.agent(&policy);
    let mut client = hosts.connect(Family::V4).unwrap();
    let (mut database, _) = accept(&listener);
    let ends = [client.try_clone().unwrap(), database.try_clone().unwrap()];
    let works = || {
        hosts::exchange(&mut client, &mut database);
        true
    };
    stays(&mut agent, "incoming", works, || {
        ends.iter().for_each(close)
    });
}

/// Marks the only flow, and waits until it is on this path.
fn marked(host: &Host, agent: &Agent<'_>, action: &str, path: &str) {
    let flow = || agent.json("/flows").unwrap()[0].clone();
    let number = flow()["id"].to_string();
    let control = agent.control();
    let words = ["mark", &number, action, "--control"];
    let marked = underpass(host, &[&words[..], &[control.to_str().unwrap()]].concat());
    assert!(marked.status.success(), "{marked:?}");
    eventually("it is there", || flow()["path"] == path);
}

#[test]
fn which_the_kernel_has_carried() {
    let host = handed::of_node(
        "shortcut = true\npipeline = [{ transform = \"stats\" }]\n",
        None,
    );
    let mut agent = host.agent("splice = \"sender\"");
    agent
        .wait_for_log("path works path=\"splice_sender\"")
        .unwrap();
    let mut client = host.dial();
    super::log_in(&mut client);
    // One that waits in recv(2) is left alone.
    client.set_nonblocking(true).unwrap();
    marked(&host, &agent, "bypass", "splice");
    client.set_nonblocking(false).unwrap();
    assert!(works(&mut client));
    marked(&host, &agent, "enrich", "enrich");
    let other = client.try_clone().unwrap();
    stays(
        &mut agent,
        "spliced",
        || works(&mut client),
        || close(&other),
    );
}

fn dial(sandbox: &Sandbox, to: SocketAddr) -> TcpStream {
    let dialled = sandbox.client(|| TcpStream::connect(to));
    let client = dialled.unwrap().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

fn close(client: &TcpStream) {
    client.shutdown(std::net::Shutdown::Both).unwrap();
}
