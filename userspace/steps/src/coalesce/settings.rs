//! The settings of `coalesce`, and their check.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use serde::Deserialize;

use crate::duration;

/// Merges a flow's writes to one partition into batches (write batching).
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{
    "tables": {"shop.events": {"partition_key": ["day"], "clustering": ["at"], "columns": ["kind", "text"]}},
    "window": "2ms"
}]))]
pub struct CoalesceSettings {
    /// Tables whose writes are merged, by `keyspace.table`, with their columns.
    #[schemars(extend("minProperties" = 1))]
    tables: BTreeMap<String, Columns>,
    /// Time that the first write of a batch waits for others.
    #[serde(default = "window")]
    #[schemars(
        regex(pattern = "^[0-9]+(ms|s|m)$"),
        extend("title" = "duration", "x-min" = "1ms", "x-max" = "1s")
    )]
    window: String,
    /// Most writes of a batch.
    #[serde(default = "max_statements")]
    #[schemars(range(min = LEAST_STATEMENTS, max = MOST_STATEMENTS))]
    max_statements: usize,
    /// Most bytes of the requests' bodies of a batch.
    #[serde(default = "max_bytes")]
    #[schemars(range(min = 1, max = MOST_BYTES))]
    max_bytes: usize,
}

/// Columns of a table, as the database stores their names.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"partition_key": ["day"], "clustering": ["at"], "columns": ["kind", "text"]}]))]
struct Columns {
    /// Columns of the partition key.
    #[schemars(length(min = 1))]
    partition_key: Vec<String>,
    /// Clustering columns.
    #[schemars(length(min = 1))]
    clustering: Vec<String>,
    /// Other columns that writes may set. None of them is static or a counter.
    columns: Vec<String>,
}

/// A batch of fewer is a write of its own.
const LEAST_STATEMENTS: usize = 2;

fn window() -> String {
    "2ms".to_owned()
}

fn max_statements() -> usize {
    50
}

fn max_bytes() -> usize {
    64 << 10
}

/// The longest window. A write waits for as long if nothing comes, and drivers give up after some
/// seconds.
const LONGEST: Duration = Duration::from_secs(1);

/// The most statements of one batch. A flow may have 1,024 requests wait.
const MOST_STATEMENTS: usize = 500;

/// The most bytes of one batch. Cassandra's own mutations have 16 MiB at most.
const MOST_BYTES: usize = 1 << 20;

/// Settings that have been checked.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    pub(super) tables: Vec<Arc<Table>>,
    pub(super) window: Duration,
    pub(super) max_statements: usize,
    pub(super) max_bytes: usize,
}

/// A table whose writes are merged.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) keyspace: String,
    pub(super) name: String,
    /// The key columns: the partition's, and behind them the row's.
    pub(super) key: Vec<String>,
    /// The number of the partition's columns in `key`.
    pub(super) of_partition: usize,
    pub(super) columns: Vec<String>,
}

impl CoalesceSettings {
    pub(super) fn checked(self) -> Result<Checked, String> {
        if self.tables.is_empty() {
            return Err("tables: expected one or more; found none".to_owned());
        }
        let tables = self.tables.into_iter().map(|(name, of)| table(&name, of));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        let window =
            duration(&self.window).filter(|window| !window.is_zero() && *window <= LONGEST);
        let window = window.ok_or_else(|| {
            let found = &self.window;
            format!("window: expected above 0 to `1s`; found {found:?}")
        })?;
        within(
            "max_statements",
            self.max_statements,
            LEAST_STATEMENTS,
            MOST_STATEMENTS,
        )?;
        within("max_bytes", self.max_bytes, 1, MOST_BYTES)?;
        Ok(Checked {
            tables,
            window,
            max_statements: self.max_statements,
            max_bytes: self.max_bytes,
        })
    }
}

fn within(key: &str, found: usize, least: usize, most: usize) -> Result<(), String> {
    match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(format!("{key}: expected {least} to {most}; found {found}")),
    }
}

fn table(name: &str, of: Columns) -> Result<Arc<Table>, String> {
    let parts = name.split_once('.');
    let parts = parts.filter(|(keyspace, table)| {
        !keyspace.is_empty() && !table.is_empty() && !table.contains('.')
    });
    let (keyspace, table) =
        parts.ok_or_else(|| format!("tables: expected `keyspace.table`; found {name:?}"))?;
    let keys = [
        ("partition_key", &of.partition_key),
        ("clustering", &of.clustering),
    ];
    for (key, columns) in keys {
        if columns.is_empty() {
            return Err(format!(
                "tables: {name}: {key}: expected one or more columns, because writes to rows of one partition are \
                 merged; found none"
            ));
        }
    }
    let mut seen = HashSet::new();
    let all = [&of.partition_key, &of.clustering, &of.columns];
    let twice = all
        .into_iter()
        .flatten()
        .find(|column| !seen.insert(*column));
    if let Some(twice) = twice {
        return Err(format!(
            "tables: {name}: expected each column once; found {twice:?} twice"
        ));
    }
    Ok(Arc::new(Table {
        keyspace: keyspace.to_owned(),
        name: table.to_owned(),
        of_partition: of.partition_key.len(),
        key: [of.partition_key, of.clustering].concat(),
        columns: of.columns,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Result<Checked, String> {
        toml::from_str::<CoalesceSettings>(text).unwrap().checked()
    }

    const TABLE: &str =
        "tables.\"s.t\" = { partition_key = [\"a\"], clustering = [\"b\"], columns = [\"v\"] }\n";

    #[test]
    fn what_cannot_be_is_said() {
        let checked = found(TABLE).unwrap();
        assert_eq!(checked.window, Duration::from_millis(2));
        assert_eq!(checked.tables[0].key, ["a", "b"]);
        let of = |columns: &str| format!("tables.\"s.t\" = {{ {columns} }}");
        let with = |setting: &str| format!("{setting}\n{TABLE}");
        for (text, expected) in [
            (with("window = \"0s\""), "window: expected"),
            (with("window = \"2s\""), "window: expected"),
            (with("max_statements = 1"), "max_statements: expected 2"),
            (with("max_statements = 501"), "max_statements: expected 2"),
            (with("max_bytes = 0"), "max_bytes: expected 1"),
            (
                with("tables = {}").replace(TABLE, ""),
                "tables: expected one",
            ),
            (TABLE.replace("s.t", "t"), "expected `keyspace.table`"),
            (TABLE.replace("s.t", "s.t.u"), "expected `keyspace.table`"),
            (
                of("partition_key = [], clustering = [\"b\"], columns = []"),
                "partition_key: expected one",
            ),
            (
                of("partition_key = [\"a\"], clustering = [], columns = []"),
                "clustering: expected one",
            ),
            (
                of("partition_key = [\"a\"], clustering = [\"b\"], columns = [\"a\"]"),
                "\"a\" twice",
            ),
        ] {
            let error = found(&text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
