//! Where the API server is, and how it is asked.

use std::{env, io, path::PathBuf};

use tls::{Dialling, Endpoint, Outward, Service};
use zeroize::Zeroizing;

use crate::Failure;

/// The protocol that ALPN names.
const PROTOCOL: &str = "h2";

/// The longest token. Those of service accounts have one KiB.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// The service that `server` is the address of.
pub const API_SERVER: Service = Service {
    place: "where the API server is reached",
    example: "https://10.0.0.1:6443",
    login: "`token_file` has",
};

/// The folder in which a pod finds its service account's token, and the authority of the API server's certificate.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The settings of a cluster's API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// The API server.
    pub server: Endpoint,
    /// The authority that has to have signed its certificate; and the agent's own certificate, if it has one.
    pub tls: Dialling,
    /// The file with the token, in which a line's end does not count. It is read for each request: tokens are short-lived. None: the
    /// agent's certificate says who it is.
    pub token_file: Option<PathBuf>,
    /// The node's name.
    pub node: String,
    /// The agent's own pod, of whose namespace statuses are. None: it is in none, and says nothing.
    pub pod: Option<OwnPod>,
}

#[cfg(test)]
impl KubernetesSettings {
    /// Settings of an API server that is never dialled.
    pub(super) fn of_a_test(pod: Option<OwnPod>) -> Self {
        Self {
            server: Endpoint::parse("https://127.0.0.1:1", API_SERVER).unwrap(),
            tls: Dialling {
                ca: "/ca".into(),
                server_name: None,
                own: None,
            },
            token_file: None,
            node: "n".to_owned(),
            pod,
        }
    }
}

impl KubernetesSettings {
    /// Reads certificates and token, only to check whether they can be used.
    ///
    /// # Errors
    /// Names the bad file, and the reason.
    pub fn read_secrets(&self) -> Result<(), Failure> {
        self.outward()?;
        self.token().map(drop)
    }

    /// Reads the certificates as they are now.
    pub(super) fn outward(&self) -> Result<Outward, Failure> {
        let loaded = Outward::load(&self.tls, self.server.host(), Some(PROTOCOL));
        let wrong = |why| Failure::Tls(self.server.authority().to_owned(), io::Error::other(why));
        loaded.map_err(wrong)
    }

    /// Reads the token as it is now.
    pub(super) fn token(&self) -> Result<Option<Zeroizing<String>>, Failure> {
        let Some(file) = &self.token_file else {
            return Ok(None);
        };
        let text = trusted::read_text(file, MAX_TOKEN_BYTES);
        let text = text.map_err(|why| Failure::Password(format!("token_file: {why}")))?;
        Ok(Some(Zeroizing::new(text)))
    }
}

/// The agent's own pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPod {
    /// The name.
    pub name: String,
    /// The namespace.
    pub namespace: String,
    /// The id.
    pub uid: String,
}

impl OwnPod {
    /// Reads the environment, in which the chart has it.
    pub fn of_environment() -> Option<Self> {
        let of = |name| env::var(name).ok().filter(|value| !value.is_empty());
        Some(Self {
            name: of("POD_NAME")?,
            namespace: of("POD_NAMESPACE")?,
            uid: of("POD_UID")?,
        })
    }
}

/// Returns the API server of the cluster whose pod this is: `https://HOST:PORT`. None: this is no pod.
pub fn in_cluster() -> Option<String> {
    let host = env::var("KUBERNETES_SERVICE_HOST").ok()?;
    let port = env::var("KUBERNETES_SERVICE_PORT").ok()?;
    let host = match host.contains(':') {
        true => format!("[{host}]"),
        false => host,
    };
    Some(format!("https://{host}:{port}"))
}
