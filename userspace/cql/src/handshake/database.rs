//! The database's side of a handshake.

use super::{Awaited, Handshake, Meaning, Stage};
use crate::extensions::{MAX_SUPPORTED_BYTES, offered};
use crate::fact::Fact;
use crate::flow::response::{self, set_keyspace};
use crate::session::{Unknowable, is_system_keyspace, text_fact};
use crate::wire::compression::Compression;
use crate::wire::header::{Header, Opcode, ProtocolVersion};

impl Handshake {
    /// How much of a body may tell something, as it was before compression: only that of a SUPPORTED, and of what
    /// answers a USE.
    pub(super) fn wanted_of_response(&self, header: &Header) -> usize {
        match (header.opcode, self.awaited) {
            (Some(Opcode::Supported), _) if self.stage == Stage::Fresh => MAX_SUPPORTED_BYTES,
            (Some(Opcode::Result), Some(Awaited::Use(stream))) if stream == header.stream => {
                response::wanted_bytes(header)
            }
            _ => 0,
        }
    }

    pub(super) fn database_says(&mut self, header: &Header, prefix: &[u8]) -> Meaning {
        match (self.awaited, header.opcode) {
            (_, Some(Opcode::Supported)) if self.stage == Stage::Fresh => {
                self.offered = offered(header, prefix);
                Meaning::Nothing
            }
            (Some(Awaited::Startup), Some(Opcode::Ready)) => {
                self.accepted(header);
                self.established();
                match self.is_beyond_reading() {
                    true => Meaning::Ends(Unknowable::SegmentCompression),
                    false => Meaning::Tells,
                }
            }
            (Some(Awaited::Startup), Some(Opcode::Authenticate)) => {
                self.accepted(header);
                self.stage = Stage::Authenticating;
                match self.is_beyond_reading() {
                    true => {
                        self.claims_are_facts();
                        Meaning::Ends(Unknowable::SegmentCompression)
                    }
                    false => Meaning::Nothing,
                }
            }
            (Some(Awaited::AuthResponse), Some(Opcode::AuthSuccess)) => {
                self.awaited = None;
                self.established();
                Meaning::Tells
            }
            (Some(Awaited::AuthResponse), Some(Opcode::AuthChallenge)) => {
                (self.awaited, self.login) = (None, None);
                Meaning::Nothing
            }
            // Or another request's error: the log-in may be going on.
            (Some(Awaited::AuthResponse), Some(Opcode::Error))
                if self.stage == Stage::Established =>
            {
                self.awaited = None;
                Meaning::Ends(Unknowable::Pipelined)
            }
            (Some(Awaited::AuthResponse), Some(Opcode::Error))
            | (Some(Awaited::Startup), Some(Opcode::Error)) => {
                self.awaited = None;
                Meaning::Nothing
            }
            (Some(Awaited::Use(stream)), Some(opcode)) if stream == header.stream => {
                self.use_answered(header, opcode, prefix)
            }
            _ => Meaning::Nothing,
        }
    }

    /// READY or AUTHENTICATE: the version is settled, and with it the framing of what follows.
    fn accepted(&mut self, header: &Header) {
        self.awaited = None;
        self.version = header.version;
        self.segments = header.version >= 5;
    }

    /// Segments are plain or LZ4's; nobody knows what others would be.
    fn is_beyond_reading(&self) -> bool {
        let known = [Compression::None, Compression::Lz4].map(Fact::Is);
        self.segments && !known.contains(&self.claims.compression)
    }

    /// The client is let in: for the first time, or as another user.
    fn established(&mut self) {
        if self.stage != Stage::Established {
            self.stage = Stage::Established;
            self.claims_are_facts();
        }
        let login = self.login.take();
        self.session.user = self.fact(login);
    }

    fn claims_are_facts(&mut self) {
        let claims = std::mem::take(&mut self.claims);
        self.claims.compression = claims.compression.clone();
        self.session.driver = self.fact(claims.driver);
        self.session.driver_version = self.fact(claims.driver_version);
        self.session.application = self.fact(claims.application);
        self.session.compression = claims.compression;
        self.session.protocol = match ProtocolVersion::from_byte(self.version) {
            Some(version) => Fact::Is(version),
            None => Fact::Absent,
        };
        self.session.tls = Fact::Is(false);
    }

    fn use_answered(&mut self, header: &Header, opcode: Opcode, prefix: &[u8]) -> Meaning {
        let read = match opcode {
            Opcode::Error => {
                self.awaited = None;
                return Meaning::Nothing;
            }
            Opcode::Result if header.is_compressed() => Err(Unknowable::CompressedBody),
            Opcode::Result => set_keyspace(header, prefix).ok_or(Unknowable::Unreadable),
            _ => return Meaning::Nothing,
        };
        match read {
            // The answer to something else that was asked on the same stream.
            Ok(None) => return Meaning::Nothing,
            Ok(Some(keyspace)) if is_system_keyspace(keyspace) => {
                self.awaited = None;
                // Unqualified names are the system's now.
                self.flow.keyspace = Some(keyspace.into());
                return Meaning::Nothing;
            }
            _ => self.awaited = None,
        }
        let keyspace = read.and_then(|keyspace| match keyspace {
            Some(keyspace) => text_fact(keyspace.as_bytes()).map(Some),
            None => Ok(None),
        });
        self.keyspace_is(keyspace.as_ref().map(Option::as_deref).map_err(|why| *why))
    }
}
