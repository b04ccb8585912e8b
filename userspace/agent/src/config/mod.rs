//! The policy file, parsed once into what the rest of the agent need not check again.
//!
//! `raw.rs` says what the file looks like, `parse.rs` what each value means, `admin.rs` those of the admin interface, `session.rs` that
//! of the keys of session rules, `network.rs` those of `to` and
//! `from`, `users.rs` those of `uid` and `gid`, `backends.rs` and `remember.rs` those of `backends` and `remember`, `health.rs` that of `[health]`, `xdp.rs` that of `[[xdp]]`,
//! `incoming.rs` that of `[[incoming]]`, `pipeline.rs` that of `pipeline`, `path.rs` that of `path`, `holdout.rs` that of `holdout`, `otlp.rs` that of `[otlp]`, `shadow.rs` that of `mode`, `limit.rs` that of `limit`, `containers.rs` those of
//! `[containers]`, `container` and `labels`, `tls.rs` those of `tls` and `upstream_tls`, `host.rs` those of `[host]`, `hosts` and `rollout`, `clusters.rs` that of `[[cluster]]`, `source.rs` that of `[policy]`, `sharing.rs` that of `[limits]`, `etcd.rs` what both have alike, `objects.rs` how policies of Kubernetes become files, `selector.rs` that of a mark's, `sources.rs` which files there are, `in_full.rs` how all of it is printed, `layout.rs` how a file is laid out, `fits.rs` whether the kernel has room for it, `error.rs` how an
//! error names its place.

mod admin;
mod backends;
mod bounds;
mod by_fail;
mod clusters;
mod containers;
mod dry;
mod error;
mod etcd;
mod fits;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod health;
mod holdout;
mod host;
mod in_full;
mod incoming;
mod layout;
mod limit;
mod network;
mod objects;
mod otlp;
mod parse;
mod path;
mod pipeline;
mod protective;
mod raw;
mod remember;
mod sample;
mod schema;
mod selector;
mod session;
mod shadow;
mod sharing;
mod shortcut;
mod source;
mod sources;
mod tls;
mod trigger;
mod users;
mod value;
mod xdp;

pub use bounds::{DEFAULT_ADMIN_SOCKET, DEFAULT_CONTROL, DEFAULT_MAX_FLOWS, MAX_FLOWS};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use by_fail::by_fail;
use dataplane::{IncomingOptions, edge::Interface};
pub use error::{ConfigError, LineColumn};
use fits::Written;
pub use holdout::told as held_out;
pub use host::Host;
pub use in_full::{InForce, without_login};
pub use layout::laid_out;
use names::ClusterSettings;
pub use objects::{file_of as file_of_object, take_of as take_of_rules};
pub use path::RulePath;
use policy::{Policy, RuleName};
pub use protective::absent_cgroups;
use proxy::paths::Splicing;
pub use schema::schema;
pub use selector::{SELECTOR_KEYS, marking_rule};
pub use source::{PolicySource, Store};
pub use sources::{FOLDER as CONF_D, OTHER_PLACE, Sources};
use steps::{otlp::MetricsPush, pipelines::Pipelines};
pub use users::{GROUPS, USERS};

use crate::{
    backends::HealthCheck,
    containers::Socket,
    log::{LogFormat, LogLevel},
    triggers::Trigger,
};

/// Where `run`, `check` and `flows` look for the file unless told otherwise.
pub const DEFAULT_FILE: &str = "/etc/underpass/underpass.toml";

