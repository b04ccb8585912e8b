//! TLS on connections that the agent makes for itself: to collectors and mirrors.

use std::{io, sync::Arc};

use parking_lot::Mutex;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Dialling, Failure};

/// The certificates of such connections, and the name that the other side's certificate must have.
#[derive(Debug)]
pub struct Outward {
    name: ServerName<'static>,
    config: Mutex<Arc<ClientConfig>>,
}

impl Outward {
    /// Reads the files. `host`: a name or an address, which the other side's certificate must have
    /// if the settings do not name another. `protocol`: the protocol that ALPN names.
    ///
    /// # Errors
    /// Names the key and the file, and the mistake in it, in one line.
    pub fn load(
        settings: &Dialling,
        host: &str,
        protocol: Option<&'static str>,
    ) -> Result<Self, String> {
        let name = match &settings.server_name {
            Some(name) => name.clone(),
            None => name_of(host)?,
        };
        let made = super::dial(settings).map_err(|e| format!("tls.{e}"))?;
        let mut config = Arc::unwrap_or_clone(made.config);
        config.alpn_protocols = protocol.iter().map(|p| p.as_bytes().to_vec()).collect();
        Ok(Self {
            name,
            config: Mutex::new(Arc::new(config)),
        })
    }

    /// Takes over the certificates of another with the same settings, from the next connection on:
    /// the files may have changed.
    pub fn renew(&self, by: &Self) {
        let newer = by.config();
        *self.config.lock() = newer;
    }

    /// Does the handshake. The caller sets the deadline.
    ///
    /// # Errors
    /// The connection has failed, or the other side's certificate is not accepted: that is
    /// [`io::ErrorKind::InvalidData`], with advice.
    pub async fn begin(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::from(self.config());
        let begun = connector.connect(self.name.clone(), stream).await;
        begun.map_err(explained)
    }

    fn config(&self) -> Arc<ClientConfig> {
        let config = self.config.lock();
        config.clone()
    }
}

fn name_of(host: &str) -> Result<ServerName<'static>, String> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let name = ServerName::try_from(bare.unwrap_or(host).to_owned());
    name.map_err(|_| {
        format!("tls: expected `server_name`, because no certificate can be {host:?}'s")
    })
}

/// Adds advice to rustls's error.
fn explained(error: io::Error) -> io::Error {
    let found = error.get_ref().and_then(|e| e.downcast_ref());
    let Some(found) = found else {
        return error;
    };
    let advice = match Failure::of(found) {
        Failure::UnknownIssuer => "have `ca` of its `tls` hold who signed its certificate",
        Failure::WrongName => "set `server_name` of its `tls` to a name in its certificate",
        Failure::Expired => "give it a certificate that is valid today",
        Failure::Alert => "does it want a certificate (`cert` and `key` of its `tls`)?",
        Failure::Malformed => "does it speak TLS at that port?",
        _ => "look at its side",
    };
    io::Error::new(io::ErrorKind::InvalidData, format!("{found}: {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address() {
        for (host, name) in [
            ("collector.example", "collector.example"),
            ("10.0.0.9", "10.0.0.9"),
            ("[::1]", "::1"),
        ] {
            assert_eq!(name_of(host).unwrap().to_str(), name);
        }
        let refused = name_of("under_score..").unwrap_err();
        assert!(refused.contains("expected `server_name`"), "{refused}");
    }
}
