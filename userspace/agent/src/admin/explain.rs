//! `/explain`: every rule of the policy in force, with the marks before it, held against one connection.

use std::{net::IpAddr, net::Ipv4Addr, path::PathBuf};

use axum::{
    extract::{RawQuery, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use dataplane::{ClientAddr, Untouched};
use policy::{Action, Candidate, Policy, Rule, Session, SessionKey, Timestamp, Tried};
use serde_json::{Value, json};

use super::{
    state::{Admin, aside, failed, json},
    tail::decoded,
};
use crate::{observed, shortcuts};

/// Answers `flow=ID`, or a connection that does not exist yet: `to=…&uid=…&gid=…&process=…&cgroup=…&netns=…`.
pub(super) async fn explain(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let answer = move || {
        let policy = admin.shared.policy.borrow().clone();
        let (candidate, session) = match query.strip_prefix("flow=") {
            Some(id) => running(&admin, &policy, id)
                .ok_or((StatusCode::NOT_FOUND, format!("there is no flow {id}")))?,
            None => (
                newcomer(&query).map_err(|e| (StatusCode::BAD_REQUEST, e))?,
                Session::default(),
            ),
        };
        let mut rules = explanation(&policy, &candidate, &session);
        let in_force = admin.in_force.borrow().clone();
        add_closed(&mut rules, &policy, &in_force.config.policy);
        Ok(Value::from(rules))
    };
    match aside(answer).await {
        Ok(Ok(value)) => json(&value),
        Ok(Err((status, error))) => (status, format!("{error}\n")).into_response(),
        Err(error) => failed(&error),
    }
}

/// A running flow as rules see it, and what is known of its session.
fn running(admin: &Admin, policy: &Policy, id: &str) -> Option<(Candidate, Session)> {
    let carried = admin.shared.flows.all();
    if let Some(flow) = carried.iter().find(|flow| flow.id.to_string() == id) {
        let session = flow
            .decided()
            .session
            .map_or_else(Session::default, |known| *known);
        let netns = flow.netns.as_ref();
        let candidate = proxy::candidate(flow.client, flow.orig_dst, &flow.process, netns, policy);
        return Some((candidate, session));
    }
    let is_it = |flow: &Untouched| id.strip_prefix("socket-") == Some(&flow.cookie.to_string());
    let observed = observed::flows(&admin.dataplane, &admin.shared);
    let found = observed.iter().find(|(flow, listed)| match listed {
        Some(listed) => listed.id.to_string() == id,
        None => is_it(flow),
    });
    if let Some((flow, listed)) = found {
        let known = listed.as_ref().and_then(|listed| listed.flow.as_deref());
        return Some((untouched(flow, policy), observed::session(known)));
    }
    let on_shortcut = shortcuts::flows(&admin.dataplane);
    let found = on_shortcut.iter().find(|on| is_it(&on.flow))?;
    Some((untouched(&found.flow, policy), Session::default()))
}

fn untouched(flow: &Untouched, policy: &Policy) -> Candidate {
    // It is looked at of clients on other hosts alone, and of these it is known.
    let nobody = || ClientAddr::new((Ipv4Addr::UNSPECIFIED, 0).into());
    let client = flow.client.unwrap_or_else(nobody);
    proxy::candidate(client, flow.orig_dst, &flow.process, None, policy)
}

/// Reads a connection that does not exist yet.
pub(super) fn newcomer(query: &str) -> Result<Candidate, String> {
    let mut candidate =
        Candidate::elsewhere(IpAddr::from(Ipv4Addr::UNSPECIFIED), ([0; 4], 0).into());
    candidate.from = None;
    let mut has_to = false;
    for parameter in query.split('&').filter(|one| !one.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = decoded(value)?;
        let wrong = |what: &str| format!("{key}: expected {what}; found {value:?}");
        match key {
            "to" => {
                candidate.to = value.parse().map_err(|_| wrong("an address and port"))?;
                has_to = true;
            }
            "uid" => candidate.uid = value.parse().map_err(|_| wrong("a user id"))?,
            "gid" => candidate.gid = value.parse().map_err(|_| wrong("a group id"))?,
            "netns" => {
                candidate.netns = Some(value.parse().map_err(|_| wrong("an inode's number"))?)
            }
            "process" => candidate.process = value,
            "cgroup" => candidate.cgroup = PathBuf::from(value),
            _ => {
                return Err(format!(
                    "expected flow, or to, uid, gid, process, cgroup and netns; found {key:?}"
                ));
            }
        }
    }
    match has_to {
        true => Ok(candidate),
        false => Err("expected flow=ID or to=ADDR:PORT".to_owned()),
    }
}

pub(super) fn explanation(policy: &Policy, candidate: &Candidate, session: &Session) -> Vec<Value> {
    let tried = policy.try_each(candidate, session);
    let rules = policy.rules.iter().zip(&tried).map(|(rule, tried)| {
        let (outcome, keys) = told(tried);
        json!({
            "rule": rule.name.as_str(),
            "action": rule.shadow.unwrap_or(rule.action).as_str(),
            "path": path(rule),
            "is_mark": rule.is_mark,
            "outcome": outcome,
            "keys": keys,
        })
    });
    let is_decided = tried
        .iter()
        .any(|one| matches!(one, Tried::Decides | Tried::Refuses(_)));
    let default = match is_decided {
        true => "behind",
        false if tried.iter().any(|one| matches!(one, Tried::MayDecide(_))) => "otherwise",
        false => "decides",
    };
    let action = match candidate.from {
        None => policy.default_action,
        Some(_) => Action::Bypass,
    };
    let default = json!({
        "rule": "default", "action": action.as_str(), "path": null, "is_mark": false, "outcome": default, "keys": [],
    });
    rules.chain([default]).collect()
}

/// Puts the file's rules whose windows are closed where they would stand: behind the last rule of the file before them
/// that is in force.
fn add_closed(rules: &mut Vec<Value>, in_force: &Policy, file: &Policy) {
    let now = Timestamp::now();
    let marks = in_force.rules.iter().filter(|rule| rule.is_mark).count();
    for (place, rule) in (marks..).zip(&file.rules) {
        if !in_force.rules.iter().any(|there| there.name == rule.name) {
            let window = rule.when.as_ref();
            let state = window.map(|when| format!("{when}: {}", when.state(now)));
            let closed = json!({
                "rule": rule.name.as_str(),
                "action": rule.action.as_str(),
                "path": path(rule),
                "is_mark": false,
                "outcome": "closed",
                "keys": ["when"],
                "window": state,
            });
            rules.insert(place.min(rules.len()), closed);
        }
    }
}

/// The path of a rule's flows, as far as the rule alone says.
fn path(rule: &Rule) -> Option<&'static str> {
    match rule.action {
        _ if rule.is_shadow() => None,
        Action::Enrich if rule.taps.is_some() => Some("tap"),
        Action::Enrich => Some("enrich"),
        Action::Bypass | Action::Observe => Some("untouched"),
        Action::Deny => None,
    }
}

fn told(tried: &Tried) -> (&'static str, Vec<&'static str>) {
    let names = |keys: &[SessionKey]| keys.iter().map(|key| key.key()).collect();
    match tried {
        Tried::Decides => ("decides", Vec::new()),
        Tried::MayDecide(keys) => ("may_decide", names(keys)),
        Tried::Refuses(keys) => ("refuses", names(keys)),
        Tried::Unknowable(keys) => ("unknowable", names(keys)),
        Tried::Misses(keys) => ("misses", keys.clone()),
        Tried::Shadow => ("shadow", Vec::new()),
        Tried::Behind => ("behind", Vec::new()),
    }
}
