//! `underpass flows`.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::Context;
use serde_json::Value;

use super::table;

const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the agent at `admin`.
///
/// # Errors
/// Nobody answers there.
pub fn run(json: bool, admin: SocketAddr) -> anyhow::Result<ExitCode> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .proxy(None)
        .build()
        .into();
    let text = agent
        .get(format!("http://{admin}/flows"))
        .call()
        .and_then(|mut answer| answer.body_mut().read_to_string())
        .with_context(|| {
            format!("no agent answers at {admin}: start one, or name its admin address by --admin")
        })?;
    if json {
        println!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let flows: Vec<Value> = serde_json::from_str(&text)
        .with_context(|| format!("what answers at {admin} is not an underpass agent"))?;
    let rows: Vec<[String; 9]> = flows.iter().map(row).collect();
    let headings = [
        "CLIENT",
        "PROCESS",
        "TO",
        "ACTION",
        "PATH",
        "RULE",
        "AGE",
        "BYTES UP",
        "BYTES DOWN",
    ];
    print!("{}", table::render(headings, &rows));
    Ok(ExitCode::SUCCESS)
}

fn row(flow: &Value) -> [String; 9] {
    let text = |key: &str| {
        flow.get(key)
            .and_then(Value::as_str)
            .unwrap_or("?")
            .to_owned()
    };
    let number = |key: &str| flow.get(key).and_then(Value::as_u64).unwrap_or(0);
    [
        text("client"),
        format!("{}[{}]", text("process"), number("pid")),
        text("orig_dst"),
        text("action"),
        text("path"),
        text("rule"),
        format!("{:.1}s", number("age_ms") as f64 / 1e3),
        number("bytes_to_database").to_string(),
        number("bytes_to_client").to_string(),
    ]
}
