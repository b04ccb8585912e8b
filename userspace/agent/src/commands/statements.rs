//! `underpass statements`.

use std::process::ExitCode;

use serde_json::Value;

use super::{
    filter::{self, Entry},
    flows::{get, list, shown},
    table,
    whereabouts::Admin,
};

/// Asks the agent at `admin`.
///
/// # Errors
/// Nobody answers there.
pub fn run(json: bool, top: bool, filter: &str, admin: &Admin) -> anyhow::Result<ExitCode> {
    let filter =
        filter::of_statements(filter, top).map_err(|error| anyhow::anyhow!("--filter: {error}"))?;
    let text = get(
        admin,
        if top {
            "/statements/top"
        } else {
            "/statements"
        },
    )?;
    if json && filter.is_empty() {
        say!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let mut statements = list(admin, &text)?;
    statements.retain(|row| filter.takes(&Entry(row)));
    if json {
        say!("{}", Value::from(statements));
        return Ok(ExitCode::SUCCESS);
    }
    let counted = |row: &Value| row.get("rows").is_some();
    let is_counted = statements.iter().any(counted);
    let columns: Vec<Column> = COLUMNS
        .into_iter()
        .filter(|(heading, _)| top || !TOP.contains(heading))
        .filter(|(heading, _)| is_counted || !COUNTED.contains(heading))
        .collect();
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
    let row = |of: &Value| columns.iter().map(|(_, key)| cell(of, key)).collect();
    let rows: Vec<Vec<String>> = statements.iter().map(row).collect();
    say_text!("{}", table::render(&headings, &rows));
    Ok(ExitCode::SUCCESS)
}

/// A heading, and the key of what is under it.
type Column = (&'static str, &'static str);

const COLUMNS: [Column; 15] = [
    ("RULE", "rule"),
    ("CLIENT", "process"),
    ("KEYSPACE", "keyspace"),
    ("TABLE", "table"),
    ("KIND", "kind"),
    ("COUNT", "count"),
    ("OVER", "over"),
    ("ERRORS", "errors"),
    ("ROWS", "rows"),
    ("BYTES UP", "bytes_to_database"),
    ("BYTES DOWN", "bytes_to_client"),
    ("P50 µs", "p50_us"),
    ("P99 µs", "p99_us"),
    ("MAX µs", "max_us"),
    ("STATEMENT", "fingerprint"),
];

/// Columns that only the most frequent statements have.
const TOP: [&str; 3] = ["CLIENT", "OVER", "STATEMENT"];

/// Columns that are only known under a rule with `stats`.
const COUNTED: [&str; 4] = ["ERRORS", "ROWS", "BYTES UP", "BYTES DOWN"];

fn cell(of: &Value, key: &str) -> String {
    let key = match key {
        // On another host nobody knows the process.
        "process" if of.get(key).is_none() => "client",
        _ => key,
    };
    match of.get(key) {
        // By code.
        Some(Value::Object(errors)) => {
            let all = errors.values().filter_map(Value::as_u64);
            all.sum::<u64>().to_string()
        }
        // A client names it: what is no letter could forge terminal output.
        _ => shown(of, key).replace(char::is_control, "?"),
    }
}
