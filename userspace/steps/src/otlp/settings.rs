//! The settings of a collector.

use std::time::Duration;

use tls::{Dialling, Endpoint, Outward, RawDialling, Service};

use super::client::PROTOCOL;

/// The service that an endpoint is the address of.
const COLLECTOR: Service = Service {
    place: "where a collector takes OTLP over gRPC",
    example: "http://127.0.0.1:4317",
    login: "no collector is sent",
};

/// The `service.name` unless the file says another.
pub const SERVICE: &str = "underpass";

/// The longest name of a service.
pub const MAX_SERVICE_BYTES: usize = 255;

/// A collector, and the name under which it is sent to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CollectorSettings {
    pub(super) endpoint: Endpoint,
    pub(super) tls: Option<Dialling>,
    pub(super) service: String,
}

/// Metrics that are sent to a collector, again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsPush {
    /// The collector.
    pub to: CollectorSettings,
    /// The interval.
    pub every: Duration,
}

impl CollectorSettings {
    /// Reads the settings as they stand in the file. No file is looked at.
    ///
    /// # Errors
    /// Names the wrong key, and what it should be.
    pub fn read(
        endpoint: &str,
        tls: Option<RawDialling>,
        service: Option<String>,
    ) -> Result<Self, String> {
        let endpoint = Endpoint::parse(endpoint, COLLECTOR);
        let endpoint = endpoint.map_err(|why| format!("endpoint: {why}"))?;
        let tls = tls.map(RawDialling::read).transpose();
        let tls = tls.map_err(|e| format!("tls: {e}"))?;
        match (endpoint.is_encrypted(), &tls) {
            (true, None) => {
                return Err(
                    "tls: expected with `https://`: `{ ca = \"/PATH\" }`, who has to have signed the \
                     collector's certificate; found none"
                        .to_owned(),
                );
            }
            (false, Some(_)) => {
                return Err("tls: expected with `https://` only; found `http://`".to_owned());
            }
            _ => {}
        }
        let to = Self {
            endpoint,
            tls,
            service: SERVICE.to_owned(),
        };
        to.named(service)
    }

    /// Gives the service another name, if there is one.
    ///
    /// # Errors
    /// Says what it should be.
    pub(crate) fn named(mut self, service: Option<String>) -> Result<Self, String> {
        let Some(service) = service else {
            return Ok(self);
        };
        if service.is_empty() || service.len() > MAX_SERVICE_BYTES {
            let found = service.len();
            return Err(format!(
                "service: expected a name of 1 to {MAX_SERVICE_BYTES} bytes; found {found} bytes"
            ));
        }
        self.service = service;
        Ok(self)
    }

    /// Reads the certificates, only to check whether they are good.
    ///
    /// # Errors
    /// Names the bad file, and the reason.
    pub fn read_certificates(&self) -> Result<(), String> {
        self.outward().map(drop)
    }

    /// Loads the certificates, as they are in the files now. None: the endpoint is without TLS.
    ///
    /// # Errors
    /// Names the bad file and the error, in one line.
    pub(super) fn outward(&self) -> Result<Option<Outward>, String> {
        let tls = self.tls.as_ref();
        tls.map(|tls| Outward::load(tls, self.endpoint.host(), Some(PROTOCOL)))
            .transpose()
    }
}

/// Returns the collector of a step that may send to that of `[otlp]`. None: the step does not want to.
///
/// # Errors
/// The step wants to, and the file names no collector.
pub(crate) fn wanted(
    otlp: bool,
    collector: Option<CollectorSettings>,
) -> Result<Option<CollectorSettings>, String> {
    match (otlp, collector) {
        (false, _) => Ok(None),
        (true, Some(collector)) => Ok(Some(collector)),
        (true, None) => Err(
            "otlp: expected a table `[otlp]` with the `endpoint` of a collector; found none"
                .to_owned(),
        ),
    }
}
