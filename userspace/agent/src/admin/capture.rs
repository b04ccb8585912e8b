//! `/capture`: requests of one flow, or of one rule's flows, for a bounded time. Lines as `underpass_capture` has them, with
//! the last one. An empty line now and then shows whether somebody still reads.
//!
//! - `lines.rs`: the lines, and when they end; `record.rs`: a request's line.

mod lines;
mod record;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::capture::{Header, VERSION};
use axum::{
    Extension,
    extract::{RawQuery, State},
    http::StatusCode,
    response::Response,
};
use flow::Path;
use lines::CaptureLines;
use policy::{Action, Policy, RuleName, TapDepth};
use steps::capture::CaptureOf;

use super::{
    closing::Closing,
    guests::{Peer, Stay},
    lines::Lines,
    state::{Admin, aside, failed},
    tail::{decoded, latency, refused},
};
use crate::{observed, shortcuts};

/// The longest time of a capture.
pub const MAX_CAPTURE_TIME: Duration = Duration::from_secs(3600);

/// The advice for a flow that nobody reads, or not enough of.
const READ_IT: &str = "give the rule `action = \"enrich\"` and a step that reads requests, such as `{ transform = \"stats\" }`: \
                       by copies it is, and its connections stay the application's own";

/// A capture that is asked for.
#[derive(Debug, PartialEq)]
pub(super) struct Wanted {
    flow: Option<String>,
    rule: Option<String>,
    pub(super) time: Duration,
    values: bool,
}

/// Begins to tell.
pub(super) async fn capture(
    State(admin): State<Admin>,
    Extension(stay): Extension<Stay>,
    Extension(closing): Extension<Closing>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
) -> Response {
    let wanted = match wanted(query.as_deref().unwrap_or_default()) {
        Ok(wanted) => wanted,
        Err(error) => return refused(StatusCode::BAD_REQUEST, &error),
    };
    let uid = match peer {
        Peer::User(uid) => Some(uid),
        Peer::Address(_) => None,
    };
    if wanted.values && uid != Some(0) && !admin.tail_values {
        let error = "values are given to root alone: run as root, or leave --with-values out; `tail_values = true` in [agent] of \
                     the policy file allows the group `underpass` to see them, from the agent's next start on";
        return refused(StatusCode::FORBIDDEN, &error);
    }
    let (flow, rule) = (wanted.flow.clone(), wanted.rule.clone());
    let looked = admin.clone();
    let of = aside(move || match (flow, rule) {
        (Some(flow), None) => of_flow(&looked, &flow),
        (None, Some(rule)) => of_rule(&looked.shared.policy.borrow(), &rule),
        _ => Err("expected flow=NUMBER or rule=NAME, and not both".to_owned()),
    });
    let of = match of.await {
        Ok(Ok(of)) => of,
        Ok(Err(error)) => return refused(StatusCode::CONFLICT, &error),
        Err(error) => return failed(&error),
    };
    let services = &admin.shared.services;
    let capturing = match services.captures.begin(of) {
        Ok(capturing) => capturing,
        Err(error) => return refused(StatusCode::TOO_MANY_REQUESTS, &error),
    };
    note(&wanted, uid);
    stay.goes_on();
    let prepared = services.prepared.clone();
    let until = (wanted.time, closing);
    let lines = CaptureLines::new(wanted.values, until, capturing, prepared);
    Lines::answer(first(&wanted), lines)
}

/// The log's line of a capture: whoever reads it later has to find out who has seen what.
fn note(wanted: &Wanted, uid: Option<u32>) {
    let (flow, rule) = (wanted.flow.as_deref(), wanted.rule.as_deref());
    let seconds = wanted.time.as_secs_f64();
    match wanted.values {
        true => tracing::warn!(
            uid,
            flow,
            rule,
            seconds,
            "requests are captured with their values"
        ),
        false => tracing::info!(
            uid,
            flow,
            rule,
            seconds,
            "requests are captured without values"
        ),
    }
}

/// Reads what is asked for: `flow=17&for=10s&values`, or `rule=NAME`, in which `%` stands before a byte.
pub(super) fn wanted(query: &str) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        flow: None,
        rule: None,
        time: Duration::ZERO,
        values: false,
    };
    for parameter in query.split('&').filter(|one| !one.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = decoded(value)?;
        match key {
            "flow" => wanted.flow = Some(value),
            "rule" => wanted.rule = Some(value),
            "for" => wanted.time = time(&value)?,
            "values" => wanted.values = true,
            _ => return Err(format!("expected flow, rule, for or values; found {key:?}")),
        }
    }
    match wanted.time.is_zero() {
        true => Err("expected a time, such as for=10s".to_owned()),
        false => Ok(wanted),
    }
}

