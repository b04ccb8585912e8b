//! Statuses: what a host made of the policy.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::Fragments;

/// How long a status outlives its agent: it hangs on a lease, which the agent renews.
pub const STATUS_TTL: Duration = Duration::from_secs(30);

/// The longest error in a status: a place in a file, and what was expected there.
pub const MAX_ERROR_BYTES: usize = 1024;

/// A verdict on a policy that was offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The revision that was offered.
    pub revision: i64,
    /// The number of that version. None: it is no version that was pushed.
    pub version: Option<u64>,
    /// The digest of that policy.
    pub digest: String,
    /// Why it is not in force. None: it is.
    pub error: Option<String>,
    /// The digest of the policy in force.
    pub in_force: String,
    /// The number of the version in force.
    pub in_force_version: Option<u64>,
    /// Files that were refused while others were put into force, each with the reason.
    pub refused: BTreeMap<String, String>,
    /// The files that this verdict has put into force, which is to be kept for the next start. None: nothing.
    pub kept: Option<Arc<Fragments>>,
}

/// A host's status, as it stands in etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The host's name.
    pub host: String,
    /// The agent's version.
    pub agent: String,
    /// The revision that the host has seen last.
    pub revision: i64,
    /// The number of that version. None: it is no version that was pushed, or the agent does not tell.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub version: Option<u64>,
    /// The digest of that policy.
    pub digest: String,
    /// `applied`, or `refused`.
    pub result: String,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// The digest of the policy from etcd that is in force.
    pub in_force: String,
    /// The number of the version in force.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub in_force_version: Option<u64>,
}

impl Status {
    pub(crate) fn new(host: &str, agent: &str, verdict: &Verdict) -> Self {
        let result = match &verdict.error {
            None => "applied",
            Some(_) => "refused",
        };
        Self {
            host: host.to_owned(),
            agent: agent.to_owned(),
            revision: verdict.revision,
            version: verdict.version,
            digest: verdict.digest.clone(),
            result: result.to_owned(),
            error: verdict.error.as_deref().map(cut),
            in_force: verdict.in_force.clone(),
            in_force_version: verdict.in_force_version,
        }
    }

    /// Whether the policy with this digest is in force on the host.
    pub fn has(&self, digest: &str) -> bool {
        self.result == "applied" && self.digest == digest
    }
}

pub(crate) fn cut(text: &str) -> String {
    let mut end = text.len().min(MAX_ERROR_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}
