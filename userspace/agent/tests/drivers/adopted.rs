//! Applications that were connected before the agent: it finds their connections, and reads what they ask from there on.

use std::{
    ffi::OsStr,
    fs, thread,
    time::{Duration, Instant},
};

use sandbox::{Agent, Cgroup};
use serde_json::{Value, json};

use super::{
    cassandra::Cassandra,
    rust::{connect, in_cgroup},
    seen,
    suite::{self, Details},
    workload::{create_keyspace, run},
};

/// The case of every suite behind which there is a prepared statement that was executed.
const PREPARED: &str = "prepared";

const TAP: &str = "path = \"tap\"\npipeline = [{ transform = \"stats\" }]";

/// An agent that is ready lists connections within this time. On a quiet host it takes milliseconds.
const FOUND: Duration = Duration::from_secs(5);

/// For Cassandra to have written down what it has prepared, and to answer.
const WRITTEN: Duration = Duration::from_secs(60);

/// Fewer requests than any suite has behind that case.
const MANY: u64 = 20;

/// The flows that an agent has found running.
fn found(agent: &Agent<'_>) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let flows = agent.json("/flows").unwrap();
        let is_found = |flow: &&Value| flow["why"].as_str().unwrap().starts_with("found running");
        let found: Vec<Value> = flows
            .as_array()
            .unwrap()
            .iter()
            .filter(is_found)
            .cloned()
            .collect();
        if !found.is_empty() {
            return found;
        }
        assert!(
            began.elapsed() < FOUND,
            "nothing was found running: {flows}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// An agent that starts beside an application that is connected.
fn starts<'a>(cassandra: &Cassandra, cgroup: &'a Cgroup, rule: &str) -> Agent<'a> {
    let agent = cassandra.agent_with(cgroup, "enrich", "open", rule);
    for flow in found(&agent) {
        assert_eq!(
            (&flow["path"], &flow["action"]),
            (&json!("tap"), &json!("enrich"))
        );
        // What its handshake said is not known.
        let unknown = flow["session"]["unknown"].as_array().unwrap();
        assert!(unknown.contains(&json!("user")), "{flow}");
    }
    agent
}

/// Requests that were told with their answers. Whose USE was not seen has a keyspace that nobody knows.
fn told(agent: &Agent<'_>) -> u64 {
    let rows = agent.json("/statements").unwrap();
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row["count"].as_u64().unwrap()).sum()
}

/// Runs a suite whose process is stopped while the agent starts.
pub fn suite(cassandra: &Cassandra, words: &[&OsStr], args: &[&str]) -> Details {
    let cgroup = Cgroup::new().unwrap();
    let _alone = suite::alone();
    let stopped = suite::stopped_behind(PREPARED, cassandra, &cgroup, words, args);
    let agent = starts(cassandra, &cgroup, TAP);
    let details = stopped.goes_on();
    let began = Instant::now();
    while told(&agent) < MANY {
        assert!(began.elapsed() < FOUND, "{:?}", agent.json("/statements"));
        thread::sleep(Duration::from_millis(10));
    }
    details
}

#[test]
fn a_rust_driver_is_read_from_there_on() {
    const REQUESTS: i32 = 20;
    let test = "adopted::a_rust_driver_is_read_from_there_on";
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let (cgroup, keyspace) = (Cgroup::new().unwrap(), "underpass_rust_adopted");
    in_cgroup(&cgroup, async || {
        let session = connect(&cassandra, test).await.unwrap();
        create_keyspace(&session, keyspace).await;
        run(
            &session,
            "CREATE TABLE IF NOT EXISTS words (id int PRIMARY KEY, word text)",
        )
        .await;
        let insert = session
            .prepare("INSERT INTO words (id, word) VALUES (?, 'x')")
            .await;
        let insert = insert.unwrap();
        session.execute_unpaged(&insert, (0,)).await.unwrap();
        let agent = starts(&cassandra, &cgroup, TAP);
        // Its text is not known.
        for id in 0..REQUESTS {
            session.execute_unpaged(&insert, (id,)).await.unwrap();
        }
        // It is prepared while it is read.
        let named = format!("SELECT word FROM {keyspace}.words WHERE id = ?");
        let select = session.prepare(named).await.unwrap();
        for id in 0..REQUESTS {
            session.execute_unpaged(&select, (id,)).await.unwrap();
        }
        let selects = || {
            let tables = seen::statements(&agent, keyspace);
            let words = tables.get("words");
            words
                .and_then(|kinds| kinds.get("select").copied())
                .unwrap_or(0)
        };
        let began = Instant::now();
        while selects() < REQUESTS as u64 {
            assert!(
                began.elapsed() < FOUND,
                "{:?}",
                seen::statements(&agent, keyspace)
            );
            thread::sleep(Duration::from_millis(10));
        }
        let unknown = "underpass_anomalies_total{cause=\"unknown_prepared_id\"}";
        let unknown = agent.metric(unknown).unwrap();
        assert!(unknown >= f64::from(REQUESTS - 1), "{unknown}");
        assert!(!seen::statements(&agent, keyspace)["words"].contains_key("insert"));
        drop(agent);
        // The next one asks for it, as a user of its own.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        fs::write(&file, &cassandra.password).unwrap();
        let (user, rule) = (
            &cassandra.user,
            "path = \"tap\"\npipeline = [{ transform = \"stats\" }",
        );
        let rule = format!(
            "{rule}, {{ transform = \"lookup\", connection = \"own\", username = {user:?}, password_file = {file:?} }}]"
        );
        let agent = starts(&cassandra, &cgroup, &rule);
        let began = Instant::now();
        let is_known = || {
            let tables = seen::statements(&agent, keyspace);
            tables
                .get("words")
                .is_some_and(|kinds| kinds.contains_key("insert"))
        };
        while !is_known() {
            assert!(began.elapsed() < WRITTEN, "{:?}", agent.get("/metrics"));
            session.execute_unpaged(&insert, (0,)).await.unwrap();
            thread::sleep(Duration::from_millis(10));
        }
        drop(agent);
        run(&session, &format!("DROP KEYSPACE {keyspace}")).await;
    });
}
