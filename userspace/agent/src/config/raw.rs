//! What the file looks like, key by key. Unknown keys are errors.

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
    pub default: RawDefault,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAgent {
    pub admin: Option<Spanned<String>>,
    pub cgroup: Option<Spanned<String>>,
    pub pins: Option<Spanned<String>>,
    pub max_flows: Option<Spanned<i64>>,
    pub workers: Option<Spanned<i64>>,
    pub splice: Option<Spanned<String>>,
    pub control: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    pub name: Spanned<String>,
    #[serde(default)]
    pub to: Vec<Spanned<String>>,
    #[serde(default)]
    pub uid: Vec<Spanned<i64>>,
    #[serde(default)]
    pub process: Vec<Spanned<String>>,
    #[serde(default)]
    pub cgroup: Vec<Spanned<String>>,
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
    pub tls: Option<bool>,
    pub action: Spanned<String>,
    pub fail: Option<Spanned<String>>,
    pub shortcut: Option<Spanned<bool>>,
    pub remember: Option<Spanned<String>>,
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
            to: Vec::new(),
            uid: Vec::new(),
            process: Vec::new(),
            cgroup: Vec::new(),
            user: Vec::new(),
            keyspace: Vec::new(),
            driver: Vec::new(),
            driver_version: Vec::new(),
            application: Vec::new(),
            protocol: Vec::new(),
            compression: Vec::new(),
            tls: None,
            action: spanned(action.to_owned()),
            fail: None,
            shortcut: None,
            remember: None,
        }
    }
}

pub(super) fn parse(text: &str) -> Result<RawConfig, Flaw> {
    toml::from_str(text).map_err(|e| {
        let message = e.message().replace('\n', ", ");
        Flaw::new(e.span().unwrap_or(0..0), message)
    })
}
