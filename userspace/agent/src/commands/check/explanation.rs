//! The answer to `check --to`: the rules that a connection may meet, those that it passes over, and why.

use std::{net::SocketAddr, time::Duration};

use policy::{
    Candidate, ClientLimit, Decision, LimitPer, Match, Policy, PossibleMatch, Rule, Session,
    SessionKey,
};
use serde_json::{Value, json};

use crate::config::{Config, RulePath, held_out};

/// The rules that a connection meets, and why.
pub(super) struct Explanation {
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
pub(super) fn explain(
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

    /// The rules that may hold.
    pub(super) fn may_hold(&self) -> impl Iterator<Item = &Match> {
        self.possible.iter().map(|possible| &possible.met)
    }

    /// The candidates that are stricter than what decides where the session cannot be known.
    fn escaped(&self) -> impl Iterator<Item = &Match> {
        let met = self.may_hold();
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

    pub(super) fn text(&self) -> String {
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

    pub(super) fn json(&self) -> Value {
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
