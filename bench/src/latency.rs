//! Latencies in a histogram that travels between processes.

use anyhow::Context;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Significant decimal digits: a difference of 2 % must not drown in rounding.
const DIGITS: u8 = 3;

/// Longer than any driver waits; what takes longer counts as this.
const MAX_NS: u64 = 60_000_000_000;

/// How long things took, in ns. As JSON: pairs of value and count.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "Vec<(u64, u64)>", try_from = "Vec<(u64, u64)>")]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet.
    pub fn new() -> anyhow::Result<Self> {
        let histogram = Histogram::new_with_bounds(1, MAX_NS, DIGITS);
        Ok(Self(histogram.context("a histogram of latencies")?))
    }

    /// One more.
    pub fn record(&mut self, ns: u128) {
        self.0
            .saturating_record(u64::try_from(ns).unwrap_or(MAX_NS));
    }

    /// All of another.
    pub fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.0.add(&other.0).context("two histograms of one shape")
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

impl From<Latencies> for Vec<(u64, u64)> {
    fn from(latencies: Latencies) -> Self {
        let recorded = latencies.0.iter_recorded();
        recorded
            .map(|v| (v.value_iterated_to(), v.count_at_value()))
            .collect()
    }
}

impl TryFrom<Vec<(u64, u64)>> for Latencies {
    type Error = anyhow::Error;

    fn try_from(pairs: Vec<(u64, u64)>) -> anyhow::Result<Self> {
        let mut all = Self::new()?;
        for (value, count) in pairs {
            all.0.saturating_record_n(value, count);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_every_quantile() {
        let mut latencies = Latencies::new().unwrap();
        for n in 1..=10_000_u128 {
            latencies.record(n * n);
        }
        latencies.record(u128::MAX);
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
    }

    #[test]
    fn sums_are_of_both() {
        let mut sum = Latencies::new().unwrap();
        let mut one = Latencies::new().unwrap();
        one.record(1_000);
        sum.add(&one).unwrap();
        sum.add(&one).unwrap();
        assert_eq!(sum.count(), 2);
    }
}
