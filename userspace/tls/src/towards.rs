//! A flow's encryption towards its database, for another connection that has to be the same.

use std::{fmt, io, sync::Arc};

use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{io::BufReader, net::TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Failure, Side};

/// The most bytes that are read from a socket at once. Rustls asks for 4 KiB, which takes many
/// calls for a large answer.
const READ_BYTES: usize = 64 << 10;

/// A flow's encryption towards its database. Two are equal if both sides of the connection have to
/// show the same certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Towards {
    /// No encryption.
    Plain,
    /// TLS.
    Tls(Arc<Named>),
}

/// The certificates of such connections, and the name that the database's certificate must have.
pub struct Named {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Towards {
    /// Describes encryption with a rule's certificates as they are now. Another connection must
    /// have the same: files that have changed make another configuration.
    pub fn tls(config: &Arc<ClientConfig>, name: &ServerName<'static>) -> Self {
        Self::Tls(Arc::new(Named {
            config: config.clone(),
            name: name.clone(),
        }))
    }
}

impl Named {
    /// Does the handshake. The caller sets the deadline.
    ///
    /// # Errors
    /// The connection has failed, or the database's certificate is not accepted: that is
    /// [`io::ErrorKind::InvalidData`], with advice.
    pub async fn begin(
        &self,
        stream: TcpStream,
    ) -> Result<TlsStream<BufReader<TcpStream>>, (Failure, io::Error)> {
        let connector = TlsConnector::from(self.config.clone());
        let stream = BufReader::with_capacity(READ_BYTES, stream);
        let begun = connector.connect(self.name.clone(), stream).await;
        begun.map_err(explained)
    }
}

/// Classifies the error, and adds advice to it.
fn explained(error: io::Error) -> (Failure, io::Error) {
    let found = error.get_ref().and_then(|e| e.downcast_ref());
    let failure = match found {
        Some(found) => Failure::of(found),
        None if error.kind() == io::ErrorKind::UnexpectedEof => Failure::Ended,
        None => Failure::Connection,
    };
    let told = format!("{error}: {}", failure.advice(Side::Database));
    (failure, io::Error::new(error.kind(), told))
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        // A live pointer's address cannot be another configuration's.
        Arc::ptr_eq(&self.config, &other.config) && self.name == other.name
    }
}

impl Eq for Named {}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut named = f.debug_struct("Named");
        named.field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rustls::{RootCertStore, crypto::ring};

    use super::*;

    fn config() -> Arc<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = builder.with_root_certificates(RootCertStore::empty());
        Arc::new(builder.with_no_client_auth())
    }

    fn tls(config: &Arc<ClientConfig>, name: &'static str) -> Towards {
        Towards::tls(config, &ServerName::try_from(name).unwrap())
    }

    #[test]
    fn it_is_the_same_of_one_configuration_and_one_name() {
        let (one, renewed) = (config(), config());
        let first = tls(&one, "db.example");
        assert_eq!(first, tls(&one, "db.example"));
        assert_eq!(first, tls(&one, "DB.example"), "a name has no case");
        assert_eq!(Towards::Plain, Towards::Plain);
        for other in [
            tls(&one, "other.example"),
            tls(&one, "127.0.0.1"),
            tls(&renewed, "db.example"),
            Towards::Plain,
        ] {
            assert_ne!(first, other);
        }
        assert_eq!(format!("{first:?}").matches("db.example").count(), 1);
    }
}
