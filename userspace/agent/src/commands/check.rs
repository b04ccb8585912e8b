//! `underpass check`.
//!
//! - `explanation`: the rules that a connection meets.
//! - `statement`: what these do with a statement; `trial` shows it to a pipeline.

mod explanation;
mod statement;
mod trial;

use std::{path::PathBuf, process::ExitCode};

use policy::{Candidate, Compression, Container, Fact, NetnsPattern, Protocol, Session, Timestamp};
use serde_json::{Value, json};
use tls::{Common, TlsRules};
use tokio::runtime;

use self::{
    explanation::{Explanation, explain},
    statement::{Trial, trials},
    trial::Asked,
};
use super::{doubts, live, names, windows};
use crate::{
    cli::CheckArgs,
    config::{Config, held_out},
    containers,
};

/// The exit code for a statement that is refused.
const REFUSED: u8 = 3;

/// Validates, and explains a match if asked to.
///
/// # Errors
/// The file is wrong. Where it is right, and `run` does not start with it on this host, the exit code says so.
pub fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let mut config = Config::load(&args.file)?;
    let tls = TlsRules::load(&config.tls)?;
    config.pipelines.read()?;
    if let Some(push) = &config.metrics_push {
        let read = push.to.read_certificates();
        read.map_err(|why| anyhow::anyhow!("[otlp]: {why}"))?;
    }
    if let Some(source) = &config.source {
        let read = source.store.read_secrets();
        read.map_err(|why| anyhow::anyhow!("[policy]: {why}"))?;
    }
    if let Some(limits) = &config.limits {
        let read = limits.read_secrets();
        read.map_err(|why| anyhow::anyhow!("[limits]: {why}"))?;
    }
    let cgroup = find_containers(&mut config, args)?;
    config.warnings.append(&mut config.escapes);
    let keys = config.pipelines.read_keys();
    config.warnings.extend(keys.doubts);
    let mut errors = keys.errors;
    if !args.file_only {
        let found = doubts::of_this_host(&config)?;
        config.warnings.extend(found.doubts);
        errors.extend(found.errors);
        let found = names::find(&mut config)?;
        config.warnings.extend(names::doubts(&found));
    }
    let now = args.at.unwrap_or_else(Timestamp::now);
    let file = config.policy.clone();
    config.policy = file.open_at(now);
    let explanation = args.to.map(|to| {
        let candidate = Candidate {
            from: args.from,
            to,
            uid: args.uid,
            gid: args.gid,
            process: args.process.clone(),
            cgroup: cgroup.clone(),
            netns: args.netns.as_ref().and_then(NetnsPattern::inode),
        };
        let common = Common::of(&tls, &config.policy, &candidate, args.tls);
        let tls_ends = args.tls && matches!(common, Common::All(tls) if tls.accept.is_some());
        explain(
            (&config, &file),
            &candidate,
            &session(args, tls_ends),
            tls_ends,
        )
    });
    let asked = args
        .statement
        .as_ref()
        .map(|statement| asked(args, statement, now));
    let trials = asked.map(|asked| trials(&config, &asked, explanation.as_ref()));
    let trials = trials.unwrap_or_default();
    let is_refused = !trials.is_empty() && trials.iter().all(Trial::is_refused);
    let code = match (errors.is_empty(), is_refused) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::from(REFUSED),
        (true, false) => ExitCode::SUCCESS,
    };
    let live = match args.live {
        true => Some(live::rows(&file, &args.admin.find_by(&args.file)?, now)?),
        false => None,
    };
    if args.json {
        let mut checked = as_json(args, &config, &errors, explanation.as_ref(), &trials);
        if let Some(fields) = checked.as_object_mut() {
            fields.insert("live".to_owned(), live::json(live.as_deref()));
            fields.insert("rules".to_owned(), file.rules.len().into());
            fields.insert("windows".to_owned(), windows::json(&file, now));
        }
        say!("{checked}");
        return Ok(code);
    }
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    for error in &errors {
        eprintln!("error: `run` does not start here: {error}");
    }
    match explanation {
        None if !errors.is_empty() => {}
        None => {
            say!("{}: ok, {} rules", args.file.display(), file.rules.len());
            say_text!("{}", windows::text(&file, now));
            for said in names::taken_for(&file) {
                say!("  {said}");
            }
            for said in file.rules.iter().filter_map(held_out) {
                say!("  {said}");
            }
        }
        Some(explanation) => say_text!("{}", explanation.text()),
    }
    for trial in &trials {
        say_text!("{}", trial.text());
    }
    if let Some(rows) = live {
        say_text!("{}", live::text(&rows));
    }
    Ok(code)
}

