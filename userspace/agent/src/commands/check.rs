//! `underpass check`.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use policy::{
    Action, Candidate, ClientLimit, Compression, Container, Decision, Fact, LimitPer, Match,
    NetnsPattern, Policy, PossibleMatch, Protocol, Rule, RuleName, Session, SessionKey, Timestamp,
};
use serde_json::{Value, json};
use tls::{Common, TlsRules};
use tokio::runtime;

use super::{
    doubts, live,
    trial::{self, Asked, Tried},
    windows,
};
use crate::{
    cli::CheckArgs,
    config::{Config, RulePath, held_out},
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
        let read = source.settings.read_secrets();
        read.map_err(|why| anyhow::anyhow!("[policy]: {why}"))?;
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
    let trials = args
        .statement
        .as_deref()
        .map(|statement| trials(&config, args, (statement, now), explanation.as_ref()));
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

/// Shows a statement to the pipelines of the rules that the connection may meet; or of all rules with a pipeline, if no
/// connection is asked about.
fn trials(
    config: &Config,
    args: &CheckArgs,
    (statement, now): (&str, Timestamp),
    explanation: Option<&Explanation>,
) -> Vec<Trial> {
    let asked = Asked {
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
    };
    let rules: Vec<(RuleName, Action)> = match explanation {
        Some(explanation) => {
            let possible = explanation.possible.iter();
            possible
                .map(|p| (p.met.rule.clone(), p.met.action))
                .collect()
        }
        None => {
            let rules = config.policy.rules.iter();
            rules.map(|rule| (rule.name.clone(), rule.action)).collect()
        }
    };
    let trials = rules
        .into_iter()
        .map(|(rule, action)| Trial::of(config, rule, action, &asked));
    trials
        .filter(|trial| explanation.is_some() || trial.has_pipeline())
        .collect()
}

/// The treatment of a statement by one rule.
struct Trial {
    rule: RuleName,
    outcome: Outcome,
}

enum Outcome {
    /// The connection is refused.
    Denied,
    /// Nobody reads what is sent, for this reason.
    Unread(&'static str),
    /// The pipeline sees it, as a query and as what is prepared.
    Tried(Box<[Tried; 2]>),
}

impl Trial {
    fn of(config: &Config, rule: RuleName, action: Action, asked: &Asked) -> Self {
        let edits = config.pipelines.edits_of(&rule);
        let outcome = match (action, edits) {
            (Action::Deny, _) => Outcome::Denied,
            // A trigger may have what is observed enriched.
            (Action::Bypass, _) | (Action::Observe, None) => Outcome::Unread("it is not read"),
            (Action::Enrich, None) => {
                Outcome::Unread("no step of the pipeline changes or refuses it")
            }
            (Action::Enrich | Action::Observe, Some(edits)) => {
                let tried =
                    |prepared| trial::try_out(edits.clone(), rule.as_str(), asked, prepared);
                Outcome::Tried(Box::new([tried(false), tried(true)]))
            }
        };
        Self { rule, outcome }
    }

    fn has_pipeline(&self) -> bool {
        matches!(self.outcome, Outcome::Tried(_))
    }

    fn is_refused(&self) -> bool {
        match &self.outcome {
            Outcome::Denied => true,
            Outcome::Unread(_) => false,
            Outcome::Tried(tried) => tried.iter().all(Tried::is_refused),
        }
    }

    fn text(&self) -> String {
        let rule = &self.rule;
        match &self.outcome {
            Outcome::Denied => format!("statement, by rule {rule}: refused with its connection\n"),
            Outcome::Unread(why) => format!("statement, by rule {rule}: passes: {why}\n"),
            Outcome::Tried(tried) => {
                let [query, prepared] = &**tried;
                match query.text() == prepared.text() {
                    true => format!("statement, by rule {rule}: {}\n", query.text()),
                    false => format!(
                        "statement as a query, by rule {rule}: {}\nstatement when it is prepared, by rule {rule}: {}\n",
                        query.text(),
                        prepared.text()
                    ),
                }
            }
        }
    }

    fn json(&self) -> Value {
        let (as_query, as_prepared) = match &self.outcome {
            Outcome::Denied => (json!({"outcome": "denied"}), json!({"outcome": "denied"})),
            Outcome::Unread(_) => (json!({"outcome": "passes"}), json!({"outcome": "passes"})),
            Outcome::Tried(tried) => {
                let [query, prepared] = &**tried;
                (query.json(), prepared.json())
            }
        };
        json!({"rule": self.rule.as_str(), "query": as_query, "prepared": as_prepared})
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

struct Explanation {
    /// The kernel's decision at connect(), and its rule.
    at_connect: Match,
    /// The first rules that may hold; only the last one is sure to.
    possible: Vec<Possible>,
    /// The bound on the connections of one client.
    limit: Option<ClientLimit>,
    /// Rules before them, and the key that does not hold.
    passed_over: Vec<(String, &'static str)>,
    /// Backends behind the address, if it is a virtual one.
    backends: Vec<SocketAddr>,
    /// Whether the agent reads what the client encrypts.
    tls_ends: bool,
    /// Where the rule that it meets at connect() asks for the session: why the connection comes to the agent. None: copies
    /// of its handshake answer.
    taken_in: Option<Option<String>>,
    /// The decision on such a connection of whose session nothing more can be known.
    unknowable: Match,
}

struct Possible {
    met: Match,
    /// Facts that decide whether the rule holds, and that the arguments do not give.
    open: Vec<SessionKey>,
    /// For how long the decision stands for later connections of the process.
    remembered: Option<Duration>,
    /// The path of the rule's flows and the reason for it, where the rule names a path.
    path: Option<String>,
    /// How many of the rule's connections are left alone, if any are.
    held_out: Option<String>,
}

/// Explains by the rules of `config`, which are there now; the file has others, too.
fn explain(
    (config, file): (&Config, &Policy),
    candidate: &Candidate,
    session: &Session,
    tls_ends: bool,
) -> Explanation {
    let policy = &config.policy;
    let at_connect = policy.first_match(candidate);
    let asked = at_connect.index.filter(|_| at_connect.session);
    let taken_in = asked.map(|index| taken_in(config, index));
    let in_agent = matches!(taken_in, Some(Some(_)));
    let possible: Vec<Possible> = policy
        .possible(candidate, session)
        .map(|PossibleMatch { met, .. }| {
            let rule = met.index.and_then(|index| policy.rules.get(index));
            let open = rule.map(|rule| rule.session.open(session).collect());
            Possible {
                // Decided at connect(), it need not be remembered.
                remembered: rule.filter(|_| at_connect.session).and_then(|r| r.remember),
                path: config
                    .paths
                    .get(&met.rule)
                    .map(|path| path_of(path, in_agent)),
                held_out: rule.and_then(held_out),
                met,
                open: open.unwrap_or_default(),
            }
        })
        .collect();
    let last = possible.last().map(|possible| possible.met.rule.clone());
    let before = file
        .rules
        .iter()
        .take_while(|rule| Some(&rule.name) != last.as_ref());
    let is_there = |rule: &Rule| policy.rules.iter().any(|there| there.name == rule.name);
    let met = at_connect.index.and_then(|index| policy.rules.get(index));
    Explanation {
        limit: met.and_then(|rule| rule.limit),
        at_connect,
        passed_over: before
            .filter_map(|rule| {
                let key = match is_there(rule) {
                    true => missed(rule, candidate, session)?,
                    false => "when",
                };
                Some((rule.name.to_string(), key))
            })
            .collect(),
        possible,
        backends: policy
            .balances(candidate)
            .map_or_else(Vec::new, |rule| rule.backends.clone()),
        tls_ends,
        taken_in,
        unknowable: match policy.decide(candidate, &session.clone().closed()) {
            Decision::Decided(met) => met,
            Decision::Undecided => policy.first_match(candidate),
        },
    }
}

/// Why the agent takes in what meets the session rule at `index`. None: copies of its handshake say which rule holds.
fn taken_in(config: &Config, index: usize) -> Option<String> {
    let rule = config.policy.rules.get(index)?;
    if rule.asks_copies {
        return None;
    }
    let why = config.policy.takes_in(index).map(|why| why.to_string());
    Some(why.unwrap_or_else(|| format!("`path` of rule {} is inline", rule.name)))
}

/// The path and its reason. `in_agent`: the agent decides, so it has the flow's bytes.
fn path_of(path: &RulePath, in_agent: bool) -> String {
    match path.is_tap && in_agent {
        false => path.why.clone(),
        true => "inline, because a rule before it asks for the session".to_owned(),
    }
}

/// The key by which a rule that would hold is passed over.
const SHADOW: &str = "mode";

/// The first key of a rule that does not hold.
fn missed(rule: &Rule, candidate: &Candidate, session: &Session) -> Option<&'static str> {
    match rule.miss(candidate) {
        Some(miss) => Some(miss.key()),
        None if rule.is_shadow() => Some(SHADOW),
        None => rule.session.missed(session).next().map(SessionKey::key),
    }
}

impl Explanation {
    /// The rule that decides, if that is known.
    fn decided(&self) -> Option<&Match> {
        match self.possible.as_slice() {
            [only] => Some(&only.met),
            _ => None,
        }
    }

    /// The candidates that are stricter than what decides where the session cannot be known.
    fn escaped(&self) -> impl Iterator<Item = &Match> {
        let met = self.possible.iter().map(|possible| &possible.met);
        met.filter(|met| met.action.strictness() > self.unknowable.action.strictness())
    }

    fn unknowable_text(&self) -> String {
        let Match { rule, action, .. } = &self.unknowable;
        let mut text = format!(
            "  where its session cannot be known: {rule}: {}\n",
            action.as_str()
        );
        for stricter in self.escaped() {
            text.push_str(&format!(
                "  warning: that is weaker than {}: {}; fail = \"closed\" there refuses such a connection\n",
                stricter.rule,
                stricter.action.as_str()
            ));
        }
        text
    }

    fn text(&self) -> String {
        let fail = self.at_connect.fail.as_str();
        let mut text = match self.decided() {
            Some(met) => format!("{}: {}, fail = {fail}\n", met.rule, met.action.as_str()),
            None => format!("decided after the handshake, fail = {fail}\n"),
        };
        match self.decided() {
            Some(met) if met.index.is_none() => text.push_str("  no rule holds\n"),
            Some(_) => text.push_str("  every condition of the rule holds\n"),
            None => {
                for Possible { met, open, .. } in &self.possible {
                    let (rule, action) = (&met.rule, met.action.as_str());
                    text.push_str(&match keys(open).as_str() {
                        "" => format!("  candidate: {rule}: {action}, otherwise\n"),
                        keys => format!("  candidate: {rule}: {action}, by {keys}\n"),
                    });
                }
                text.push_str(&self.unknowable_text());
            }
        }
        if self.at_connect.session && self.decided().is_some() {
            let by = match self.taken_in {
                Some(None) => "from copies of its handshake",
                _ => "in the agent",
            };
            text.push_str(&format!(
                "  decided {by}: at connect() it meets {}, which asks for the session\n",
                self.at_connect.rule
            ));
        }
        match &self.taken_in {
            None => {}
            Some(None) => {
                text.push_str("  left alone: copies of its handshake say which rule holds\n")
            }
            Some(Some(why)) => text.push_str(&format!("  taken in, because {why}\n")),
        }
        for Possible {
            met, remembered, ..
        } in &self.possible
        {
            if let Some(lasts) = remembered {
                text.push_str(&format!(
                    "  remembered: for {} s, later connections of a process that met {} are left \
                     alone at connect()\n",
                    lasts.as_secs(),
                    met.rule
                ));
            }
        }
        for Possible { met, path, .. } in &self.possible {
            if let Some(path) = path {
                text.push_str(&format!("  path of {}: {path}\n", met.rule));
            }
        }
        for said in self.possible.iter().filter_map(|one| one.held_out.as_ref()) {
            text.push_str(&format!("  {said}\n"));
        }
        if self.tls_ends {
            text.push_str("  TLS ends in the agent\n");
        }
        if let Some(ClientLimit { connections, per }) = self.limit {
            let client = match per {
                LimitPer::Uid => "user",
                LimitPer::Process => "process",
                LimitPer::Address => "address",
            };
            text.push_str(&format!(
                "  one {client} has at most {connections} connections by it; further ones are refused\n"
            ));
        }
        if !self.backends.is_empty() {
            let backends: Vec<String> = self.backends.iter().map(SocketAddr::to_string).collect();
            text.push_str(&format!("  behind it: {}\n", backends.join(", ")));
        }
        for (rule, key) in &self.passed_over {
            text.push_str(&match *key {
                SHADOW => format!("  passed over: {rule}, which stands in shadow\n"),
                key => format!("  passed over: {rule}, whose `{key}` does not hold\n"),
            });
        }
        text
    }

    fn json(&self) -> Value {
        let met = self.decided();
        json!({
            "rule": met.map(|met| met.rule.as_str()),
            "action": met.map_or("undecided", |met| met.action.as_str()),
            "fail": self.at_connect.fail.as_str(),
            "at_connect": self.at_connect.rule.as_str(),
            "candidates": self.possible.iter().map(|Possible { met, open, remembered, path, held_out }| json!({
                "rule": met.rule.as_str(),
                "action": met.action.as_str(),
                "by": open.iter().map(|key| key.key()).collect::<Vec<_>>(),
                "remember_seconds": remembered.map(|lasts| lasts.as_secs()),
                "path": path,
                "held_out": held_out,
            })).collect::<Vec<_>>(),
            "passed_over": self.passed_over.iter().map(|(rule, key)| json!({
                "rule": rule,
                "key": key,
            })).collect::<Vec<_>>(),
            "backends": self.backends,
            "tls_ends": self.tls_ends,
            "taken_in": self.taken_in.as_ref().map(Option::is_some),
            "unknowable": met.is_none().then(|| json!({
                "rule": self.unknowable.rule.as_str(),
                "action": self.unknowable.action.as_str(),
                "weaker_than": self.escaped().map(|met| met.rule.as_str()).collect::<Vec<_>>(),
            })),
        })
    }
}

fn keys(keys: &[SessionKey]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| format!("`{}`", key.key())).collect();
    keys.join(", ")
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
