//! What the file looks like, key by key. Unknown keys are errors.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::error::Flaw;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    #[serde(default)]
    pub agent: RawAgent,
    #[serde(default)]
    pub rule: Vec<Spanned<RawRule>>,
    #[serde(default)]
    pub incoming: Vec<Spanned<RawIncoming>>,
    #[serde(default)]
    pub default: RawDefault,
    #[serde(default)]
    pub health: RawHealth,
    #[serde(default)]
    pub containers: RawContainers,
    #[serde(default)]
    pub xdp: Vec<RawXdp>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawXdp {
    pub interface: Spanned<String>,
    pub mode: Option<Spanned<String>>,
    pub forward: Option<Spanned<String>>,
    pub syn_rate: Option<Spanned<i64>>,
    pub syn_burst: Option<Spanned<i64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAgent {
    pub admin: Option<Spanned<String>>,
    pub cgroup: Option<Spanned<String>>,
    pub pins: Option<Spanned<String>>,
    pub max_flows: Option<Spanned<i64>>,
    pub max_forwarded: Option<Spanned<i64>>,
    pub max_namespaces: Option<Spanned<i64>>,
    pub workers: Option<Spanned<i64>>,
    pub splice: Option<Spanned<String>>,
    pub control: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHealth {
    pub interval: Option<Spanned<String>>,
    pub timeout: Option<Spanned<String>>,
    pub rise: Option<Spanned<i64>>,
    pub fall: Option<Spanned<i64>>,
    pub slow_start: Option<Spanned<String>>,
    pub cql: Option<bool>,
    pub established: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawContainers {
    pub docker: Option<Vec<Spanned<String>>>,
    pub cri: Option<Vec<Spanned<String>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawIncoming {
    pub netns: Option<Spanned<String>>,
    pub client_address: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    pub name: Spanned<String>,
    #[serde(default)]
    pub from: Vec<Spanned<String>>,
    #[serde(default)]
    pub to: Vec<Spanned<String>>,
    #[serde(default)]
    pub uid: Vec<Spanned<i64>>,
    #[serde(default)]
    pub process: Vec<Spanned<String>>,
    #[serde(default)]
    pub cgroup: Vec<Spanned<String>>,
    #[serde(default)]
    pub netns: Vec<Spanned<String>>,
    #[serde(default)]
    pub container: Vec<Spanned<String>>,
    #[serde(default)]
    pub labels: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    pub user: Vec<Spanned<String>>,
    #[serde(default)]
    pub keyspace: Vec<Spanned<String>>,
    #[serde(default)]
    pub driver: Vec<Spanned<String>>,
    #[serde(default)]
    pub driver_version: Vec<Spanned<String>>,
    #[serde(default)]
    pub application: Vec<Spanned<String>>,
    #[serde(default)]
    pub protocol: Vec<Spanned<String>>,
    #[serde(default)]
    pub compression: Vec<Spanned<String>>,
    /// A condition, or a certificate.
    pub tls: Option<Spanned<toml::Value>>,
    pub upstream_tls: Option<Spanned<toml::Table>>,
    #[serde(default)]
    pub backends: Vec<Spanned<String>>,
    pub action: Spanned<String>,
    pub fail: Option<Spanned<String>>,
    pub shortcut: Option<Spanned<bool>>,
    pub remember: Option<Spanned<String>>,
    pub sample: Option<Spanned<f64>>,
    pub trigger: Option<Spanned<RawTrigger>>,
    #[serde(default)]
    pub pipeline: Vec<Spanned<toml::Table>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTrigger {
    pub p99_ms: f64,
    #[serde(rename = "for")]
    pub lasts: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDefault {
    pub action: Option<Spanned<String>>,
    pub fail: Option<Spanned<String>>,
}

/// A value that is in no file.
pub(super) fn spanned<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

impl RawRule {
    /// One without conditions.
    pub(super) fn new(name: &str, action: &str) -> Self {
        Self {
            name: spanned(name.to_owned()),
            from: Vec::new(),
            to: Vec::new(),
            uid: Vec::new(),
            process: Vec::new(),
            cgroup: Vec::new(),
            netns: Vec::new(),
            container: Vec::new(),
            labels: BTreeMap::new(),
            user: Vec::new(),
            keyspace: Vec::new(),
            driver: Vec::new(),
            driver_version: Vec::new(),
            application: Vec::new(),
            protocol: Vec::new(),
            compression: Vec::new(),
            tls: None,
            upstream_tls: None,
            backends: Vec::new(),
            action: spanned(action.to_owned()),
            fail: None,
            shortcut: None,
            remember: None,
            sample: None,
            trigger: None,
            pipeline: Vec::new(),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<RawConfig, Flaw> {
    toml::from_str(text).map_err(|e| {
        let message = e.message().replace('\n', ", ");
        Flaw::new(e.span().unwrap_or(0..0), message)
    })
}
