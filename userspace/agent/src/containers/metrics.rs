//! The metrics of runtimes and containers.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::{book::Book, failure::Failure, socket::Speaks};

/// The handles of the metrics.
#[derive(Clone, Debug)]
pub struct ContainerMetrics {
    /// Times that runtimes were asked, by what is spoken and how it ended.
    asked: IntCounterVec,
    known: IntGauge,
    unheld: IntGaugeVec,
}

const ANSWERED: &str = "answered";

/// The reasons why no rule can match a container.
const REASONS: [&str; 3] = ["shared_cgroup", "too_many", "table_full"];

impl ContainerMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name: a mistake in this file.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let asked = IntCounterVec::new(
            Opts::new(
                "underpass_container_runtimes_asked_total",
                "Requests to container runtimes for their containers, by API and result. Until a runtime answers again, its last answer is used.",
            ),
            &["speaks", "result"],
        )?;
        let known = IntGauge::new(
            "underpass_containers",
            "Containers whose names and labels are known.",
        )?;
        let unheld = IntGaugeVec::new(
            Opts::new(
                "underpass_containers_unheld",
                "Containers for which no rule that names containers holds, by reason: shared_cgroup \
                 (others may be in it), too_many (of one runtime), table_full (the kernel's, of \
                 cgroups).",
            ),
            &["reason"],
        )?;
        registry.register(Box::new(asked.clone()))?;
        registry.register(Box::new(known.clone()))?;
        registry.register(Box::new(unheld.clone()))?;
        let metrics = Self {
            asked,
            known,
            unheld,
        };
        for speaks in [Speaks::Docker, Speaks::Cri] {
            for result in [ANSWERED].into_iter().chain(Failure::LABELS) {
                let labels = [speaks.as_str(), result];
                metrics.asked.with_label_values(&labels);
            }
        }
        for reason in REASONS {
            metrics.unheld.with_label_values(&[reason]);
        }
        Ok(metrics)
    }

    pub(super) fn asked(&self, speaks: Speaks, failed: Option<&'static str>) {
        let labels = [speaks.as_str(), failed.unwrap_or(ANSWERED)];
        self.asked.with_label_values(&labels).inc();
    }

    pub(super) fn known(&self, book: &Book) {
        let [shared, too_many, _] = REASONS.map(|reason| self.unheld.with_label_values(&[reason]));
        self.known.set(book.running().count() as i64);
        shared.set(book.0.iter().map(|page| page.shared as i64).sum());
        too_many.set(book.0.iter().map(|page| page.too_many as i64).sum());
    }

    /// Cgroups of containers that did not fit into the kernel's table.
    pub fn left_out(&self, cgroups: usize) {
        let [_, _, table_full] = REASONS.map(|reason| self.unheld.with_label_values(&[reason]));
        table_full.set(cgroups as i64);
    }
}
