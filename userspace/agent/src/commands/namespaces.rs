//! `underpass namespaces`.

use std::process::ExitCode;

use serde_json::Value;

use super::{
    endpoint::Endpoint,
    flows::{get, list, process, shown},
    table,
};

/// Asks the agent at `admin`.
///
/// # Errors
/// Nobody answers there.
pub fn run(json: bool, admin: &Endpoint) -> anyhow::Result<ExitCode> {
    let text = get(admin, "/namespaces")?;
    if json {
        println!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let namespaces = list(admin, &text)?;
    let headings = ["NAME", "INODE", "PROCESS", "FLOWS", "FOR"];
    let rows: Vec<Vec<String>> = namespaces.iter().map(row).collect();
    print!("{}", table::render(&headings, &rows));
    Ok(ExitCode::SUCCESS)
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
