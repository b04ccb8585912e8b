//! A statement that has passed, as a watcher is told of it.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use cql::{BoundValue, Completed, Details, ErrorCode, Fingerprint, Statement};
use flow::Path;
use policy::{FilterFact, FilterKey, Filtered};
use serde::Serialize;

use super::super::{What, Whose, audit, containers::Contained};

/// A request and what became of it. Made on the threads on which bytes move, so it copies nothing that is not shown.
#[derive(Debug)]
pub struct Seen {
    at: SystemTime,
    whose: Arc<Whose>,
    user: Option<Arc<str>>,
    path: Path,
    what: What,
    statement: Arc<Statement>,
    fingerprint: Option<Arc<Fingerprint>>,
    latency_us: u64,
    error: Option<ErrorCode>,
    rows: Option<u32>,
    bytes: [u64; 2],
    values: Option<Box<Values>>,
}

#[derive(Debug)]
struct Values {
    text: Option<Box<str>>,
    bound: Option<Box<[BoundValue]>>,
}

/// A request that passes, as filters look at it.
pub(super) struct Passing<'p> {
    pub(super) whose: &'p Whose,
    pub(super) completed: &'p Completed<'p>,
}

impl Filtered for Passing<'_> {
    fn fact(&self, key: FilterKey) -> Option<FilterFact<'_>> {
        let (flow, statement) = (&self.whose.flow, self.completed.statement);
        let process = || Some(&flow.process).filter(|process| !process.is_elsewhere());
        let [client, to] = [flow.client.socket_addr(), flow.orig_dst.socket_addr()]
            .map(|at| Some(FilterFact::Address(at.ip(), Some(at.port()))));
        match key {
            FilterKey::Process => process().map(|process| process.name.as_str().into()),
            FilterKey::Pid => process().map(|process| FilterFact::Number(process.pid)),
            FilterKey::Uid => process().map(|process| FilterFact::Number(process.uid)),
            FilterKey::Client => client,
            FilterKey::To => to,
            FilterKey::Rule => Some(self.whose.rule.as_str().into()),
            FilterKey::User => {
                user(self.whose).map(|user| FilterFact::Text(user.to_string().into()))
            }
            FilterKey::Keyspace => statement.keyspace.as_deref().map(Into::into),
            FilterKey::Table => statement.table.as_deref().map(Into::into),
            FilterKey::Kind => Some(statement.kind.as_str().into()),
            FilterKey::Path => Some(flow.path().as_str().into()),
            FilterKey::Driver => self.whose.driver()[0].map(Into::into),
            FilterKey::Application => self.whose.application().map(Into::into),
            FilterKey::Action | FilterKey::Netns => None,
        }
    }
}

/// The user who has logged in, also where nobody had looked before the log-in.
fn user(whose: &Whose) -> Option<Arc<str>> {
    whose.user().or_else(|| {
        let session = whose.flow.decided().session?;
        session.user.value().map(|user| user.as_str().into())
    })
}

impl Seen {
    pub(super) fn new(
        whose: &Arc<Whose>,
        what: What,
        completed: &Completed<'_>,
        details: &Details,
        with_values: bool,
    ) -> Self {
        let asked = &details.asked;
        let values = with_values.then(|| {
            let text = asked.text();
            Box::new(Values {
                text: text
                    .filter(|text| audit::may_be_shown(text))
                    .map(Into::into),
                bound: asked.values().map(Into::into),
            })
        });
        Self {
            at: SystemTime::now(),
            whose: whose.clone(),
            user: user(whose),
            path: whose.flow.path(),
            what,
            statement: completed.statement.clone(),
            fingerprint: asked.fingerprint.clone(),
            latency_us: completed.latency_ns / 1_000,
            error: completed.error,
            rows: details.answered.rows,
            bytes: [completed.request_bytes, completed.response_bytes],
            values,
        }
    }

    /// Writes the line, without its end. A field that is not known, or does not apply, is left out.
    pub fn to_json(&self, with_values: bool) -> String {
        let text = serde_json::to_string(&self.line(with_values)).unwrap_or_default();
        // JSON allows some control characters, and terminals obey them.
        match text.contains(char::is_control) {
            true => text.replace(char::is_control, "?"),
            false => text,
        }
    }

