//! The agent's own metrics, a file for each part. `docs/metrics.md` is rendered from their help texts
//! by a test.

mod decisions;
mod flows;
mod splice;
mod upgrade;

use std::sync::Arc;

use prometheus::{IntCounterVec, IntGauge, Registry};

pub use self::{
    decisions::{MARKED_RESULTS, MarkMetrics, SessionMetrics},
    flows::{BusyPollMetrics, FlowMetrics, IntakeMetrics, SendMetrics, TlsMetrics},
    splice::{KeeperMetrics, SPLICE_OFF, SpliceMetrics},
    upgrade::UpgradeMetrics,
};
use crate::{denials::Denials, registered::counters};

const DIRECTIONS: [&str; 2] = ["to_database", "to_client"];

/// The result of a reload that succeeded.
pub const RELOADED: &str = "ok";
/// The result of a reload that failed.
pub const NOT_RELOADED: &str = "error";

/// Handles to the agent's own metrics. The statements' are in `steps::statements`.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Flows that the agent carries.
    pub flows: FlowMetrics,
    /// Sends of the workers.
    pub sends: SendMetrics,
    /// Waits that workers spend looking.
    pub busy_polls: BusyPollMetrics,
    /// Connections before they are flows.
    pub intake: IntakeMetrics,
    /// TLS that ends in the agent.
    pub tls: TlsMetrics,
    /// Flows that the kernel carries.
    pub splice: SpliceMetrics,
    /// Flows that outlive the agent.
    pub keeper: KeeperMetrics,
    /// Agents that take over from one another.
    pub upgrade: UpgradeMetrics,
    /// Decisions by session.
    pub sessions: SessionMetrics,
    /// Marks and triggers.
    pub marks: MarkMetrics,
    /// Flows and requests that rules refused.
    pub denials: Arc<Denials>,
    /// Policy files read, by result.
    pub reloads: IntCounterVec,
    /// Whether the policy file is refused.
    pub is_file_refused: IntGauge,
}

impl Metrics {
    /// Declares and registers all metrics.
    /// `close_reasons`: the labels of all reasons for which a flow ends.
    ///
    /// # Errors
    /// Two metrics of one name: a mistake in this module.
    pub fn register(registry: &Registry, close_reasons: &[&str]) -> prometheus::Result<Self> {
        let is_file_refused = IntGauge::new(
            "underpass_policy_file_refused",
            "1 while the host's policy files are not those in force, because they were refused. They are tried again every minute.",
        )?;
        registry.register(Box::new(is_file_refused.clone()))?;
        Ok(Self {
            flows: FlowMetrics::register(registry, close_reasons)?,
            sends: SendMetrics::register(registry)?,
            busy_polls: BusyPollMetrics::register(registry)?,
            intake: IntakeMetrics::register(registry)?,
            tls: TlsMetrics::register(registry)?,
            splice: SpliceMetrics::register(registry)?,
            keeper: KeeperMetrics::register(registry)?,
            upgrade: UpgradeMetrics::register(registry)?,
            sessions: SessionMetrics::register(registry)?,
            marks: MarkMetrics::register(registry)?,
            denials: Arc::new(Denials::register(registry)?),
            reloads: counters(
                registry,
                "underpass_reloads_total",
                "Policy files read since the start, by result; a bad one changes nothing.",
                "result",
                &[RELOADED, NOT_RELOADED],
            )?,
            is_file_refused,
        })
    }

    /// Makes metrics whose labels are a policy's show up: for documentation.
    pub fn declare_for_docs(&self) {
        self.sessions.declare_for_docs();
        self.marks.declare_for_docs();
        self.upgrade.declare_for_docs();
    }
}
