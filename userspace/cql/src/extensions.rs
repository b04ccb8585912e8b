//! [`Extensions`]: extensions of the protocol that a client has asked for in its STARTUP, as far as they change frames
//! (`docs/dev/protocol-extensions.md` of ScyllaDB).
//!
//! A key of STARTUP changes something only if the server knows it, and a server says in SUPPORTED which ones it knows.
//! A key that was not offered is no extension, and one that was offered is in force. If SUPPORTED was not seen on the
//! same connection, a key that is not listed here may be an extension, and is taken for one.

use crate::wire::cursor::Cursor;
use crate::wire::header::Header;
use crate::wire::prelude::behind_prelude;

/// Bytes of a SUPPORTED that are looked at. Servers send less than a KiB.
pub const MAX_SUPPORTED_BYTES: usize = 64 << 10;

/// The keys of STARTUP that are no extensions: they change no frame, or are read elsewhere. In any case, as Cassandra
/// reads them.
const OPTIONS: [&str; 13] = [
    "CQL_VERSION",
    "COMPRESSION",
    "NO_COMPACT",
    "THROW_ON_OVERLOAD",
    "DRIVER_NAME",
    "DRIVER_VERSION",
    "APPLICATION_NAME",
    "APPLICATION_VERSION",
    "CLIENT_ID",
    // Drivers' own descriptions of themselves, as text for people.
    "CLIENT_OPTIONS",
    "DRIVER_BAGGAGE",
    "DRIVER_CONFIG",
    "SESSION_ID",
];

/// Extensions that change no part of a frame that is read here. The tablets' put an entry into the custom payload of
/// a RESULT, and V2 a byte behind the parameters of an EXECUTE; the mark is a bit of the flags of a PREPARED, the
/// others stand behind the message of an ERROR.
const HARMLESS: [&str; 7] = [
    "TABLETS_ROUTING_V1",
    "TABLETS_ROUTING_V2",
    "TABLETS_ROUTING_V2_EXPERIMENTAL",
    "TABLETS_ROUTING_V2_EXPERIMENTAL_V2",
    "SCYLLA_LWT_ADD_METADATA_MARK",
    "SCYLLA_RATE_LIMIT_ERROR",
    "SCYLLA_FAILURE_REASON_MAP",
];

/// PREPARED and EXECUTE have the id of the result's metadata, as in v5.
const METADATA_ID: &str = "SCYLLA_USE_METADATA_ID";

/// Extensions that a connection has begun with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// PREPARED and EXECUTE have the id of the result's metadata before v5, too.
    pub metadata_id: bool,
    /// Others may be in force that are not listed here: any frame may have another layout.
    pub unknown: bool,
}

/// The keys of a SUPPORTED.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered(Box<[Box<[u8]>]>);

impl Offered {
    /// Reads a SUPPORTED's body, a `[string multimap]`, without compression. `None`: the body is none, or is too long.
    pub fn read(body: &[u8]) -> Option<Self> {
        if body.len() > MAX_SUPPORTED_BYTES {
            return None;
        }
        let mut body = Cursor::new(body);
        let mut keys = Vec::new();
        for _ in 0..body.short()? {
            keys.push(body.short_bytes()?.into());
            for _ in 0..body.short()? {
                body.short_bytes()?;
            }
        }
        Some(Self(keys.into()))
    }

    fn has(&self, key: &[u8]) -> bool {
        let mut offered = self.0.iter();
        offered.any(|offered| offered.eq_ignore_ascii_case(key))
    }
}

impl Extensions {
    /// The extensions that may be in force where nothing is known.
    pub const UNKNOWN: Self = Self {
        metadata_id: false,
        unknown: true,
    };

    /// The extensions that a STARTUP's body asks for. `offered`: what the server has offered on this connection;
    /// `None` if that was not seen.
    pub fn asked_for(startup: &[u8], offered: Option<&Offered>) -> Self {
        Self::read(startup, offered).unwrap_or(Self::UNKNOWN)
    }

    fn read(startup: &[u8], offered: Option<&Offered>) -> Option<Self> {
        let mut asked = Self::default();
        let mut body = Cursor::new(startup);
        for _ in 0..body.short()? {
            let (key, _value) = (body.short_bytes()?, body.short_bytes()?);
            let is = |name: &&str| key.eq_ignore_ascii_case(name.as_bytes());
            if OPTIONS.iter().any(is) || HARMLESS.iter().any(is) {
                continue;
            }
            match offered.map(|offered| offered.has(key)) {
                // A server does not act by a key that it does not know.
                Some(false) => {}
                // In another case than the server's, it may be another key.
                Some(true) if key == METADATA_ID.as_bytes() => asked.metadata_id = true,
                Some(true) | None => asked.unknown = true,
            }
        }
        Some(asked)
    }
}

/// The keys that a SUPPORTED, of which this is the header and the body, offers. `None`: they cannot be read.
pub fn offered(header: &Header, body: &[u8]) -> Option<Offered> {
    let is_whole = body.len() >= header.length as usize && !header.is_compressed();
    let body = behind_prelude(header, body).filter(|_| is_whole)?;
    Offered::read(body.rest())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
    }

    fn startup(keys: &[&str]) -> Vec<u8> {
        let mut body = (keys.len() as u16).to_be_bytes().to_vec();
        for key in keys {
            body.extend([string(key), string("value")].concat());
        }
        body
    }

    fn supported(keys: &[&str]) -> Offered {
        let mut body = (keys.len() as u16).to_be_bytes().to_vec();
        for key in keys {
            body.extend([string(key), vec![0, 2], string("a"), string("b")].concat());
        }
        Offered::read(&body).unwrap()
    }

    const NONE: Extensions = Extensions {
        metadata_id: false,
        unknown: false,
    };
    const UNKNOWN: Extensions = Extensions::UNKNOWN;

    #[test]
    fn an_extension_is_in_force_that_was_offered_and_asked_for() {
        let ids = Extensions {
            metadata_id: true,
            ..NONE
        };
        let offers = supported(&["COMPRESSION", METADATA_ID, "SCYLLA_NEW"]);
        let nothing = supported(&["COMPRESSION"]);
        for (key, offered, expected) in [
            (METADATA_ID, Some(&offers), ids),
            (METADATA_ID, Some(&nothing), NONE),
            (METADATA_ID, None, UNKNOWN),
            ("scylla_use_metadata_id", Some(&offers), UNKNOWN),
            ("SCYLLA_NEW", Some(&offers), UNKNOWN),
            ("scylla_new", Some(&offers), UNKNOWN),
            ("SCYLLA_NEW", Some(&nothing), NONE),
            ("SCYLLA_NEW", None, UNKNOWN),
            ("TABLETS_ROUTING_V1", None, NONE),
        ] {
            let asked = startup(&["CQL_VERSION", key, "driver_name"]);
            let found = Extensions::asked_for(&asked, offered);
            assert_eq!(found, expected, "{key} {offered:?}");
        }
        for key in OPTIONS.iter().chain(&HARMLESS) {
            assert_eq!(Extensions::asked_for(&startup(&[key]), None), NONE);
        }
    }

    #[test]
    fn a_map_that_cannot_be_read_may_ask_for_anything() {
        let whole = startup(&["CQL_VERSION", METADATA_ID]);
        let offered = supported(&[METADATA_ID]);
        for end in 0..whole.len() {
            assert_eq!(
                Extensions::asked_for(&whole[..end], Some(&offered)),
                UNKNOWN
            );
        }
        assert_eq!(Offered::read(&[0, 1, 0]), None);
    }
}
