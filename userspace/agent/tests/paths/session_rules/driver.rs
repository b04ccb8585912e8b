//! A real driver, let in, decoded and turned away by its name, its user and its keyspace.

use cql_node::{Node, NodeOptions};
use scylla::{
    client::{SelfIdentity, session::Session, session_builder::SessionBuilder},
    errors::{DbError, ExecutionError, RequestAttemptError},
};
use serde_json::Value;

use crate::common::wire::{Host, host};

const POLICY: &str = "\
[[rule]]
name = \"unwanted\"
to = [\":PORT\"]
driver = [\"unwanted*\"]
action = \"deny\"
fail = \"closed\"
[[rule]]
name = \"decoded\"
to = [\":PORT\"]
driver = [\"decoded\"]
user = [\"alice\"]
action = \"enrich\"
[[rule]]
name = \"orders\"
to = [\":PORT\"]
keyspace = [\"orders\"]
action = \"deny\"
fail = \"closed\"
[[rule]]
name = \"rest\"
to = [\":PORT\"]
action = \"bypass\"
";

async fn connect(node: &Node, driver: &str) -> Result<Session, String> {
    let identity = SelfIdentity::new().with_custom_driver_name(driver.to_owned());
    SessionBuilder::new()
        .known_node_addr(node.addr())
        .user("alice", "secret")
        .custom_identity(identity)
        .build()
        .await
        .map_err(|error| format!("{error:?}"))
}

async fn run(session: &Session, text: &str) -> Result<(), ExecutionError> {
    session.query_unpaged(text, ()).await.map(drop)
}

/// A driver's connections, as the operator sees them.
fn flows(host: &Host<'_>, driver: &str) -> Vec<Value> {
    let flows = host.agent.json("/flows").unwrap();
    let flows = flows.as_array().unwrap().iter();
    let flows = flows.filter(|flow| flow["session"]["driver"] == driver);
    flows.cloned().collect()
}

fn is(flow: &Value, rule: &str, action: &str, path: &str) -> bool {
    flow["rule"] == rule && flow["action"] == action && flow["path"] == path
}

#[test]
fn a_driver_is_decided_by_what_it_says_of_itself() {
    host(|host| {
        let options = NodeOptions::of_user("alice", "secret");
        let node = host.sandbox.server(|| Node::start(options));
        let node = node.unwrap().unwrap();
        host.policy_to(node.addr().port(), POLICY);
        let talk = host.sandbox.client(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(converse(host, &node));
        });
        talk.unwrap();
    });
}

async fn converse(host: &Host<'_>, node: &Node) {
    let decoded = connect(node, "decoded").await.unwrap();
    for keyspace in ["shop", "orders"] {
        let create = format!(
            "CREATE KEYSPACE {keyspace} WITH replication = \
             {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        );
        run(&decoded, &create).await.unwrap();
        let create = format!("CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v text)");
        run(&decoded, &create).await.unwrap();
    }
    let seen = flows(host, "decoded");
    assert!(seen.len() >= 2, "control and pool connections: {seen:?}");
    assert!(
        seen.iter()
            .all(|flow| is(flow, "decoded", "enrich", "enrich")),
        "{seen:?}"
    );
    assert_eq!(seen[0]["session"]["user"], "alice");

    let other = connect(node, "other").await.unwrap();
    let insert = other
        .prepare("INSERT INTO shop.t (k, v) VALUES (?, ?)")
        .await
        .unwrap();
    for k in 0..100 {
        other.execute_unpaged(&insert, (k, "x")).await.unwrap();
    }
    let seen = flows(host, "other");
    let undecided = seen
        .iter()
        .filter(|flow| is(flow, "unwanted", "undecided", "enrich"));
    assert_eq!(undecided.count(), 1, "the control connection: {seen:?}");
    assert!(
        seen.iter().any(|flow| is(flow, "rest", "bypass", "relay")),
        "{seen:?}"
    );

    let unwanted = connect(node, "unwanted-1").await.err().unwrap();
    assert!(unwanted.contains("denied by rule unwanted"), "{unwanted}");
    assert!(unwanted.contains("Unauthorized"), "{unwanted}");

    let ordering = connect(node, "ordering").await.unwrap();
    let refused = run(&ordering, "SELECT * FROM orders.t").await.unwrap_err();
    match refused {
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(
            DbError::Unauthorized,
            message,
        )) => assert_eq!(message, "underpass: denied by rule orders"),
        other => panic!("{other:?}"),
    }
    let denied = host.metric("sessions_decided", "action=\"deny\",rule=\"orders\"");
    assert!(denied >= 1, "{denied}");
}
