//! Decisions that are remembered: swept, and counted.

use std::sync::{Arc, Mutex, PoisonError};

use dataplane::{Dataplane, Remembered};
use prometheus::{
    IntGauge,
    core::{Collector, Desc},
    proto::MetricFamily,
};

type Shared = Arc<Mutex<Option<Dataplane>>>;

/// Takes out what has expired and whose process has ended.
pub fn sweep(dataplane: &Shared) {
    let swept = remembered(dataplane).map(|remembered| remembered.sweep());
    if let Some(Err(error)) = swept {
        tracing::error!(%error, "cannot read remembered decisions");
    }
}

fn remembered(dataplane: &Shared) -> Option<Arc<Remembered>> {
    let dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
    Some(dataplane.as_ref()?.remembered().clone())
}

/// `underpass_remembered`, read when it is asked for.
pub struct RememberedGauge {
    dataplane: Shared,
    gauge: IntGauge,
}

impl RememberedGauge {
    /// Makes the metrics over the data plane, which may have been detached.
    ///
    /// # Errors
    /// None in practice: the name is a constant.
    pub fn new(dataplane: Shared) -> prometheus::Result<Self> {
        let gauge = IntGauge::new(
            "underpass_remembered",
            "Pairs of process and endpoint whose connections are left alone by a remembered decision. Processes that have ended count for some seconds more.",
        )?;
        Ok(Self { dataplane, gauge })
    }
}

impl Collector for RememberedGauge {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let count = remembered(&self.dataplane).map_or(Ok(0), |remembered| remembered.count());
        match count {
            Ok(count) => {
                self.gauge.set(count as i64);
                self.gauge.collect()
            }
            Err(error) => {
                tracing::error!(%error, "cannot count remembered decisions");
                Vec::new()
            }
        }
    }
}
