//! A backend's health check: it has to accept a connection, and to answer OPTIONS as CQL does.

use std::net::SocketAddr;

use dataplane::backends::Probe;
use tokio::time;

use super::health_check::HealthCheck;

/// Checks a backend once.
///
/// # Errors
/// Why it has failed, for people.
pub(super) async fn check(
    probe: Probe,
    backend: SocketAddr,
    settings: &HealthCheck,
) -> Result<(), String> {
    let asked = async {
        let stream = probe.connect(backend).await?;
        match settings.cql {
            true => cql_client::probe(stream).await,
            false => Ok(()),
        }
    };
    match time::timeout(settings.timeout, asked).await {
        Ok(asked) => asked.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer in {} ms", settings.timeout.as_millis())),
    }
}
