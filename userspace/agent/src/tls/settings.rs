//! What a rule says of TLS.

use std::path::PathBuf;

use rustls::pki_types::ServerName;
use serde::Deserialize;

/// A rule's `tls` and `upstream_tls`; one of them is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `tls`
    pub accept: Option<Accepting>,
    /// `upstream_tls`
    pub dial: Option<Dialling>,
}

/// Towards clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepting {
    /// The chain that clients are shown, the agent's own certificate first.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who has to have signed a client's certificate. None: clients need none.
    pub client_ca: Option<PathBuf>,
    /// Clients that do not encrypt are refused.
    pub required: bool,
}

/// Towards databases, and whoever else the agent connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dialling {
    /// Who has to have signed the other side's certificate.
    pub ca: PathBuf,
    /// Whose certificate it has to be. None: his whom the client has named, or else the address's.
    pub server_name: Option<ServerName<'static>>,
    /// The certificate and the key that it is shown.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// As in the configuration: `upstream_tls` of a rule, `tls` of a step that connects to somebody.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawDialling {
    ca: String,
    server_name: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl RawDialling {
    /// What it means. No file is looked at.
    ///
    /// # Errors
    /// Which key is wrong, and what it should be.
    pub fn read(self) -> Result<Dialling, String> {
        let own = match (self.cert, self.key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((file("cert", cert)?, file("key", key)?)),
            _ => {
                let one = "`cert` and `key`, or neither; found one of them";
                return Err(format!("expected both {one}"));
            }
        };
        let name = self.server_name.map(|name| {
            ServerName::try_from(name.clone()).map_err(|_| {
                format!(
                    "server_name: expected a name or an address, as in the other side's certificate; found {name:?}"
                )
            })
        });
        Ok(Dialling {
            ca: file("ca", self.ca)?,
            server_name: name.transpose()?,
            own,
        })
    }
}

/// A file's path.
///
/// # Errors
/// It depends on where the agent was started.
pub fn file(key: &str, path: String) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    match path.is_absolute() {
        true => Ok(path),
        false => Err(format!("{key}: expected an absolute path; found {path:?}")),
    }
}
