//! A driver on another host, a real Cassandra on this one: what the database says of its clients is true.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use sandbox::skip;
use sandbox::{Agent, Netns, Sandbox, run_in};
use tokio::{runtime, time};

use super::{
    cassandra::Cassandra,
    rust::{connect, sockets},
    twin::Twin,
    workload::{run, workload},
};

const AT: &str = "192.0.2.2:9042";

/// A first start takes 7 s, and a loaded machine gets many times that.
const START: Duration = Duration::from_secs(180);
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(200);

/// Driver of the sessions of which nobody needs to read what follows the handshake.
const CARRIED: &str = "incoming::carried";
const READ: &str = "incoming::read";

fn policy() -> String {
    format!(
        "[[incoming]]\n\
         [[rule]]\nname = \"carried\"\nfrom = [\"192.0.2.0/24\"]\nto = [\"{AT}\"]\ndriver = [\"{CARRIED}\"]\n\
         action = \"bypass\"\n\
         [[rule]]\nname = \"read\"\nfrom = [\"192.0.2.0/24\"]\nto = [\"{AT}\"]\naction = \"enrich\"\n"
    )
}

#[test]
fn the_database_sees_the_clients_of_other_hosts() {
    let test = "incoming::the_database_sees_the_clients_of_other_hosts";
    let Some(provided) = Cassandra::provided(test) else {
        return;
    };
    let Some(process) = skip::provided(test, "UNDERPASS_CASSANDRA_PID") else {
        return;
    };
    let at: SocketAddr = AT.parse().unwrap();
    let host = Sandbox::new().unwrap();
    let clients = Netns::new().unwrap();
    let (own, others) = (["192.0.2.2/24"], ["192.0.2.1/24"]);
    host.netns.join(&clients, &own, &others).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let _twin = Twin::start(&process, &host, at, folder.path());
    let cassandra = Cassandra {
        addr: at,
        ..provided
    };
    there(&clients, async || drop(session(&cassandra, test).await));
    // While Java starts there is no core for a canary.
    let binary = Path::new(env!("CARGO_BIN_EXE_underpass"));
    let (netns, settings) = (Some(&host.netns), "max_flows = 1000\nsplice = \"auto\"");
    let agent = Agent::start(binary, netns, &host.cgroup, settings, &policy()).unwrap();
    agent.wait_for_log("path=\"splice_egress\"").unwrap();
    there(&clients, async || {
        for (name, path) in [(READ, "enrich"), (CARRIED, "splice")] {
            let session = session(&cassandra, name).await;
            let keyspace = format!("underpass_{path}");
            workload(&session, &keyspace).await;
            // Each of the database's clients is a socket over there, at its own address and port.
            let seen = sockets(&session, name).await;
            let seen: BTreeSet<String> = seen.iter().map(|s| s.local.to_string()).collect();
            travel(&agent, &seen, path).await;
            run(&session, &format!("DROP KEYSPACE {keyspace}")).await;
        }
    });
}

/// Runs an application on the other host to its end.
fn there(clients: &Netns, application: impl AsyncFnOnce() + Send) {
    run_in(Some(clients), None, || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(application());
    })
    .unwrap();
}

/// Once the database lets clients in.
async fn session(cassandra: &Cassandra, name: &str) -> scylla::client::session::Session {
    let deadline = Instant::now() + START;
    loop {
        match connect(cassandra, name).await {
            Ok(session) => return session,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        time::sleep(PAUSE).await;
    }
}

/// Waits until these clients' flows are all on this path. Of those that the kernel carries some, but not all, may have left it for
/// good: that is what a database gets that is so busy that it lets bytes wait.
async fn travel(agent: &Agent<'_>, clients: &BTreeSet<String>, path: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let flows = agent.json("/flows").unwrap();
        let of = |flow: &&serde_json::Value| {
            let client = flow["client"].as_str().unwrap();
            flow["orig_dst"] == AT && clients.contains(client)
        };
        let of: Vec<_> = flows.as_array().unwrap().iter().filter(of).collect();
        let on_it = of.iter().filter(|flow| flow["path"] == path).count();
        let has_left = |flow: &&&serde_json::Value| {
            let why = flow["why"].as_str().unwrap_or_default();
            path == "splice" && why.ends_with("its flow has left for good")
        };
        let left = of.iter().filter(has_left).count();
        if on_it > 0 && on_it + left == clients.len() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{path}: {clients:?} of {flows:#}"
        );
        time::sleep(PAUSE).await;
    }
}
