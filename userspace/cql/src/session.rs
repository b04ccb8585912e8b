//! [`Session`]: the facts that a flow's handshake tells: who speaks, with which driver, and where it works.

use crate::fact::Fact;
use crate::labelled;
use crate::wire::compression::Compression;
use crate::wire::cursor::Cursor;
use crate::wire::header::ProtocolVersion;

/// The longest value that is kept: Cassandra allows 48 bytes for a keyspace, and drivers' names
/// have a few dozen.
pub const MAX_FACT_BYTES: usize = 256;

/// The facts that a handshake has told so far. A fact is never taken back, except that another user may log in.
/// [`Fact::Unknowable`]: what was sent could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Session {
    /// The user who logged in; [`Fact::Absent`] where nobody has to.
    pub user: Fact<Box<str>>,
    /// The first keyspace that is not the system's, by a USE that succeeded or by the first
    /// request for data; [`Fact::Absent`] if that names none.
    pub keyspace: Fact<Box<str>>,
    /// STARTUP's DRIVER_NAME.
    pub driver: Fact<Box<str>>,
    /// STARTUP's DRIVER_VERSION.
    pub driver_version: Fact<Box<str>>,
    /// STARTUP's APPLICATION_NAME.
    pub application: Fact<Box<str>>,
    /// The version in which the server accepted the STARTUP.
    pub protocol: Fact<ProtocolVersion>,
    /// STARTUP's COMPRESSION.
    pub compression: Fact<Compression>,
    /// Whether the flow is encrypted.
    pub tls: Fact<bool>,
}

/// Why something of a session cannot become known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unknowable {
    /// The flow is encrypted.
    Tls,
    /// A protocol version other than v3, v4 and v5.
    Version,
    /// The flow does not begin as CQL does.
    NotCql,
    /// The bytes that follow cannot be cut into frames.
    Framing,
    /// v5 with COMPRESSION in STARTUP: what follows is compressed.
    SegmentCompression,
    /// A v3/v4 body that would have told it is compressed.
    CompressedBody,
    /// A request before the database can take it.
    Early,
    /// v5: within one segment, a request behind one whose answer had to be waited for. Or a second log-in
    /// and an error, which may be another request's.
    Pipelined,
    /// v5: a frame that begins in one segment and tells in another.
    Split,
    /// A value longer than [`MAX_FACT_BYTES`].
    TooLong,
    /// The log-in was not SASL PLAIN.
    Sasl,
    /// An EXECUTE of an id whose PREPARE was not seen.
    UnknownPreparedId,
    /// STARTUP asks for an extension of the protocol that is not known: bodies may have other layouts.
    Extension,
    /// A body that is not what its opcode says, or whose text is none that is understood.
    Unreadable,
}

labelled!(Unknowable {
    Tls => "tls",
    Version => "version",
    NotCql => "not_cql",
    Framing => "framing",
    SegmentCompression => "segment_compression",
    CompressedBody => "compressed_body",
    Early => "early",
    Pipelined => "pipelined",
    Split => "split",
    TooLong => "too_long",
    Sasl => "sasl",
    UnknownPreparedId => "unknown_prepared_id",
    Extension => "extension",
    Unreadable => "unreadable",
});

/// The keyspaces that servers have by themselves, behind `system`: Cassandra's (`SchemaConstants`), ScyllaDB's and YugabyteDB's.
/// Anybody may make others whose names begin so.
const SYSTEM_KEYSPACES: [&str; 11] = [
    "_accord",
    "_accord_debug",
    "_auth",
    "_cluster_metadata",
    "_distributed",
    "_distributed_everywhere",
    "_replicated_keys",
    "_schema",
    "_traces",
    "_views",
    "_virtual_schema",
];

