//! What a rule says of TLS.

use std::path::PathBuf;

use rustls::pki_types::ServerName;

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

/// Towards databases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialling {
    /// Who has to have signed a database's certificate.
    pub ca: PathBuf,
    /// Whose certificate it has to be. None: his whom the client has named, or else the address's.
    pub server_name: Option<ServerName<'static>>,
    /// The certificate and the key that databases are shown.
    pub own: Option<(PathBuf, PathBuf)>,
}
