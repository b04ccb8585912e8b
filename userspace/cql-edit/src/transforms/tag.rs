//! `tag`: says in each request's custom payload who is calling, and in a comment before its text if that is wanted.
//! There is no payload in v3.
//!
//! Some servers send a request's payload back with its response: what was added is taken out of that.

use std::sync::Arc;

use serde::Deserialize;

use crate::{Caller, Outcome, Request, Statement, Transform};
use cql::Opcode;

/// Says in each request's custom payload (v4, v5) who is asking: `rule`, `client`, `user`, `process`, `cgroup`, and
/// `service` and `host` if they are set.
#[derive(Clone, Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"service": "reports", "comment": true}]))]
pub struct TagSettings {
    /// Text before each key of the payload.
    #[schemars(length(max = MAX_TEXT_BYTES), extend("default" = PREFIX))]
    pub prefix: Option<String>,
    /// Name of the service.
    #[schemars(length(max = MAX_TEXT_BYTES), extend("examples" = ["reports"]))]
    pub service: Option<String>,
    /// Name of this host.
    #[schemars(length(max = MAX_TEXT_BYTES), extend("examples" = ["app-7"]))]
    pub host: Option<String>,
    /// `true`: says the same in a comment before the text of a QUERY, and before the first text of a BATCH, too.
    #[serde(default)]
    pub comment: bool,
}

/// The prefix, unless the configuration says otherwise.
const PREFIX: &str = "underpass.";

/// The longest prefix, and the longest text, in bytes: they go with every request.
const MAX_TEXT_BYTES: usize = 256;

/// The most characters of a value that are shown in a comment.
const MAX_SHOWN: usize = 128;

#[derive(Debug)]
struct Tag {
    prefix: String,
    fixed: Vec<(&'static str, String)>,
    comment: bool,
}

impl TagSettings {
    pub(super) fn build(self) -> Result<Arc<dyn Transform>, String> {
        let prefix = self.prefix.unwrap_or_else(|| PREFIX.to_owned());
        let fixed: Vec<_> = [("service", self.service), ("host", self.host)]
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .collect();
        let texts = fixed.iter().map(|(key, value)| (*key, value));
        for (key, text) in texts.chain([("prefix", &prefix)]) {
            if text.len() > MAX_TEXT_BYTES {
                return Err(format!(
                    "{key}: expected at most {MAX_TEXT_BYTES} bytes, found {}",
                    text.len()
                ));
            }
        }
        Ok(Arc::new(Tag {
            prefix,
            fixed,
            comment: self.comment,
        }))
    }
}

/// `/* service=shop client=192.0.2.1 */ `, of names that a peer may have chosen: nothing in them ends the comment.
fn comment<'v>(values: impl Iterator<Item = (&'static str, &'v String)>) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "._-:/@".contains(c);
    let shown = values.map(|(key, value)| {
        let value = value.chars().take(MAX_SHOWN);
        let value = value.map(|c| if is_plain(c) { c } else { '_' });
        format!("{key}={}", value.collect::<String>())
    });
    format!("/* {} */ ", shown.collect::<Vec<_>>().join(" "))
}

/// Puts it before the text of a QUERY, and before the first one of a BATCH. What is prepared stays as it is: it would be
/// another statement for each client.
fn put_comment(request: &mut Request<'_>, comment: &str) -> bool {
    if !matches!(request.opcode(), Opcode::Query | Opcode::Batch) {
        return false;
    }
    let first = request
        .statements()
        .enumerate()
        .find_map(|(number, statement)| match statement {
            Statement::Text(text) => Some((number, [comment.as_bytes(), text].concat())),
            Statement::Prepared(_) => None,
        });
    first.is_some_and(|(number, text)| request.set_text(number, &text))
}

/// Every name of a value that is told.
const KEYS: [&str; 7] = [
    "service", "host", "rule", "client", "user", "process", "cgroup",
];

impl Transform for Tag {
    fn name(&self) -> &'static str {
        "tag"
    }

    fn adds_payload(&self) -> bool {
        true
    }

    fn has_added(&self, key: &[u8]) -> bool {
        let name = key.strip_prefix(self.prefix.as_bytes());
        name.is_some_and(|name| KEYS.iter().any(|known| known.as_bytes() == name))
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode.has_statements()
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        let fixed = self.fixed.iter().map(|(key, value)| (*key, Some(value)));
        let known = [
            ("rule", Some(&caller.rule)),
            ("client", Some(&caller.client)),
            ("user", caller.user.as_ref()),
            ("process", caller.process.as_ref()),
            ("cgroup", caller.cgroup.as_ref()),
        ];
        let all = fixed.chain(known);
        let all: Vec<_> = all.filter_map(|(key, value)| Some((key, value?))).collect();
        let mut changed = false;
        for (key, value) in &all {
            let key = format!("{}{key}", self.prefix);
            changed |= request.add_payload(&key, value.as_bytes());
        }
        if self.comment {
            changed |= put_comment(request, &comment(all.into_iter()));
        }
        match changed {
            true => Outcome::Changed,
            false => Outcome::Pass,
        }
    }
}
