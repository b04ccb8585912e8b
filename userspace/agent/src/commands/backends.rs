//! `underpass backends`, `backend`.

use std::{net::SocketAddr, process::ExitCode};

use policy::Filter;
use serde_json::{Value, json};

use super::{
    control::ask,
    flows::{print_list, shown},
    whereabouts::{Admin, Control},
};

/// Lists the backends.
///
/// # Errors
/// No agent answers.
pub fn list(json: bool, admin: &Admin) -> anyhow::Result<ExitCode> {
    let headings = [
        "BACKEND",
        "STATE",
        "FOR",
        "WEIGHT",
        "RULES",
        "CONNECTED",
        "FLOWS",
        "CHECKS",
        "FAILED",
        "LAST ERROR",
    ];
    print_list(admin, "/backends", json, &Filter::default(), &headings, row)
}

fn row(backend: &Value) -> Vec<String> {
    let number = |key: &str| backend.get(key).and_then(Value::as_u64).unwrap_or(0);
    let rules = backend.get("rules").and_then(Value::as_array);
    let rules = rules.into_iter().flatten().filter_map(Value::as_str);
    vec![
        shown(backend, "backend"),
        state(backend),
        format!("{:.0}s", number("since_ms") as f64 / 1e3),
        shown(backend, "weight"),
        rules.collect::<Vec<_>>().join(","),
        shown(backend, "connections"),
        shown(backend, "flows"),
        (number("checks_good") + number("checks_failed")).to_string(),
        shown(backend, "checks_failed"),
        shown(backend, "last_error"),
    ]
}

fn state(backend: &Value) -> String {
    let state = shown(backend, "state");
    match backend.get("order").and_then(Value::as_str) {
        Some(order) if state != "draining" => format!("{state} (ordered {order})"),
        _ => state,
    }
}

/// Sends an operator's order for one backend.
///
/// # Errors
/// There is no such backend, or no agent answers.
pub fn order(backend: SocketAddr, order: &str, control: &Control) -> anyhow::Result<ExitCode> {
    let wanted = json!({"backend": backend, "order": order});
    let answer = ask(control, "POST", "/backends", &wanted.to_string())?;
    say!("backend {backend} is {}", state(&answer));
    Ok(ExitCode::SUCCESS)
}
