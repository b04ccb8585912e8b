//! The meaning of each value.

use std::{collections::HashMap, ops::Range, path::PathBuf, sync::Arc, thread};

use dataplane::{
    DEFAULT_PINS, DEFAULT_TAP_RING_BYTES, MAX_NAMESPACES, MAX_TAP_RING_BYTES, MIN_TAP_RING_BYTES,
    edge,
};
use names::ClusterSettings;
use policy::{
    Action, Fail, MAX_PROCESS_NAME_BYTES, MAX_RULES, NetnsPattern, Policy, ProcessPattern, Rule,
    RuleName, Sample, Shortcut, Window, WindowSettings,
};
use proxy::paths::Splicing;
use steps::pipelines::Pipelines;
use toml::Spanned;

use super::bounds::{
    DEFAULT_ADMIN_SOCKET, DEFAULT_CONTROL, DEFAULT_DRAIN, DEFAULT_HANDSHAKE_TIMEOUT,
    DEFAULT_HELD_OUT, DEFAULT_MAX_FLOWS, DEFAULT_SHARE, DEFAULT_TAP_CPU, DRAINS, FAILS,
    HANDSHAKE_TIMEOUTS, MAX_FLOWS, MAX_WORKERS, SPLICES,
};
use super::{
    Config, admin, backends, clusters, containers,
    error::Flaw,
    health, holdout, host, incoming, limit, network, otlp, path, pipeline, protective,
    raw::{RawAgent, RawConfig, RawDefault, RawRule},
    remember, sample, session, shadow, sharing, shortcut, source, tls, trigger, users,
    value::{absolute, expected, one_of, socket_path, whole, within},
    xdp,
};
use crate::log::{FORMATS, LogFormat, LogLevel, NoLevel};

pub(super) fn config(mut raw: RawConfig) -> Result<Config, Flaw> {
    let mut warnings = Vec::new();
    let host = host::of(std::mem::take(&mut raw.host))?;
    raw.keep_those_for(&host)?;
    let source = source::of(raw.policy.take(), &host.name, &mut warnings)?;
    let limits = sharing::of(raw.limits.take(), source.as_ref(), &mut warnings)?;
    let clusters = clusters::of(std::mem::take(&mut raw.cluster), &mut warnings)?;
    let (collector, metrics_push) = otlp::of(raw.otlp)?;
    let mut pipelines = pipeline::of(&raw.rule, collector.as_ref(), limits.is_some())?;
    warnings.extend(pipeline::doubts(&pipelines));
    let holdouts = holdout::plan(&raw.rule);
    let plans = path::plan(&raw.rule, &pipelines)?;
    let triggers = trigger::of(&raw.rule)?;
    let tls = tls::of(&raw.rule, raw.health.cql, &mut warnings)?;
    let protective = protective::check(&raw.rule);
    let mut policy = policy(raw.rule, raw.default, &clusters, &mut warnings)?;
    warnings.extend(clusters::doubts(&clusters, &policy, source.is_none()));
    warnings.extend(containers::doubts(&policy, source.as_ref()));
    let paths = path::settle(plans, &mut policy)?;
    warnings.extend(path::doubts(&policy));
    path::note(&paths, &mut pipelines);
    let pipelines = Pipelines::new(pipelines);
    let health = health::settings(raw.health)?;
    let RawAgent {
        admin_socket,
        admin,
        metrics,
        admin_hosts,
        tail_values,
        cgroup,
        pins,
        max_flows,
        user_share,
        cgroup_share,
        handshake_timeout,
        drain,
        max_forwarded,
        max_namespaces,
        workers,
        busy_poll,
        splice,
        tap_ring_bytes,
        tap_cpu,
        adopt,
        holdout,
        control,
    } = raw.agent;
    let usual = match &holdout {
        Some(text) => holdout::share("agent.holdout", text)?,
        None => Sample::new(DEFAULT_HELD_OUT),
    };
    holdout::settle(&holdouts?, usual, &mut policy);
    let incoming = incoming::of(raw.incoming, &policy, &mut warnings)?;
    let record_labels = containers::record_labels(&raw.containers.record_labels)?;
    let containers = containers::sockets(raw.containers)?;
    let xdp = xdp::interfaces(raw.xdp)?;
    // The last thing that is said of a rule: what is wrong with its keys comes first.
    let open = protective?;
    let undecidable = protective::undecidable(&open, &policy);
    let escapes = open.into_iter().map(|escape| escape.text);
    let escapes = escapes
        .chain(undecidable)
        .chain(protective::doubts(&policy))
        .collect();
    let [admin_socket, control] = sockets(admin_socket.as_ref(), control.as_ref())?;
    Ok(Config {
        is_dry: false,
        admin_socket,
        admin: admin::address(admin.as_ref(), &mut warnings)?,
        metrics: admin::metrics(metrics.as_ref())?,
        admin_hosts: admin::hosts(&admin_hosts)?,
        tail_values,
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
        user_share: share("agent.user_share", user_share.as_ref())?,
        cgroup_share: share("agent.cgroup_share", cgroup_share.as_ref())?,
        handshake_timeout: match handshake_timeout {
            Some(text) => {
                let [least, most] = HANDSHAKE_TIMEOUTS;
                within("agent.handshake_timeout", &text, least, most)?
            }
            None => DEFAULT_HANDSHAKE_TIMEOUT,
        },
        drain: match drain {
            Some(text) => {
                let [least, most] = DRAINS;
                within("agent.drain", &text, least, most)?
            }
            None => DEFAULT_DRAIN,
        },
        max_forwarded: match max_forwarded {
            Some(n) => whole("agent.max_forwarded", &n, edge::MAX_CONNECTIONS as usize)? as u32,
            None => edge::DEFAULT_CONNECTIONS,
        },
        log_format: raw.log.format.map_or(Ok(LogFormat::usual()), |text| {
            one_of("log.format", &text, &FORMATS)
        })?,
        log_level: raw
            .log
            .level
            .map_or(Ok(LogLevel::default()), |text| level(&text))?,
        host,
        source,
        limits,
        metrics_push,
        max_namespaces: max_namespaces.map_or(Ok(MAX_NAMESPACES), |n| namespaces(&n))?,
        xdp,
        workers: match workers {
            Some(n) => whole("agent.workers", &n, MAX_WORKERS)?,
            None => default_workers(),
        },
        busy_poll: busy_poll.unwrap_or(true),
        splice: splice.map_or(Ok(Splicing::default()), |text| {
            one_of("agent.splice", &text, &SPLICES)
        })?,
        tap_cpu: tap_cpu.map_or(Ok(DEFAULT_TAP_CPU), |text| percent(&text))?,
        adopt: adopt.unwrap_or(true),
        tap_ring_bytes: tap_ring_bytes.map_or(Ok(DEFAULT_TAP_RING_BYTES), |n| ring_bytes(&n))?,
        control,
        health,
        containers,
        record_labels,
        clusters,
        incoming,
        policy,
        paths,
        pipelines,
        tls,
        triggers,
        warnings,
        escapes,
    })
}

