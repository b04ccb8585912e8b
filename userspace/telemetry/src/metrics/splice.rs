//! Metrics of flows that the kernel carries, and of the keeper.

use dataplane::SpliceRefusal;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};

use super::DIRECTIONS;
use crate::registered::{counter, counters, histogram};

/// The reason why a flow is not spliced where no flow is.
pub const SPLICE_OFF: &str = "off";

/// Flows that the kernel carries.
#[derive(Clone, Debug)]
pub struct SpliceMetrics {
    /// Times that a flow was handed to the kernel.
    pub handovers: IntCounter,
    /// The seconds that a flow's bytes wait while it is handed over.
    pub handover_seconds: Histogram,
    /// Bytes that the kernel carried for spliced flows, by direction; they are in
    /// `bytes_to_database` and `bytes_to_client`, too.
    pub to_database: IntCounter,
    /// Bytes that the kernel carried for spliced flows to the client.
    pub to_client: IntCounter,
    /// Flows that could not be spliced, by reason.
    pub refusals: IntCounterVec,
    /// Times that a spliced flow's bytes went through the agent, by the side that did not take
    /// them.
    pub spills: IntCounterVec,
}

impl SpliceMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let spliced = counters(
            registry,
            "underpass_spliced_bytes_total",
            "Bytes that the kernel carried past the agent, by direction.",
            "direction",
            &DIRECTIONS,
        )?;
        let [to_database, to_client] = DIRECTIONS.map(|d| spliced.with_label_values(&[d]));
        Ok(Self {
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
            to_database,
            to_client,
            refusals: counters(
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
        })
    }
}

/// Spliced flows that outlive the agent, and those that do not.
#[derive(Clone, Debug)]
pub struct KeeperMetrics {
    /// Spliced flows that outlive the agent: the keeper holds them.
    pub kept: IntGauge,
    /// Flows that this agent has taken over from the keeper.
    pub adopted: IntCounter,
    /// Keepers that have ended while this agent lives.
    pub ended: IntCounter,
    /// Spliced flows that end with the agent, by reason.
    pub not_kept: IntCounterVec,
}

impl KeeperMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let kept = IntGauge::new(
            "underpass_kept_flows",
            "Spliced flows that the keeper holds, too, so that they outlive the agent.",
        )?;
        registry.register(Box::new(kept.clone()))?;
        Ok(Self {
            kept,
            adopted: counter(
                registry,
                "underpass_adopted_flows_total",
                "Flows of an earlier agent that this one has adopted from the keeper.",
            )?,
            ended: counter(
                registry,
                "underpass_keepers_ended_total",
                "Keepers that have ended while this agent lives. Another one gets its spliced flows within seconds.",
            )?,
            not_kept: counters(
                registry,
                "underpass_not_kept_flows_total",
                "Spliced flows that end with the agent, by reason: no_keeper, busy (too many were \
                 enrolled at once: it is tried again), descriptors (too few here, likewise), refused (by the keeper).",
                "reason",
                &["no_keeper", "busy", "descriptors", "refused"],
            )?,
        })
    }
}
