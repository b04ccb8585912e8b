//! `underpass doctor`.

use std::{path::Path, process::ExitCode};

use dataplane::doctor::{Finding, State};
use serde_json::json;

use super::table;
use crate::config::Config;

/// Looks, prints, and fails when something that every flow needs is missing.
///
/// # Errors
/// The policy file, if one is named, is wrong.
pub fn run(json: bool, config: Option<&Path>) -> anyhow::Result<ExitCode> {
    let config = config.map(Config::load).transpose()?;
    let cgroup = config.as_ref().and_then(|c| c.cgroup.clone());
    let pins = config.map_or_else(|| dataplane::DEFAULT_PINS.into(), |c| c.pins);
    let findings = dataplane::doctor::examine(cgroup.as_deref(), &pins);
    if json {
        println!("{}", as_json(&findings));
    } else {
        let rows: Vec<[String; 3]> = findings
            .iter()
            .map(|f| {
                [
                    f.what.to_owned(),
                    f.state.as_str().to_owned(),
                    f.detail.clone(),
                ]
            })
            .collect();
        print!("{}", table::render(["WHAT", "STATE", "WHY"], &rows));
    }
    let broken = findings.iter().any(|f| f.state == State::Missing);
    Ok(if broken {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn as_json(findings: &[Finding]) -> serde_json::Value {
    findings
        .iter()
        .map(|f| json!({"what": f.what, "state": f.state.as_str(), "detail": f.detail}))
        .collect()
}
