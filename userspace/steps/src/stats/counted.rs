//! The counts of `stats`, as the agent keeps them.

use prometheus::Registry;

use super::{containers::ContainerMetrics, row::RowMetrics, top::Tops};

/// The counts of `stats`, over all flows and reloads.
#[derive(Debug)]
pub struct Counted {
    pub(super) rows: RowMetrics,
    pub(super) containers: ContainerMetrics,
    /// The most frequent statements.
    pub tops: Tops,
}

impl Counted {
    /// Declares and registers the metrics. `labels`: the keys of containers' labels that metrics have.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry, labels: &[String]) -> prometheus::Result<Self> {
        Ok(Self {
            rows: RowMetrics::register(registry)?,
            containers: ContainerMetrics::register(registry, labels)?,
            tops: Tops::default(),
        })
    }

    pub(crate) fn declare_for_docs(&self) {
        self.rows.declare_for_docs();
        self.containers.declare_for_docs();
    }
}
