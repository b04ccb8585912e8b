//! Metrics of the agent itself, under the names that every exporter of Prometheus has for them.

use prometheus::{IntGauge, Opts, Registry, process_collector::ProcessCollector};

/// Registers the version, and what the process takes of the host.
///
/// # Errors
/// The registry has metrics of these names already.
pub fn register(registry: &Registry) -> prometheus::Result<()> {
    let about = Opts::new("underpass_build_info", "The agent's version. Always 1.")
        .const_label("version", env!("CARGO_PKG_VERSION"));
    let about = IntGauge::with_opts(about)?;
    about.set(1);
    registry.register(Box::new(about))?;
    registry.register(Box::new(ProcessCollector::for_self()))
}
