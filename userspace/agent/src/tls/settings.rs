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

/// TLS on connections that the agent makes: `upstream_tls` of a rule, `tls` of a step that connects to a server.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"ca": "/etc/underpass/databases.crt"}]))]
pub struct RawDialling {
    /// File with the authorities (PEM) that have to have signed the server's certificate.
    #[schemars(extend("title" = "absolute path"))]
    ca: String,
    /// Name or address that the server's certificate has to be for. Without this key: the name that the client has
    /// sent, or else the address that is dialled.
    #[schemars(extend("examples" = ["db.example"]))]
    server_name: Option<String>,
    /// File with the certificate chain (PEM) that the server is shown. Needs `key`.
    #[schemars(extend("title" = "absolute path", "examples" = ["/etc/underpass/agent.crt"]))]
    cert: Option<String>,
    /// File with the private key (PEM) of `cert`.
    #[schemars(extend("title" = "absolute path", "examples" = ["/etc/underpass/agent.key"]))]
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
