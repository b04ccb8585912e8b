//! As in the configuration, and checked.

use std::{fmt, io, net::SocketAddr, path::PathBuf, time::Duration};

use cql::Compression;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::{
    config,
    tls::{Dialling, Outward, RawDialling},
};

/// As in the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The second cluster, `IP:PORT`.
    pub to: String,
    /// What is copied: any of `reads`, `writes`.
    #[serde(default = "writes")]
    pub what: Vec<What>,
    /// Of those, this fraction.
    #[serde(default = "all")]
    pub sample: f64,
    /// What both answer is compared.
    #[serde(default)]
    pub compare: bool,
    /// A write is acknowledged when both have done it.
    #[serde(default)]
    pub dual_write: bool,
    /// Who logs in there, by SASL PLAIN.
    pub username: Option<String>,
    /// Where the password is.
    pub password_file: Option<PathBuf>,
    /// What goes there and comes back is compressed.
    pub compression: Option<Algorithm>,
    /// It is spoken to by TLS: who has to have signed its certificate, and what it is shown.
    pub tls: Option<RawDialling>,
    /// How long a request is waited for.
    #[serde(default = "timeout")]
    pub timeout: String,
    /// What a client is told that waits for a write that the mirror has not acknowledged.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// The log shows values that differ.
    #[serde(default)]
    pub show_values: bool,
}

/// What is copied.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// SELECT.
    Reads,
    /// INSERT, UPDATE, DELETE, BATCH, TRUNCATE.
    Writes,
}

/// How bodies are compressed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// LZ4, which every Cassandra since 2.0 has, and ScyllaDB.
    Lz4,
    /// Snappy, which they have, too.
    Snappy,
}

/// Of a write that is to be at both.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The database's own answer.
    #[default]
    Pass,
    /// An error.
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

/// Longer, and drivers have given up.
const LONGEST: Duration = Duration::from_secs(10);

/// Settings that can be.
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
    login: Option<(String, PathBuf)>,
}

/// A password is short.
const MAX_PASSWORD_BYTES: usize = 4_096;

/// Who logs in at the mirror.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    user: String,
    password: String,
}

impl fmt::Debug for Login {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut login = f.debug_struct("Login");
        login.field("user", &self.user).finish_non_exhaustive()
    }
}

impl Login {
    /// The body of the AUTH_RESPONSE that logs in.
    pub(super) fn auth_response(&self) -> Zeroizing<Vec<u8>> {
        cql_client::auth_response(&self.user, &self.password)
    }
}

impl Settings {
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
        let timeout = config::duration(&self.timeout)
            .filter(|timeout| !timeout.is_zero() && *timeout <= LONGEST);
        let timeout = timeout.ok_or_else(|| {
            let found = &self.timeout;
            format!("timeout: expected `1ms` to `10s`; found {found:?}")
        })?;
        let login = match (self.username, self.password_file) {
            (None, None) => None,
            (Some(user), Some(file)) if file.is_absolute() => Some((user, file)),
            (Some(_), Some(file)) => {
                let found = file.display();
                return Err(format!(
                    "password_file: expected an absolute path; found {found}"
                ));
            }
            (Some(_), None) => return Err("username: expected with `password_file`".to_owned()),
            (None, Some(_)) => return Err("password_file: expected with `username`".to_owned()),
        };
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
    /// Reads the certificates. None: it is spoken to in the clear.
    ///
    /// # Errors
    /// One line: which file, and what is wrong with it.
    pub(super) fn outward(&self) -> Result<Option<Outward>, String> {
        let host = self.to.ip().to_string();
        let tls = self.tls.as_ref();
        tls.map(|tls| Outward::load(tls, &host, None)).transpose()
    }

    /// Reads the password. What its file has at its end of a line is not part of it.
    pub(super) fn login(&self) -> io::Result<Option<Login>> {
        let Some((user, file)) = &self.login else {
            return Ok(None);
        };
        let cannot = |what: &dyn fmt::Display| {
            io::Error::other(format!("password_file: {}: {what}", file.display()))
        };
        let text = std::fs::read_to_string(file).map_err(|e| cannot(&e))?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() || password.len() > MAX_PASSWORD_BYTES || password.contains('\0') {
            return Err(cannot(&"expected a password in one line"));
        }
        Ok(Some(Login {
            user: user.clone(),
            password: password.to_owned(),
        }))
    }
}
