//! Cassandra as a mirror, by compressed connections: of itself, so that all is alike.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use sandbox::Cgroup;

use super::{
    cassandra::{Cassandra, RULE},
    rust::{connect, in_cgroup},
    seen,
    workload::{create_keyspace, run},
};

/// For it to have answered everything.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn by_lz4() {
    mirrored(
        "mirrored::by_lz4",
        "underpass_mirrored_lz4",
        "lz4",
        "inline",
    );
}

#[test]
fn by_snappy() {
    mirrored(
        "mirrored::by_snappy",
        "underpass_mirrored_snappy",
        "snappy",
        "inline",
    );
}

#[test]
fn from_copies() {
    mirrored(
        "mirrored::from_copies",
        "underpass_mirrored_copies",
        "lz4",
        "tap",
    );
}

fn mirrored(test: &str, keyspace: &str, compression: &str, path: &str) {
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    fs::write(&password, &cassandra.password).unwrap();
    let cgroup = Cgroup::new().unwrap();
    let more = format!(
        "path = {path:?}\npipeline = [{{ transform = \"mirror\", to = \"{}\", what = [\"reads\", \"writes\"], compare = true, timeout = \
         \"10s\", username = {:?}, password_file = {password:?}, compression = {compression:?} }}]",
        cassandra.addr, cassandra.user
    );
    let agent = cassandra.agent_with(&cgroup, "enrich", "open", &more);
    let same = || {
        let sample = format!("underpass_mirror_compared_total{{result=\"same\",rule=\"{RULE}\"}}");
        agent.metric(&sample).unwrap()
    };
    in_cgroup(&cgroup, async || {
        let session = connect(&cassandra, test).await.unwrap();
        create_keyspace(&session, keyspace).await;
        run(
            &session,
            "CREATE TABLE IF NOT EXISTS words (id int PRIMARY KEY, word text)",
        )
        .await;
        // Both write the same, and then both read.
        let insert = session.prepare("INSERT INTO words (id, word) VALUES (?, ?)");
        let insert = insert.await.unwrap();
        let select = session.prepare("SELECT word FROM words WHERE id = ?").await;
        let select = select.unwrap();
        let word = "word ".repeat(1_000);
        let deadline = Instant::now() + PATIENCE;
        let mut expected = 0.0;
        for key in 0..20 {
            for writes in [true, false] {
                if writes {
                    let values = (key, &word);
                    session.execute_unpaged(&insert, values).await.unwrap();
                } else {
                    session.execute_unpaged(&select, (key,)).await.unwrap();
                }
                expected += 1.0;
                while same() < expected {
                    assert!(Instant::now() < deadline, "{:?}", agent.get("/metrics"));
                    thread::sleep(Duration::from_millis(5));
                }
            }
        }
        run(&session, &format!("DROP KEYSPACE {keyspace}")).await;
    });
    match path {
        "tap" => {
            let taken_in =
                format!("underpass_connections_total{{outcome=\"intercepted\",rule=\"{RULE}\"}}");
            assert_eq!(agent.metric(&taken_in).unwrap_or(0.0), 0.0);
        }
        _ => seen::all_enriched(&agent),
    }
}