/// Reads for how long to capture.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = latency(text)?;
    match !time.is_zero() && time <= MAX_CAPTURE_TIME {
        true => Ok(time),
        false => Err(format!(
            "expected a time up to 1h, such as 10s; found {text:?}"
        )),
    }
}

/// The capture of the flow with this number, if somebody reads it.
fn of_flow(admin: &Admin, id: &str) -> Result<CaptureOf, String> {
    let unread = |path: &str| {
        format!(
            "flow {id} travels by `{path}`, and nobody reads it (`underpass explain {id}` says why): {READ_IT}"
        )
    };
    let carried = admin.shared.flows.all();
    if let Some(flow) = carried.iter().find(|flow| flow.id.to_string() == id) {
        return match flow.path() {
            Path::Enrich => Ok(CaptureOf::Flow(flow.id.number())),
            path => Err(unread(path.as_str())),
        };
    }
    let observed = observed::flows(&admin.dataplane, &admin.shared);
    for (flow, listed) in &observed {
        match listed {
            Some(listed) if listed.id.to_string() == id => {
                if flow.is_left_out {
                    return Err(format!(
                        "flow {id} is left out for now, because `tap_cpu` is used up: give more, or capture another flow"
                    ));
                }
                is_deep(&admin.shared.policy.borrow(), &flow.rule)?;
                return Ok(CaptureOf::Flow(listed.id.number()));
            }
            None if id.strip_prefix("socket-") == Some(&flow.cookie.to_string()) => {
                return Err(unread("untouched"));
            }
            _ => {}
        }
    }
    let shortcuts = shortcuts::flows(&admin.dataplane);
    let is_on_it = |cookie: String| id.strip_prefix("socket-") == Some(&cookie);
    match shortcuts
        .iter()
        .any(|flow| is_on_it(flow.flow.cookie.to_string()))
    {
        true => Err(unread("shortcut")),
        false => Err(format!(
            "there is no flow {id}: `underpass flows` lists those that are there"
        )),
    }
}

/// The capture of this rule's flows, if they are read.
fn of_rule(policy: &Policy, name: &str) -> Result<CaptureOf, String> {
    let rule = policy.rules.iter().find(|rule| rule.name.as_str() == name);
    let rule = rule.ok_or_else(|| {
        format!("there is no rule {name:?} in force: `underpass config` lists those that are")
    })?;
    if rule.action != Action::Enrich {
        return Err(format!(
            "rule {name} has `action = \"{}\"`, and nobody reads its flows: {READ_IT}",
            rule.action.as_str()
        ));
    }
    is_deep(policy, &rule.name)?;
    Ok(CaptureOf::Rule(rule.name.clone()))
}

/// Whether copies of a rule's flows have the requests in them.
fn is_deep(policy: &Policy, name: &RuleName) -> Result<(), String> {
    let rule = policy.rules.iter().find(|rule| rule.name == *name);
    let depth = rule.and_then(|rule| rule.taps);
    match depth.is_some_and(|depth| depth < TapDepth::Details) {
        true => Err(format!(
            "of rule {name}'s flows copies have the beginnings of requests alone, because no step reads more: {READ_IT}"
        )),
        false => Ok(()),
    }
}

fn first(wanted: &Wanted) -> String {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let header = Header {
        underpass_capture: VERSION,
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        began_unix_ms: since_epoch.unwrap_or_default().as_millis() as u64,
        flow: wanted.flow.clone(),
        rule: wanted.rule.clone(),
        values: wanted.values,
    };
    ::capture::line(&header).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read_or_refused() {
        let read = wanted("flow=17&for=10s&values").unwrap();
        assert_eq!((read.flow.as_deref(), read.values), (Some("17"), true));
        assert_eq!(read.time, Duration::from_secs(10));
        assert_eq!(
            wanted("rule=a%2Fb&for=1h").unwrap().rule.as_deref(),
            Some("a/b")
        );
        for (query, said) in [
            ("flow=17", "expected a time, such as for=10s"),
            ("for=0s", "expected a time up to 1h"),
            ("for=2h", "expected a time up to 1h"),
            ("for=soon", "expected a time such as"),
            ("flows=1", "found \"flows\""),
        ] {
            let error = wanted(query).unwrap_err();
            assert!(error.contains(said), "{query}: {error}");
        }
    }
}
