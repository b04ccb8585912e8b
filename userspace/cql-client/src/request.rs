//! [`Request`]: what can be asked, and its frame.

use std::io::Cursor;

use cassandra_protocol::{
    compression::Compression as Codec,
    consistency::Consistency,
    frame::{
        Direction, Envelope, Flags, Opcode, Serialize, Version,
        message_auth_response::BodyReqAuthResponse, message_batch::BodyReqBatch,
        message_execute::BodyReqExecute, message_prepare::BodyReqPrepare,
        message_query::BodyReqQuery,
    },
    query::{QueryParams, QueryValues},
    types::{CBytes, CBytesShort, serialize_str, value::Value},
};
use cql::Compression;
use zeroize::{Zeroize as _, Zeroizing};

use crate::Prepared;

/// A request to a database.
#[derive(Clone, Copy, Debug)]
pub enum Request<'r> {
    /// OPTIONS: what the server supports.
    Options,
    /// STARTUP with this body; [`startup`] makes one.
    Startup(&'r [u8]),
    /// AUTH_RESPONSE with this body; [`auth_response`] makes one.
    AuthResponse(&'r [u8]),
    /// QUERY of a statement without values, at consistency ONE: tables that every node has for itself, and USE.
    Query(&'r str),
    /// PREPARE of a statement.
    Prepare(&'r str),
    /// REGISTER for events of these types. They come on a stream of their own.
    Register(&'r [&'r str]),
    /// EXECUTE of a prepared statement with these values, in their encoded form, at consistency ONE.
    Execute(&'r Prepared, &'r [Option<&'r [u8]>]),
    /// QUERY of a statement with these parameters.
    QueryWith(&'r str, &'r QueryParams),
    /// EXECUTE of a prepared statement with these parameters.
    ExecuteWith(&'r Prepared, &'r QueryParams),
    /// BATCH.
    Batch(&'r BodyReqBatch),
}

impl Request<'_> {
    /// The request's opcode.
    fn opcode(&self) -> Opcode {
        match self {
            Self::Options => Opcode::Options,
            Self::Startup(_) => Opcode::Startup,
            Self::AuthResponse(_) => Opcode::AuthResponse,
            Self::Query(_) => Opcode::Query,
            Self::Prepare(_) => Opcode::Prepare,
            Self::Register(_) => Opcode::Register,
            Self::QueryWith(..) => Opcode::Query,
            Self::Execute(..) | Self::ExecuteWith(..) => Opcode::Execute,
            Self::Batch(_) => Opcode::Batch,
        }
    }

    /// The request as a frame, which is not compressed: requests here are short. Version 5 wants it in a
    /// segment, once the database has answered the STARTUP.
    pub fn frame(&self, version: Version, stream: i16) -> Zeroizing<Vec<u8>> {
        let mut envelope = Envelope::new(
            version,
            Direction::Request,
            Flags::empty(),
            self.opcode(),
            stream,
            self.body(version),
            None,
            Vec::new(),
        );
        // An error is one of compression, and there is none.
        let frame = envelope.encode_with(Codec::None).unwrap_or_default();
        // There may have been a password in it.
        envelope.body.zeroize();
        Zeroizing::new(frame)
    }

    fn body(&self, version: Version) -> Vec<u8> {
        match *self {
            Self::Options => Vec::new(),
            Self::Startup(body) | Self::AuthResponse(body) => body.to_vec(),
            Self::Query(text) => BodyReqQuery {
                query: text.to_owned(),
                query_params: at_one(None),
            }
            .serialize_to_vec(version),
            Self::Prepare(text) => {
                BodyReqPrepare::new(text.to_owned(), None).serialize_to_vec(version)
            }
            Self::Register(events) => {
                let mut body = Vec::new();
                let mut to = Cursor::new(&mut body);
                (events.len() as i16).serialize(&mut to, version);
                for event in events {
                    serialize_str(&mut to, event, version);
                }
                body
            }
            Self::Execute(prepared, values) => {
                let value =
                    |value: &Option<&[u8]>| value.map_or(Value::Null, |v| Value::Some(v.to_vec()));
                let values = values.iter().map(value).collect();
                let parameters = at_one(Some(QueryValues::SimpleValues(values)));
                execute(prepared, &parameters, version)
            }
            Self::QueryWith(text, parameters) => BodyReqQuery {
                query: text.to_owned(),
                query_params: parameters.clone(),
            }
            .serialize_to_vec(version),
            Self::ExecuteWith(prepared, parameters) => execute(prepared, parameters, version),
            Self::Batch(batch) => batch.serialize_to_vec(version),
        }
    }
}

fn execute(prepared: &Prepared, parameters: &QueryParams, version: Version) -> Vec<u8> {
    let id = CBytesShort::new(prepared.id.to_vec());
    let metadata_id = prepared.metadata_id.as_ref();
    let metadata_id = metadata_id.map(|id| CBytesShort::new(id.to_vec()));
    BodyReqExecute::new(&id, metadata_id.as_ref(), parameters).serialize_to_vec(version)
}

fn at_one(values: Option<QueryValues>) -> QueryParams {
    QueryParams {
        consistency: Consistency::One,
        values,
        ..QueryParams::default()
    }
}

/// The body of a STARTUP that asks for this compression. Options stand in a fixed order, so that the bytes are
/// always the same; the crate's own `BodyReqStartup` has them in that of a hash table.
pub fn startup(compression: Compression) -> Vec<u8> {
    let algorithm = match compression {
        Compression::None => None,
        Compression::Lz4 => Some("lz4"),
        Compression::Snappy => Some("snappy"),
    };
    let algorithm = algorithm.map(|algorithm| ("COMPRESSION", algorithm));
    let options: Vec<_> = [("CQL_VERSION", "3.0.0")]
        .into_iter()
        .chain(algorithm)
        .collect();
    let mut body = Vec::new();
    let mut to = Cursor::new(&mut body);
    // A [string map] is the same in all versions.
    let version = Version::V4;
    (options.len() as i16).serialize(&mut to, version);
    for text in options.iter().flat_map(|(name, value)| [name, value]) {
        serialize_str(&mut to, text, version);
    }
    body
}

/// The body of an AUTH_RESPONSE by SASL PLAIN (RFC 4616), wiped when it is dropped.
pub fn auth_response(user: &str, password: &str) -> Zeroizing<Vec<u8>> {
    const LENGTH_BYTES: usize = 4;
    let token = ["\0", user, "\0", password].concat().into_bytes();
    // It does not grow: no copy of the password is left behind.
    let mut body = Zeroizing::new(Vec::with_capacity(LENGTH_BYTES + token.len()));
    let token = BodyReqAuthResponse::new(CBytes::new(token));
    token.serialize(&mut Cursor::new(&mut *body), Version::V4);
    token.data.into_bytes().zeroize();
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_nine_bytes() {
        let frame = Request::Options.frame(Version::V4, 0);
        assert_eq!(**frame, [4, 0, 0, 0, 5, 0, 0, 0, 0]);
    }

    #[test]
    fn a_connection_begins_with_what_is_compressed_how() {
        let plain = b"\0\x01\0\x0BCQL_VERSION\0\x053.0.0";
        assert_eq!(startup(Compression::None), plain);
        let lz4 = b"\0\x02\0\x0BCQL_VERSION\0\x053.0.0\0\x0BCOMPRESSION\0\x03lz4";
        assert_eq!(startup(Compression::Lz4), lz4);
        let frame = Request::Startup(plain).frame(Version::V5, 3);
        assert_eq!(&frame[..9], [5, 0, 0, 3, 1, 0, 0, 0, plain.len() as u8]);
        assert_eq!(&frame[9..], plain);
    }

    #[test]
    fn events_are_asked_for_by_their_types() {
        let frame = Request::Register(&["A", "BC"]).frame(Version::V4, 0);
        assert_eq!(frame[..], *b"\x04\0\0\0\x0B\0\0\0\x09\0\x02\0\x01A\0\x02BC");
    }

    #[test]
    fn a_log_in_is_user_and_password_behind_zeros() {
        assert_eq!(**auth_response("u", "pw"), *b"\0\0\0\x05\0u\0pw");
    }

    /// At ONE, without flags, of which version 5 has four bytes.
    #[test]
    fn a_query_is_its_text_and_no_more() {
        for (version, flags) in [(Version::V3, 1), (Version::V4, 1), (Version::V5, 4)] {
            let frame = Request::Query("USE \"a\"").frame(version, 0);
            let flags = vec![0; flags];
            let body = [&b"\0\0\0\x07USE \"a\"\0\x01"[..], &flags].concat();
            assert_eq!(frame[..5], [u8::from(version), 0, 0, 0, 7]);
            assert_eq!(frame[9..], body);
        }
    }

    #[test]
    fn what_is_executed_has_the_id_of_its_metadata_in_version_5() {
        let mut prepared = Prepared {
            id: (*b"id").into(),
            metadata_id: None,
            types: Box::default(),
        };
        let values: &[Option<&[u8]>] = &[Some(b"x"), None];
        let frame = Request::Execute(&prepared, values).frame(Version::V4, 0);
        let behind = b"\0\0\0\x01x\xFF\xFF\xFF\xFF";
        assert_eq!(
            frame[9..],
            [&b"\0\x02id\0\x01\x01\0\x02"[..], behind].concat()
        );
        prepared.metadata_id = Some((*b"m").into());
        let frame = Request::Execute(&prepared, values).frame(Version::V5, 0);
        let body = [&b"\0\x02id\0\x01m\0\x01\0\0\0\x01\0\x02"[..], behind].concat();
        assert_eq!(frame[9..], body);
    }
}
