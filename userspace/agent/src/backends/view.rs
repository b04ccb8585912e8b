//! Backends as `/backends` and `/metrics` show them.

use std::{
    net::SocketAddr,
    sync::PoisonError,
    time::{SystemTime, UNIX_EPOCH},
};

use dataplane::backends::Weight;
use prometheus::{
    IntCounterVec, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use serde::Serialize;
use tokio::time::Instant;

use super::{health::Order, health_check::HealthCheck, member::Member};
use crate::observed::SharedDataplane;

/// A backend as `/backends` and `underpass backends --json` give it.
#[derive(Debug, Serialize)]
pub struct BackendView {
    /// The backend's address.
    pub backend: String,
    state: &'static str,
    /// The operator's order.
    order: Option<Order>,
    since_unix_ms: u64,
    since_ms: u64,
    weight: Weight,
    rules: Vec<String>,
    checks_good: u64,
    checks_failed: u64,
    last_error: Option<String>,
    /// The flows that the agent carries to the backend now.
    flows: usize,
    /// The connections that the kernel has sent straight to the backend, ever.
    connections: u64,
}

impl BackendView {
    /// Returns the backend with its order, if it has one.
    pub fn ordered(&self) -> Option<(SocketAddr, Order)> {
        Some((self.backend.parse().ok()?, self.order?))
    }

    pub(super) fn new(
        at: SocketAddr,
        member: &Member,
        (now, settings): (Instant, &HealthCheck),
        flows: usize,
        connections: u64,
    ) -> Self {
        let health = &member.health;
        let since: SystemTime = member.changed_at;
        let since_epoch = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            backend: at.to_string(),
            state: health.state().as_str(),
            order: health.ordered(),
            since_unix_ms: since_epoch.as_millis() as u64,
            since_ms: now.duration_since(health.since()).as_millis() as u64,
            weight: health.weight(now, settings),
            rules: member.rules.iter().map(ToString::to_string).collect(),
            checks_good: member.good,
            checks_failed: member.failed,
            last_error: member.last_error.clone(),
            flows,
            connections,
        }
    }
}

/// The metrics that the agent itself knows.
#[derive(Clone, Debug)]
pub struct BackendMetrics {
    up: IntGaugeVec,
    weight: IntGaugeVec,
    checks: IntCounterVec,
}

const GOOD: &str = "good";
const FAILED: &str = "failed";

impl BackendMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name: a mistake in this file.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let own = Self {
            up: IntGaugeVec::new(
                Opts::new(
                    "underpass_backend_up",
                    "Whether a backend gets new connections.",
                ),
                &["backend"],
            )?,
            weight: IntGaugeVec::new(
                Opts::new(
                    "underpass_backend_weight",
                    "A backend's share of new connections, relative to the others': 100, less while \
                     it starts slowly, 0 when it gets none.",
                ),
                &["backend"],
            )?,
            checks: IntCounterVec::new(
                Opts::new(
                    "underpass_backend_checks_total",
                    "Checks of backends, by result.",
                ),
                &["backend", "result"],
            )?,
        };
        registry.register(Box::new(own.up.clone()))?;
        registry.register(Box::new(own.weight.clone()))?;
        registry.register(Box::new(own.checks.clone()))?;
        Ok(own)
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.up.with_label_values(&[""]);
        self.weight.with_label_values(&[""]);
        self.checks.with_label_values(&["", ""]);
    }

    pub(super) fn stands(&self, backend: SocketAddr, weight: Weight) {
        let backend = backend.to_string();
        self.up
            .with_label_values(&[&backend])
            .set((weight > 0).into());
        self.weight
            .with_label_values(&[&backend])
            .set(weight.into());
    }

    pub(super) fn checked(&self, backend: SocketAddr, is_good: bool) {
        let result = if is_good { GOOD } else { FAILED };
        let backend = backend.to_string();
        self.checks.with_label_values(&[&backend, result]).inc();
    }

    /// Addresses that no rule names any more must not pile up. What is not there need not go.
    pub(super) fn forget(&self, backend: SocketAddr) {
        let backend = backend.to_string();
        let _ = self.up.remove_label_values(&[&backend]);
        let _ = self.weight.remove_label_values(&[&backend]);
        for result in [GOOD, FAILED] {
            let _ = self.checks.remove_label_values(&[&backend, result]);
        }
    }
}

/// `underpass_connections_balanced_total`, read from the kernel when it is asked for.
pub struct BalancedCounters {
    dataplane: SharedDataplane,
    description: IntCounterVec,
}

impl BalancedCounters {
    /// Makes the counters over the data plane, which may have been detached.
    ///
    /// # Errors
    /// None in practice: the name is a constant.
    pub fn new(dataplane: SharedDataplane) -> prometheus::Result<Self> {
        Ok(Self {
            dataplane,
            description: Self::empty()?,
        })
    }

    fn empty() -> prometheus::Result<IntCounterVec> {
        IntCounterVec::new(
            Opts::new(
                "underpass_connections_balanced_total",
                "Connections that connect() sent straight to a backend, by rule and backend.",
            ),
            &["rule", "backend"],
        )
    }

    /// Returns the metrics with one sample that says zero: for documentation.
    pub fn declared(&self) -> Vec<MetricFamily> {
        self.description.with_label_values(&["", ""]);
        self.description.collect()
    }
}

impl Collector for BalancedCounters {
    fn desc(&self) -> Vec<&Desc> {
        self.description.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let dataplane = self
            .dataplane
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let counts = match dataplane.as_ref().map(|d| d.backend_counts()) {
            None => return Vec::new(),
            Some(Ok(counts)) => counts,
            Some(Err(error)) => {
                tracing::error!(%error, "cannot read counters of balanced connections");
                return Vec::new();
            }
        };
        let Ok(counters) = Self::empty() else {
            return Vec::new();
        };
        for count in counts {
            let labels = [count.rule.as_str(), &count.backend.to_string()];
            counters
                .with_label_values(&labels)
                .inc_by(count.connections);
        }
        counters.collect()
    }
}
