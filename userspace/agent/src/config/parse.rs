//! What each value means.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    path::{Component, Path, PathBuf},
    thread,
};

use dataplane::{
    DEFAULT_PINS,
    policy::{
        Action, Fail, MAX_PROCESS_NAME_BYTES, MAX_RULES, Policy, ProcessPattern, Rule, RuleName,
        SessionConditions, Target,
    },
};
use ipnet::IpNet;
use toml::Spanned;

use crate::{
    marks,
    paths::{ENGINES, Splicing},
};

use super::{
    Config, DEFAULT_ADMIN, DEFAULT_CONTROL, DEFAULT_MAX_FLOWS, MAX_FLOWS, MAX_SOCKET_PATH_BYTES,
    error::Flaw,
    raw::{RawAgent, RawConfig, RawDefault, RawRule},
    remember, session,
};

/// More would only wait for each other; eight carry a 10 Gbit/s link.
const MAX_WORKERS: usize = 64;

pub(super) fn config(raw: RawConfig) -> Result<Config, Flaw> {
    let mut warnings = Vec::new();
    let policy = policy(raw.rule, raw.default, &mut warnings)?;
    let RawAgent {
        admin,
        cgroup,
        pins,
        max_flows,
        workers,
        splice,
        control,
    } = raw.agent;
    Ok(Config {
        admin: match admin {
            Some(text) => address(&text)?,
            None => SocketAddr::from(([127, 0, 0, 1], 9180)),
        },
        cgroup: match cgroup {
            Some(text) if text.get_ref() != "auto" => Some(absolute("agent.cgroup", &text)?),
            _ => None,
        },
        pins: match pins {
            Some(text) => absolute("agent.pins", &text)?,
            None => PathBuf::from(DEFAULT_PINS),
        },
        max_flows: match max_flows {
            Some(n) => whole("agent.max_flows", &n, MAX_FLOWS)?,
            None => DEFAULT_MAX_FLOWS,
        },
        workers: match workers {
            Some(n) => whole("agent.workers", &n, MAX_WORKERS)?,
            None => default_workers(),
        },
        splice: splice.map_or(Ok(Splicing::Auto), |text| splicing(&text))?,
        control: match control {
            Some(text) => socket_path("agent.control", &text)?,
            None => PathBuf::from(DEFAULT_CONTROL),
        },
        policy,
        warnings,
    })
}

/// Half of the cores: the other half is for the applications, which are here for their own
/// sake.
fn default_workers() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(1, MAX_WORKERS)
}

fn policy(
    raw: Vec<Spanned<RawRule>>,
    default: RawDefault,
    warnings: &mut Vec<String>,
) -> Result<Policy, Flaw> {
    if let Some(first_too_many) = raw.get(MAX_RULES) {
        let message = format!("[[rule]]: at most {MAX_RULES} rules, found {}", raw.len());
        return Err(Flaw::new(first_too_many.span(), message));
    }
    let mut names = HashSet::new();
    let mut asks = false;
    let rules = raw
        .into_iter()
        .map(|raw| rule(raw.into_inner(), &mut names, &mut asks))
        .collect::<Result<Vec<_>, _>>()?;
    let default_action = match &default.action {
        Some(text) => action("default.action", text)?,
        None => Action::Bypass,
    };
    if default_action != Action::Bypass {
        warnings.push(format!(
            "default.action = \"{}\" holds for every TCP connection of this host, not only for \
             the database's",
            default_action.as_str()
        ));
    }
    for rule in &rules {
        if rule.action != Action::Bypass && rule.to.is_empty() {
            warnings.push(format!(
                "rule {}: without `to` it holds for every destination, not only for the \
                 database's",
                rule.name
            ));
        }
        warnings.extend(session::doubt(rule));
    }
    warnings.extend(remember::doubts(&rules));
    Ok(Policy {
        rules,
        default_action,
        default_fail: default
            .fail
            .map_or(Ok(Fail::Open), |text| fail("default.fail", &text))?,
    })
}

