//! `underpass denied`.

use std::{
    process::ExitCode,
    time::{Duration, SystemTime},
};

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
pub fn run(json: bool, filter: &Filter, admin: &Admin) -> anyhow::Result<ExitCode> {
    let headings = [
        "AGO",
        "RULE",
        "CAUSE",
        "REASON",
        "PROCESS",
        "UID",
        "USER",
        "CLIENT",
        "TO",
        "MORE BEFORE",
    ];
    print_list(admin, "/denied", json, filter, &headings, row)
}

fn row(denial: &Value) -> Vec<String> {
    // Processes and users name themselves: what is no letter could forge terminal output.
    let plain = |text: String| text.replace(char::is_control, "?");
    vec![
        ago(denial),
        shown(denial, "rule"),
        shown(denial, "cause"),
        plain(shown(denial, "reason")),
        plain(process(denial)),
        shown(denial, "uid"),
        plain(shown(denial, "user")),
        shown(denial, "client"),
        shown(denial, "orig_dst"),
        shown(denial, "not_listed_before"),
    ]
}

fn ago(denial: &Value) -> String {
    let ms = denial.get("at_unix_ms").and_then(Value::as_u64);
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(ms.unwrap_or_default());
    let passed = SystemTime::now().duration_since(at).unwrap_or_default();
    format!("{}s", passed.as_secs())
}
