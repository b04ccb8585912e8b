//! Where etcd is, and how it is reached.

use std::path::PathBuf;

use tls::{Dialling, Outward};
use tonic::transport::Uri;

use crate::Failure;

/// Members that can be named. Clusters have three or five, seven at most.
pub const MAX_ENDPOINTS: usize = 16;

/// The protocol that ALPN names for gRPC.
const PROTOCOL: &str = "h2";

/// The longest password.
const MAX_PASSWORD_BYTES: u64 = 4096;

/// The settings of a fleet's etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The members, of which one is asked at a time.
    pub endpoints: Vec<Endpoint>,
    /// The key beneath which the fleet's policy is.
    pub prefix: String,
    /// The user. None: etcd asks for none.
    pub login: Option<Login>,
    /// The certificates. Some exactly if the endpoints are `https`.
    pub tls: Option<Dialling>,
}

/// A user of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The name.
    pub user: String,
    /// The file with the password, in which a line's end does not count.
    pub password_file: PathBuf,
}

/// A member's `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    authority: String,
    host: String,
    is_encrypted: bool,
}

impl Endpoint {
    /// Reads a setting.
    ///
    /// # Errors
    /// Says what it should be.
    pub fn parse(text: &str) -> Result<Self, String> {
        // A log-in would be in every log.
        let found = match text.contains('@') {
            true => "a log-in, which `user` and `password_file` have".to_owned(),
            false => format!("{text:?}"),
        };
        let expected = || {
            format!(
                "expected `http://HOST:PORT` or `https://HOST:PORT`, where clients reach a member of etcd, such as \
                 `https://etcd1.example:2379`; found {found}"
            )
        };
        let uri: Uri = text.parse().map_err(|_| expected())?;
        let is_encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(expected()),
        };
        let is_bare = uri.path() == "/" && uri.query().is_none();
        let authority = uri.authority().filter(|authority| {
            is_bare
                && !authority.host().is_empty()
                && !authority.as_str().contains('@')
                && authority.port_u16().is_some_and(|port| port > 0)
        });
        let authority = authority.ok_or_else(expected)?;
        Ok(Self {
            authority: authority.as_str().to_owned(),
            host: authority.host().to_owned(),
            is_encrypted,
        })
    }

    /// Whether the member is reached by TLS.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Whether the member is on this host.
    pub fn is_here(&self) -> bool {
        matches!(self.host.as_str(), "127.0.0.1" | "[::1]" | "localhost")
    }

    /// Returns `HOST:PORT`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }
}

impl Settings {
    /// Reads certificates and password, only to check whether they can be used.
    ///
    /// # Errors
    /// Names the bad file, and the reason.
    pub fn read_secrets(&self) -> Result<(), Failure> {
        for endpoint in &self.endpoints {
            self.outward(endpoint)?;
        }
        self.password().map(drop)
    }

    /// Reads the certificates as they are now.
    pub(crate) fn outward(&self, to: &Endpoint) -> Result<Option<Outward>, Failure> {
        let load = |tls| Outward::load(tls, to.host(), Some(PROTOCOL));
        let loaded = self.tls.as_ref().map(load).transpose();
        loaded.map_err(|why| Failure::Tls(to.authority.clone(), std::io::Error::other(why)))
    }

    /// Reads the user's password as it is now.
    pub(crate) fn password(&self) -> Result<Option<(String, zeroize::Zeroizing<String>)>, Failure> {
        let Some(login) = &self.login else {
            return Ok(None);
        };
        let text = trusted::read_text(&login.password_file, MAX_PASSWORD_BYTES);
        let text = zeroize::Zeroizing::new(text.map_err(|why| Failure::Password(why.to_string()))?);
        let password = text.trim_end_matches(['\r', '\n']).to_owned();
        Ok(Some((login.user.clone(), password.into())))
    }
}
