//! The identity of a flow: everything by which the database could tell flows apart in its answers.
//! Flows share a connection only if their identities are equal.

use std::{
    fmt,
    hash::{Hash, Hasher},
    net::SocketAddr,
    sync::Arc,
};

use cql_edit::Opening;
use tls::Towards;

/// Everything that flows must have in common to share a connection.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) database: SocketAddr,
    /// The encryption of the flows' own connections. A flow without TLS shares with none that has
    /// TLS, nor flows with different names or certificates.
    pub(super) towards: Towards,
    /// Whether their rule lets the database's sockets into a sockmap.
    pub(super) skips_tcp: bool,
    pub(super) keyspace: Option<Box<str>>,
    /// The opening of the first flow.
    pub(super) opening: Arc<Opening>,
    /// The options that the STARTUP asks for, in order, except those that [describe the
    /// client](DESCRIPTIVE).
    asks: Box<[u8]>,
}

/// The prefixes of STARTUP options that change nothing and are only shown to operators. All other
/// options have to be equal, those that only one database knows among them.
const DESCRIPTIVE: [&[u8]; 3] = [b"DRIVER_", b"APPLICATION_", b"CLIENT_ID"];

impl Identity {
    /// Makes the identity of a flow. `None`: its STARTUP cannot be read.
    pub(super) fn of(
        (database, towards): (SocketAddr, &Towards),
        skips_tcp: bool,
        keyspace: Option<&str>,
        opening: &Arc<Opening>,
    ) -> Option<Self> {
        Some(Self {
            database,
            towards: towards.clone(),
            skips_tcp,
            keyspace: keyspace.map(Box::from),
            opening: opening.clone(),
            asks: asks(&opening.startup)?,
        })
    }
}

/// Reads the options from a `[string map]`.
fn asks(startup: &[u8]) -> Option<Box<[u8]>> {
    let (count, mut rest) = startup.split_first_chunk::<2>()?;
    let mut options: Vec<(&[u8], &[u8])> = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (name, behind) = string(rest)?;
        let (value, behind) = string(behind)?;
        rest = behind;
        // With the bytes of their lengths.
        let plain = name.get(2..).unwrap_or_default().to_ascii_uppercase();
        if !DESCRIPTIVE.iter().any(|begins| plain.starts_with(begins)) {
            options.push((name, value));
        }
    }
    // An option that is there twice counts by its position.
    options.sort_by_key(|(name, _)| *name);
    let options = options.iter().flat_map(|(name, value)| [*name, *value]);
    rest.is_empty()
        .then(|| options.collect::<Vec<_>>().concat().into())
}

/// Splits off a `[string]` with its length.
fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = bytes.first_chunk::<2>()?;
    bytes.split_at_checked(2 + usize::from(u16::from_be_bytes(*length)))
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        let (own, others) = (&self.opening, &other.opening);
        self.database == other.database
            && self.towards == other.towards
            && self.skips_tcp == other.skips_tcp
            && self.keyspace == other.keyspace
            && self.asks == other.asks
            && own.version == others.version
            && own.compression == others.compression
            && match (&own.token, &others.token) {
                (None, None) => true,
                (Some(own), Some(others)) => is_same(own, others),
                _ => false,
            }
    }
}

impl Eq for Identity {}

/// Compares in a time that depends only on the lengths.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b));
    a.len() == b.len() && differ == 0
}

/// The hash contains a token, so the table's hash has to be keyed at random, as that of a `HashMap`
/// is. `towards` and `skips_tcp` are left out: few identities differ in them alone.
impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.database.hash(state);
        self.keyspace.hash(state);
        self.asks.hash(state);
        self.opening.version.hash(state);
        self.opening.compression.hash(state);
        self.opening.token.as_deref().hash(state);
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut identity = f.debug_struct("Identity");
        identity.field("database", &self.database);
        identity.field("towards", &self.towards);
        identity.field("keyspace", &self.keyspace);
        identity.field("opening", &self.opening).finish()
    }
}

#[cfg(test)]
#[expect(
    clippy::mutable_key_type,
    reason = "what can change of a configuration is not compared"
)]
mod tests {
    use std::collections::HashSet;

    use cql::Compression;

    use super::*;

