//! Columns of the suites' tables are encrypted, and the suites do not know of it.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use sandbox::Cgroup;
use scylla::{client::Compression, client::session::Session};

use super::{
    cassandra::Cassandra,
    rust::{connect_with, in_cgroup},
    seen,
    workload::{run, workload},
};

/// Protected columns, by the tables of all suites; a suite that lacks a table ignores them. `large`
/// is left out, because a third more is more than Cassandra takes.
const COLUMNS: [(&str, &str); 7] = [
    ("simple", "name"),
    ("prepared", "data"),
    ("batched", "v"),
    ("batch_logged", "v"),
    ("batch_unlogged", "v"),
    ("paged", "v"),
    ("words", "word"),
];

/// A file with a key, for as long as it is there.
pub struct Keys(tempfile::TempDir);

impl Keys {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.toml");
        let text = format!("active = \"k\"\n[keys]\nk = \"{}\"\n", "5a".repeat(32));
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        Self(folder)
    }

    /// Where it is.
    pub fn file(&self) -> PathBuf {
        self.0.path().join("keys.toml")
    }

    /// For a rule: the columns of the suites' tables in this keyspace.
    pub fn pipeline(&self, keyspace: &str) -> String {
        let columns =
            COLUMNS.map(|(table, column)| format!("\"{keyspace}.{table}\" = [\"{column}\"]"));
        let file = self.file();
        format!(
            "pipeline = [{{ transform = \"protect\", columns = {{ {} }}, keys = {file:?} }}, {{ transform = \
             \"stats\" }}]",
            columns.join(", ")
        )
    }
}

/// A rule with this in it is for what must not pass it.
pub fn fail(more: &str) -> &'static str {
    match more.contains("\"protect\"") {
        true => "closed",
        false => "open",
    }
}

#[test]
fn rust_driver() {
    encrypted("protect::rust_driver", "underpass_protect", None);
}

#[test]
fn rust_driver_with_lz4() {
    let test = "protect::rust_driver_with_lz4";
    encrypted(test, "underpass_protect_lz4", Some(Compression::Lz4));
}

#[test]
fn rust_driver_with_snappy() {
    let test = "protect::rust_driver_with_snappy";
    encrypted(test, "underpass_protect_snappy", Some(Compression::Snappy));
}

fn encrypted(test: &str, keyspace: &str, compression: Option<Compression>) {
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let (cgroup, past, keys) = (Cgroup::new().unwrap(), Cgroup::new().unwrap(), Keys::new());
    let more = keys.pipeline(keyspace);
    let agent = cassandra.agent_with(&cgroup, "enrich", fail(&more), &more);
    in_cgroup(&cgroup, async || {
        let session = connect_with(&cassandra, test, compression).await.unwrap();
        workload(&session, keyspace).await;
        conditions(&session).await;
    });
    in_cgroup(&past, async || {
        let session = connect_with(&cassandra, test, None).await.unwrap();
        stored(&session, keyspace).await;
        run(&session, &format!("DROP KEYSPACE {keyspace}")).await;
    });
    seen::all_enriched(&agent);
    let values = |outcome: &str| {
        let name = format!("underpass_protect_values_total{{outcome=\"{outcome}\"}}");
        agent.metric(&name).unwrap()
    };
    assert!(values("encrypted") > 1_400.0 && values("decrypted") > 200.0);
}

/// The row that is there is told by IF, and it is the application's.
async fn conditions(session: &Session) {
    let insert = "INSERT INTO simple (id, name) VALUES (?, ?) IF NOT EXISTS";
    let insert = session.prepare(insert).await.unwrap();
    let told = async |name| {
        let told = session.execute_unpaged(&insert, (7, name)).await.unwrap();
        told.into_rows_result().unwrap()
    };
    let applied = told("first").await;
    assert_eq!(applied.single_row::<(bool,)>().unwrap(), (true,));
    let found = told("second").await;
    let found = found.single_row::<(bool, i32, String)>().unwrap();
    assert_eq!(found, (false, 7, "first".to_owned()));
    let text = "SELECT name AS id, id AS name FROM simple WHERE id = 7";
    let read = session.query_unpaged(text, ()).await.unwrap();
    let read = read.into_rows_result().unwrap();
    let read = read.single_row::<(String, i32)>().unwrap();
    assert_eq!(read, ("first".to_owned(), 7));
    for text in [
        "SELECT id FROM simple WHERE name = 'first' ALLOW FILTERING",
        "INSERT INTO simple JSON '{\"id\": 8, \"name\": \"x\"}'",
        "CREATE INDEX ON simple (name)",
    ] {
        let refused = session.query_unpaged(text, ()).await.unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("underpass: refused by rule"), "{refused}");
    }
}

/// Nothing of it is plain.
async fn stored(session: &Session, keyspace: &str) {
    let mut values = 0;
    for (table, column) in COLUMNS {
        let text = match table {
            "prepared" => format!("SELECT {column} FROM {keyspace}.{table}"),
            _ => format!("SELECT textAsBlob({column}) FROM {keyspace}.{table}"),
        };
        // Some are other suites'.
        let Ok(rows) = session.query_unpaged(text, ()).await else {
            continue;
        };
        let rows = rows.into_rows_result().unwrap();
        for row in rows.rows::<(Vec<u8>,)>().unwrap() {
            let value = row.unwrap().0;
            assert!(value.starts_with(b"up1.k."), "{table}: {value:?}");
            values += 1;
        }
    }
    assert!(values > 1_400, "{values}");
}