fn level(text: &Spanned<String>) -> Result<LogLevel, Flaw> {
    let wrong = |why: NoLevel| Flaw::new(text.span(), format!("log.level: {why}"));
    text.get_ref().parse().map_err(wrong)
}

/// A share of `max_flows`.
fn share(key: &str, share: Option<&Spanned<f64>>) -> Result<f64, Flaw> {
    match share {
        None => Ok(DEFAULT_SHARE),
        Some(share) if *share.get_ref() > 0.0 && *share.get_ref() <= 1.0 => Ok(*share.get_ref()),
        Some(share) => expected(key, share, "a share of `max_flows`, above 0 and up to 1"),
    }
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
    clusters: &[Arc<ClusterSettings>],
    warnings: &mut Vec<String>,
) -> Result<Policy, Flaw> {
    if let Some(first_too_many) = raw.get(MAX_RULES) {
        let message = format!("[[rule]]: at most {MAX_RULES} rules, found {}", raw.len());
        return Err(Flaw::new(first_too_many.span(), message));
    }
    backends::bounded(&raw)?;
    network::bounded(&raw, clusters)?;
    let mut names = HashMap::new();
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
        if rule.action != Action::Bypass && rule.to.is_any() {
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
            .map_or(Ok(Fail::Open), |text| one_of("default.fail", &text, &FAILS))?,
    })
}

