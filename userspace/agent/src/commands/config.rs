//! `underpass config`: the policy in full.

use std::{path::Path, process::ExitCode};

use super::{
    flows::{get, no_agent},
    whereabouts::AdminArg,
};
use crate::config::{Config, InForce, Sources};

/// Prints the policy of a file, or else that of the running agent.
///
/// # Errors
/// The file is wrong, or nobody answers there.
pub fn run(file: Option<&Path>, json: bool, admin: &AdminArg) -> anyhow::Result<ExitCode> {
    let text = match file {
        Some(file) => {
            let sources = Sources::read(file)?;
            let config = Config::of(&sources)?;
            InForce::of(sources, config).in_full()
        }
        None => {
            let admin = admin.find()?;
            let text = get(&admin, "/config")?;
            anyhow::ensure!(text.parse::<toml::Table>().is_ok(), no_agent(&admin));
            text
        }
    };
    if json {
        let policy: toml::Table = text.parse()?;
        say!("{}", serde_json::to_string(&policy)?);
    } else {
        say_text!("{text}");
    }
    Ok(ExitCode::SUCCESS)
}
