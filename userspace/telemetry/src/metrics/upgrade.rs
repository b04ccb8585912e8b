//! Metrics of agents that take over from one another.

use prometheus::{IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

use crate::registered::counter;

/// An agent before this one that drains, and agents that were to follow this one.
#[derive(Clone, Debug)]
pub struct UpgradeMetrics {
    /// Flows that the agent before this one still carries.
    pub draining: IntGauge,
    /// Flows among them that cannot be handed over, by reason.
    pub staying: IntGaugeVec,
    /// Flows that were taken over from the agent before.
    pub taken: IntCounter,
    /// Times that another agent was to take over and could not.
    pub failed: IntCounter,
}

impl UpgradeMetrics {
    /// Makes metrics whose labels come later show up: for documentation.
    pub(super) fn declare_for_docs(&self) {
        self.staying.with_label_values(&[""]);
    }

    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let draining = IntGauge::new(
            "underpass_draining_flows",
            "Flows that the agent before this one still carries, since this one took over from it. They are not among `underpass_flows_open`.",
        )?;
        registry.register(Box::new(draining.clone()))?;
        let staying = IntGaugeVec::new(
            Opts::new(
                "underpass_staying_flows",
                "Flows among `underpass_draining_flows` that the agent before this one cannot hand over, by reason (`docs/operating.md`).",
            ),
            &["reason"],
        )?;
        registry.register(Box::new(staying.clone()))?;
        Ok(Self {
            draining,
            staying,
            taken: counter(
                registry,
                "underpass_taken_over_flows_total",
                "Flows that this agent reads on since the agent before this one has handed them over.",
            )?,
            failed: counter(
                registry,
                "underpass_upgrades_failed_total",
                "Times that another agent was to take over from this one and could not. This one went on.",
            )?,
        })
    }
}
