//! Metrics that are registered as they are made.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

/// A registered histogram of seconds: its buckets double from 2 µs to 8 ms.
///
/// # Errors
/// Two metrics of one name.
pub fn histogram(registry: &Registry, name: &str, help: &str) -> prometheus::Result<Histogram> {
    let buckets = prometheus::exponential_buckets(2e-6, 2.0, 13)?;
    let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
    registry.register(Box::new(histogram.clone()))?;
    Ok(histogram)
}

/// A registered counter without labels.
///
/// # Errors
/// Two metrics of one name.
pub fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    let counter = IntCounter::new(name, help)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

/// A registered counter by one label, whose known values start at zero.
///
/// # Errors
/// Two metrics of one name.
pub fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
    values: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let counters = counters_by(registry, name, help, &[label])?;
    for value in values {
        counters.with_label_values(&[value]);
    }
    Ok(counters)
}

/// A registered counter by these labels.
///
/// # Errors
/// Two metrics of one name.
pub fn counters_by(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(counters.clone()))?;
    Ok(counters)
}
