//! The counts of `stats`, as the agent keeps them.

use prometheus::Registry;

use super::{row::RowMetrics, top::Tops};

/// The counts of `stats`, over all flows and reloads.
#[derive(Debug)]
pub struct Counted {
    pub(super) rows: RowMetrics,
    /// The most frequent statements.
    pub tops: Tops,
}

impl Counted {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            rows: RowMetrics::register(registry)?,
            tops: Tops::default(),
        })
    }

    pub(crate) fn declare_for_docs(&self) {
        self.rows.declare_for_docs();
    }
}
