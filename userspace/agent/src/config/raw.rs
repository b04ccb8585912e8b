//! The form of the file, key by key. Unknown keys are errors.
//!
//! The same types are the JSON Schema ([`super::schema`]): doc comments are the descriptions, attributes say defaults,
//! bounds and examples. `x-min` and `x-max` are bounds of durations; `x-beside` is the key without which a
//! default has no meaning.

use dataplane::{MAX_INCOMING, edge::MAX_INTERFACES};
use policy::{Action, Fail, MAX_RULES};
use serde::Deserialize;
use toml::Spanned;

pub(super) use self::{
    agent::{RawAgent, RawLog},
    rule::{RawRule, RawTrigger, spanned},
};
use super::{
    bounds::{FAILS, names},
    clusters::RawCluster,
    containers::RawContainers,
    error::Flaw,
    health::RawHealth,
    host::RawHost,
    incoming::RawIncoming,
    otlp::RawOtlp,
    sharing::RawLimits,
    source::RawPolicy,
    value::said_by_parser,
    xdp::RawXdp,
};

mod agent;
mod rule;

/// A policy file of underpass: the agent's own settings, and ordered rules that say what happens to connections.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "underpass")]
pub(super) struct RawConfig {
    #[serde(default)]
    pub agent: RawAgent,
    #[serde(default)]
    pub log: RawLog,
    #[serde(default)]
    pub host: RawHost,
    pub policy: Option<RawPolicy>,
    #[schemars(with = "Option<RawLimits>")]
    pub limits: Option<Spanned<RawLimits>>,
    pub otlp: Option<RawOtlp>,
    #[serde(default)]
    #[schemars(with = "Vec<RawRule>", length(max = MAX_RULES))]
    pub rule: Vec<Spanned<RawRule>>,
    #[serde(default)]
    pub default: RawDefault,
    #[serde(default)]
    #[schemars(with = "Vec<RawIncoming>", length(max = MAX_INCOMING))]
    pub incoming: Vec<Spanned<RawIncoming>>,
    #[serde(default)]
    #[schemars(with = "Vec<RawCluster>", length(max = names::MAX_CLUSTERS))]
    pub cluster: Vec<Spanned<RawCluster>>,
    #[serde(default)]
    pub health: RawHealth,
    #[serde(default)]
    pub containers: RawContainers,
    #[serde(default)]
    #[schemars(length(max = MAX_INTERFACES))]
    pub xdp: Vec<RawXdp>,
}

/// Treatment of connections that no rule holds for.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"action": "bypass"}]))]
pub(super) struct RawDefault {
    /// Action, as in a rule.
    #[schemars(
        with = "Option<String>",
        extend("enum" = Action::ALL.map(Action::as_str), "default" = Action::Bypass.as_str())
    )]
    pub action: Option<Spanned<String>>,
    /// Treatment of connections while the agent is away, as in a rule.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&FAILS), "default" = Fail::Open.as_str())
    )]
    pub fail: Option<Spanned<String>>,
}

/// A file of `conf.d`: lists, whose items follow those of the files before it. What there is once is in the main file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFurther {
    #[serde(default)]
    rule: Vec<Spanned<RawRule>>,
    #[serde(default)]
    incoming: Vec<Spanned<RawIncoming>>,
    #[serde(default)]
    xdp: Vec<RawXdp>,
}

/// A file of a fleet's policy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFleets {
    #[serde(default)]
    rule: Vec<Spanned<RawRule>>,
}

/// Tables of which there is one, in the main file.
const MAIN_ONLY: [&str; 10] = [
    "agent",
    "log",
    "host",
    "policy",
    "limits",
    "otlp",
    "default",
    "health",
    "containers",
    "cluster",
];

impl RawConfig {
    /// Adds the lists of a further file.
    pub(super) fn extend(&mut self, further: RawFurther) {
        self.rule.extend(further.rule);
        self.incoming.extend(further.incoming);
        self.xdp.extend(further.xdp);
    }
}

/// Parses the main file.
pub(super) fn parse(text: &str) -> Result<RawConfig, Flaw> {
    from_toml(text)
}

/// Parses a file of `conf.d`.
pub(super) fn parse_further(text: &str) -> Result<RawFurther, Flaw> {
    from_toml(text).map_err(|mut flaw| {
        let only = "files of conf.d have `[[rule]]`, `[[incoming]]` and `[[xdp]]`, all else is in the main file";
        for table in MAIN_ONLY {
            if flaw.message.starts_with(&format!("unknown field `{table}`")) {
                flaw.message = format!("{table}: {only}");
            }
        }
        flaw
    })
}

/// Parses a file of the fleet's policy: it has rules alone.
pub(super) fn parse_fleets(text: &str) -> Result<RawFurther, Flaw> {
    let further = from_toml::<RawFleets>(text).map_err(|mut flaw| {
        let only = "files of a fleet's policy have `[[rule]]`, all else is a host's own";
        for table in MAIN_ONLY.iter().chain(&["incoming", "xdp"]) {
            if flaw
                .message
                .starts_with(&format!("unknown field `{table}`"))
            {
                flaw.message = format!("{table}: {only}");
            }
        }
        flaw
    })?;
    Ok(RawFurther {
        rule: further.rule,
        incoming: Vec::new(),
        xdp: Vec::new(),
    })
}

fn from_toml<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Flaw> {
    toml::from_str(text).map_err(|e| {
        let start = text.len() - text.trim_start().len();
        Flaw::new(e.span().unwrap_or(start..start), said_by_parser(&e))
    })
}
