//! `underpass policy`: changes the rules of a fleet, and shows what its hosts made of them.

mod count;
mod difference;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use clap::Subcommand;
use policy_source::{Fleet, Fragment, Fragments, Status, Version, dial_plainly};
use serde_json::json;
use tokio::runtime;

use super::table;
use crate::config::{Config, DEFAULT_FILE, Sources, Store};

/// Arguments of `policy`.
#[derive(Debug, clap::Args)]
pub struct PolicyArgs {
    /// Action
    #[command(subcommand)]
    pub action: PolicyAction,
    /// Policy file of this host, whose table `[policy]` says where the fleet's etcd is
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE, global = true)]
    pub config: PathBuf,
}

/// Actions of `policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyAction {
    /// Check files, and put them in the place of the fleet's policy as a new version. Files that are not named are removed
    Push {
        /// Files with rules, or folders of such files (`*.toml`)
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        /// Push only if this version is still the latest, and its files are as they were pushed: the number that `diff` and `status` show. 0: only if nobody
        /// has pushed yet. Without it, the last push wins
        #[arg(long, value_name = "VERSION")]
        on: Option<u64>,
    },
    /// Show what `push` would change, and in which version: its number is what `push --on` takes
    Diff {
        /// Files with rules, or folders of such files (`*.toml`)
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
    },
    /// List the hosts that follow, and what each made of the policy. Exit code 1: one has refused it, or is behind, or there are fewer than expected
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Number of hosts that have to have it in force, or the exit code is 1: those that say nothing are in no list
        #[arg(long, value_name = "N", default_value_t = 0)]
        expect: usize,
    },
    /// Push an earlier version again
    Rollback {
        /// Number of the version; without it, the one before the latest, or before the one that the latest repeats
        #[arg(value_name = "VERSION")]
        version: Option<u64>,
    },
    /// Write into the status of each policy in Kubernetes on how many nodes it is in force, until it is ended: one process for a cluster, which the chart runs
    Count {
        /// DaemonSet of the agents, in this pod's namespace
        #[arg(long, value_name = "NAME")]
        daemon_set: String,
    },
}

/// Does what the arguments say.
///
/// # Errors
/// The files are wrong, or etcd does not answer or refuses.
pub fn run(args: &PolicyArgs) -> anyhow::Result<ExitCode> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match &args.action {
            PolicyAction::Push { paths, on } => push(&args.config, paths, *on).await,
            PolicyAction::Diff { paths } => diff(&args.config, paths).await,
            PolicyAction::Status { json, expect } => status(&args.config, *json, *expect).await,
            PolicyAction::Rollback { version } => rollback(&args.config, *version).await,
            PolicyAction::Count { daemon_set } => count::run(&args.config, daemon_set).await,
        }
    })
}

fn store(config: &Path) -> anyhow::Result<Store> {
    let source = Config::load(config)?.source.with_context(|| {
        let file = config.display();
        format!("{file} has no table [policy]: name the fleet's etcd there, or another file with --config")
    })?;
    Ok(source.store)
}

async fn connect(config: &Path) -> anyhow::Result<Fleet> {
    match &store(config)? {
        Store::Etcd(settings) => Ok(Fleet::connect(settings, &dial_plainly()).await?),
        Store::Kubernetes(_) => bail!(
            "{} follows Kubernetes: use `kubectl apply` and `kubectl get underpasspolicies,clusterunderpasspolicies -A`",
            config.display()
        ),
    }
}

async fn push(config: &Path, paths: &[PathBuf], on: Option<u64>) -> anyhow::Result<ExitCode> {
    let fragments = read(paths)?;
    let rules = check(config, &fragments)?;
    let mut fleet = connect(config).await?;
    let before = fleet.wanted().await?.unwrap_or_default();
    let changes = difference::summary(&before, &fragments);
    let version = fleet.push_on(on, fragments, None, now()).await?;
    say_pushed(&version, rules, &changes);
    Ok(ExitCode::SUCCESS)
}

async fn diff(config: &Path, paths: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let fragments = read(paths)?;
    check(config, &fragments)?;
    let mut fleet = connect(config).await?;
    let latest = fleet.head().await?;
    let before = fleet.wanted().await?.unwrap_or_default();
    say!("{}", made_on(latest, &before));
    match difference::lines(&before, &fragments) {
        lines if lines.is_empty() => say!("no difference"),
        lines => say_text!("{lines}"),
    }
    Ok(ExitCode::SUCCESS)
}

async fn rollback(config: &Path, version: Option<u64>) -> anyhow::Result<ExitCode> {
    let mut fleet = connect(config).await?;
    let number = match version {
        Some(number) => number,
        None => match fleet.before_latest().await? {
            Some(number) => number,
            None => bail!(
                "there is no earlier version to go back to: name one (`underpass policy rollback VERSION`), or push another policy"
            ),
        },
    };
    let fragments = fleet.version(number).await?.fragments;
    let rules = check(config, &fragments)?;
    let before = fleet.wanted().await?.unwrap_or_default();
    let changes = difference::summary(&before, &fragments);
    let version = fleet.push(fragments, Some(number), now()).await?;
    say_pushed(&version, rules, &changes);
    Ok(ExitCode::SUCCESS)
}

