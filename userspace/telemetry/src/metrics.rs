//! Every metric, declared once. `docs/metrics.md` is rendered from [`Metrics::register`]'s
//! help texts by a test.

use std::{collections::HashSet, sync::Arc};

use cql::{Anomaly, Undecodable, Unknowable};
use dataplane::{NotRemembered, NotServed, Refusal, SpliceRefusal};
use parking_lot::Mutex;
use policy::{MAX_RULES, Match};
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use tls::{Handshakes, Opaque};

use crate::{
    denials::Denials,
    labels,
    registered::{counter, counters, counters_by, histogram},
};

/// Handles to the agent's own metrics. The statements' are in `steps::statements`.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Flows that the agent carries.
    pub flows: IntGauge,
    /// Flows that ended, by reason.
    pub flows_closed: IntCounterVec,
    /// Bytes passed on, by the side that they went to.
    pub bytes_to_database: IntCounter,
    /// See `bytes_to_database`.
    pub bytes_to_client: IntCounter,
    /// Failed connections to databases, by the answer to the client.
    pub dial_failures: IntCounterVec,
    /// Flows whose source port the database does not see.
    pub source_ports_changed: IntCounter,
    /// Flows of clients on other hosts whose database does not see their address, by reason.
    pub client_addresses_lost: IntCounterVec,
    /// Calls from other network namespaces that were not met, by reason.
    pub namespaces_not_served: IntCounterVec,
    /// Clients that gave up before the database answered.
    pub clients_gone: IntCounter,
    /// Connections that were refused because their user or cgroup held more flows than its quota.
    pub over_quota: IntCounter,
    /// Connections to the agent's own listener that nobody was sent to.
    pub strangers: IntCounter,
    /// Flows that are relayed without being understood, by reason.
    pub undecodable: IntCounterVec,
    /// Handshakes of TLS that ends in the agent.
    pub tls_handshakes: Handshakes,
    /// Clients whose TLS does not end in the agent although a rule speaks of it, by reason.
    pub tls_passed: IntCounterVec,
    /// Oddities on flows that go on, by cause.
    pub anomalies: IntCounterVec,
    /// Times that a flow was handed to the kernel.
    pub handovers: IntCounter,
    /// The seconds that a flow's bytes wait while it is handed over.
    pub handover_seconds: Histogram,
    /// Bytes that the kernel carried for spliced flows, by direction; they are in
    /// `bytes_to_database` and `bytes_to_client`, too.
    pub spliced_to_database: IntCounter,
    /// Bytes that the kernel carried for spliced flows to the client.
    pub spliced_to_client: IntCounter,
    /// Flows that could not be spliced, by reason.
    pub splice_refusals: IntCounterVec,
    /// Times that a spliced flow's bytes went through the agent, by the side that did not take
    /// them.
    pub spills: IntCounterVec,
    /// Spliced flows that outlive the agent: the keeper holds them.
    pub kept_flows: IntGauge,
    /// Flows that this agent has taken over from the keeper.
    pub adopted: IntCounter,
    /// Spliced flows that end with the agent, by reason.
    pub not_kept: IntCounterVec,
    /// Flows that were decided by their session, by rule and action.
    sessions: IntCounterVec,
    /// The rules that `sessions` knows.
    session_rules: Arc<Mutex<HashSet<String>>>,
    /// Session facts that could not become known, by reason.
    pub unknowable: IntCounterVec,
    /// Active marks.
    pub marks: IntGauge,
    /// 1 for rules whose trigger is on, 0 for others that have one.
    pub triggered: IntGaugeVec,
    /// Running flows that a mark matched, by outcome.
    pub marked_flows: IntCounterVec,
    /// Decisions that do not stand for later connections although their rule says so, by reason.
    pub not_remembered: IntCounterVec,
    /// Flows and requests that rules refused.
    pub denials: Arc<Denials>,
    /// Policy files read, by result.
    pub reloads: IntCounterVec,
}

const DIRECTIONS: [&str; 2] = ["to_database", "to_client"];

/// The outcomes for a running flow that a mark matches.
pub const MARKED_RESULTS: [&str; 5] = ["changed", "asked", "already", "could_not", "reset"];

/// The reason why a flow is not spliced where no flow is.
pub const SPLICE_OFF: &str = "off";

