//! Statements that were prepared past the agent are executed through it: Cassandra tells which
//! statements they are.

use std::time::{Duration, Instant};

use sandbox::Cgroup;

use super::{
    cassandra::{Cassandra, RULE},
    rust::{connect, in_cgroup},
    seen,
    workload::{create_keyspace, run},
};

const KEYSPACE: &str = "underpass_lookups";

/// For Cassandra to have written down what it has prepared, and to answer.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn prepared_past_the_agent() {
    let test = "lookups::prepared_past_the_agent";
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let (cgroup, past) = (Cgroup::new().unwrap(), Cgroup::new().unwrap());
    let prepared = in_cgroup(&past, async || {
        let session = connect(&cassandra, test).await.unwrap();
        create_keyspace(&session, KEYSPACE).await;
        run(
            &session,
            "CREATE TABLE IF NOT EXISTS words (id int PRIMARY KEY, word text)",
        )
        .await;
        let qualified = format!("INSERT INTO {KEYSPACE}.words (id, word) VALUES (?, ?)");
        let mut prepared = Vec::new();
        for text in [&qualified, "UPDATE words SET word = ? WHERE id = ?"] {
            prepared.push(session.prepare(text).await.unwrap());
        }
        prepared
    });
    let guard =
        format!("{{ transform = \"guard\", tables = [\"{KEYSPACE}\"], mode = \"shadow\" }}");
    let more =
        format!("pipeline = [{guard}, {{ transform = \"lookup\" }}, {{ transform = \"stats\" }}]");
    let agent = cassandra.agent_with(&cgroup, "enrich", "open", &more);
    let found = || {
        let sample = format!("underpass_lookups_total{{outcome=\"found\",rule=\"{RULE}\"}}");
        agent
            .metrics()
            .unwrap()
            .get(&sample)
            .copied()
            .unwrap_or(0.0)
    };
    in_cgroup(&cgroup, async || {
        let session = connect(&cassandra, test).await.unwrap();
        let [insert, update] = &prepared[..] else {
            panic!("two statements")
        };
        let executes = async || {
            session.execute_unpaged(insert, (1, "word")).await.unwrap();
            session.execute_unpaged(update, ("word", 1)).await.unwrap();
        };
        let deadline = Instant::now() + PATIENCE;
        while found() < 2.0 {
            assert!(Instant::now() < deadline, "{:?}", agent.get("/metrics"));
            executes().await;
        }
        executes().await;
    });
    // The first of each, which has not waited.
    let unknown = "underpass_anomalies_total{cause=\"unknown_prepared_id\"}";
    assert!(agent.metric(unknown).unwrap() >= 2.0);
    let tables = seen::statements(&agent, KEYSPACE);
    let words = &tables["words"];
    assert!(words["insert"] >= 1 && words["update"] >= 1, "{words:?}");
    let refused = seen::transforms(&agent);
    assert_eq!(refused.get("would_refuse"), None, "{refused:?}");
    in_cgroup(&past, async || {
        let session = connect(&cassandra, test).await.unwrap();
        run(&session, &format!("DROP KEYSPACE {KEYSPACE}")).await;
    });
}
