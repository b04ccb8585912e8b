//! `underpass explain`: all that is known of a flow, and why it is where it is.

use std::{fs, net::SocketAddr, os::unix::fs::MetadataExt, process::ExitCode};

use anyhow::{Context, bail, ensure};
use dataplane::host::{self, Ids};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{
    flows::{get, list, process, shown},
    table,
    whereabouts::{Admin, AdminArg},
};
use crate::cli::values;

/// Flows of one process, or to one address, that are explained. Further ones are probably like them.
const MAX_EXPLAINED: usize = 16;

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").args(["flow", "pid", "to"]).multiple(true).required(true))]
pub struct ExplainArgs {
    /// Number of the flow, as `flows` lists it
    #[arg(value_name = "FLOW", value_parser = values::flow, conflicts_with_all = ["pid", "to"])]
    flow: Option<String>,
    /// Explain the flows of this process
    #[arg(long, value_name = "PID", value_parser = values::pid)]
    pid: Option<u32>,
    /// Explain the flows to this address. With --pid: what a new connection of that process would meet there
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::address)]
    to: Option<SocketAddr>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArg,
}

/// Asks the agent at `admin`.
///
/// # Errors
/// Nobody answers there, or there is no such flow or process.
pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let explained = match (args.pid, args.to) {
        (Some(pid), Some(to)) => vec![newcomer(&args.admin.find()?, pid, to)?],
        _ => running(args, &args.admin.find()?)?,
    };
    if args.json {
        say!("{}", Value::from(explained));
        return Ok(ExitCode::SUCCESS);
    }
    let texts: Vec<String> = explained.iter().map(text).collect();
    say_text!("{}", texts.join("\n"));
    Ok(ExitCode::SUCCESS)
}

/// A connection that a process would open now.
fn newcomer(admin: &Admin, pid: u32, to: SocketAddr) -> anyhow::Result<Value> {
    let at = format!("/proc/{pid}");
    let gone = || format!("there is no process {pid}");
    let name = fs::read_to_string(format!("{at}/comm")).with_context(gone)?;
    let Ids { uid, gid } = host::ids(pid).with_context(gone)?;
    let cgroup = host::cgroup_path(pid).unwrap_or_default();
    let netns = fs::metadata(format!("{at}/ns/net")).map(|netns| netns.ino());
    let (name, cgroup) = (name.trim_end(), cgroup.to_string_lossy());
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut path = format!(
        "/explain?to={}&uid={uid}&gid={gid}&process={}&cgroup={}",
        encoded(&to.to_string()),
        encoded(name),
        encoded(&cgroup)
    );
    if let Ok(netns) = netns {
        path.push_str(&format!("&netns={netns}"));
    }
    let rules = list(admin, &get(admin, &path)?)?;
    Ok(json!({
        "flow": null,
        "process": name, "pid": pid, "uid": uid, "gid": gid, "cgroup": cgroup, "orig_dst": to,
        "rules": rules,
    }))
}

/// Flows that are there.
fn running(args: &ExplainArgs, admin: &Admin) -> anyhow::Result<Vec<Value>> {
    let mut flows = list(admin, &get(admin, "/flows")?)?;
    let to = args.to.map(|to| to.to_string());
    flows.retain(|flow| {
        args.flow.as_ref().is_none_or(|id| shown(flow, "id") == *id)
            && args
                .pid
                .is_none_or(|pid| flow.get("pid").and_then(Value::as_u64) == Some(pid.into()))
            && to.as_ref().is_none_or(|to| shown(flow, "orig_dst") == *to)
    });
    if let (true, Some(id)) = (flows.is_empty(), &args.flow) {
        bail!("there is no flow {id}: `underpass flows` lists those that are there");
    }
    ensure!(
        !flows.is_empty(),
        "there is no such flow; nobody keeps track of a plain bypass. With --pid and --to: what a new connection would meet"
    );
    let more = flows.len().saturating_sub(MAX_EXPLAINED);
    if more > 0 {
        eprintln!("{more} more flows are left out: name one by its number");
    }
    flows.truncate(MAX_EXPLAINED);
    let explained = flows.into_iter().map(|mut flow| {
        let page = format!("/explain?flow={}", shown(&flow, "id"));
        let rules = list(admin, &get(admin, &page)?)?;
        if let Some(fields) = flow.as_object_mut() {
            fields.insert("rules".to_owned(), rules.into());
        }
        Ok(flow)
    });
    explained.collect()
}

fn text(of: &Value) -> String {
    let mut text = head(of);
    let rules: Vec<&Value> = of
        .get("rules")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .collect();
    let rows: Vec<Vec<String>> = rules.iter().map(|rule| row(rule)).collect();
    for line in table::render(&["RULE", "ACTION", "HERE"], &rows).lines() {
        text.push_str(&format!("  {line}\n"));
    }
    for line in changes(of, &rules) {
        text.push_str(&format!("  {line}\n"));
    }
    text.replace(|c: char| c.is_control() && c != '\n', "?")
}

