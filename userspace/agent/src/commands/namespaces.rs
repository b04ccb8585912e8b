//! `underpass namespaces`.

use std::process::ExitCode;

use policy::Filter;
use serde_json::Value;

use super::{
    flows::{print_list, process, shown},
    whereabouts::Admin,
};

/// Asks the agent at `admin`.
///
/// # Errors
/// Nobody answers there.
pub fn run(json: bool, admin: &Admin) -> anyhow::Result<ExitCode> {
    let headings = ["NAME", "INODE", "PROCESS", "FLOWS", "FOR"];
    print_list(
        admin,
        "/namespaces",
        json,
        &Filter::default(),
        &headings,
        row,
    )
}

fn row(namespace: &Value) -> Vec<String> {
    let since_ms = namespace.get("since_ms").and_then(Value::as_u64);
    vec![
        shown(namespace, "name"),
        shown(namespace, "inode"),
        process(namespace),
        shown(namespace, "flows"),
        format!("{:.0}s", since_ms.unwrap_or(0) as f64 / 1e3),
    ]
}
