//! The view of an encrypted connection.

use std::fmt;

use rustls::{Connection, pki_types::CertificateDer};
use serde::Serialize;

use super::Side;

/// The most names of a certificate that are shown.
const MAX_NAMES: usize = 8;

/// The longest name that is shown. A DNS name is no longer (RFC 1035 §2.3.4); a URI may be, and is
/// cut.
const MAX_NAME_CHARS: usize = 255;

/// The TLS that is seen on a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// The client's connection to the agent. Absent: it is not encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<SeenBy>,
    /// The agent's connection to the database. Absent: it is not encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub database: Option<SeenBy>,
}

/// The TLS of one connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SeenBy {
    /// The version: `1.2`, `1.3`.
    pub version: &'static str,
    /// The cipher's name as IANA spells it.
    pub cipher: String,
    /// DNS names and URIs in the other side's certificate, which was verified. Absent: there was no
    /// certificate, or it has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peer: Vec<String>,
}

impl Seen {
    /// Returns the view of this side.
    pub fn side(&mut self, side: Side) -> &mut Option<SeenBy> {
        match side {
            Side::Client => &mut self.client,
            Side::Database => &mut self.database,
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sides = [("client", &self.client), ("database", &self.database)];
        let mut between = "";
        for (side, seen) in sides {
            if let Some(seen) = seen {
                write!(f, "{between}TLS {} with the {side}", seen.version)?;
                between = ", ";
            }
        }
        Ok(())
    }
}

impl SeenBy {
    /// Describes a connection whose handshake is over.
    pub fn of(connection: &Connection) -> Self {
        let version = match connection.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => "1.2",
            Some(rustls::ProtocolVersion::TLSv1_3) => "1.3",
            _ => "",
        };
        let cipher = connection.negotiated_cipher_suite();
        let cipher = cipher.and_then(|c| c.suite().as_str());
        let first = connection.peer_certificates().and_then(<[_]>::first);
        Self {
            version,
            cipher: cipher.unwrap_or_default().to_owned(),
            peer: first.map_or_else(Vec::new, names),
        }
    }
}

fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let names = certificate.valid_dns_names();
    let names = names.chain(certificate.valid_uri_names());
    // The authority that signed the certificate may have let control characters through.
    let shown = |name: &str| name.chars().take(MAX_NAME_CHARS).collect::<String>();
    names
        .take(MAX_NAMES)
        .map(|name| shown(name).replace(char::is_control, "?"))
        .collect()
}