/// A configuration file, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The admin socket.
    pub admin_socket: PathBuf,
    /// Where the admin interface listens on TCP as well.
    pub admin: Option<SocketAddr>,
    /// Where metrics alone are on TCP as well.
    pub metrics: Option<SocketAddr>,
    /// Whether whoever watches statements may see values.
    pub tail_values: bool,
    /// Names by which it may be asked there.
    pub admin_hosts: Vec<String>,
    /// The control socket.
    pub control: PathBuf,
    /// The cgroup v2 folder to attach to; None: the root of the mount.
    pub cgroup: Option<PathBuf>,
    /// Where links are pinned.
    pub pins: PathBuf,
    /// Flows at the same time; further ones follow their rule's `fail`.
    pub max_flows: usize,
    /// The share of them that one user may hold, above 0 and up to 1.
    pub user_share: f64,
    /// The share of them that one cgroup may hold, above 0 and up to 1.
    pub cgroup_share: f64,
    /// The time that a client has to log in, where a rule asks for the session.
    pub handshake_timeout: Duration,
    /// The time that the agent keeps its flows after another one has taken over.
    pub drain: Duration,
    /// Connections that are forwarded at the edge at the same time.
    pub max_forwarded: u32,
    /// The format of the log.
    pub log_format: LogFormat,
    /// The level of the log.
    pub log_level: LogLevel,
    /// The host, as rules know it.
    pub host: Host,
    /// Where a fleet's rules come from. None: there are only those of the files.
    pub source: Option<PolicySource>,
    /// The etcd by which the fleet shares limits. None: no rule has one.
    pub limits: Option<policy_source::Settings>,
    /// How metrics are sent to a collector. None: they are not.
    pub metrics_push: Option<MetricsPush>,
    /// Other network namespaces whose processes are served at the same time.
    pub max_namespaces: usize,
    /// Interfaces that are guarded.
    pub xdp: Vec<Interface>,
    /// Threads that carry flows.
    pub workers: usize,
    /// Whether these look for what comes soon, instead of sleeping.
    pub busy_poll: bool,
    /// How flows that need not be decoded are carried.
    pub splice: Splicing,
    /// The size of the ring by which copies of packets come.
    pub tap_ring_bytes: u32,
    /// The time that reading copies may take, in processors.
    pub tap_cpu: f64,
    /// Whether running connections are read.
    pub adopt: bool,
    /// How backends are checked.
    pub health: HealthCheck,
    /// Where connections from other hosts to databases on this one are steered.
    pub incoming: Vec<IncomingOptions>,
    /// Container runtimes, which are asked when a rule names containers.
    pub containers: Vec<Socket>,
    /// Keys of the labels of containers that records have.
    pub record_labels: Vec<String>,
    /// Clusters that rules may name.
    pub clusters: Vec<Arc<ClusterSettings>>,
    /// Ordered rules.
    pub policy: Policy,
    /// The paths of the rules that read, or ask for the session, where there is something to be said of them.
    pub paths: BTreeMap<RuleName, RulePath>,
    /// The rules' pipelines.
    pub pipelines: Pipelines,
    /// Rules whose TLS ends in the agent. The files are read by whoever needs what is in them.
    pub tls: Vec<(RuleName, ::tls::TlsSettings)>,
    /// When rules that observe have their later connections enriched.
    pub triggers: Vec<(RuleName, Trigger)>,
    /// Settings that are legal and probably not meant, in words.
    pub warnings: Vec<String>,
    /// Rules only count: [`Config::dry`].
    pub is_dry: bool,
    /// Ways past rules that protect, and rules that decide nothing, in words: for whoever checks the file.
    pub escapes: Vec<String>,
}

impl Config {
    /// Reads and checks a file, and those of `conf.d` beside it.
    ///
    /// # Errors
    /// One line that names file, line, column, key and what was expected.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::of(&Sources::read(path)?)
    }

    /// Checks texts that were read later, for an agent that began with this configuration.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn again(&self, sources: &Sources) -> Result<Self, ConfigError> {
        match self.is_dry {
            true => Self::dry(sources),
            false => Self::of(sources),
        }
    }

    /// Checks texts that were read, and makes a policy of them whose rules match and count, and do nothing: what they would not
    /// leave alone is observed.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn dry(sources: &Sources) -> Result<Self, ConfigError> {
        // It says what is wrong with the policy that is meant.
        Self::of(sources)?;
        let mut raw = sources.parse()?;
        raw.put_into_shadow();
        raw.only_count();
        let config = parse::config(raw).map_err(|flaw| sources.error(flaw))?;
        Ok(Self {
            is_dry: true,
            ..config
        })
    }

    /// Checks texts that were read.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn of(sources: &Sources) -> Result<Self, ConfigError> {
        let raw = sources.parse()?;
        let has_shadows = raw.has_shadows();
        let written = Written::of(&raw, sources.fleets_begin());
        // Also of rules in shadow it says what is wrong with them as they are meant.
        let mut config = parse::config(raw).map_err(|flaw| sources.error(flaw))?;
        if has_shadows {
            let mut raw = sources.parse()?;
            raw.put_into_shadow();
            config = parse::config(raw).map_err(|flaw| sources.error(flaw))?;
        }
        let fits = written.fit(config.policy.clone());
        fits.map_err(|flaw| sources.error(flaw))?;
        Ok(config)
    }

    /// Checks texts as for every host at once: also the rules that are for other hosts.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn for_every_host(sources: &Sources) -> Result<Self, ConfigError> {
        // Rules in shadow, too, are checked as they are meant.
        let mut raw = sources.parse()?;
        let written = Written::of(&raw, sources.fleets_begin());
        let host = host::of(std::mem::take(&mut raw.host)).map_err(|flaw| sources.error(flaw))?;
        raw.keep_all(&host).map_err(|flaw| sources.error(flaw))?;
        let config = parse::config(raw).map_err(|flaw| sources.error(flaw))?;
        let fits = written.fit_everywhere(config.policy.clone());
        fits.map_err(|flaw| sources.error(flaw))?;
        Ok(config)
    }

    /// Checks the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::of(&Sources::of(path, text))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
