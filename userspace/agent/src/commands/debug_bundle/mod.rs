//! `underpass debug-bundle`: one file for a report of a fault.
//!
//! - `masked`: the policy without its secrets.
//! - `host`: the kernel, the agent's process, its maps, its log.
//!
//! A part that cannot be had, because no agent runs or this is not root, is an error in the list of contents, and the others
//! are there all the same.

mod host;
mod masked;

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use flate2::{Compression, write::GzEncoder};
use serde_json::Value;

use super::{
    control, doctor,
    flows::get,
    out_file,
    whereabouts::{AdminArg, ControlArg},
};
use crate::config::DEFAULT_FILE;

/// The list of contents, which is the first file.
const CONTENTS: &str = "CONTENTS.txt";

/// The beginning of the list of contents.
const ABOUT: &str = "What is in this bundle, file by file. Addresses, names of processes, users, keyspaces, tables and drivers are in it; \
                     values of statements, passwords and keys are not. Look through it before you give it away.";

/// Arguments of `debug-bundle`.
#[derive(Debug, clap::Args)]
pub struct DebugBundleArgs {
    /// File to write, which must not exist. Without it: underpass-debug-SECONDS.tar.gz in this folder
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Policy file
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    config: PathBuf,
    #[command(flatten)]
    admin: AdminArg,
    #[command(flatten)]
    control: ControlArg,
}

/// A file of the bundle.
struct Part {
    name: &'static str,
    says: &'static str,
    text: anyhow::Result<String>,
}

/// Gathers, writes, and says what is in it.
///
/// # Errors
/// The file cannot be written.
pub fn run(args: &DebugBundleArgs) -> anyhow::Result<ExitCode> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let folder = format!("underpass-debug-{now}");
    let out = args.out.clone();
    let out = out.unwrap_or_else(|| format!("{folder}.tar.gz").into());
    // Before anything is gathered, which takes seconds.
    let file = out_file::make(&out)?;
    let parts = gather(args);
    let contents = contents(&parts);
    let mut tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    let texts = parts
        .iter()
        .filter_map(|part| Some((part.name, part.text.as_ref().ok()?)));
    for (name, text) in std::iter::once((CONTENTS, &contents)).chain(texts) {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        tar.append_data(&mut header, Path::new(&folder).join(name), text.as_bytes())?;
    }
    let written = tar.into_inner().and_then(GzEncoder::finish);
    let written = written.and_then(|mut file| file.flush());
    written.with_context(|| format!("cannot write {}", out.display()))?;
    say_text!("{contents}\n{}\n", out.display());
    Ok(ExitCode::SUCCESS)
}

fn gather(args: &DebugBundleArgs) -> Vec<Part> {
    let admin = args.admin.find_by(&args.config);
    let asked = |name, path, says| Part {
        name,
        says,
        text: admin
            .as_ref()
            .map_err(again)
            .and_then(|admin| get(admin, path)),
    };
    let control = args.control.find_by(&args.config);
    let part = |name, says, text| Part { name, says, text };
    let ask = |path| control::ask(&control, "GET", path, "").map(|v: Value| v.to_string());
    let config = Some(args.config.as_path()).filter(|file| file.exists());
    let agent = host::agent(&control);
    vec![
        part(
            "version.txt",
            "version of this program",
            Ok(host::version()),
        ),
        part(
            "policy.toml",
            "the policy, with its further files, without comments and secrets",
            masked::policy(&args.config),
        ),
        part(
            "doctor.json",
            "`underpass doctor --json`",
            doctor::findings(config).map(|found| doctor::as_json(&found).to_string()),
        ),
        asked("metrics.txt", "/metrics", "metrics"),
        asked(
            "flows.json",
            "/flows",
            "flows, with why each is on its path",
        ),
        asked(
            "names.json",
            "/names",
            "names in rules, and the addresses that they stand for",
        ),
        asked(
            "statements.json",
            "/statements",
            "statements by rule, table and kind",
        ),
        asked(
            "top.json",
            "/statements/top",
            "the most frequent statements, without values",
        ),
        asked(
            "backends.json",
            "/backends",
            "databases behind virtual addresses",
        ),
        asked(
            "namespaces.json",
            "/namespaces",
            "network namespaces that are served",
        ),
        asked("denied.json", "/denied", "the latest refusals"),
        part("marks.json", "marks", ask("/marks")),
        part("level.json", "level of the log", ask("/log")),
        part(
            "kernel.txt",
            "kernel, distribution, settings of the network and of BPF",
            Ok(host::kernel()),
        ),
        part(
            "process.txt",
            "state and limits of the agent's process",
            agent
                .as_ref()
                .map_err(again)
                .and_then(|pid| host::process(*pid)),
        ),
        part(
            "maps.json",
            "sizes of the agent's maps",
            agent
                .as_ref()
                .map_err(again)
                .and_then(|pid| host::maps(*pid)),
        ),
        part(
            "log.txt",
            "the last lines of the service's log",
            host::log(),
        ),
    ]
}

/// An error once more, for another part that it keeps away.
fn again(error: &anyhow::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}")
}

fn contents(parts: &[Part]) -> String {
    let mut contents = format!("{ABOUT}\n\n");
    for Part { name, says, text } in parts {
        let line = match text {
            Ok(_) => format!("{name}: {says}\n"),
            Err(error) => format!("{name} is missing ({says}): {error:#}\n"),
        };
        contents.push_str(&line);
    }
    contents
}
