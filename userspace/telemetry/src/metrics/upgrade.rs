//! Metrics of agents that take over from one another.

use prometheus::{IntCounter, IntGauge, Registry};

use crate::registered::counter;

/// An agent before this one that drains, and agents that were to follow this one.
#[derive(Clone, Debug)]
pub struct UpgradeMetrics {
    /// Flows that the agent before this one still carries.
    pub draining: IntGauge,
    /// Times that another agent was to take over and could not.
    pub failed: IntCounter,
}

impl UpgradeMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let draining = IntGauge::new(
            "underpass_draining_flows",
            "Flows that the agent before this one still carries, since this one took over from it. They are not among `underpass_flows_open`.",
        )?;
        registry.register(Box::new(draining.clone()))?;
        Ok(Self {
            draining,
            failed: counter(
                registry,
                "underpass_upgrades_failed_total",
                "Times that another agent was to take over from this one and could not. This one went on.",
            )?,
        })
    }
}
