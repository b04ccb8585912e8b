//! `/tail`: statements as they pass, a line of JSON each, for as long as somebody reads.
//!
//! The first line is `{"watching": …}`: what is read, and what is not and so is not shown. Among the lines that follow,
//! `{"dropped": n}` says that n statements had no room. An empty line now and then shows whether somebody still reads. The last line
//! is `{"ended": "taken_over"}` where another agent has taken over, and `"agent"` where this one stops.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ::capture::Ended;
use axum::{
    Extension,
    extract::{RawQuery, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use percent_encoding::percent_decode_str;
use policy::{Action, Filter, Glob, Policy};
use serde_json::json;
use steps::tail::{Seen, TAIL_KEYS, Wanted, Watching};

use super::{
    closing::Closing,
    guests::Stay,
    lines::{LineSource, Lines},
    state::{Admin, aside, failed},
};
use crate::{observed, shortcuts};

/// Bytes of lines that are handed over together.
const PIECE_BYTES: usize = 16 << 10;

/// Begins to tell.
pub(super) async fn tail(
    State(admin): State<Admin>,
    Extension(stay): Extension<Stay>,
    Extension(closing): Extension<Closing>,
    RawQuery(query): RawQuery,
) -> Response {
    let wanted = match wanted(query.as_deref().unwrap_or_default()) {
        Ok(wanted) => wanted,
        Err(error) => return refused(StatusCode::BAD_REQUEST, &error),
    };
    if wanted.values && !admin.tail_values {
        let error = "values are not shown: `tail_values = true` in [agent] of the policy file allows it, from the \
                     agent's next start on";
        return refused(StatusCode::FORBIDDEN, &error);
    }
    // Before what is there is counted: nothing that begins meanwhile is missed.
    let watching = match admin.shared.services.tails.watch(wanted) {
        Ok(watching) => watching,
        Err(error) => return refused(StatusCode::TOO_MANY_REQUESTS, &error),
    };
    let first = match aside(move || overview(&admin)).await {
        Ok(first) => first,
        Err(error) => return failed(&error),
    };
    stay.goes_on();
    let closing = Box::pin(closing.comes());
    Lines::answer(first, TailLines { watching, closing })
}

pub(super) fn refused(status: StatusCode, error: &impl std::fmt::Display) -> Response {
    (status, format!("{error}\n")).into_response()
}

/// Reads what is asked for: `filter=…&slower_than=20ms&errors&statement=…&values`, in which `%` stands before a byte.
pub(super) fn wanted(query: &str) -> Result<Wanted, String> {
    let mut wanted = Wanted::default();
    for parameter in query.split('&').filter(|one| !one.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = decoded(value)?;
        match key {
            "filter" => wanted.filter = Filter::parse(&value, &TAIL_KEYS)?,
            "slower_than" => wanted.slower_than = latency(&value)?,
            "errors" => wanted.errors = true,
            "statement" => wanted.statement = Some(pattern(&value)?),
            "values" => wanted.values = true,
            _ => {
                return Err(format!(
                    "expected filter, slower_than, errors, statement or values; found {key:?}"
                ));
            }
        }
    }
    Ok(wanted)
}

/// Decodes a parameter of a URL.
pub(super) fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded
        .map(Into::into)
        .map_err(|_| format!("expected UTF-8; found {text:?}"))
}

/// Reads a latency.
pub fn latency(text: &str) -> Result<Duration, String> {
    steps::duration(text)
        .ok_or_else(|| format!("expected a time such as `20ms`, `2s`, `1m`; found {text:?}"))
}

/// Reads a pattern of statements.
pub fn pattern(text: &str) -> Result<Glob, String> {
    let pattern = Glob::parse(&text.to_lowercase());
    pattern.ok_or_else(|| "expected a statement's text, with `*` for anything".to_owned())
}

/// The first line: how much is read, and how much is not.
fn overview(admin: &Admin) -> String {
    let carried = admin.shared.flows.views();
    let carried_read = carried.iter().filter(|flow| flow.is_read()).count();
    let observed = observed::flows(&admin.dataplane, &admin.shared);
    let is_tapped = observed
        .iter()
        .filter(|(flow, _)| flow.is_tapped && !flow.is_left_out);
    let tapped = is_tapped.count();
    let shortcuts = shortcuts::views(&admin.dataplane).len();
    let all = carried.len() + observed.len() + shortcuts;
    let read = carried_read + tapped;
    json!({"watching": {
        "flows": read,
        "flows_not_read": all - read,
        "rules_not_read": unread(&admin.shared.policy.borrow()),
        "rules_without_texts": shallow(&admin.shared.policy.borrow()),
    }})
    .to_string()
}

/// The rules whose flows nobody reads.
fn unread(policy: &Policy) -> Vec<&str> {
    let rules = policy.rules.iter();
    let unread = rules.filter(|rule| matches!(rule.action, Action::Bypass | Action::Observe));
    unread.map(|rule| rule.name.as_str()).collect()
}

/// The rules of whose requests copies have no more than kind, table and latency.
fn shallow(policy: &Policy) -> Vec<&str> {
    let rules = policy.rules.iter();
    let shallow = rules.filter(|rule| {
        rule.taps
            .is_some_and(|depth| depth < policy::TapDepth::Details)
    });
    shallow.map(|rule| rule.name.as_str()).collect()
}

/// The lines of one watcher.
struct TailLines {
    watching: Watching,
    /// The end of the interface.
    closing: Pin<Box<dyn Future<Output = Ended> + Send>>,
}

impl TailLines {
    fn put(&self, seen: &Seen, to: &mut String) {
        to.push_str(&seen.to_json(self.watching.shows_values()));
        to.push('\n');
    }
}

impl LineSource for TailLines {
    fn poll_lines(&mut self, cx: &mut Context<'_>, to: &mut String) -> bool {
        let dropped = self.watching.take_dropped();
        if dropped > 0 {
            to.push_str(&json!({ "dropped": dropped }).to_string());
            to.push('\n');
        }
        let mut next = |watching: &mut Watching| -> Option<Arc<Seen>> {
            match watching.poll_next(cx) {
                Poll::Ready(seen) => seen,
                Poll::Pending => None,
            }
        };
        while to.len() < PIECE_BYTES
            && let Some(seen) = next(&mut self.watching)
        {
            self.put(&seen, to);
        }
        let Poll::Ready(why) = self.closing.as_mut().poll(cx) else {
            return false;
        };
        to.push_str(&json!({ "ended": why }).to_string());
        to.push('\n');
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read_or_refused() {
        let asked = "filter=process%3Dweb*%2Cnot%20user%3Detl&slower_than=20ms&errors&statement=SELECT%20*&values";
        let asked = wanted(asked).unwrap();
        assert_eq!(asked.filter.to_string(), "process=web*,not user=etl");
        assert_eq!(asked.slower_than, Duration::from_millis(20));
        assert_eq!(asked.statement.unwrap().to_string(), "select *");
        assert!(asked.errors && asked.values);
        assert!(!wanted("").unwrap().values);
        for (query, said) in [
            ("slower_than=fast", "expected a time such as `20ms`"),
            ("filter=usr%3Da", "did you mean `user`?"),
            (
                "filter=action%3Ddeny",
                "action: nothing in this list has it",
            ),
            ("statement=", "expected a statement's text"),
            ("statement=%ff", "expected UTF-8"),
            ("since=1", "found \"since\""),
        ] {
            let error = wanted(query).unwrap_err();
            assert!(error.contains(said), "{query}: {error}");
        }
    }
}