    fn startup(options: &[(&str, &str)]) -> Vec<u8> {
        let mut body = (options.len() as u16).to_be_bytes().to_vec();
        for text in options.iter().flat_map(|(name, value)| [name, value]) {
            body.extend((text.len() as u16).to_be_bytes());
            body.extend(text.as_bytes());
        }
        body
    }

    fn identity(options: &[(&str, &str)], token: Option<&str>, keyspace: Option<&str>) -> Identity {
        identity_towards(&Towards::Plain, options, token, keyspace)
    }

    fn identity_towards(
        towards: &Towards,
        options: &[(&str, &str)],
        token: Option<&str>,
        keyspace: Option<&str>,
    ) -> Identity {
        let opening = Opening {
            version: 5,
            compression: Compression::None,
            startup: startup(options).into(),
            token: token.map(|token| token.as_bytes().to_vec().into()),
        };
        let at = ([127, 0, 0, 1], 9042).into();
        Identity::of((at, towards), false, keyspace, &Arc::new(opening)).unwrap()
    }

    #[test]
    fn flows_that_ask_for_the_same_are_alike() {
        let version = ("CQL_VERSION", "3.0.0");
        let one = identity(&[version, ("DRIVER_NAME", "a")], Some("t"), Some("k"));
        let all: HashSet<Identity> = [
            one.clone(),
            identity(&[("driver_version", "9"), version], Some("t"), Some("k")),
            identity(
                &[version, ("CLIENT_ID", "1"), ("APPLICATION_NAME", "x")],
                Some("t"),
                Some("k"),
            ),
        ]
        .into();
        assert_eq!(all.len(), 1);
        for other in [
            identity(&[version], Some("u"), Some("k")),
            identity(&[version], Some("tt"), Some("k")),
            identity(&[version], None, Some("k")),
            identity(&[version], Some("t"), None),
            identity(&[version], Some("t"), Some("l")),
            identity(&[version, ("THROW_ON_OVERLOAD", "1")], Some("t"), Some("k")),
            identity(&[("CQL_VERSION", "3.4.7")], Some("t"), Some("k")),
        ] {
            assert_ne!(one, other);
            assert!(!all.contains(&other));
        }
        assert!(!format!("{one:?}").contains("116"), "its token is shown");
    }

    #[test]
    fn flows_to_another_database_or_in_another_wire_are_not_alike() {
        let of = |database: [u8; 4], port, version, compression| {
            let opening = Opening {
                version,
                compression,
                startup: startup(&[]).into(),
                token: None,
            };
            let at = (database, port).into();
            Identity::of((at, &Towards::Plain), false, None, &Arc::new(opening)).unwrap()
        };
        let one = || of([127, 0, 0, 1], 9042, 4, Compression::None);
        let all: HashSet<Identity> = [one(), one()].into();
        assert_eq!(all.len(), 1);
        for other in [
            of([127, 0, 0, 2], 9042, 4, Compression::None),
            of([127, 0, 0, 1], 9043, 4, Compression::None),
            of([127, 0, 0, 1], 9042, 5, Compression::None),
            of([127, 0, 0, 1], 9042, 4, Compression::Lz4),
        ] {
            assert_ne!(one(), other);
            assert!(!all.contains(&other));
        }
    }

    #[test]
    fn who_is_encrypted_shares_with_those_of_one_name_and_one_configuration() {
        let configs = [(); 2].map(|()| {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let builder = rustls::ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap();
            let builder = builder.with_root_certificates(rustls::RootCertStore::empty());
            Arc::new(builder.with_no_client_auth())
        });
        let of = |towards: &Towards| identity_towards(towards, &[], Some("t"), Some("k"));
        let tls = |config: usize, name: &'static str| {
            of(&Towards::tls(&configs[config], &name.try_into().unwrap()))
        };
        let one = tls(0, "a.example");
        let all: HashSet<Identity> = [one.clone(), tls(0, "A.example")].into();
        assert_eq!(all.len(), 1);
        for other in [
            tls(0, "b.example"),
            tls(1, "a.example"),
            of(&Towards::Plain),
        ] {
            assert_ne!(one, other);
            assert!(!all.contains(&other));
        }
    }

    #[test]
    fn what_is_no_map_is_nobodys() {
        for bad in [
            &b""[..],
            b"\0",
            b"\0\x01\0\x01a",
            b"\0\0x",
            b"\0\x01\0\x09a\0\0",
        ] {
            assert_eq!(asks(bad), None, "{bad:?}");
        }
    }
}
