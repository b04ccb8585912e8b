//! `underpass doctor`.

use std::{path::Path, process::ExitCode};

use dataplane::{
    ProbeResult,
    doctor::{Finding, State},
};
use proxy::{
    keeper::{self, Found},
    paths,
};
use serde_json::json;
use tokio::runtime;

use super::{doctor_fleet, names, table};
use crate::{
    config::{Config, DEFAULT_CONTROL},
    containers::{self, Failure, Runtime},
};

/// Looks, prints, and fails when something that every flow needs is missing.
///
/// # Errors
/// The policy file, if one is named, is wrong.
pub fn run(json: bool, config: Option<&Path>) -> anyhow::Result<ExitCode> {
    let findings = findings(config)?;
    if json {
        say!("{}", as_json(&findings));
    } else {
        let rows: Vec<Vec<String>> = findings
            .iter()
            .map(|f| {
                vec![
                    f.what.clone(),
                    f.state.as_str().to_owned(),
                    f.detail.clone(),
                ]
            })
            .collect();
        say_text!("{}", table::render(&["WHAT", "STATE", "WHY"], &rows));
    }
    let broken = findings.iter().any(|f| f.state == State::Missing);
    Ok(if broken {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Looks at this host, with the eyes of a policy file if one is named.
///
/// # Errors
/// The policy file is wrong.
pub(super) fn findings(config: Option<&Path>) -> anyhow::Result<Vec<Finding>> {
    let config = config.map(Config::load).transpose()?;
    let runtimes = config.as_ref().map(runtimes).transpose()?;
    let cgroup = config.as_ref().and_then(|c| c.cgroup.clone());
    let control = config.as_ref().map(|c| c.control.clone());
    let control = control.unwrap_or_else(|| DEFAULT_CONTROL.into());
    let xdp = config.as_ref().map_or_else(Vec::new, |c| c.xdp.clone());
    let running = config.as_ref().map(|config| {
        let (cgroup, incoming) = (cgroup.as_deref(), &config.incoming);
        dataplane::doctor::running(&config.policy, cgroup, incoming, config.adopt)
    });
    let source = config.as_ref().and_then(|config| config.source.as_ref());
    let fleet = source.map(doctor_fleet::examine).transpose()?;
    let names = config.as_ref().map(names::findings);
    let names = names.transpose()?;
    let pins = config.map_or_else(|| dataplane::DEFAULT_PINS.into(), |c| c.pins);
    let mut findings = dataplane::doctor::examine(cgroup.as_deref(), &pins);
    findings.extend(dataplane::edge::examine(&pins, &xdp));
    findings.extend(runtimes.unwrap_or_default());
    findings.extend(names.unwrap_or_default());
    findings.extend(running.unwrap_or_default());
    findings.extend(fleet);
    findings.extend(paths(&control)?);
    Ok(findings)
}

/// Container runtimes, if a rule names containers.
fn runtimes(config: &Config) -> anyhow::Result<Vec<Finding>> {
    if !config.policy.names_containers() {
        return Ok(Vec::new());
    }
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let asked = runtime.block_on(containers::ask_all(&config.containers));
    let nobody = containers::doubts(&config.policy, &asked).into_iter();
    let nobody = nobody.map(|detail| Finding {
        what: "containers".into(),
        state: State::Notice,
        detail,
    });
    Ok(asked.iter().map(container_runtime).chain(nobody).collect())
}

fn container_runtime((runtime, asked): &(Runtime, Result<(), Failure>)) -> Finding {
    let (state, detail) = match asked {
        Ok(()) => (State::Ok, runtime.shown()),
        Err(error) => (State::Notice, error.to_string()),
    };
    Finding {
        what: format!("{} {}", runtime.speaks().as_str(), runtime.path().display()),
        state,
        detail,
    }
}

/// Every path that has to be tried out, and the keepers next to the control socket.
fn paths(control: &Path) -> anyhow::Result<Vec<Finding>> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(vec![Finding {
            what: "paths".into(),
            state: State::Notice,
            detail: "not tried: run as root".into(),
        }]);
    }
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let tried = runtime.block_on(paths::try_here());
    let keepers = runtime.block_on(keeper::find(control));
    let tried = tried.into_iter().map(finding);
    Ok(tried.chain(keepers.iter().map(keeper)).collect())
}

fn keeper(found: &Found) -> Finding {
    let flows = found.flows;
    let detail = match (found.has_agent, found.is_ours) {
        (true, _) => format!("holds {flows} flows for the agent"),
        (false, true) => format!("cares for {flows} flows until the next agent adopts them"),
        (false, false) => {
            format!("cares for {flows} flows until they end: this version cannot adopt them")
        }
    };
    Finding {
        what: format!("keeper {}", found.pid),
        state: State::Notice,
        detail,
    }
}

fn finding(tried: ProbeResult) -> Finding {
    let ms = tried.took.as_millis();
    let (state, detail) = match tried.failure {
        None => (State::Ok, format!("carried every byte, tried in {ms} ms")),
        // Flows take the next safer path.
        Some(reason) => (State::Notice, format!("off: {reason} (after {ms} ms)")),
    };
    Finding {
        what: format!("path {}", tried.path),
        state,
        detail,
    }
}

/// The findings as `doctor --json` has them.
pub(super) fn as_json(findings: &[Finding]) -> serde_json::Value {
    findings
        .iter()
        .map(|f| json!({"what": f.what, "state": f.state.as_str(), "detail": f.detail}))
        .collect()
}
