//! `protect`: a step of a pipeline that encrypts columns ([`cql_edit::protect`]), with keys from a file
//! or from a key server.
//!
//! - `document`: the format of both; `file`: the checks of a key file; `server`: a thread that asks
//!   a key server.
//! - `ring`: the keys in force, by their origin, so that a reload changes them for running flows;
//!   `metrics`.

mod document;
mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod metrics;
mod ring;
mod server;

use std::{
    collections::HashMap,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use cql_edit::{
    Transform,
    protect::{Columns, Failures, Fate, KeySet, NONCE_BYTES, Protect, Vault},
};
use hyper::Uri;
pub use metrics::ProtectMetrics;
use ring::Ring;
pub use ring::Rings;
use serde::Deserialize;

use crate::duration;

/// The step's name in the configuration.
pub const NAME: &str = "protect";

/// The default of `refresh`: the interval at which a key server is asked.
const REFRESH: Duration = Duration::from_secs(60);

/// The default of `max_age`: the time for which its keys are good without an answer.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// The default of `timeout`: the time that an answer may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The least value of each of these settings; `MOST` is the greatest.
const LEAST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Encrypts columns. Needs `fail = "closed"`, and either `keys` or `kms`.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{
    "columns": {"shop.customers": ["iban"]}, "keys": "/etc/underpass/keys.toml"
}]))]
pub struct ProtectSettings {
    /// Columns that are encrypted, by `keyspace.table`.
    #[schemars(extend("minProperties" = 1))]
    pub columns: HashMap<String, Vec<String>>,
    /// File with keys. `${NAME}` in its path is a variable of the agent's environment.
    #[schemars(with = "Option<String>", extend("title" = "absolute path", "examples" = ["/etc/underpass/keys.toml"]))]
    pub keys: Option<PathBuf>,
    /// URL of a key server on this host's loopback address.
    #[schemars(extend("title" = "http://IP:PORT/PATH", "examples" = ["http://127.0.0.1:8200/keys"]))]
    pub kms: Option<String>,
    /// Time between two requests to the key server.
    #[schemars(
        regex(pattern = "^[0-9]+(ms|s|m)$"),
        extend("title" = "duration", "default" = "60s", "x-min" = "100ms", "x-beside" = "kms")
    )]
    pub refresh: Option<String>,
    /// Time for which keys are used without an answer of the key server. Longer than `refresh`.
    #[schemars(
        regex(pattern = "^[0-9]+(ms|s|m)$"),
        extend("title" = "duration", "default" = "60m", "x-max" = "10080m", "x-beside" = "kms")
    )]
    pub max_age: Option<String>,
    /// Time that the key server may take to answer.
    #[schemars(
        regex(pattern = "^[0-9]+(ms|s|m)$"),
        extend("title" = "duration", "default" = "2s", "x-min" = "100ms", "x-max" = "10080m", "x-beside" = "kms")
    )]
    pub timeout: Option<String>,
    /// Answer if a result has a value that was stored in plain.
    #[serde(default)]
    pub unencrypted: Otherwise,
    /// Answer if a result has a value whose key is missing.
    #[serde(default)]
    pub on_failure: Otherwise,
}

/// Answer if a result has a value that cannot be decrypted.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, serde::Serialize, schemars::JsonSchema, PartialEq, Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum Otherwise {
    /// An error in place of the result.
    #[default]
    Error,
    /// The result, with the value as it is stored.
    Pass,
}

/// The origin of keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    File(PathBuf),
    Server(Server),
}

/// A key server, and how it is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    url: String,
    refresh: Duration,
    max_age: Duration,
    timeout: Duration,
}

impl Origin {
    /// Names the origin for people.
    fn shown(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Server(server) => server.url.clone(),
        }
    }
}

impl ProtectSettings {
    /// Makes the step, and the source of its keys, which has to be opened before the step is in
    /// force.
    ///
    /// # Errors
    /// Names the bad setting, and what it should be.
    pub fn build(self) -> Result<(Arc<dyn Transform>, Arc<Source>), String> {
        let columns = Columns::new(&self.columns)?;
        let failures = Failures {
            unencrypted_passes: self.unencrypted == Otherwise::Pass,
            keyless_passes: self.on_failure == Otherwise::Pass,
        };
        let source = Arc::new(Source {
            from: self.origin()?,
            open: OnceLock::new(),
        });
        let step = Protect::new(columns, failures, source.clone());
        Ok((Arc::new(step), source))
    }

    fn origin(self) -> Result<Origin, String> {
        let of_server = [&self.refresh, &self.max_age, &self.timeout];
        match (self.keys, self.kms) {
            (Some(path), None) => {
                if of_server.iter().any(|setting| setting.is_some()) {
                    return Err(
                        "`refresh`, `max_age` and `timeout` are for a `kms`: expected none with `keys`"
                            .to_owned(),
                    );
                }
                let path = trusted::secret_path(&path);
                path.map(Origin::File).map_err(|why| format!("keys: {why}"))
            }
            (None, Some(url)) => {
                let server = Server {
                    url: url_of(&url)?,
                    refresh: lasting("refresh", self.refresh, REFRESH)?,
                    max_age: lasting("max_age", self.max_age, MAX_AGE)?,
                    timeout: lasting("timeout", self.timeout, TIMEOUT)?,
                };
                match server.max_age > server.refresh {
                    true => Ok(Origin::Server(server)),
                    false => Err("max_age: expected more than `refresh`".to_owned()),
                }
            }
            _ => Err("expected one of `keys` and `kms`".to_owned()),
        }
    }
}

