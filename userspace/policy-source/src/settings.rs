//! Where etcd is, and how it is reached.

use std::path::PathBuf;

use tls::{Dialling, Endpoint, Outward, Service};

use crate::Failure;

/// Members that can be named. Clusters have three or five, seven at most.
pub const MAX_ENDPOINTS: usize = 16;

/// The service that an endpoint is the address of.
pub const ETCD: Service = Service {
    place: "where clients reach a member of etcd",
    example: "https://etcd1.example:2379",
    login: "`user` and `password_file` have",
};

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
        loaded.map_err(|why| Failure::Tls(to.authority().to_owned(), std::io::Error::other(why)))
    }

    /// Reads the user's password as it is now.
    pub(crate) fn password(&self) -> Result<Option<(String, zeroize::Zeroizing<String>)>, Failure> {
        let Some(login) = &self.login else {
            return Ok(None);
        };
        let text = trusted::read_text(&login.password_file, MAX_PASSWORD_BYTES);
        let text = zeroize::Zeroizing::new(
            text.map_err(|why| Failure::Password(format!("password_file: {why}")))?,
        );
        let password = text.trim_end_matches(['\r', '\n']).to_owned();
        Ok(Some((login.user.clone(), password.into())))
    }
}
