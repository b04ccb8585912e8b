//! The settings of a cluster.

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc};

use policy::Domain;
use tls::Dialling;
use zeroize::Zeroizing;

use crate::Failure;

/// Clusters in one policy file: each is a connection that stays.
pub const MAX_CLUSTERS: usize = 16;

/// Contact points of a cluster. Drivers are given three.
pub const MAX_CONTACT_POINTS: usize = 16;

/// Data centres of a cluster that rules are for.
pub const MAX_DATACENTERS: usize = 16;

/// Bytes of a file with a password, and line ends.
const MAX_PASSWORD_FILE_BYTES: u64 = 4_096 + 2;

/// A cluster: where it is, and who reads its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// The name in rules.
    pub name: Arc<str>,
    /// Nodes that are asked first.
    pub contact_points: Vec<ContactPoint>,
    /// The user who logs in; none, where the cluster lets anybody in.
    pub login: Option<Login>,
    /// TLS towards the nodes.
    pub tls: Option<Dialling>,
    /// The data centres whose nodes count; all, when there are none.
    pub datacenters: Vec<String>,
}

/// A node that is asked first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContactPoint {
    /// At an address.
    At(SocketAddr),
    /// At each address of a host, at this port.
    Host(Domain, u16),
}

/// A user and the file with the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The file whose one line is the password. It is read for each connection, so that it may change.
    pub password_file: PathBuf,
}

impl Login {
    /// The body of the AUTH_RESPONSE that logs in.
    pub(super) fn auth_response(&self) -> Result<Zeroizing<Vec<u8>>, Failure> {
        let cannot = |why: &dyn std::fmt::Display| {
            Failure::NoNode(format!(
                "password_file: {}: {why}",
                self.password_file.display()
            ))
        };
        let text = trusted::read_text(&self.password_file, MAX_PASSWORD_FILE_BYTES);
        let text = Zeroizing::new(text.map_err(|why| cannot(&why))?);
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(cannot(&io::Error::other("expected a password in one line"))),
            password => Ok(cql_client::auth_response(&self.user, password)),
        }
    }
}

impl std::str::FromStr for ContactPoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "an address or a host, and its port: `10.1.0.1:9042`, `[fd00::1]:9042`, `db.shop:9042`"
                .to_owned()
        };
        if let Ok(at) = text.parse::<SocketAddr>() {
            let can_be_dialled = at.port() != 0 && !at.ip().is_unspecified();
            return can_be_dialled.then_some(Self::At(at)).ok_or_else(wrong);
        }
        match policy::Destination::parse(text) {
            Ok(policy::Destination::Named(target)) => {
                match (target.name, target.ports.as_slice()) {
                    (policy::Name::Host(domain), [port]) => Ok(Self::Host(domain, *port)),
                    _ => Err(wrong()),
                }
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_point_is_an_address_or_a_host_with_one_port() {
        for good in ["10.1.0.1:9042", "[fd00::1]:9042", "db.shop:9042", "db:9042"] {
            assert!(good.parse::<ContactPoint>().is_ok(), "{good}");
        }
        for bad in [
            "10.1.0.1",
            "10.1.0.0/16:9042",
            ":9042",
            "db.shop",
            "db:9042-9043",
            "0.0.0.0:9042",
            "cluster:x",
            "_cql._tcp.x",
        ] {
            assert!(bad.parse::<ContactPoint>().is_err(), "{bad}");
        }
    }
}
