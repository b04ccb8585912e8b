//! How a flow's own connection speaks to its database, for who makes another one that has to do the same.

use std::{fmt, io, sync::Arc};

use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{io::BufReader, net::TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Failure, Side};

/// Read from a socket at a time: rustls asks for 4 KiB, and so for a large answer often.
const READ_BYTES: usize = 64 << 10;

/// See the module. Two are equal if the database is shown, and has to show, the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Towards {
    /// As it is.
    Plain,
    /// Encrypted.
    Tls(Arc<Named>),
}

/// With which certificates, and whose the database's has to be.
pub struct Named {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Towards {
    /// Encrypted with a rule's certificates as they are at the moment, which is what another one has to have in common with it:
    /// from files that say something else by now comes another configuration.
    pub fn tls(config: &Arc<ClientConfig>, name: &ServerName<'static>) -> Self {
        Self::Tls(Arc::new(Named {
            config: config.clone(),
            name: name.clone(),
        }))
    }
}

impl Named {
    /// Shakes hands. Who waits has a deadline.
    ///
    /// # Errors
    /// The connection has failed, or the database is not whom it should be: that is [`io::ErrorKind::InvalidData`], and
    /// says what to do.
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

/// Why, and what to do about it.
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
        // Whoever has one of them keeps its address from being another's.
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