async fn status(config: &Path, json: bool, expect: usize) -> anyhow::Result<ExitCode> {
    let mut fleet = connect(config).await?;
    let wanted = fleet.wanted().await?;
    let version = fleet.head().await?;
    let statuses = fleet.statuses().await?;
    let digest = wanted.as_ref().map(Fragments::digest).unwrap_or_default();
    let count = |state| {
        statuses
            .iter()
            .filter(|s| State::of(s, &digest) == state)
            .count()
    };
    let [good, refused, behind] = [State::InForce, State::Refused, State::Behind].map(count);
    let code = match refused + behind {
        0 if wanted.is_ok() && good >= expect => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    };
    if json {
        let hosts: Vec<_> = statuses
            .iter()
            .map(|status| host_json(status, &digest))
            .collect();
        say!(
            "{}",
            json!({
                "version": version,
                "digest": digest,
                "error": wanted.err().map(|why| why.to_string()),
                "hosts": hosts,
                "in_force": good, "refused": refused, "behind": behind,
            })
        );
        return Ok(code);
    }
    let version = version.map_or("no version was pushed".to_owned(), |n| {
        format!("version {n}")
    });
    match &wanted {
        Ok(wanted) => say!(
            "{version}, {}, digest {digest}",
            counted(wanted.files.len(), "file")
        ),
        Err(why) => say!("{version}; what is in etcd now is no policy: {why}"),
    }
    let rows: Vec<Vec<String>> = statuses.iter().map(|status| row(status, &digest)).collect();
    say_text!(
        "{}",
        table::render(&["HOST", "STATE", "VERSION", "HAS", "AGENT", "WHY"], &rows)
    );
    say!(
        "{}: {good} in force, {refused} refused, {behind} behind",
        counted(statuses.len(), "host")
    );
    Ok(code)
}

/// Where a host is on its way to the policy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    InForce,
    Refused,
    /// A host that has not yet said anything of this policy.
    Behind,
}

impl State {
    fn of(status: &Status, digest: &str) -> Self {
        if status.has(digest) {
            Self::InForce
        } else if status.error.is_some() && status.digest == digest {
            Self::Refused
        } else {
            Self::Behind
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::InForce => "in force",
            Self::Refused => "refused",
            Self::Behind => "behind",
        }
    }
}

fn row(status: &Status, digest: &str) -> Vec<String> {
    let error = status.error.clone().unwrap_or_default();
    let printable = |text: &str| -> String {
        text.chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect()
    };
    vec![
        printable(&status.host),
        State::of(status, digest).as_str().to_owned(),
        status
            .in_force_version
            .map_or("-".to_owned(), |number| number.to_string()),
        printable(&status.in_force),
        printable(&status.agent),
        printable(&error),
    ]
}

fn host_json(status: &Status, digest: &str) -> serde_json::Value {
    json!({
        "host": status.host,
        "state": State::of(status, digest).as_str(),
        "revision": status.revision,
        "version": status.version,
        "in_force": status.in_force,
        "in_force_version": status.in_force_version,
        "agent": status.agent,
        "error": status.error,
    })
}

/// The version with which files are compared, in words.
fn made_on(latest: Option<u64>, before: &Fragments) -> String {
    match (before.version, latest) {
        (Some(number), _) => format!("on version {number}"),
        (None, Some(number)) => {
            format!("on version {number}, whose files somebody has changed without a push")
        }
        (None, None) if before.files.is_empty() => "on version 0: nobody has pushed".to_owned(),
        (None, None) => "on files that nobody has pushed".to_owned(),
    }
}

fn say_pushed(version: &Version, rules: usize, changes: &str) {
    let files = counted(version.fragments.files.len(), "file");
    let rules = counted(rules, "rule");
    let again = version
        .repeats
        .map_or(String::new(), |n| format!(" (version {n} again)"));
    say!(
        "version {}{again}: {files}, {rules}; {changes}",
        version.number
    );
}

/// Checks the files beside this host's own, as if all their rules were for it. Returns how many rules they have.
fn check(config: &Path, fragments: &Fragments) -> anyhow::Result<usize> {
    let own = Sources::read(config)?;
    let without = Config::for_every_host(&own)?.policy.rules.len();
    let checked = Config::for_every_host(&own.with(fragments))?;
    for warning in &checked.warnings {
        eprintln!("warning: {warning}");
    }
    Ok(checked.policy.rules.len() - without)
}

/// Reads the files that paths name.
fn read(paths: &[PathBuf]) -> anyhow::Result<Fragments> {
    let mut files: Vec<Fragment> = Vec::new();
    for path in paths {
        let unreadable = || {
            format!(
                "cannot read {}: name a file, or a folder with files",
                path.display()
            )
        };
        match path.is_dir() {
            false => files.push(file(path)?),
            true => {
                let entries = fs::read_dir(path).with_context(unreadable)?;
                for entry in entries {
                    let path = entry.with_context(unreadable)?.path();
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    if name.ends_with(".toml") && !name.starts_with('.') {
                        files.push(file(&path)?);
                    }
                }
            }
        }
    }
    if files.is_empty() {
        bail!(
            "there is no file with rules: a fleet without rules is one with an empty file, such as none.toml"
        );
    }
    let mut names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    names.sort_unstable();
    if let Some([name, _]) = names.windows(2).find(|pair| pair.first() == pair.last()) {
        bail!("two files are called {name}: names are keys in etcd, give one of them another");
    }
    Ok(Fragments::new(0, files)?)
}

fn file(path: &Path) -> anyhow::Result<Fragment> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read {}: expected a text file", path.display()))?;
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    Ok(Fragment { name, text })
}

/// A number of things, with the word for them.
fn counted(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