/// The statement that the arguments ask about, and who makes it.
fn asked(args: &CheckArgs, statement: &str, now: Timestamp) -> Asked {
    Asked {
        statement: statement.to_owned(),
        unix_us: now.as_microsecond(),
        user: args.user.clone(),
        driver: args.driver.clone(),
        keyspace: args.keyspace.clone(),
        client: args
            .from
            .map_or_else(|| "127.0.0.1".to_owned(), |ip| ip.to_string()),
        process: Some(args.process.clone()).filter(|name| !name.is_empty()),
        cgroup: args.to.map(|_| args.cgroup.display().to_string()),
    }
}

/// Has rules that name containers hold for the one that the arguments describe, or for those that run
/// here. Gives the cgroup of the connection that is asked about.
fn find_containers(config: &mut Config, args: &CheckArgs) -> anyhow::Result<PathBuf> {
    if !config.policy.names_containers() {
        return Ok(args.cgroup.clone());
    }
    if args.container.is_none() && args.label.is_empty() {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let asked = runtime.block_on(containers::ask_all(&config.containers));
        config
            .warnings
            .extend(containers::doubts(&config.policy, &asked));
        let running: Vec<Container> = asked
            .iter()
            .flat_map(|(r, _)| r.containers())
            .cloned()
            .collect();
        config.policy.find_containers(running.iter());
        return Ok(args.cgroup.clone());
    }
    let described = Container {
        names: args.container.iter().cloned().collect(),
        labels: args.label.iter().cloned().collect(),
        pod: policy::Pod::of_labels(&args.label.iter().cloned().collect()),
        cgroup: args.cgroup.join("container"),
        pid: 0,
    };
    config.policy.find_containers([&described].into_iter());
    Ok(described.cgroup)
}

/// Reads the session's facts from the arguments. `tls_ends`: TLS ends in the agent, which reads what is encrypted.
fn session(args: &CheckArgs, tls_ends: bool) -> Session {
    fn fact<T>(value: Option<T>) -> Fact<T> {
        value.map_or(Fact::Open, Fact::Is)
    }
    let encrypted = Session {
        tls: Fact::Is(true),
        ..Session::default()
    };
    if args.tls && tls_ends {
        return encrypted;
    }
    if args.tls {
        return encrypted.closed();
    }
    let protocol = args.protocol.as_deref();
    let compression = args.compression.as_deref();
    let told = Session {
        user: fact(args.user.clone()),
        keyspace: fact(args.keyspace.clone()),
        driver: fact(args.driver.clone()),
        driver_version: fact(args.driver_version.clone()),
        application: fact(args.application.clone()),
        protocol: fact(protocol.and_then(|p| Protocol::ALL.into_iter().find(|v| v.as_str() == p))),
        compression: fact(
            compression.and_then(|c| Compression::ALL.into_iter().find(|v| v.as_str() == c)),
        ),
        tls: Fact::Open,
    };
    if told == Session::default() {
        return told;
    }
    Session {
        tls: Fact::Is(false),
        ..told
    }
}

fn as_json(
    args: &CheckArgs,
    config: &Config,
    errors: &[String],
    explanation: Option<&Explanation>,
    trials: &[Trial],
) -> Value {
    json!({
        "file": args.file,
        "warnings": config.warnings,
        "errors": errors,
        "match": explanation.map(Explanation::json),
        "statement": trials.iter().map(Trial::json).collect::<Vec<_>>(),
    })
}
