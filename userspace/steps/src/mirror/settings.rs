//! The settings of `mirror`, and their check.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use cql::Compression;
use serde::Deserialize;
use tls::{Dialling, Outward, RawDialling};

use crate::{
    duration,
    login::{Login, LoginSettings},
};

/// Sends copies of requests to a second cluster. Stands behind all transforms.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"to": "10.2.0.1:9042", "what": ["writes"], "compare": true}]))]
pub struct MirrorSettings {
    /// Address and port of the second cluster.
    #[schemars(extend("title" = "IP:PORT"))]
    pub to: String,
    /// Kinds of requests that are copied.
    #[serde(default = "writes")]
    #[schemars(length(min = 1))]
    pub what: Vec<What>,
    /// Fraction of those requests that is copied.
    #[serde(default = "all")]
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub sample: f64,
    /// `true`: the answers of both clusters are compared; differences are counted and logged.
    #[serde(default)]
    pub compare: bool,
    /// `true`: a write is acknowledged when both clusters have it. Needs `writes` in `what`, and no `sample`.
    #[serde(default)]
    pub dual_write: bool,
    /// User who logs in at the second cluster, by SASL PLAIN. Needs `password_file`.
    #[schemars(extend("examples" = ["underpass"]))]
    pub username: Option<String>,
    /// File whose one line is the password for the second cluster. Needs `username`. `${NAME}` in its path is a variable of the
    /// agent's environment.
    #[schemars(with = "Option<String>", extend("title" = "absolute path", "examples" = ["/etc/underpass/mirror.password"]))]
    pub password_file: Option<PathBuf>,
    /// Compression of what goes there and comes back. Without this key: none.
    pub compression: Option<Algorithm>,
    /// TLS towards the second cluster, with the keys of `upstream_tls`. Without this key: none.
    pub tls: Option<RawDialling>,
    /// Time that the agent waits for the second cluster's answer.
    #[serde(default = "timeout")]
    #[schemars(
        regex(pattern = "^[0-9]+(ms|s|m)$"),
        extend("title" = "duration", "x-min" = "1ms", "x-max" = "10s")
    )]
    pub timeout: String,
    /// Answer to a write with `dual_write` that the second cluster has not acknowledged.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// `true`: logs the values that differ. Needs `compare`.
    #[serde(default)]
    pub show_values: bool,
}

/// Kinds of requests that are copied.
#[derive(
    Clone, Copy, Debug, Deserialize, serde::Serialize, schemars::JsonSchema, PartialEq, Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// SELECT.
    Reads,
    /// INSERT, UPDATE, DELETE, BATCH, TRUNCATE.
    Writes,
}

/// Compression of bodies.
#[derive(Clone, Copy, Debug, Deserialize, schemars::JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// LZ4: every Cassandra since 2.0 has it, and ScyllaDB
    Lz4,
    /// Snappy: they have it, too
    Snappy,
}

/// Answer to a write that only one cluster has.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, serde::Serialize, schemars::JsonSchema, PartialEq, Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The database's own answer.
    #[default]
    Pass,
    /// A write timeout.
    Error,
}

fn writes() -> Vec<What> {
    vec![What::Writes]
}

fn all() -> f64 {
    1.0
}

fn timeout() -> String {
    "500ms".to_owned()
}

/// The longest `timeout`: after that, drivers have given up.
const LONGEST: Duration = Duration::from_secs(10);

/// Settings that have been checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Checked {
    pub(super) to: SocketAddr,
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) sample: f64,
    pub(super) compare: bool,
    pub(super) dual_write: bool,
    pub(super) fails: bool,
    pub(super) timeout: Duration,
    pub(super) shows_values: bool,
    pub(super) compression: Compression,
    tls: Option<Dialling>,
    login: Option<LoginSettings>,
}

impl MirrorSettings {
    pub(super) fn checked(self) -> Result<Checked, String> {
        let to = self.to.parse().ok().filter(|to: &SocketAddr| to.port() > 0);
        let to = to.ok_or_else(|| {
            let found = &self.to;
            format!("to: expected `IP:PORT`, where the second cluster takes CQL; found {found:?}")
        })?;
        if self.what.is_empty() {
            return Err("what: expected any of `reads`, `writes`; found none".to_owned());
        }
        if !(self.sample > 0.0 && self.sample <= 1.0) {
            let found = self.sample;
            return Err(format!(
                "sample: expected a fraction of requests, above 0 and up to 1; found {found}"
            ));
        }
        let (reads, writes) = (
            self.what.contains(&What::Reads),
            self.what.contains(&What::Writes),
        );
        if self.dual_write && !writes {
            return Err("dual_write: expected `writes` among `what`".to_owned());
        }
        if self.dual_write && self.sample < 1.0 {
            return Err(
                "dual_write: expected without `sample`: a write is at both, or it is not"
                    .to_owned(),
            );
        }
        let fails = self.on_failure == OnFailure::Error;
        if fails && !self.dual_write {
            return Err(
                "on_failure: expected `error` with `dual_write = true` only: nobody else waits"
                    .to_owned(),
            );
        }
        if self.show_values && !self.compare {
            return Err("show_values: expected with `compare = true` only".to_owned());
        }
        let timeout =
            duration(&self.timeout).filter(|timeout| !timeout.is_zero() && *timeout <= LONGEST);
        let timeout = timeout.ok_or_else(|| {
            let found = &self.timeout;
            format!("timeout: expected `1ms` to `10s`; found {found:?}")
        })?;
        let login = LoginSettings::of(self.username, self.password_file)?;
        let tls = self.tls.map(RawDialling::read).transpose();
        Ok(Checked {
            to,
            compression: match self.compression {
                None => Compression::None,
                Some(Algorithm::Lz4) => Compression::Lz4,
                Some(Algorithm::Snappy) => Compression::Snappy,
            },
            tls: tls.map_err(|e| format!("tls: {e}"))?,
            reads,
            writes,
            sample: self.sample,
            compare: self.compare,
            dual_write: self.dual_write,
            fails,
            timeout,
            shows_values: self.show_values,
            login,
        })
    }
}

impl Checked {
    /// Reads the certificates. None: the mirror is reached without TLS.
    ///
    /// # Errors
    /// One line: which file, and what is wrong with it.
    pub(super) fn outward(&self) -> Result<Option<Outward>, String> {
        let host = self.to.ip().to_string();
        let tls = self.tls.as_ref();
        tls.map(|tls| Outward::load(tls, &host, None)).transpose()
    }

    /// Reads the password.
    ///
    /// # Errors
    /// Those of [`LoginSettings::read`].
    pub(super) fn login(&self) -> io::Result<Option<Login>> {
        self.login.as_ref().map(LoginSettings::read).transpose()
    }
}