/// The facts of the connection.
fn head(of: &Value) -> String {
    let (to, who) = (shown(of, "orig_dst"), process(of));
    if of.get("id").is_none() {
        let cgroup = shown(of, "cgroup");
        let (uid, gid) = (shown(of, "uid"), shown(of, "gid"));
        return format!(
            "a new connection of {who}, uid {uid}, gid {gid}, cgroup {cgroup}, to {to}\n"
        );
    }
    let mut text = format!(
        "flow {}: {who}, uid {}, from {} to {to}\n",
        shown(of, "id"),
        shown(of, "uid"),
        shown(of, "client"),
    );
    for (what, key) in [("network namespace", "netns"), ("backend", "backend")] {
        if of.get(key).is_some_and(Value::is_string) {
            text.push_str(&format!("  {what}: {}\n", shown(of, key)));
        }
    }
    text.push_str(&session(of));
    text.push_str(&format!(
        "  rule {}: {}, on path {}\n  why: {}\n",
        shown(of, "rule"),
        shown(of, "action"),
        shown(of, "path"),
        shown(of, "why"),
    ));
    text
}

fn session(of: &Value) -> String {
    let Some(session) = of.get("session").filter(|session| session.is_object()) else {
        return "  session: nobody looks at it\n".to_owned();
    };
    let keys = session
        .as_object()
        .into_iter()
        .flat_map(|facts| facts.keys());
    let known = keys.filter(|key| *key != "unknown");
    let known: Vec<String> = known
        .map(|key| format!("{key} {}", shown(session, key)))
        .collect();
    let unknown = session.get("unknown").and_then(Value::as_array);
    let unknown = unknown.into_iter().flatten().filter_map(Value::as_str);
    let unknown: Vec<&str> = unknown.collect();
    let mut parts = Vec::new();
    if !known.is_empty() {
        parts.push(known.join(", "));
    }
    if !unknown.is_empty() {
        parts.push(format!("not known: {}", unknown.join(", ")));
    }
    format!("  session: {}\n", parts.join("; "))
}

fn row(rule: &Value) -> Vec<String> {
    let keys = rule
        .get("keys")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let keys: Vec<String> = keys
        .filter_map(Value::as_str)
        .map(|key| format!("`{key}`"))
        .collect();
    let keys = keys.join(", ");
    let here = match shown(rule, "outcome").as_str() {
        "decides" => "decides".to_owned(),
        "may_decide" => format!("decides if {keys} holds, which is not known yet"),
        "refuses" => format!("refuses it: nobody will know {keys}, and its `fail` is closed"),
        "unknowable" => format!("does not hold: nobody will know {keys}, and its `fail` is open"),
        "misses" => format!("does not hold: {keys}"),
        "otherwise" => "decides otherwise".to_owned(),
        "shadow" => "would hold, and only counts: it stands in shadow".to_owned(),
        "closed" => format!("not there now: {}", shown(rule, "window")),
        _ => "not reached: an earlier rule decides".to_owned(),
    };
    let name = match rule.get("is_mark").and_then(Value::as_bool) {
        Some(true) => format!("{} (a mark)", shown(rule, "rule")),
        _ => shown(rule, "rule"),
    };
    vec![name, shown(rule, "action"), here]
}

/// The ways to have it otherwise.
fn changes(of: &Value, rules: &[&Value]) -> Vec<String> {
    let decides = rules
        .iter()
        .find(|rule| matches!(shown(rule, "outcome").as_str(), "decides" | "refuses"));
    let mut lines = Vec::new();
    let met = shown(of, "rule");
    let now = decides.map(|rule| shown(rule, "rule"));
    if let Some(now) = now.filter(|now| of.get("id").is_some() && *now != met) {
        lines.push(format!(
            "since it began the rules have changed: a new connection like it meets {now}"
        ));
    }
    let (action, path) = match decides {
        Some(rule) if of.get("id").is_none() => (shown(rule, "action"), shown(rule, "path")),
        _ => (shown(of, "action"), shown(of, "path")),
    };
    lines.push(match (path.as_str(), action.as_str()) {
        ("tap", _) => "faster: nothing, it is the application's own connection, read from copies".to_owned(),
        ("enrich", _) => "faster: copies (path tap), where no step of the rule needs the bytes and `path` is not inline".to_owned(),
        ("shortcut", _) => "faster: nothing".to_owned(),
        ("splice" | "relay", _) => "faster: a rule with `bypass` that is decided at connect(), without a condition on the session".to_owned(),
        ("untouched", "observe") => "faster: nothing over a network; `enrich` with steps that only read costs the application no more".to_owned(),
        ("untouched", _) => "faster: `shortcut = \"both\"`, where both ends are on this host; over a network nothing".to_owned(),
        _ => "it is refused".to_owned(),
    });
    let decides_mark = decides.is_some_and(|rule| rule.get("is_mark") == Some(&Value::Bool(true)));
    if decides_mark {
        lines.push("to change it: `underpass marks` lists the mark that decides, `underpass unmark` ends it".to_owned());
    } else if of.get("id").is_some() {
        let id = shown(of, "id");
        lines.push(format!(
            "to change it: `underpass mark {id} bypass --for 10m`, or a rule before {met}"
        ));
    }
    lines
}
