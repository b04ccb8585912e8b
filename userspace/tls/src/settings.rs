//! The TLS settings of a rule.

use std::path::PathBuf;

use rustls::pki_types::ServerName;
use serde::Deserialize;

/// The settings `tls` and `upstream_tls` of a rule, of which at least one is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// How TLS ends in the agent (`tls`).
    pub accept: Option<Accepting>,
    /// How TLS begins towards the databases (`upstream_tls`).
    pub dial: Option<Dialling>,
}

/// The settings towards clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepting {
    /// The chain that clients are shown, the agent's own certificate first.
    pub cert: PathBuf,
    /// The key of that certificate.
    pub key: PathBuf,
    /// The authorities that may have signed a client's certificate. None: clients need no
    /// certificate.
    pub client_ca: Option<PathBuf>,
    /// Whether clients that do not encrypt are refused.
    pub required: bool,
}

/// The settings towards databases, and other servers that the agent connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dialling {
    /// The authorities that may have signed the other side's certificate.
    pub ca: PathBuf,
    /// The name that the other side's certificate must have. None: the name that the client has
    /// asked for, or else the address.
    pub server_name: Option<ServerName<'static>>,
    /// The agent's own certificate and key.
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
    /// File with the private key (PEM) of `cert`. `${NAME}` in its path is a variable of the agent's environment.
    #[schemars(extend("title" = "absolute path", "examples" = ["/etc/underpass/agent.key"]))]
    key: Option<String>,
}

impl RawDialling {
    /// Reads the settings. No file is looked at.
    ///
    /// # Errors
    /// Names the wrong key, and what it should be.
    pub fn read(self) -> Result<Dialling, String> {
        let own = match (self.cert, self.key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((file("cert", cert)?, secret("key", key)?)),
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

/// Checks the path of a file with a secret, in which variables of the environment may stand.
///
/// # Errors
/// The path depends on where the agent was started, or on a variable that is not there.
pub fn secret(key: &str, path: String) -> Result<PathBuf, String> {
    trusted::secret_path(&PathBuf::from(path)).map_err(|why| format!("{key}: {why}"))
}

/// Checks a file's path.
///
/// # Errors
/// The path depends on where the agent was started.
pub fn file(key: &str, path: String) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    match path.is_absolute() {
        true => Ok(path),
        false => Err(format!("{key}: expected an absolute path; found {path:?}")),
    }
}