fn lasting(key: &str, text: Option<String>, otherwise: Duration) -> Result<Duration, String> {
    let Some(text) = text else {
        return Ok(otherwise);
    };
    match duration(&text) {
        Some(long) if (LEAST..=MOST).contains(&long) => Ok(long),
        _ => Err(format!(
            "{key}: expected milliseconds, seconds or minutes, from `100ms` to a week: `500ms`, `2s`, `60m`; \
             found {text:?}"
        )),
    }
}

/// Reads a URL without TLS, which therefore has to be on this host.
fn url_of(text: &str) -> Result<String, String> {
    let expected = || {
        format!(
            "kms: expected `http://IP:PORT/PATH` on this host's loopback, because keys travel without TLS: \
             for a key server elsewhere have a process on this host ask it; found {text:?}"
        )
    };
    let uri: Uri = text.parse().map_err(|_| expected())?;
    let is_here = uri.authority().is_some_and(|authority| {
        let host = authority.host().trim_matches(['[', ']']);
        host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            && !authority.as_str().contains('@')
            && authority.port_u16().is_some_and(|port| port > 0)
    });
    match is_here && uri.scheme_str() == Some("http") {
        true => Ok(uri.to_string()),
        false => Err(expected()),
    }
}

/// The source of a step's keys.
#[derive(Debug)]
pub struct Source {
    from: Origin,
    /// The ring of keys. None before the source is opened: no rule is in force then.
    open: OnceLock<Arc<Ring>>,
}

impl Source {
    /// Reads the keys of a file, or starts to ask the key server. If the file was read before, its
    /// present keys are for all flows.
    ///
    /// # Errors
    /// The file cannot be used. The keys of before stay.
    pub fn open(&self, rings: &Rings) -> Result<(), String> {
        let _ = self.open.set(rings.open(&self.from)?);
        Ok(())
    }

    /// Reads the keys that are in a file, and asks no server. Returns the doubt that is left if there is one to be asked.
    ///
    /// # Errors
    /// The file, and why it cannot be used.
    pub fn read(&self, rings: &Rings) -> Result<Option<String>, String> {
        match &self.from {
            Origin::File(_) => self.open(rings).map(|()| None),
            Origin::Server(server) => Ok(Some(format!(
                "the keys of {} are not asked for here",
                server.url
            ))),
        }
    }
}

impl Vault for Source {
    fn keys(&self) -> Option<Arc<KeySet>> {
        self.open.get()?.keys()
    }

    fn nonce(&self) -> Option<[u8; NONCE_BYTES]> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).ok()?;
        Some(nonce)
    }

    fn misses(&self, _: &str) {
        if let Some(ring) = self.open.get() {
            ring.hurry();
        }
    }

    fn count(&self, fate: Fate, values: u64) {
        if let Some(ring) = self.open.get() {
            ring.metrics().count(fate, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(settings: &str) -> Result<Origin, String> {
        let text = format!("columns = {{ \"shop.customers\" = [\"iban\"] }}\n{settings}");
        let settings: ProtectSettings =
            toml::from_str(&text).map_err(|e| e.message().to_owned())?;
        settings.build().map(|(_, source)| source.from.clone())
    }

    #[test]
    fn keys_come_from_a_file_or_a_server_on_this_host() {
        let file = built("keys = \"/etc/underpass/keys.toml\"").unwrap();
        assert_eq!(file.shown(), "/etc/underpass/keys.toml");
        let server = "kms = \"http://127.0.0.1:8200/keys?of=shop\"\nrefresh = \"500ms\"\n\
                      max_age = \"60m\"\ntimeout = \"1s\"";
        let Origin::Server(server) = built(server).unwrap() else {
            panic!("a server")
        };
        assert_eq!(server.url, "http://127.0.0.1:8200/keys?of=shop");
        assert_eq!(server.refresh, Duration::from_millis(500));
        assert!(built("kms = \"http://[::1]:8200/\"").is_ok());
    }

    #[test]
    fn a_mistake_is_named() {
        for (settings, expected) in [
            ("", "one of `keys` and `kms`"),
            (
                "keys = \"/k\"\nkms = \"http://127.0.0.1:1/\"",
                "one of `keys` and `kms`",
            ),
            ("keys = \"k\"", "keys: expected an absolute path"),
            ("keys = \"/k\"\nrefresh = \"1s\"", "are for a `kms`"),
            ("kms = \"https://127.0.0.1:1/\"", "kms: expected `http"),
            ("kms = \"http://10.0.0.1:8200/\"", "loopback"),
            ("kms = \"http://vault:8200/\"", "loopback"),
            ("kms = \"http://me:pw@127.0.0.1:8200/\"", "loopback"),
            ("kms = \"http://127.0.0.1/\"", "loopback"),
            (
                "kms = \"http://127.0.0.1:1/\"\ntimeout = \"0s\"",
                "timeout: expected milliseconds",
            ),
            (
                "kms = \"http://127.0.0.1:1/\"\nmax_age = \"60s\"",
                "max_age: expected more than `refresh`",
            ),
            ("keys = \"/k\"\nunencrypted = \"maybe\"", "unknown variant"),
            ("keys = \"/k\"\nactive = \"a\"", "unknown field"),
        ] {
            let error = built(settings).unwrap_err();
            assert!(error.contains(expected), "{settings}: {error}");
        }
        for columns in [
            "{}",
            "{ customers = [\"iban\"] }",
            "{ \"a.b\" = [] }",
            "{ \"a.b*\" = [\"c\"] }",
        ] {
            let text = format!("columns = {columns}\nkeys = \"/k\"");
            let settings: ProtectSettings = toml::from_str(&text).unwrap();
            let error = settings.build().unwrap_err();
            assert!(
                error.contains("columns: expected \"keyspace.table\""),
                "{error}"
            );
        }
    }
}
