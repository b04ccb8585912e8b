//! A real driver and a database that call things otherwise: the driver creates, writes, reads and looks at
//! the schema by its own names.

use cql_node::{Node, NodeOptions};
use scylla::{
    client::{SelfIdentity, session::Session, session_builder::SessionBuilder},
    cluster::ClusterState,
    statement::batch::Batch,
};

use crate::common::wire::{Host, host};

const POLICY: &str = "\
[[rule]]
name = \"renamed\"
to = [\":PORT\"]
driver = [\"renamed\"]
action = \"enrich\"
pipeline = [
  { transform = \"rewrite\", addresses = \"dialled\", keyspaces = { shop = \"shop_v2\" }, tables = { \
    \"shop.orders\" = \"shop_v2.orders_2026\" } },
]
[[rule]]
name = \"rest\"
to = [\":PORT\"]
action = \"bypass\"
";

async fn connect(node: &Node, driver: &str) -> Session {
    let identity = SelfIdentity::new().with_custom_driver_name(driver.to_owned());
    let builder = SessionBuilder::new().known_node_addr(node.addr());
    builder.custom_identity(identity).build().await.unwrap()
}

/// Keyspaces that are not the server's, each with its tables.
fn schema(cluster: &ClusterState) -> Vec<String> {
    let keyspaces = cluster.keyspaces_iter();
    let own = keyspaces.filter(|(name, _)| !name.starts_with("system"));
    let mut tables: Vec<String> = own
        .flat_map(|(name, keyspace)| {
            let tables = keyspace.tables.keys();
            tables.map(move |table| format!("{name}.{table}"))
        })
        .collect();
    tables.sort_unstable();
    tables
}

async fn count(session: &Session, table: &str) -> Result<usize, String> {
    let rows = session
        .query_unpaged(format!("SELECT k FROM {table}"), ())
        .await;
    let rows = rows.map_err(|error| error.to_string())?;
    Ok(rows.into_rows_result().unwrap().rows_num())
}

#[test]
fn a_driver_lives_by_its_own_names() {
    host(|host| {
        let node = host.sandbox.server(|| Node::start(NodeOptions::default()));
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
    let (ours, theirs) = (connect(node, "renamed").await, connect(node, "plain").await);
    let run = async |session: &Session, text: &str| {
        let ran = session.query_unpaged(text, ()).await;
        ran.map(drop).map_err(|error| error.to_string())
    };
    // What the database calls so, and the driver must not touch.
    let create = |keyspace: &str| {
        format!(
            "CREATE KEYSPACE {keyspace} WITH replication = \
             {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
    };
    run(&theirs, &create("shop")).await.unwrap();
    run(
        &theirs,
        "CREATE TABLE shop.orders (k int PRIMARY KEY, v text)",
    )
    .await
    .unwrap();
    run(&ours, &create("shop")).await.unwrap();
    run(
        &ours,
        "CREATE TABLE shop.orders (k int PRIMARY KEY, v text)",
    )
    .await
    .unwrap();
    run(&ours, "CREATE TABLE shop.other (k int PRIMARY KEY, v text)")
        .await
        .unwrap();
    // It is told that its own name is taken.
    let taken = run(&ours, &create("shop")).await.unwrap_err();
    assert!(taken.contains("shop"), "{taken}");

    ours.use_keyspace("shop", false).await.unwrap();
    let insert = "INSERT INTO orders (k, v) VALUES (?, ?)";
    let insert = ours.prepare(insert).await.unwrap();
    let specs = insert.get_variable_col_specs();
    let table = specs.get_by_index(0).unwrap().table_spec().clone();
    assert_eq!((table.ks_name(), table.table_name()), ("shop", "orders"));
    for k in 0..10 {
        ours.execute_unpaged(&insert, (k, "x")).await.unwrap();
    }
    let mut batch = Batch::default();
    batch.append_statement("INSERT INTO shop.orders (k, v) VALUES (10, 'x')");
    batch.append_statement(insert);
    ours.batch(&batch, ((), (11, "x"))).await.unwrap();
    for (session, table, rows) in [
        (&ours, "orders", 12),
        (&ours, "shop.orders", 12),
        (&ours, "other", 0),
        (&theirs, "shop_v2.orders_2026", 12),
        (&theirs, "shop_v2.other", 0),
        (&theirs, "shop.orders", 0),
    ] {
        assert_eq!(count(session, table).await, Ok(rows), "{table}");
    }
    count(&theirs, "shop_v2.orders").await.unwrap_err();

    ours.refresh_metadata().await.unwrap();
    theirs.refresh_metadata().await.unwrap();
    let (own, real) = (ours.get_cluster_state(), theirs.get_cluster_state());
    assert_eq!(schema(&own), ["shop.orders", "shop.other"]);
    assert_eq!(
        schema(&real),
        ["shop.orders", "shop_v2.orders_2026", "shop_v2.other"]
    );

    // The node that it knows is the address that it has dialled.
    let [of_own, of_real] = [&own, &real].map(|state| state.get_nodes_info()[0].host_id);
    assert_ne!(of_own, of_real);
    assert_eq!(of_own.get_version_num(), 8);
    let again = connect(node, "renamed").await.get_cluster_state();
    assert_eq!(again.get_nodes_info()[0].host_id, of_own);

    // What is not understood and may mean something else stays away.
    let refused = run(&ours, "DESCRIBE TABLE shop.orders").await.unwrap_err();
    assert!(refused.contains("calls something otherwise"), "{refused}");
    let labels = "outcome=\"refused\",reason=\"renamed\",rule=\"renamed\",transform=\"rewrite\"";
    assert_eq!(host.metric("transforms", labels), 1);
}
