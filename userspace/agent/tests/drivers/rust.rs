//! The Rust driver, in this process: on a thread in the cgroup, so that all its sockets are.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
};

use sandbox::{Agent, Cgroup, run_in};
use scylla::client::{
    Compression, SelfIdentity, session::Session, session_builder::SessionBuilder,
};

use super::{
    cassandra::{Cassandra, PIPELINE, past_tcp},
    seen::{self, kinds},
    sockets::{KernelSocket, own_sockets},
    workload::{PAGED_ROWS, ROWS, run, workload},
};

/// A session's connections to one node.
pub const CONTROL_AND_POOL: usize = 2;

#[test]
fn driver_through_bypass() {
    let test = "rust::driver_through_bypass";
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let cgroup = Cgroup::new().unwrap();
    let agent = cassandra.agent(&cgroup, "bypass", "open");
    in_cgroup(&cgroup, async || {
        let session = connect(&cassandra, test).await.unwrap();
        workload(&session, "underpass_rust_bypass").await;
        for socket in sockets(&session, test).await {
            assert_eq!(socket.remote, cassandra.addr, "{socket:?}");
        }
        wrong_password(&cassandra).await;
        let keyspace = "DROP KEYSPACE underpass_rust_bypass";
        run(&session, keyspace).await;
    });
    seen::only_untouched(&agent);
}

#[test]
fn driver_through_enrich() {
    let test = "rust::driver_through_enrich";
    enriched(test, "underpass_rust_enrich", "", None);
}

#[test]
fn driver_past_tcp_through_a_pipeline() {
    let test = "rust::driver_past_tcp_through_a_pipeline";
    enriched(test, "underpass_rust_past_tcp", &past_tcp(), None);
}

#[test]
fn driver_through_a_pipeline_with_lz4() {
    let test = "rust::driver_through_a_pipeline_with_lz4";
    let lz4 = Some(Compression::Lz4);
    enriched(test, "underpass_rust_pipeline_lz4", PIPELINE, lz4);
}

#[test]
fn driver_through_a_pipeline_with_snappy() {
    let test = "rust::driver_through_a_pipeline_with_snappy";
    let snappy = Some(Compression::Snappy);
    enriched(test, "underpass_rust_pipeline_snappy", PIPELINE, snappy);
}

/// Runs the workload through a pipeline: the results are those without the agent, and the agent has
/// counted what was sent. `more` goes into the rule.
pub fn enriched(test: &str, keyspace: &str, more: &str, compression: Option<Compression>) {
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let cgroup = Cgroup::new().unwrap();
    let agent = cassandra.agent_with(&cgroup, "enrich", "open", more);
    let pages = in_cgroup(&cgroup, async || {
        let session = connect_with(&cassandra, test, compression).await.unwrap();
        let pages = workload(&session, keyspace).await;
        // Of shared connections the database does not see whose they are.
        if !more.contains("\"fold\"") {
            let sockets = sockets(&session, test).await;
            for socket in &sockets {
                assert_ne!(socket.remote, cassandra.addr, "{socket:?}");
            }
            let locals: BTreeSet<String> = sockets.iter().map(|s| s.local.to_string()).collect();
            let flows = flows(&agent, &cassandra);
            assert_eq!(flows, locals, "/flows against the sockets");
        }
        wrong_password(&cassandra).await;
        run(&session, &format!("DROP KEYSPACE {keyspace}")).await;
        pages
    });
    seen::all_enriched(&agent);
    seen::folds_as_asked(&agent, more);
    seen::skips_tcp_as_asked(&agent, more);
    seen::all_reported(&agent, more);
    let rows = ROWS as u64;
    let tables = seen::statements(&agent, keyspace);
    for (table, wanted) in [
        ("made", kinds([("create", 1), ("alter", 1), ("drop", 1)])),
        (
            "simple",
            kinds([("create", 1), ("insert", 1), ("update", 1), ("select", 1)]),
        ),
        (
            "prepared",
            kinds([
                ("create", 1),
                ("prepare", 2),
                ("insert", rows),
                ("select", rows),
            ]),
        ),
        (
            "batched",
            kinds([("create", 1), ("prepare", 1), ("batch", 2), ("select", 1)]),
        ),
        (
            "paged",
            kinds([
                ("create", 1),
                ("prepare", 1),
                ("insert", PAGED_ROWS as u64),
                ("select", pages),
            ]),
        ),
        (
            "large",
            kinds([("create", 1), ("prepare", 1), ("insert", 1), ("select", 1)]),
        ),
    ] {
        assert_eq!(tables.get(table), Some(&wanted), "{table}");
    }
    let errors = seen::errors(&agent);
    // The driver looks for ScyllaDB's own system tables, in vain.
    let codes: Vec<&str> = errors.keys().map(String::as_str).collect();
    assert_eq!(codes, ["bad_credentials", "invalid"], "{errors:?}");
}

