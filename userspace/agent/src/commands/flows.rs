//! `underpass flows`.

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use policy::Filter;
use serde_json::Value;
use steps::http;

use super::{
    endpoint::{self, Endpoint},
    filter::Entry,
    table,
    whereabouts::{Admin, Place},
};

const PATIENCE: Duration = Duration::from_secs(5);

/// Limit of an answer: as many flows as may be carried and observed at once, at 1 KiB each, which half of
/// them are.
const MAX_BYTES: usize = 256 << 20;

/// Asks the agent at `admin`.
///
/// # Errors
/// Nobody answers there.
pub fn run(
    flow: Option<&str>,
    json: bool,
    why: bool,
    filter: &Filter,
    admin: &Admin,
) -> anyhow::Result<ExitCode> {
    let text = get(admin, "/flows")?;
    if json && flow.is_none() && filter.is_empty() {
        say!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let mut flows = list(admin, &text)?;
    flows.retain(|flow| filter.takes(&Entry(flow)));
    if let Some(wanted) = flow {
        flows.retain(|flow| shown(flow, "id") == wanted);
        anyhow::ensure!(
            !flows.is_empty(),
            "there is no flow {wanted}: `underpass flows` lists those that are there"
        );
    }
    if json {
        say!("{}", Value::from(flows));
        return Ok(ExitCode::SUCCESS);
    }
    let observed = flows.iter().any(|flow| flow.get("requests").is_some());
    let is_balanced = |flow: &Value| flow.get("backend").is_some_and(Value::is_string);
    let balanced = flows.iter().any(is_balanced);
    let is_in_another = |flow: &Value| flow.get("netns").is_some_and(Value::is_string);
    let elsewhere = flows.iter().any(is_in_another);
    let is_in_pod = |flow: &Value| flow.get("pod").is_some_and(Value::is_string);
    let pods = flows.iter().any(is_in_pod);
    let is_asked = |flow: &Value| flow.get("session").is_some_and(Value::is_object);
    let sessions = flows.iter().any(is_asked);
    let columns: Vec<Column> = COLUMNS
        .into_iter()
        .filter(|(heading, _)| *heading != "WHY" || why)
        .filter(|(heading, _)| *heading != "BACKEND" || balanced)
        .filter(|(heading, _)| *heading != "NETNS" || elsewhere)
        .filter(|(heading, _)| *heading != "POD" || pods)
        .filter(|(heading, _)| sessions || !SESSION.contains(heading))
        .filter(|(heading, _)| observed || !OBSERVED.contains(heading))
        .collect();
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
    let row = |flow: &Value| columns.iter().map(|(_, cell)| cell(flow)).collect();
    let rows: Vec<Vec<String>> = flows.iter().map(row).collect();
    say_text!("{}", table::render(&headings, &rows));
    if let Some(draining) = draining(admin) {
        say!("{draining}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells of the agent before the one that is asked, while it drains.
fn draining(admin: &Admin) -> Option<String> {
    let text = get(admin, "/agent").ok()?;
    let agent: Value = serde_json::from_str(&text).ok()?;
    let before = agent.get("before").filter(|before| before.is_object())?;
    let (flows, pid) = (shown(before, "flows"), shown(before, "pid"));
    Some(format!(
        "and {flows} flows that the agent before still carries, process {pid}, until they end or its `drain` is over"
    ))
}

/// Asks the agent at `admin` for a page, and returns its text.
pub(super) fn get(admin: &Admin, path: &str) -> anyhow::Result<String> {
    let Place { at, named } = admin;
    let got = match at {
        Endpoint::Socket(socket) => {
            http::get_by(endpoint::connect(socket, named)?, path, PATIENCE, MAX_BYTES)
        }
        Endpoint::Tcp(address) => http::get_by(
            endpoint::connect_tcp(*address, named)?,
            path,
            PATIENCE,
            MAX_BYTES,
        ),
    };
    let (status, body) = got.with_context(|| no_agent(admin))?;
    anyhow::ensure!(
        status.is_success(),
        "the agent at {at}{named} does not answer: HTTP status {}",
        status.as_u16()
    );
    Ok(String::from_utf8(body)?)
}

/// Asks the agent at `admin` for a page, and prints it as a table under these headings, with a row for each item of
/// its list; or as it is.
///
/// # Errors
/// Nobody answers there, or somebody who is no agent.
pub(super) fn print_list(
    admin: &Admin,
    path: &str,
    json: bool,
    filter: &Filter,
    headings: &[&str],
    row: fn(&Value) -> Vec<String>,
) -> anyhow::Result<ExitCode> {
    let text = get(admin, path)?;
    if json && filter.is_empty() {
        say!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let mut items = list(admin, &text)?;
    items.retain(|item| filter.takes(&Entry(item)));
    if json {
        say!("{}", Value::from(items));
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = items.iter().map(row).collect();
    say_text!("{}", table::render(headings, &rows));
    Ok(ExitCode::SUCCESS)
}

/// Reads the answer to a request at the admin interface as a list.
pub(super) fn list(admin: &Admin, text: &str) -> anyhow::Result<Vec<Value>> {
    serde_json::from_str(text).map_err(|_| no_agent(admin))
}

/// The error for an answer that is not an agent's.
pub(super) fn no_agent(admin: &Admin) -> anyhow::Error {
    let Place { at, named } = admin;
    anyhow::anyhow!("what answers at {at}{named} is not an underpass agent: check --admin")
}

type Column = (&'static str, fn(&Value) -> String);

const COLUMNS: [Column; 23] = [
    ("FLOW", |flow| shown(flow, "id")),
    ("CLIENT", |flow| shown(flow, "client")),
    ("PROCESS", process),
    ("POD", pod),
    ("NETNS", |flow| shown(flow, "netns")),
    ("TO", |flow| shown(flow, "orig_dst")),
    ("BACKEND", |flow| shown(flow, "backend")),
    ("ACTION", |flow| shown(flow, "action")),
    ("PATH", |flow| shown(flow, "path")),
    ("RULE", |flow| shown(flow, "rule")),
    ("USER", |flow| of_session(flow, "user")),
    ("KEYSPACE", |flow| of_session(flow, "keyspace")),
    ("DRIVER", driver),
    ("VERSION", |flow| of_session(flow, "protocol")),
    ("AGE", age),
    ("BYTES UP", |flow| shown(flow, "bytes_to_database")),
    ("BYTES DOWN", |flow| shown(flow, "bytes_to_client")),
    ("REQUESTS", |flow| shown(flow, "requests")),
    ("ERRORS", |flow| shown(flow, "errors")),
    ("IN FLIGHT", |flow| shown(flow, "in_flight")),
    ("P50 µs", |flow| microseconds(flow, "p50_us")),
    ("P99 µs", |flow| microseconds(flow, "p99_us")),
    ("WHY", |flow| shown(flow, "why")),
];

/// Columns of what the handshake tells, where somebody reads it.
const SESSION: [&str; 4] = ["USER", "KEYSPACE", "DRIVER", "VERSION"];

/// Columns that only the meter counts by flow; for flows that the agent carries, see `/statements`.
const OBSERVED: [&str; 5] = ["REQUESTS", "ERRORS", "IN FLIGHT", "P50 µs", "P99 µs"];

/// A value as it is; a dash where there is none.
pub(super) fn shown(of: &Value, key: &str) -> String {
    match of.get(key) {
        None | Some(Value::Null) => "-".into(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

pub(super) fn process(flow: &Value) -> String {
    match flow.get("pid") {
        // On another host.
        Some(Value::Null) => "-".into(),
        _ => format!("{}[{}]", shown(flow, "process"), shown(flow, "pid")),
    }
}

/// The pod, behind its namespace.
fn pod(flow: &Value) -> String {
    match flow.get("pod") {
        None | Some(Value::Null) => "-".into(),
        _ => format!("{}/{}", shown(flow, "namespace"), shown(flow, "pod")),
    }
}

/// A fact of the session; a dash where there is none, and where nobody has looked.
fn of_session(flow: &Value, key: &str) -> String {
    let Some(session) = flow.get("session") else {
        return "-".into();
    };
    let unknown = session.get("unknown").and_then(Value::as_array);
    match unknown.is_some_and(|unknown| unknown.iter().any(|of| of == key)) {
        true => "unknown".into(),
        false => shown(session, key),
    }
}

/// The driver's name and version.
fn driver(flow: &Value) -> String {
    let [name, version] = ["driver", "driver_version"].map(|key| of_session(flow, key));
    match version.as_str() {
        "-" | "unknown" => name,
        version => format!("{name} {version}"),
    }
}

fn age(flow: &Value) -> String {
    let ms = flow.get("age_ms").and_then(Value::as_u64).unwrap_or(0);
    format!("{:.1}s", ms as f64 / 1e3)
}

fn microseconds(flow: &Value, key: &str) -> String {
    let us = flow.get(key).and_then(Value::as_f64);
    us.map_or_else(|| "-".into(), |us| format!("{us:.0}"))
}
