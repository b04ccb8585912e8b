//! The counters of `mirror`.

use prometheus::{IntCounter, IntCounterVec, Registry};
use strum::{IntoStaticStr, VariantNames};
use telemetry::counters_by;

/// The outcome of a request that was to be mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Fate {
    /// The mirror has done it.
    Acknowledged,
    /// The mirror has answered with an error.
    Refused,
    /// The request was not answered in time. It may have been done.
    Late,
    /// The mirror could not be reached, and was not asked.
    Away,
    /// The connection broke while the request was out. It may have been done.
    Lost,
    /// The limit on what may be in hand is reached.
    Full,
    /// Too many keyspaces are in use at the same time.
    Keyspaces,
    /// The request is for a further page, and was not mirrored.
    Page,
    /// The request cannot be said in version 4 of the protocol, and was not mirrored.
    Version,
    /// The text of the request's prepared statement is too long to be remembered.
    TooLong,
    /// The request is read from copies, and names a statement whose PREPARE was not seen.
    Unprepared,
    /// The request is read from copies, and nobody has seen in which keyspace its tables are.
    KeyspaceUnknown,
}

const FATES: &[&str] = Fate::VARIANTS;

impl Fate {
    /// Returns the label in metrics.
    pub(super) fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The outcome of comparing two answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Compared {
    /// The answers are alike.
    Same,
    /// The mirror has answered with an error, the database with a result.
    MirrorError,
    /// The database has answered with an error, the mirror with a result.
    DatabaseError,
    /// Both answers are errors, with different codes.
    ErrorCode,
    /// The columns differ, or only one answer has rows.
    Columns,
    /// The numbers of rows differ.
    Rows,
    /// The rows are the same, in another order.
    Order,
    /// The values differ.
    Values,
    /// The answers were not compared: one is too large or malformed, or there was no room for it.
    Unknown,
}

const RESULTS: &[&str] = Compared::VARIANTS;

impl Compared {
    /// Returns the label in metrics.
    pub(super) fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether the outcome is a difference that somebody should know of.
    pub(super) fn is_difference(self) -> bool {
        !matches!(self, Self::Same | Self::Unknown)
    }
}

/// The metrics of `mirror`.
#[derive(Clone, Debug)]
pub struct MirrorMetrics {
    requests: IntCounterVec,
    compared: IntCounterVec,
}

/// The counters of one rule, each looked up once.
#[derive(Debug)]
pub(super) struct Counters {
    requests: Vec<IntCounter>,
    compared: Vec<IntCounter>,
}

impl MirrorMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            requests: counters_by(
                registry,
                "underpass_mirror_requests_total",
                "Requests that were to be mirrored, by rule and what became of them: `acknowledged`, `refused` (by \
                 an error of the mirror's), `late`, `away`, `lost` (the connection broke), `full` (too much in \
                 hand), `keyspaces` (too many), `page` (a further one), `version`, `too_long`; of flows that are read from copies `unprepared` (the PREPARE \
                 was not seen) and `keyspace_unknown` (the USE was not seen).",
                &["rule", "outcome"],
            )?,
            compared: counters_by(
                registry,
                "underpass_mirror_compared_total",
                "Answers of the database and the mirror that were to be compared, by rule and what it came to: \
                 `same`, `mirror_error`, `database_error`, `error_code`, `columns`, `rows`, `order`, `values`, \
                 `unknown` (too large, malformed, no room, not copied).",
                &["rule", "result"],
            )?,
        })
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.of("rule");
    }

    pub(super) fn of(&self, rule: &str) -> Counters {
        let requests = FATES
            .iter()
            .map(|fate| self.requests.with_label_values(&[rule, fate]));
        let compared = RESULTS
            .iter()
            .map(|result| self.compared.with_label_values(&[rule, result]));
        Counters {
            requests: requests.collect(),
            compared: compared.collect(),
        }
    }
}

impl Counters {
    pub(super) fn fate(&self, fate: Fate) {
        if let Some(counter) = self.requests.get(fate as usize) {
            counter.inc();
        }
    }

    pub(super) fn compared(&self, compared: Compared) {
        if let Some(counter) = self.compared.get(compared as usize) {
            counter.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_label() {
        assert_eq!(Fate::Acknowledged.as_str(), "acknowledged");
        assert_eq!(Fate::TooLong.as_str(), "too_long");
        assert_eq!(Compared::Same.as_str(), "same");
        assert_eq!(Compared::Unknown.as_str(), "unknown");
    }
}