/// `asks`: a rule so far has a condition on the session.
pub(super) fn rule(
    mut raw: RawRule,
    names: &mut HashSet<String>,
    asks: &mut bool,
) -> Result<Rule, Flaw> {
    let session = session::conditions(&mut raw)?;
    let name = raw.name.get_ref();
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 63 || !name.chars().all(legal) {
        return expected(
            "rule.name",
            &raw.name,
            "1 to 63 letters, digits, `-`, `_`, `.` (it becomes a metric's label)",
        );
    }
    if name == "default" {
        return expected(
            "rule.name",
            &raw.name,
            "a name other than `default`, which is taken",
        );
    }
    if marks::is_marks(name) {
        return expected(
            "rule.name",
            &raw.name,
            "a name other than `mark-` and a number, which marks have",
        );
    }
    if !names.insert(name.clone()) {
        return expected("rule.name", &raw.name, "a name that no rule above has");
    }
    let action = rule_action(&raw.action, &session)?;
    let is_session = session.named().next().is_some();
    *asks |= is_session;
    Ok(Rule {
        name: RuleName::new(name),
        to: raw.to.iter().map(target).collect::<Result<_, _>>()?,
        uids: raw.uid.iter().map(uid).collect::<Result<_, _>>()?,
        processes: raw.process.iter().map(process).collect::<Result<_, _>>()?,
        cgroups: raw.cgroup.iter().map(cgroup).collect::<Result<_, _>>()?,
        action,
        session,
        fail: raw
            .fail
            .map_or(Ok(Fail::Open), |text| fail("rule.fail", &text))?,
        shortcut: raw
            .shortcut
            .map_or(Ok(false), |wanted| shortcut(&wanted, action, is_session))?,
        remember: raw
            .remember
            .map(|lasts| remember::lasts(&lasts, action, *asks))
            .transpose()?,
    })
}

/// Bytes that take it pass no hook that could read them, and no agent.
fn shortcut(wanted: &Spanned<bool>, action: Action, is_session: bool) -> Result<bool, Flaw> {
    if *wanted.get_ref() && is_session {
        let message = "rule.shortcut: expected a rule without keys of the session: a flow takes \
                       the shortcut from connect() on, or not at all; found such keys";
        return Err(Flaw::new(wanted.span(), message));
    }
    if *wanted.get_ref() && action != Action::Bypass {
        let message = format!(
            "rule.shortcut: expected `action = \"bypass\"`, because bytes that take the shortcut \
             cannot be read; found action {:?}",
            action.as_str()
        );
        return Err(Flaw::new(wanted.span(), message));
    }
    Ok(*wanted.get_ref())
}

/// `NETWORK:PORT`, `NETWORK`, `:PORT`; IPv6 networks in brackets: `[fd00::/8]:9042`.
fn target(text: &Spanned<String>) -> Result<Target, Flaw> {
    const EXPECTED: &str = "network and port, either of which may be left out: \
                            `10.1.0.0/16:9042`, `[fd00::/8]:9042`, `10.1.2.3`, `:9042`";
    let wrong = || expected("rule.to", text, EXPECTED);
    let given = text.get_ref().as_str();
    let (network, port) = match given.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((network, port)) => (network, port),
            None => return wrong(),
        },
        None => given.split_at(given.find(':').unwrap_or(given.len())),
    };
    let port = match port.strip_prefix(':').map(str::parse::<u16>) {
        Some(Ok(port)) if port != 0 => Some(port),
        None if port.is_empty() => None,
        _ => return wrong(),
    };
    let network = match network {
        "" if port.is_some() && !given.starts_with('[') => None,
        _ => match parse_network(network) {
            Some(network) if network.addr().is_ipv6() == given.starts_with('[') => Some(network),
            _ => return wrong(),
        },
    };
    if let Some(network) = network {
        if network.addr() != network.network() {
            let meant = network.trunc();
            return expected(
                "rule.to",
                text,
                &format!("a network's first address: `{meant}`"),
            );
        }
        if let IpAddr::V6(v6) = network.addr()
            && v6.to_ipv4_mapped().is_some()
        {
            return expected("rule.to", text, "the IPv4 form of an IPv4-mapped address");
        }
    }
    Ok(Target { network, port })
}