/// Whether a keyspace is the server's own. Drivers and tools read those by themselves, so that
/// asking for them says nothing of what a session is for.
pub fn is_system_keyspace(keyspace: &str) -> bool {
    let behind = keyspace.strip_prefix("system");
    behind.is_some_and(|behind| behind.is_empty() || SYSTEM_KEYSPACES.contains(&behind))
}

/// A value that was sent.
pub(crate) fn text_fact(value: &[u8]) -> Result<Box<str>, Unknowable> {
    if value.len() > MAX_FACT_BYTES {
        return Err(Unknowable::TooLong);
    }
    let text = std::str::from_utf8(value).map_err(|_| Unknowable::Unreadable)?;
    Ok(text.into())
}

/// The claims of a STARTUP, before a server has accepted it.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) driver: Claim,
    pub(crate) driver_version: Claim,
    pub(crate) application: Claim,
    pub(crate) compression: Fact<Compression>,
}

/// `None`: not said.
pub(crate) type Claim = Option<Result<Box<str>, Unknowable>>;

impl Claims {
    /// `body`: a `[string map]` (§4.1.1). Options are read as Cassandra reads them: whatever
    /// their case, and the last one counts.
    pub(crate) fn read(body: &[u8]) -> Self {
        let unreadable = || Some(Err(Unknowable::Unreadable));
        read_options(body).unwrap_or_else(|| Self {
            driver: unreadable(),
            driver_version: unreadable(),
            application: unreadable(),
            compression: Fact::Unknowable,
        })
    }
}

fn read_options(body: &[u8]) -> Option<Claims> {
    let mut claims = Claims {
        compression: Compression::asked_for(body)?,
        ..Claims::default()
    };
    let mut body = Cursor::new(body);
    for _ in 0..body.short()? {
        let (option, value) = (body.short_bytes()?, body.short_bytes()?);
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        if is("DRIVER_NAME") {
            claims.driver = Some(text_fact(value));
        } else if is("DRIVER_VERSION") {
            claims.driver_version = Some(text_fact(value));
        } else if is("APPLICATION_NAME") {
            claims.application = Some(text_fact(value));
        }
    }
    Some(claims)
}

/// The driver that the body of a STARTUP names. `None`: it names none, or one that cannot be read.
pub fn startup_driver(body: &[u8]) -> Option<Box<str>> {
    Claims::read(body).driver?.ok()
}

