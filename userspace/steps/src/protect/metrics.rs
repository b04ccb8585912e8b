//! The metrics of `protect`: values, and requests to key servers.

use cql_edit::protect::Fate;
use prometheus::{IntCounterVec, Registry};
use telemetry::counters_by;

/// The metrics of `protect`.
#[derive(Clone, Debug)]
pub struct ProtectMetrics {
    values: IntCounterVec,
    fetches: IntCounterVec,
}

/// The outcome of a request to a key server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetched {
    Keys,
    /// The server did not answer, or not in time, or not with 200.
    Nothing,
    /// The server answered with something else than keys.
    Malformed,
    /// A key in the answer is another than the one that is known under its id.
    Changed,
}

impl Fetched {
    const ALL: [Self; 4] = [Self::Keys, Self::Nothing, Self::Malformed, Self::Changed];

    fn as_str(self) -> &'static str {
        match self {
            Self::Keys => "ok",
            Self::Nothing => "unanswered",
            Self::Malformed => "malformed",
            Self::Changed => "changed",
        }
    }
}

impl ProtectMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            values: counters_by(
                registry,
                "underpass_protect_values_total",
                "Values of encrypted columns, by what became of them: encrypted, decrypted, passed as they were stored \
                 (`unencrypted`), or why a result was refused, once for each result.",
                &["outcome"],
            )?,
            fetches: counters_by(
                registry,
                "underpass_protect_key_fetches_total",
                "Requests to key servers, by result.",
                &["result"],
            )?,
        };
        for fate in Fate::ALL {
            metrics.count(*fate, 0);
        }
        for fetched in Fetched::ALL {
            metrics.fetches.with_label_values(&[fetched.as_str()]);
        }
        Ok(metrics)
    }

    pub(super) fn count(&self, fate: Fate, values: u64) {
        let labels = [fate.as_str()];
        self.values.with_label_values(&labels).inc_by(values);
    }

    pub(super) fn fetched(&self, fetched: Fetched) {
        self.fetches.with_label_values(&[fetched.as_str()]).inc();
    }
}
