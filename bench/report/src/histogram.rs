//! Latencies of a series, as they travel in result files.

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use hdrhistogram::{Histogram, serialization::Deserializer};

use crate::schema::Series;

/// Latencies, in ns.
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// The latencies of a series; None where it has none, or none that can be read.
    pub fn of(series: &Series) -> Option<Self> {
        Self::decoded(&series.histogram)
            .ok()
            .filter(|l| l.count() > 0)
    }

    fn decoded(text: &str) -> anyhow::Result<Self> {
        let bytes = BASE64_STANDARD.decode(text).context("not base64")?;
        let histogram = Deserializer::new().deserialize(&mut bytes.as_slice());
        Ok(Self(histogram.context("not a histogram")?))
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// At this quantile (0.5 is the median), in µs.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }
}