fn parse_network(text: &str) -> Option<IpNet> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn uid(uid: &Spanned<i64>) -> Result<u32, Flaw> {
    match u32::try_from(*uid.get_ref()) {
        Ok(uid) => Ok(uid),
        Err(_) => expected("rule.uid", uid, "a user id from 0 to 4294967295"),
    }
}

fn process(text: &Spanned<String>) -> Result<ProcessPattern, Flaw> {
    match ProcessPattern::parse(text.get_ref()) {
        Some(pattern) => Ok(pattern),
        None => expected(
            "rule.process",
            text,
            &format!(
                "a process name as in /proc/PID/comm, at most {MAX_PROCESS_NAME_BYTES} bytes, \
                 or its beginning and `*`"
            ),
        ),
    }
}

fn cgroup(text: &Spanned<String>) -> Result<PathBuf, Flaw> {
    absolute("rule.cgroup", text)
}

fn absolute(key: &str, text: &Spanned<String>) -> Result<PathBuf, Flaw> {
    let path = Path::new(text.get_ref());
    let plain = |c: Component<'_>| matches!(c, Component::RootDir | Component::Normal(_));
    if path.is_absolute() && path.components().all(plain) {
        Ok(path.to_owned())
    } else {
        expected(key, text, "an absolute path without `..`")
    }
}

fn socket_path(key: &str, text: &Spanned<String>) -> Result<PathBuf, Flaw> {
    if text.get_ref().len() > MAX_SOCKET_PATH_BYTES {
        let meant = format!("a path of at most {MAX_SOCKET_PATH_BYTES} bytes, as sockets have");
        return expected(key, text, &meant);
    }
    absolute(key, text)
}

fn action(key: &str, text: &Spanned<String>) -> Result<Action, Flaw> {
    match Action::parse(text.get_ref()) {
        Some(action) => Ok(action),
        None => expected(key, text, "`bypass`, `observe`, `enrich` or `deny`"),
    }
}

/// By the time that the session is known, the flow is in the agent: it cannot be observed.
fn rule_action(text: &Spanned<String>, session: &SessionConditions) -> Result<Action, Flaw> {
    let action = action("rule.action", text)?;
    match session.named().next() {
        Some(key) if action == Action::Observe => expected(
            "rule.action",
            text,
            &format!(
                "`bypass`, `enrich` or `deny` in a rule with `{}`: whether a flow is observed is \
                 decided at connect(), before its session is known",
                key.key()
            ),
        ),
        _ => Ok(action),
    }
}

fn fail(key: &str, text: &Spanned<String>) -> Result<Fail, Flaw> {
    match text.get_ref().as_str() {
        "open" => Ok(Fail::Open),
        "closed" => Ok(Fail::Closed),
        _ => expected(key, text, "`open` or `closed`"),
    }
}

fn splicing(text: &Spanned<String>) -> Result<Splicing, Flaw> {
    match text.get_ref().as_str() {
        "auto" => Ok(Splicing::Auto),
        "off" => Ok(Splicing::Off),
        name => match ENGINES.iter().find(|(_, engine)| *engine == name) {
            Some((down, _)) => Ok(Splicing::By(*down)),
            None => expected("agent.splice", text, "`auto`, `ingress`, `egress` or `off`"),
        },
    }
}

fn address(text: &Spanned<String>) -> Result<SocketAddr, Flaw> {
    match text.get_ref().parse() {
        Ok(address) => Ok(address),
        Err(_) => {
            let example = format!("an address and port, such as `{DEFAULT_ADMIN}`");
            expected("agent.admin", text, &example)
        }
    }
}

fn whole(key: &str, n: &Spanned<i64>, most: usize) -> Result<usize, Flaw> {
    match usize::try_from(*n.get_ref()) {
        Ok(value) if (1..=most).contains(&value) => Ok(value),
        _ => expected(key, n, &format!("a whole number from 1 to {most}")),
    }
}

pub(super) fn expected<T, V: std::fmt::Debug>(
    key: &str,
    found: &Spanned<V>,
    expected: &str,
) -> Result<T, Flaw> {
    let message = format!("{key}: expected {expected}; found {:?}", found.get_ref());
    Err(Flaw::new(found.span(), message))
}