/// The user of an AUTH_RESPONSE's body, a `[bytes]` token (§4.1.2): of SASL PLAIN (RFC 4616), as
/// Cassandra's `PasswordAuthenticator` reads it. The password is not touched.
pub fn plain_user(body: &[u8]) -> Result<Box<str>, Unknowable> {
    let mut body = Cursor::new(body);
    let len = body.long_string_len().ok_or(Unknowable::Sasl)?;
    let token = body.take(len).ok_or(Unknowable::Unreadable)?;
    let mut parts = token.split(|byte| *byte == 0);
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(_authorised_as), Some(user), Some(_password), None) if !user.is_empty() => {
            text_fact(user)
        }
        _ => Err(Unknowable::Sasl),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut body = (pairs.len() as u16).to_be_bytes().to_vec();
        for text in pairs.iter().flat_map(|(name, value)| [name, value]) {
            body.extend((text.len() as u16).to_be_bytes());
            body.extend(text.as_bytes());
        }
        body
    }

    fn token(token: &[u8]) -> Vec<u8> {
        [&(token.len() as i32).to_be_bytes()[..], token].concat()
    }

    #[test]
    fn options_are_read_in_any_case_and_the_last_counts() {
        let claims = Claims::read(&map(&[
            ("CQL_VERSION", "3.0.0"),
            ("driver_name", "one"),
            ("DRIVER_NAME", "two"),
            ("COMPRESSION", "LZ4"),
        ]));
        assert_eq!(claims.driver, Some(Ok("two".into())));
        assert_eq!(claims.application, None);
        assert_eq!(claims.compression, Fact::Is(Compression::Lz4));
    }

    #[test]
    fn every_truncation_of_a_map_is_no_map() {
        let whole = map(&[("DRIVER_NAME", "d"), ("COMPRESSION", "snappy")]);
        for len in 0..whole.len() {
            let claims = Claims::read(&whole[..len]);
            assert_eq!(claims.driver, Some(Err(Unknowable::Unreadable)), "{len}");
            assert_eq!(claims.compression, Fact::Unknowable);
            assert_eq!(Compression::asked_for(&whole[..len]), None);
        }
        let huge = [&[0xFF, 0xFF][..], &whole[2..]].concat();
        assert_eq!(Claims::read(&huge).compression, Fact::Unknowable);
    }

    #[test]
    fn what_is_asked_for() {
        let asked = |pairs: &[_]| Compression::asked_for(&map(pairs));
        assert_eq!(asked(&[]), Some(Fact::Is(Compression::None)));
        for (value, expected) in [
            ("", Fact::Is(Compression::None)),
            ("NONE", Fact::Is(Compression::None)),
            ("Lz4", Fact::Is(Compression::Lz4)),
            ("snappy", Fact::Is(Compression::Snappy)),
            ("zstd", Fact::Absent),
        ] {
            let pairs = [("CQL_VERSION", "3.0.0"), ("Compression", value)];
            assert_eq!(asked(&pairs), Some(expected), "{value}");
        }
        let twice = [("COMPRESSION", "lz4"), ("COMPRESSION", "snappy")];
        assert_eq!(asked(&twice), Some(Fact::Is(Compression::Snappy)));
        let in_two_cases = [("COMPRESSION", "lz4"), ("compression", "snappy")];
        assert_eq!(asked(&in_two_cases), Some(Fact::Absent));
        let alike = [("COMPRESSION", "lz4"), ("compression", "LZ4")];
        assert_eq!(asked(&alike), Some(Fact::Is(Compression::Lz4)));
    }

    #[test]
    fn values_are_bounded_and_text() {
        let long = "x".repeat(MAX_FACT_BYTES + 1);
        let claims = Claims::read(&map(&[
            ("DRIVER_NAME", &long),
            ("APPLICATION_NAME", &long[1..]),
        ]));
        assert_eq!(claims.driver, Some(Err(Unknowable::TooLong)));
        assert_eq!(claims.application, Some(Ok(long[1..].into())));
        assert_eq!(text_fact(b"\xFF"), Err(Unknowable::Unreadable));
    }

    #[test]
    fn the_user_of_a_plain_token() {
        for (raw, user) in [
            (&b"\0alice\0secret"[..], Ok("alice")),
            (b"admin\0alice\0secret", Ok("alice")),
            (b"\0alice\0", Ok("alice")),
            (b"PLAIN", Err(Unknowable::Sasl)),
            (b"", Err(Unknowable::Sasl)),
            (b"alice\0secret", Err(Unknowable::Sasl)),
            (b"\0\0secret", Err(Unknowable::Sasl)),
            (b"\0alice\0sec\0ret", Err(Unknowable::Sasl)),
            (b"\0\xFF\0secret", Err(Unknowable::Unreadable)),
        ] {
            assert_eq!(
                plain_user(&token(raw)).as_deref(),
                user.as_deref(),
                "{raw:?}"
            );
        }
        assert_eq!(plain_user(&(-1_i32).to_be_bytes()), Err(Unknowable::Sasl));
        assert_eq!(
            plain_user(&token(b"\0a\0b")[..6]),
            Err(Unknowable::Unreadable)
        );
    }

    #[test]
    fn system_keyspaces() {
        for (keyspace, expected) in [
            ("system", true),
            ("system_schema", true),
            ("system_virtual_schema", true),
            ("system_secret", false),
            ("system_", false),
            ("systems", false),
            ("shop", false),
        ] {
            assert_eq!(is_system_keyspace(keyspace), expected, "{keyspace}");
        }
    }
}