/// Runs `application` in the cgroup to its end; every task and socket of it is gone then.
pub fn in_cgroup<T: Send>(cgroup: &Cgroup, application: impl AsyncFnOnce() -> T + Send) -> T {
    runs(Some(cgroup), application)
}

/// Runs `application` to its end, in the cgroup if there is one.
pub fn runs<T: Send>(cgroup: Option<&Cgroup>, application: impl AsyncFnOnce() -> T + Send) -> T {
    run_in(None, cgroup, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(application())
    })
    .unwrap()
}

/// A session that `system_views.clients` shows under the name of its test.
pub async fn connect(cassandra: &Cassandra, name: &str) -> Result<Session, String> {
    connect_with(cassandra, name, None).await
}

pub async fn connect_with(
    cassandra: &Cassandra,
    name: &str,
    compression: Option<Compression>,
) -> Result<Session, String> {
    let identity = SelfIdentity::new().with_custom_driver_name(name.to_owned());
    SessionBuilder::new()
        .known_node_addr(cassandra.addr)
        .user(&cassandra.user, &cassandra.password)
        .custom_identity(identity)
        .compression(compression)
        .build()
        .await
        .map_err(|error| format!("{error:?}"))
}

/// Addresses of this session's connections, as the database has them.
pub async fn clients(session: &Session, name: &str) -> BTreeSet<SocketAddr> {
    let rows = session
        .query_unpaged(
            "SELECT address, port, driver_name FROM system_views.clients",
            (),
        )
        .await
        .unwrap()
        .into_rows_result()
        .unwrap();
    let rows = rows.rows::<(IpAddr, i32, Option<String>)>().unwrap();
    let rows = rows
        .map(Result::unwrap)
        .filter(|row| row.2.as_deref() == Some(name));
    rows.map(|(ip, port, _)| SocketAddr::new(ip, port as u16))
        .collect()
}

/// Checks that the session's connections are, to the database, what this process's sockets are.
pub async fn sockets(session: &Session, name: &str) -> Vec<KernelSocket> {
    let seen = clients(session, name).await;
    assert!(
        seen.len() >= CONTROL_AND_POOL,
        "control and pool connections: {seen:?}"
    );
    let own: HashMap<SocketAddr, KernelSocket> =
        own_sockets().into_iter().map(|s| (s.local, s)).collect();
    let own_socket = |client: &SocketAddr| match own.get(client) {
        Some(socket) => *socket,
        None => panic!("the database sees {client}, which is none of {own:?}"),
    };
    seen.iter().map(own_socket).collect()
}

/// The clients of the agent's flows.
pub fn flows(agent: &Agent<'_>, cassandra: &Cassandra) -> BTreeSet<String> {
    let flows = agent.json("/flows").unwrap();
    let clients = flows.as_array().unwrap().iter().map(|flow| {
        assert_eq!(flow["path"], "enrich");
        assert_eq!(flow["pid"], std::process::id());
        assert_eq!(flow["orig_dst"], cassandra.addr.to_string());
        flow["client"].as_str().unwrap().to_owned()
    });
    clients.collect()
}

async fn wrong_password(cassandra: &Cassandra) {
    let wrong = Cassandra {
        addr: cassandra.addr,
        user: cassandra.user.clone(),
        password: format!("{}-wrong", cassandra.password),
    };
    let refused = connect(&wrong, "wrong password").await.err();
    let refused = refused.unwrap_or_else(|| panic!("the wrong password was accepted"));
    assert!(refused.contains("password are incorrect"), "{refused}");
}