    fn line(&self, with_values: bool) -> Line<'_> {
        let (whose, flow, statement) = (&*self.whose, &self.whose.flow, &self.statement);
        let values = self.values.as_deref().filter(|_| with_values);
        let known = self.fingerprint.as_ref().map(|known| known.text());
        let text = values.and_then(|values| values.text.as_deref());
        let by = match self.what {
            What::Refused(by) => Some(by),
            What::Answered | What::Unanswered => None,
        };
        Line {
            unix_ms: self
                .at
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_millis() as u64,
            rule: whose.rule.as_str(),
            flow: flow.id.number(),
            path: self.path.as_str(),
            client: flow.client.to_string(),
            database: whose.coordinator().to_string(),
            process: whose.process(),
            pid: whose.process().map(|_| flow.process.pid),
            uid: whose.process().map(|_| flow.process.uid),
            cgroup: whose.cgroup.as_deref(),
            container: whose.container(),
            user: self.user.as_deref(),
            driver: whose.driver()[0],
            application: whose.application(),
            keyspace: statement.keyspace.as_deref(),
            table: statement.table.as_deref(),
            kind: statement.kind.as_str(),
            outcome: match (self.what, self.error) {
                (What::Refused(_), _) => "refused",
                (What::Unanswered, _) => "unanswered",
                (What::Answered, Some(_)) => "error",
                (What::Answered, None) => "ok",
            },
            error: self.error.map(|code| code.as_str()),
            by: by.map(|by| by.step),
            reason: by.map(|by| by.reason),
            latency_us: self.latency_us,
            rows: self.rows,
            bytes_to_database: self.bytes[0],
            bytes_to_client: self.bytes[1],
            statement: text.or(known).unwrap_or("unknown"),
            values: values.and_then(|values| {
                let bound = values.bound.as_ref()?;
                Some(bound.iter().map(shown).collect())
            }),
        }
    }
}

#[derive(Debug, Serialize)]
struct Line<'l> {
    /// The time when the response had passed.
    unix_ms: u64,
    rule: &'l str,
    flow: u64,
    path: &'static str,
    client: String,
    database: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cgroup: Option<&'l str>,
    #[serde(flatten)]
    container: Option<&'l Contained>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keyspace: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<&'l str>,
    kind: &'static str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    /// The step that has refused, and the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    latency_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u32>,
    bytes_to_database: u64,
    bytes_to_client: u64,
    statement: &'l str,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Vec<String>>,
}

/// A value as far as it can be shown without its type: as text if it may be one, else as bytes.
fn shown(value: &BoundValue) -> String {
    let (bytes, length) = match value {
        BoundValue::Null => return "null".to_owned(),
        BoundValue::Unset => return "unset".to_owned(),
        BoundValue::Bytes(bytes, length) => (&**bytes, *length),
    };
    let more = if bytes.len() < length { "…" } else { "" };
    // The cut may have gone through a letter.
    let text = match (std::str::from_utf8(bytes), more) {
        (Ok(text), _) => Some(text),
        (Err(error), "…") => bytes
            .get(..error.valid_up_to())
            .filter(|whole| bytes.len() - whole.len() < 4)
            .and_then(|whole| std::str::from_utf8(whole).ok()),
        (Err(_), _) => None,
    };
    match text.filter(|text| !text.contains(char::is_control)) {
        Some(text) => format!("'{text}{more}'"),
        None => {
            let hex = bytes.iter().map(|byte| format!("{byte:02x}"));
            format!("0x{}{more}", hex.collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_texts_or_bytes() {
        let of = |bytes: &[u8], length| shown(&BoundValue::Bytes(bytes.into(), length));
        assert_eq!(of(b"ann", 3), "'ann'");
        assert_eq!(of(b"", 0), "''");
        assert_eq!(of(&[0, 0, 0, 7], 4), "0x00000007");
        assert_eq!(of(b"\x1b[2J", 4), "0x1b5b324a");
        assert_eq!(of("grü".as_bytes(), 9), "'grü…'");
        assert_eq!(of(b"gr\xc3", 9), "'gr…'");
        assert_eq!(of(b"gr\xc3", 3), "0x6772c3");
        assert_eq!(shown(&BoundValue::Null), "null");
        assert_eq!(shown(&BoundValue::Unset), "unset");
    }
}
