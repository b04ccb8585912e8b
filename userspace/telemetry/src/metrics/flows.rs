//! Metrics of flows that the agent takes in and carries.

use cql::{Anomaly, Undecodable};
use dataplane::{LongLeg, NotServed, Refusal};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};
use tls::{Handshakes, Opaque};

use super::DIRECTIONS;
use crate::registered::{counter, counters};

/// Flows that the agent carries, their bytes, and what is not understood of them.
#[derive(Clone, Debug)]
pub struct FlowMetrics {
    /// Flows that the agent carries.
    pub open: IntGauge,
    /// Flows that ended, by reason.
    pub closed: IntCounterVec,
    /// Bytes passed on, by the side that they went to.
    pub bytes_to_database: IntCounter,
    /// See `bytes_to_database`.
    pub bytes_to_client: IntCounter,
    /// Flows that are relayed without being understood, by reason.
    pub undecodable: IntCounterVec,
    /// Oddities on flows that go on, by cause.
    pub anomalies: IntCounterVec,
    /// Connections between an application and the agent that were to skip TCP and do not, by reason.
    pub long_legs: IntCounterVec,
}

impl FlowMetrics {
    pub(super) fn register(
        registry: &Registry,
        close_reasons: &[&str],
    ) -> prometheus::Result<Self> {
        let open = IntGauge::new("underpass_flows", "Flows that the agent carries.")?;
        registry.register(Box::new(open.clone()))?;
        let bytes = counters(
            registry,
            "underpass_bytes_total",
            "Bytes of the flows that the agent took in, by direction.",
            "direction",
            &DIRECTIONS,
        )?;
        let [bytes_to_database, bytes_to_client] =
            DIRECTIONS.map(|d| bytes.with_label_values(&[d]));
        Ok(Self {
            open,
            closed: counters(
                registry,
                "underpass_flows_closed_total",
                "Flows that ended, by reason; panicked is the agent's own failure, and length, direction, version_changed and \
                 segment_* are framing that was lost.",
                "reason",
                close_reasons,
            )?,
            bytes_to_database,
            bytes_to_client,
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
            anomalies: counters(
                registry,
                "underpass_anomalies_total",
                "Protocol anomalies on flows that went on, by cause.",
                "cause",
                &Anomaly::ALL.iter().map(|a| a.as_str()).collect::<Vec<_>>(),
            )?,
            long_legs: counters(
                registry,
                "underpass_long_legs_total",
                "Connections between an application and the agent that were to skip TCP and do not, by reason.",
                "reason",
                &LongLeg::LABELS,
            )?,
        })
    }
}

/// Sends of the agent's workers, for flows that are read.
#[derive(Clone, Debug)]
pub struct SendMetrics {
    /// Workers that have an io_uring.
    pub rings: IntGauge,
    /// Sends that shared a system call with others.
    pub together: IntCounter,
    /// Sends with a system call of their own.
    pub alone: IntCounter,
}

impl SendMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// They are registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let rings = IntGauge::new(
            "underpass_send_rings",
            "Workers that send for several flows in one system call, by io_uring.",
        )?;
        registry.register(Box::new(rings.clone()))?;
        let sends = counters(
            registry,
            "underpass_sends_total",
            "Sends of workers that have a ring, for flows that are read: with others in one system call, or alone.",
            "call",
            &["together", "alone"],
        )?;
        let [together, alone] = ["together", "alone"].map(|call| sends.with_label_values(&[call]));
        Ok(Self {
            rings,
            together,
            alone,
        })
    }
}

/// Waits of the agent's workers that they spend looking for what comes, instead of sleeping.
#[derive(Clone, Debug)]
pub struct BusyPollMetrics {
    /// Waits that ended because something came.
    pub came: IntCounter,
    /// Waits in which nothing came for as long as a worker looks.
    pub in_vain: IntCounter,
    /// Waits that were slept, because others want the processor.
    pub wanted: IntCounter,
}

impl BusyPollMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// They are registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let outcomes = ["came", "in_vain", "wanted"];
        let waits = counters(
            registry,
            "underpass_busy_polls_total",
            "Short waits of workers (agent.busy_poll): something came while they looked, or nothing, or they slept because others want the processor.",
            "outcome",
            &outcomes,
        )?;
        let [came, in_vain, wanted] = outcomes.map(|outcome| waits.with_label_values(&[outcome]));
        Ok(Self {
            came,
            in_vain,
            wanted,
        })
    }
}

/// Connections on their way to becoming flows, and what goes wrong before they are.
#[derive(Clone, Debug)]
pub struct IntakeMetrics {
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
    /// Connections to the agent's own listener that nobody was sent to.
    pub strangers: IntCounter,
    /// Connections that were refused because their user or cgroup held more flows than its quota.
    pub over_quota: IntCounter,
}

impl IntakeMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let answers = [
            Refusal::Reset,
            Refusal::NetUnreachable,
            Refusal::HostUnreachable,
            Refusal::Prohibited,
            Refusal::Silence,
        ];
        Ok(Self {
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
            client_addresses_lost: counters(
                registry,
                "underpass_client_addresses_lost_total",
                "Flows of clients on other hosts whose database on this one sees this host's \
                 address instead of the client's, by reason.",
                "reason",
                &dataplane::NotKept::LABELS,
            )?,
            namespaces_not_served: counters(
                registry,
                "underpass_namespaces_not_served_total",
                "Connections in other network namespaces that asked for the agent in vain, by reason. Further ones there follow their rule's `fail`, too.",
                "reason",
                &NotServed::LABELS,
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
        })
    }
}

/// TLS that ends in the agent, or does not although a rule speaks of it.
#[derive(Clone, Debug)]
pub struct TlsMetrics {
    /// Handshakes of TLS that ends in the agent.
    pub handshakes: Handshakes,
    /// Clients whose TLS does not end in the agent although a rule speaks of it, by reason.
    pub passed: IntCounterVec,
}

impl TlsMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            handshakes: Handshakes::register(registry)?,
            passed: counters(
                registry,
                "underpass_tls_passed_total",
                "Clients whose TLS goes on to the database although a rule with `tls` or `upstream_tls` may \
                 hold, by reason: no_certificate (the rule has none to show), rules_differ (which of \
                 several rules it is depends on what is encrypted).",
                "reason",
                &Opaque::LABELS,
            )?,
        })
    }
}
