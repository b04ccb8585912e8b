//! The counters of `fold`: the outcomes of requests, and the ends of shared connections.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use strum::{IntoStaticStr, VariantNames};
use telemetry::{Metrics, counters_by};
use tls::Handshakes;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Became {
    /// The request was asked by a shared connection. All others were asked by their flow's own.
    Folded,
    /// The request is no plain read or write, may change the connection's state, or is about a
    /// system table.
    Statement,
    /// The PREPARE of the request's statement was not seen here.
    Unprepared,
    /// The request is to be traced, and the trace would name another client.
    Traced,
    /// The request is too large.
    Large,
    /// The answer is too large, so the request was asked again.
    LargeAnswer,
    /// There was no room for the answer, and the flow was closed.
    Dropped,
    /// The flow's handshake cannot be repeated, or is not known.
    Handshake,
    /// The flow's keyspace is not known.
    Keyspace,
    /// The flow's database cannot be reached from here as the flow reaches it.
    Elsewhere,
    /// The flow began unencrypted before its rule required TLS.
    Unencrypted,
    /// The database did not understand an earlier request of the flow.
    Barred,
    /// The flow has as many requests out as it may.
    Share,
    /// There are as many identities as may be.
    Identities,
    /// The shared connection is beginning, or cannot be had for now.
    Away,
    /// The shared connection has as many requests out or waiting as may be, or the flow has.
    Full,
}

const BECAME: &[&str] = Became::VARIANTS;

/// The reason why a shared connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Ended {
    /// No flow uses it any more.
    Unused,
    /// The connection could not begin.
    Refused,
    /// The database has ended or reset the connection.
    Closed,
    /// The database has sent something that answers no request.
    Garbage,
    /// The database has sent nothing for too long.
    Silent,
}

const ENDED: &[&str] = Ended::VARIANTS;

/// The metrics of `fold`.
#[derive(Clone, Debug)]
pub struct FoldMetrics {
    connections: IntGaugeVec,
    requests: IntCounterVec,
    ended: IntCounterVec,
    writes: IntCounterVec,
    reads: IntCounterVec,
    handshakes: Handshakes,
    long_legs: IntCounterVec,
}

/// The counters of one rule, each looked up once.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) connections: IntGauge,
    requests: Vec<IntCounter>,
    ended: Vec<IntCounter>,
    pub(super) writes: IntCounter,
    pub(super) reads: IntCounter,
    /// The handshakes of all rules, and of flows' own connections as well.
    pub(super) handshakes: Handshakes,
    /// The connections of all rules that were to skip TCP, and do not, by reason; those of flows' own as well.
    pub(super) long_legs: IntCounterVec,
}

impl FoldMetrics {
    /// Declares and registers the metrics. `agents`: the agent's own, with which handshakes are counted, and connections
    /// that were to skip TCP.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry, agents: &Metrics) -> prometheus::Result<Self> {
        let connections = IntGaugeVec::new(
            Opts::new(
                "underpass_fold_connections",
                "Connections to databases that flows share, by rule.",
            ),
            &["rule"],
        )?;
        registry.register(Box::new(connections.clone()))?;
        Ok(Self {
            connections,
            requests: counters_by(
                registry,
                "underpass_fold_requests_total",
                "Requests of rules with `fold`, by rule and what became of them: `folded`, asked by a shared \
                 connection; or why by their flow's own: `statement` (none that only reads or writes), `unprepared` \
                 (nobody here saw its PREPARE, or the shared connection's node does not know it), `traced`, `large`, \
                 `large_answer` (asked again), `dropped` (no room for \
                 the answer: its flow was closed), `handshake`, `keyspace`, `elsewhere`, \
                 `unencrypted` (its flow has begun so, and its rule has `upstream_tls` now), `barred`, `share`, \
                 `identities`, `away`, `full`.",
                &["rule", "outcome"],
            )?,
            ended: counters_by(
                registry,
                "underpass_fold_ended_total",
                "Shared connections that ended, by rule and why: `unused`, `refused` (could not begin), `closed` (by \
                 the database), `garbage`, `silent`. The flows that had requests out on one of the last three were \
                 closed.",
                &["rule", "why"],
            )?,
            writes: counters_by(
                registry,
                "underpass_fold_writes_total",
                "Batches of requests that were taken to be written to a shared connection, by rule. Folded requests \
                 divided by them are about as many as go at once.",
                &["rule"],
            )?,
            reads: counters_by(
                registry,
                "underpass_fold_reads_total",
                "Reads from shared connections that brought something, by rule. Folded requests divided by them are about as \
                 many answers as come at once; a long answer takes several reads.",
                &["rule"],
            )?,
            handshakes: agents.tls.handshakes.clone(),
            long_legs: agents.flows.long_legs.clone(),
        })
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.of("rule");
    }

    pub(super) fn of(&self, rule: &str) -> Counters {
        let requests = BECAME
            .iter()
            .map(|became| self.requests.with_label_values(&[rule, became]));
        let ended = ENDED
            .iter()
            .map(|why| self.ended.with_label_values(&[rule, why]));
        Counters {
            connections: self.connections.with_label_values(&[rule]),
            requests: requests.collect(),
            ended: ended.collect(),
            writes: self.writes.with_label_values(&[rule]),
            reads: self.reads.with_label_values(&[rule]),
            handshakes: self.handshakes.clone(),
            long_legs: self.long_legs.clone(),
        }
    }
}

impl Counters {
    pub(super) fn became(&self, became: Became) {
        if let Some(counter) = self.requests.get(became as usize) {
            counter.inc();
        }
    }

    pub(super) fn ended(&self, why: Ended) {
        if let Some(counter) = self.ended.get(why as usize) {
            counter.inc();
        }
    }
}

impl Became {
    /// The reason that keeps all requests of a flow from being folded, and what to do about it. `None`: it is about a
    /// single request.
    pub(super) fn keeps_flow(self) -> Option<&'static str> {
        Some(match self {
            Self::Handshake => {
                "its handshake cannot be repeated, or was not seen: only one STARTUP with, at most, one log-in by user \
                 name and password can be"
            }
            Self::Keyspace => {
                "its keyspace is not known: clients should say USE in a QUERY of its own"
            }
            Self::Elsewhere => {
                "its database cannot be reached from the agent as the flow reaches it"
            }
            Self::Unencrypted => {
                "it began before its rule had upstream_tls: its client should connect again"
            }
            Self::Barred => {
                "its database did not understand a request of it on a shared connection"
            }
            Self::Identities => {
                "there are as many sorts of users, keyspaces and drivers as may share connections in a rule (256)"
            }
            _ => return None,
        })
    }
}

impl Ended {
    /// Returns the label in metrics.
    pub(super) fn as_str(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_label() {
        assert_eq!(BECAME[Became::Folded as usize], "folded");
        assert_eq!(BECAME[Became::Handshake as usize], "handshake");
        assert_eq!(BECAME[Became::Unencrypted as usize], "unencrypted");
        assert_eq!(BECAME[Became::Full as usize], "full");
        assert_eq!(Ended::Unused.as_str(), "unused");
        assert_eq!(Ended::Silent.as_str(), "silent");
    }
}
