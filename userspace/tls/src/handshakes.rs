//! The counts of handshakes: those of flows, and those of shared connections.

use prometheus::{IntCounterVec, Opts, Registry};

use super::{Failure, Side};

/// The metrics `underpass_tls_handshakes_total` and `underpass_tls_handshakes_failed_total`.
#[derive(Clone, Debug)]
pub struct Handshakes {
    succeeded: IntCounterVec,
    failed: IntCounterVec,
}

impl Handshakes {
    /// Declares and registers the metrics; all labels are there from the beginning.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let handshakes = Self {
            succeeded: counters(
                registry,
                "underpass_tls_handshakes_total",
                "TLS handshakes between the agent and clients or databases that succeeded, by side; those of \
                 connections that flows share are among them.",
                &["side"],
            )?,
            failed: counters(
                registry,
                "underpass_tls_handshakes_failed_total",
                "TLS handshakes between the agent and clients or databases that failed, by side and reason; those of \
                 connections that flows share are among them. plain: a client that has to encrypt did not.",
                &["side", "reason"],
            )?,
        };
        for side in Side::ALL {
            handshakes.succeeded.with_label_values(&[side.as_str()]);
            for failure in Failure::ALL {
                let labels = [side.as_str(), failure.as_str()];
                handshakes.failed.with_label_values(&labels);
            }
        }
        Ok(handshakes)
    }

    /// Counts a handshake that has succeeded; everything after it is encrypted.
    pub fn succeeded(&self, side: Side) {
        self.succeeded.with_label_values(&[side.as_str()]).inc();
    }

    /// Counts a handshake that has failed.
    pub fn failed(&self, side: Side, failure: Failure) {
        let labels = [side.as_str(), failure.as_str()];
        self.failed.with_label_values(&labels).inc();
    }
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(counters.clone()))?;
    Ok(counters)
}