/// The result of a reload that succeeded.
pub const RELOADED: &str = "ok";
/// The result of a reload that failed.
pub const NOT_RELOADED: &str = "error";

impl Metrics {
    /// Declares and registers them.
    /// `close_reasons`: the labels of all reasons for which a flow ends.
    ///
    /// # Errors
    /// Two metrics of one name: a mistake in this file.
    pub fn register(registry: &Registry, close_reasons: &[&str]) -> prometheus::Result<Self> {
        let bytes = counters(
            registry,
            "underpass_bytes_total",
            "Bytes of the flows that the agent took in, by direction.",
            "direction",
            &DIRECTIONS,
        )?;
        let spliced = counters(
            registry,
            "underpass_spliced_bytes_total",
            "Bytes that the kernel carried past the agent, by direction.",
            "direction",
            &DIRECTIONS,
        )?;
        let flows = IntGauge::new("underpass_flows", "Flows that the agent carries.")?;
        registry.register(Box::new(flows.clone()))?;
        let marks = IntGauge::new("underpass_marks", "Active marks.")?;
        registry.register(Box::new(marks.clone()))?;
        let triggered = IntGaugeVec::new(
            Opts::new(
                "underpass_triggered",
                "1 while the rule's `trigger` has new connections enriched, else 0.",
            ),
            &["rule"],
        )?;
        registry.register(Box::new(triggered.clone()))?;
        let kept_flows = IntGauge::new(
            "underpass_kept_flows",
            "Spliced flows that the keeper holds, too, so that they outlive the agent.",
        )?;
        registry.register(Box::new(kept_flows.clone()))?;
        let answers = [
            Refusal::Reset,
            Refusal::NetUnreachable,
            Refusal::HostUnreachable,
            Refusal::Prohibited,
            Refusal::Silence,
        ];
        let [to_database, to_client] = DIRECTIONS.map(|d| bytes.with_label_values(&[d]));
        let [spliced_to_database, spliced_to_client] =
            DIRECTIONS.map(|d| spliced.with_label_values(&[d]));
        Ok(Self {
            flows,
            flows_closed: counters(
                registry,
                "underpass_flows_closed_total",
                "Flows that ended, by reason; those that are not both_ended, denied, marked, tls_required, \
                 client_* or database_* are framing that was lost.",
                "reason",
                close_reasons,
            )?,
            bytes_to_database: to_database,
            bytes_to_client: to_client,
            dial_failures: counters(
                registry,
                "underpass_dial_failures_total",
                "Failed connections to databases, by the answer to the client.",
                "answer",
                &answers.map(Refusal::as_str),
            )?,
            source_ports_changed: counter(
                registry,
                "underpass_source_ports_changed_total",
                "Flows whose source port was in use towards the database, which therefore sees another port.",
            )?,
            namespaces_not_served: counters(
                registry,
                "underpass_namespaces_not_served_total",
                "Connections in other network namespaces that asked for the agent in vain, by reason. Further ones there follow their rule's `fail`, too.",
                "reason",
                &NotServed::LABELS,
            )?,
            client_addresses_lost: counters(
                registry,
                "underpass_client_addresses_lost_total",
                "Flows of clients on other hosts whose database on this one sees this host's \
                 address instead of the client's, by reason.",
                "reason",
                &dataplane::NotKept::LABELS,
            )?,
            clients_gone: counter(
                registry,
                "underpass_clients_gone_total",
                "Clients that gave up before the database had answered.",
            )?,
            over_quota: counter(
                registry,
                "underpass_over_quota_total",
                "Connections that were refused in the agent because so many of one user or cgroup came at once that \
                 the kernel could not be told in time. Later ones follow their rule's `fail`, by cause `user_full` \
                 or `cgroup_full`.",
            )?,
            strangers: counter(
                registry,
                "underpass_strangers_total",
                "Connections to the agent's own listener that no rule sent there. They are closed.",
            )?,
            undecodable: counters(
                registry,
                "underpass_undecodable_flows_total",
                "Flows that are relayed without being decoded, by reason.",
                "reason",
                &Undecodable::ALL
                    .iter()
                    .map(|u| u.as_str())
                    .collect::<Vec<_>>(),
            )?,
            tls_handshakes: Handshakes::register(registry)?,
            tls_passed: counters(
                registry,
                "underpass_tls_passed_total",
                "Clients whose TLS goes on to the database although a rule with `tls` or `upstream_tls` may \
                 hold, by reason: no_certificate (the rule has none to show), rules_differ (which of \
                 several rules it is depends on what is encrypted).",
                "reason",
                &Opaque::LABELS,
            )?,
            anomalies: counters(
                registry,
                "underpass_anomalies_total",
                "Protocol anomalies on flows that went on, by cause.",
                "cause",
                &Anomaly::ALL.iter().map(|a| a.as_str()).collect::<Vec<_>>(),
            )?,
            handovers: counter(
                registry,
                "underpass_handovers_total",
                "Times that a flow was handed to the kernel. A flow that came back can be handed over again.",
            )?,
            handover_seconds: histogram(
                registry,
                "underpass_handover_seconds",
                "Time for which no byte of a flow moves while it is handed to the kernel.",
            )?,
            spliced_to_database,
            spliced_to_client,
            splice_refusals: counters(
                registry,
                "underpass_splice_refusals_total",
                "Flows that could not be spliced and are relayed instead, by reason.",
                "reason",
                &[&SpliceRefusal::LABELS[..], &[SPLICE_OFF]].concat(),
            )?,
            spills: counters(
                registry,
                "underpass_spills_total",
                "Times that bytes of a spliced flow went through the agent, by the side that did not take them.",
                "slow",
                &["database", "client"],
            )?,
            kept_flows,
            adopted: counter(
                registry,
                "underpass_adopted_flows_total",
                "Flows of an earlier agent that this one has adopted from the keeper.",
            )?,
            not_kept: counters(
                registry,
                "underpass_not_kept_flows_total",
                "Spliced flows that end with the agent, by reason: no_keeper, busy (too many were \
                 enrolled at once: it is tried again), descriptors (too few here, likewise), refused (by the keeper).",
                "reason",
                &["no_keeper", "busy", "descriptors", "refused"],
            )?,
            sessions: counters_by(
                registry,
                "underpass_sessions_decided_total",
                "Flows whose rule was decided by their session, by that rule and its action.",
                &["rule", "action"],
            )?,
            session_rules: Arc::default(),
            unknowable: counters(
                registry,
                "underpass_sessions_undecidable_total",
                "Facts of a session that could not become known, so that rules which name them did not hold, by reason.",
                "reason",
                &Unknowable::ALL
                    .iter()
                    .map(|u| u.as_str())
                    .collect::<Vec<_>>(),
            )?,
            marks,
            triggered,
            marked_flows: counters(
                registry,
                "underpass_marked_flows_total",
                "Running flows that a mark selected, by result: changed, asked (decided once their session is known), already (nothing to change), could_not, reset (could not be changed, and were closed).",
                "result",
                &MARKED_RESULTS,
            )?,
            not_remembered: counters(
                registry,
                "underpass_not_remembered_total",
                "Decisions that are not remembered for later connections of the process although their rule says so, by reason.",
                "reason",
                &NotRemembered::LABELS,
            )?,
            denials: Arc::new(Denials::register(registry)?),
            reloads: counters(
                registry,
                "underpass_reloads_total",
                "Policy files read since the start, by result; a bad one changes nothing.",
                "result",
                &[RELOADED, NOT_RELOADED],
            )?,
        })
    }
}

/// Rules whose sessions are counted by name, over all policies since the start, so that
/// generated names cannot pile up: as many as one policy has. Further ones count as `other`.
const MAX_SESSION_RULES: usize = MAX_RULES;

impl Metrics {
    /// Counts a flow that was decided by its session.
    pub fn session_decided(&self, by: &Match) {
        let mut rules = self.session_rules.lock();
        let rule = labels::series_of(by.rule.clone());
        let rule = rule.as_str();
        let known = rules.contains(rule)
            || (rules.len() < MAX_SESSION_RULES && rules.insert(rule.to_owned()));
        drop(rules);
        let rule = if known { rule } else { "other" };
        self.sessions
            .with_label_values(&[rule, by.action.as_str()])
            .inc();
    }

    /// Makes metrics whose labels are a policy's show up: for documentation.
    pub fn declare_for_docs(&self) {
        self.sessions.with_label_values(&["", ""]);
        self.triggered.with_label_values(&[""]);
    }
}
