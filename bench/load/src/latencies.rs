//! Latencies in a histogram that travels between processes and into result files.

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use hdrhistogram::{
    Histogram,
    serialization::{Deserializer, Serializer, V2DeflateSerializer},
};
use serde::{Deserialize, Serialize};

/// Significant decimal digits: a difference of 2 % must not drown in rounding.
const DIGITS: u8 = 3;

/// Longer than any driver waits; what takes longer counts as this.
const MAX_NS: u64 = 60_000_000_000;

/// The times that things took, in ns. As JSON: HdrHistogram's V2 encoding, deflated, in base64.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// Makes an empty histogram.
    ///
    /// # Errors
    /// None in practice: the bounds are constants.
    pub fn new() -> anyhow::Result<Self> {
        let histogram = Histogram::new_with_bounds(1, MAX_NS, DIGITS);
        Ok(Self(histogram.context("a histogram of latencies")?))
    }

    /// Records a time.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds all times of another.
    ///
    /// # Errors
    /// None in practice: all have one shape.
    pub fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.0.add(&other.0).context("two histograms of one shape")
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the time at this quantile (0.5 is the median), in µs; 0 where there are none.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }

    /// Returns the mean, in µs.
    pub fn mean_us(&self) -> f64 {
        self.0.mean() / 1e3
    }

    /// Returns the longest time, in µs.
    pub fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1e3
    }
}

impl From<Latencies> for String {
    fn from(latencies: Latencies) -> Self {
        let mut bytes = Vec::new();
        // Into memory it fails for no histogram of our shape; an empty text does not come back.
        let _ = V2DeflateSerializer::new().serialize(&latencies.0, &mut bytes);
        BASE64_STANDARD.encode(bytes)
    }
}

impl TryFrom<String> for Latencies {
    type Error = anyhow::Error;

    fn try_from(text: String) -> anyhow::Result<Self> {
        let bytes = BASE64_STANDARD.decode(text).context("not base64")?;
        let decoded = Deserializer::new().deserialize(&mut bytes.as_slice());
        let mut all = Self::new()?;
        let decoded: Histogram<u64> = decoded.context("not a histogram")?;
        all.0.add(&decoded).context("another shape of histogram")?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_every_quantile() {
        let mut latencies = Latencies::new().unwrap();
        for n in 1..=10_000_u64 {
            latencies.record(n * n);
        }
        latencies.record(u64::MAX);
        let json = serde_json::to_string(&latencies).unwrap();
        let back: Latencies = serde_json::from_str(&json).unwrap();
        assert_eq!(back.count(), 10_001);
        for quantile in [0.0, 0.5, 0.99, 0.999, 1.0] {
            assert_eq!(
                back.quantile_us(quantile),
                latencies.quantile_us(quantile),
                "{quantile}"
            );
        }
        let median = back.quantile_us(0.5);
        assert!((median / 25_000.0 - 1.0).abs() < 0.002, "{median}");
        assert!(serde_json::from_str::<Latencies>("\"AAAA\"").is_err());
    }

    #[test]
    fn sums_are_of_both() {
        let mut sum = Latencies::new().unwrap();
        let mut one = Latencies::new().unwrap();
        one.record(1_000);
        sum.add(&one).unwrap();
        sum.add(&one).unwrap();
        assert_eq!((sum.count(), sum.mean_us()), (2, 1.0));
    }
}
