//! `tag`: says in each request's custom payload who is calling. There is none in v3: those go on as
//! they are.

use std::sync::Arc;

use serde::Deserialize;

use crate::edit::{Caller, Outcome, Request, Transform};
use crate::frame::Opcode;

/// As in the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Put before each key.
    pub prefix: Option<String>,
    /// What the service is called.
    pub service: Option<String>,
    /// What this host is called.
    pub host: Option<String>,
}

/// The longest prefix, and the longest text, in bytes: they go with every request.
const MAX_TEXT_BYTES: usize = 256;

#[derive(Debug)]
struct Tag {
    prefix: String,
    fixed: Vec<(&'static str, String)>,
}

impl Settings {
    pub(super) fn build(self) -> Result<Arc<dyn Transform>, String> {
        let prefix = self.prefix.unwrap_or_else(|| "underpass.".to_owned());
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
        Ok(Arc::new(Tag { prefix, fixed }))
    }
}

impl Transform for Tag {
    fn name(&self) -> &'static str {
        "tag"
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
        let mut changed = false;
        for (key, value) in fixed.chain(known) {
            if let Some(value) = value {
                let key = format!("{}{key}", self.prefix);
                changed |= request.add_payload(&key, value.as_bytes());
            }
        }
        match changed {
            true => Outcome::Changed,
            false => Outcome::Pass,
        }
    }
}