/// Reads a rule. `asks`: an earlier rule has a condition on the session.
pub(super) fn rule(
    mut raw: RawRule,
    names: &mut HashMap<String, Range<usize>>,
    asks: &mut bool,
) -> Result<Rule, Flaw> {
    let protects = protective::protects(&raw);
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
    if telemetry::is_marks(name) {
        return expected(
            "rule.name",
            &raw.name,
            "a name other than `mark-` and a number, which marks have",
        );
    }
    if let Some(first) = names.insert(name.clone(), raw.name.span()) {
        let expected = expected("rule.name", &raw.name, "a name that no rule above has");
        return expected.map_err(|flaw: Flaw| Flaw {
            other: Some(first),
            ..flaw
        });
    }
    let action = action("rule.action", &raw.action)?;
    shadow::check(&raw, &session)?;
    limit::check(&raw, &session)?;
    let limit = limit::of(&raw)?;
    let is_session = session.named().next().is_some();
    *asks |= is_session;
    let from = raw.from.iter().map(network::client);
    let to = network::destinations(&raw.to)?;
    Ok(Rule {
        name: RuleName::new(name),
        from: from.collect::<Result<_, _>>()?,
        backends: backends::of(&raw.backends, &to, action)?,
        is_mark: false,
        shadow: raw.in_shadow,
        protects,
        to,
        uids: users::USERS.ids(&raw.uid)?,
        gids: users::GROUPS.ids(&raw.gid)?,
        processes: raw.process.iter().map(process).collect::<Result<_, _>>()?,
        cgroups: raw.cgroup.iter().map(cgroup).collect::<Result<_, _>>()?,
        containers: containers::conditions(&raw.container, &raw.labels)?.in_pods(
            containers::of_pods(&raw.namespace, &raw.service_account, &raw.owner)?,
        ),
        namespaces: raw.netns.iter().map(netns).collect::<Result<_, _>>()?,
        action,
        session,
        fail: raw
            .fail
            .map_or(Ok(Fail::Open), |text| one_of("rule.fail", &text, &FAILS))?,
        shortcut: raw.shortcut.map_or(Ok(Shortcut::Neither), |wanted| {
            shortcut::of(&wanted, action)
        })?,
        taps: None,
        asks_copies: false,
        limit,
        when: raw.when.as_ref().map(window).transpose()?,
        remember: raw
            .remember
            .map(|lasts| remember::lasts(&lasts, action, *asks))
            .transpose()?,
        sample: raw
            .sample
            .map_or(Ok(None), |fraction| sample::of(&fraction, action))?,
        // Which rules are only read is known when all are.
        holdout: None,
    })
}

/// The days and hours during which a rule is there.
fn window(when: &Spanned<WindowSettings>) -> Result<Window, Flaw> {
    let built = when.get_ref().build();
    built.map_err(|message| Flaw::new(when.span(), format!("rule.{message}")))
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

fn netns(text: &Spanned<String>) -> Result<NetnsPattern, Flaw> {
    match NetnsPattern::parse(text.get_ref()) {
        Some(pattern) => Ok(pattern),
        None => expected(
            "rule.netns",
            text,
            "a network namespace: a name in /run/netns, an inode's number, or an absolute path",
        ),
    }
}

fn action(key: &str, text: &Spanned<String>) -> Result<Action, Flaw> {
    one_of(
        key,
        text,
        &Action::ALL.map(|action| (action.as_str(), action)),
    )
}

/// A share of one processor.
fn percent(text: &Spanned<String>) -> Result<f64, Flaw> {
    let number = text.get_ref().strip_suffix('%').map(str::parse::<u8>);
    match number {
        Some(Ok(percent @ 1..=100)) => Ok(f64::from(percent) / 100.0),
        _ => expected(
            "agent.tap_cpu",
            text,
            "a share of one processor from \"1%\" to \"100%\"",
        ),
    }
}

/// A ring's size is a power of two: what is between two is rounded up.
fn ring_bytes(n: &Spanned<i64>) -> Result<u32, Flaw> {
    let fits = u32::try_from(*n.get_ref()).ok();
    let fits = fits.filter(|n| (MIN_TAP_RING_BYTES..=MAX_TAP_RING_BYTES).contains(n));
    match fits {
        Some(n) => Ok(n.next_power_of_two()),
        None => expected(
            "agent.tap_ring_bytes",
            n,
            &format!("a number from {MIN_TAP_RING_BYTES} to {MAX_TAP_RING_BYTES}"),
        ),
    }
}

/// 0: no other namespace is served.
fn namespaces(n: &Spanned<i64>) -> Result<usize, Flaw> {
    match n.get_ref() {
        0 => Ok(0),
        _ => whole("agent.max_namespaces", n, MAX_NAMESPACES),
    }
}

/// The sockets of the admin interface and of control, which are two.
fn sockets(
    admin: Option<&Spanned<String>>,
    control: Option<&Spanned<String>>,
) -> Result<[PathBuf; 2], Flaw> {
    let path = |key, text: Option<&Spanned<String>>, otherwise: &str| match text {
        Some(text) => socket_path(key, text),
        None => Ok(PathBuf::from(otherwise)),
    };
    let sockets = [
        path("agent.admin_socket", admin, DEFAULT_ADMIN_SOCKET)?,
        path("agent.control", control, DEFAULT_CONTROL)?,
    ];
    match (&sockets, control.or(admin)) {
        ([admin, control], Some(text)) if admin == control => expected(
            "agent.control",
            text,
            "another path than agent.admin_socket",
        ),
        _ => Ok(sockets),
    }
}
