//! Frames (v5: "envelopes"): nine bytes of header and a body (`native_protocol_v4.spec` §2,
//! `native_protocol_v5.spec` §2.4.1).

/// The largest body, in bytes: the specifications name 256 MB as the limit, and Cassandra before
/// 4.0 allows as much by default (`native_transport_max_frame_size_in_mb`).
pub const MAX_BODY_BYTES: u32 = 256 << 20;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 9;

/// The number that pairs a response with its request. Below 0: the server's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub i16);

/// A protocol version that is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProtocolVersion {
    /// Cassandra 2.1
    V3,
    /// Cassandra 2.2
    V4,
    /// Cassandra 4.0; segments after the handshake
    V5,
}

impl ProtocolVersion {
    /// From a frame's first byte without its direction bit.
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            3 => Some(Self::V3),
            4 => Some(Self::V4),
            5 => Some(Self::V5),
            _ => None,
        }
    }

    /// The name as a metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V3 => "v3",
            Self::V4 => "v4",
            Self::V5 => "v5",
        }
    }
}

/// The bit of the first byte that marks a response.
pub const RESPONSE_BIT: u8 = 0x80;

/// A frame's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The body is compressed as STARTUP has asked for.
    pub const COMPRESSION: Self = Self(0x01);
    /// Requests: the database is to trace this one. Responses: a tracing id stands in front of the body.
    pub const TRACING: Self = Self(0x02);
    /// A bytes map stands in front of the body.
    pub const CUSTOM_PAYLOAD: Self = Self(0x04);
    /// A list of warnings stands in front of the body; only in responses.
    pub const WARNING: Self = Self(0x08);
    /// Requests: the client takes a beta version. Of a version that is none it says nothing.
    pub const BETA: Self = Self(0x10);
    /// The flags that no version defines.
    pub(crate) const RESERVED: Self = Self(0xE0);
    /// The flags that put something in front of the body proper.
    pub const PRELUDE: Self = Self(Self::TRACING.0 | Self::CUSTOM_PAYLOAD.0 | Self::WARNING.0);

    pub(crate) fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Any flag of `flags` is set.
    pub fn any(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }
}

/// The opcode of a frame (`native_protocol_v5.spec` §2.4.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// An error.
    Error,
    /// A flow's first real request.
    Startup,
    /// STARTUP is accepted.
    Ready,
    /// STARTUP is accepted, and who it is has to be shown.
    Authenticate,
    /// A question for what the server supports.
    Options,
    /// The server's answer to OPTIONS.
    Supported,
    /// A statement, as text.
    Query,
    /// The result of a statement.
    Result,
    /// A statement to be executed later.
    Prepare,
    /// A statement that was prepared.
    Execute,
    /// Events are wanted.
    Register,
    /// An event.
    Event,
    /// Several statements at once.
    Batch,
    /// The server asks for more.
    AuthChallenge,
    /// The client's answer to an authentication challenge.
    AuthResponse,
    /// The end of a log-in that succeeded.
    AuthSuccess,
}

crate::labelled!(Opcode {
    Error => "error",
    Startup => "startup",
    Ready => "ready",
    Authenticate => "authenticate",
    Options => "options",
    Supported => "supported",
    Query => "query",
    Result => "result",
    Prepare => "prepare",
    Execute => "execute",
    Register => "register",
    Event => "event",
    Batch => "batch",
    AuthChallenge => "auth_challenge",
    AuthResponse => "auth_response",
    AuthSuccess => "auth_success",
});

impl Opcode {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => Self::Error,
            0x01 => Self::Startup,
            0x02 => Self::Ready,
            0x03 => Self::Authenticate,
            0x05 => Self::Options,
            0x06 => Self::Supported,
            0x07 => Self::Query,
            0x08 => Self::Result,
            0x09 => Self::Prepare,
            0x0A => Self::Execute,
            0x0B => Self::Register,
            0x0C => Self::Event,
            0x0D => Self::Batch,
            0x0E => Self::AuthChallenge,
            0x0F => Self::AuthResponse,
            0x10 => Self::AuthSuccess,
            _ => return None,
        })
    }

    /// Whether such a request has statements in it: their texts, or what they were prepared as.
    pub fn has_statements(self) -> bool {
        matches!(
            self,
            Self::Query | Self::Prepare | Self::Execute | Self::Batch
        )
    }

    fn is_request(self) -> bool {
        matches!(
            self,
            Self::Startup
                | Self::Options
                | Self::Query
                | Self::Prepare
                | Self::Execute
                | Self::Register
                | Self::Batch
                | Self::AuthResponse
        )
    }
}

/// A frame's header, its length checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The first byte without the direction bit.
    pub version: u8,
    /// The flags byte.
    pub flags: Flags,
    /// The stream: what pairs a response with its request.
    pub stream: StreamId,
    /// The opcode. None: there is no such opcode in the direction that the first byte names.
    pub opcode: Option<Opcode>,
    /// Bytes of the body, at most [`MAX_BODY_BYTES`].
    pub length: u32,
    /// PREPARED and EXECUTE have the id of the result's metadata: since v5, and before by an
    /// [extension](crate::Extensions).
    pub metadata_id: bool,
}

impl Header {
    /// Reads a header. None: the length is negative or too large.
    pub fn read(raw: [u8; HEADER_BYTES]) -> Option<Self> {
        let [version, flags, s0, s1, opcode, l0, l1, l2, l3] = raw;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        if length > MAX_BODY_BYTES {
            return None; // A negative int is above it, too.
        }
        let response = version & RESPONSE_BIT != 0;
        Some(Self {
            version: version & !RESPONSE_BIT,
            flags: Flags(flags),
            stream: StreamId(i16::from_be_bytes([s0, s1])),
            opcode: Opcode::from_byte(opcode).filter(|o| o.is_request() != response),
            length,
            metadata_id: version & !RESPONSE_BIT >= 5,
        })
    }

    /// Header and body, in bytes.
    pub fn frame_bytes(&self) -> u32 {
        self.length.saturating_add(HEADER_BYTES as u32)
    }

    /// The body is. Since v5 segments are, and the flag means nothing.
    pub fn is_compressed(&self) -> bool {
        self.flags.any(Flags::COMPRESSION) && self.version < 5
    }
}

/// `handshake`, the type of a TLS record (RFC 8446 §5.1).
pub const TLS_HANDSHAKE: u8 = 0x16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_belong_to_a_direction() {
        let opcode = |version, opcode| {
            Header::read([version, 0, 0, 0, opcode, 0, 0, 0, 0])
                .unwrap()
                .opcode
        };
        assert_eq!(opcode(4, 0x07), Some(Opcode::Query));
        assert_eq!(opcode(0x84, 0x07), None);
        assert_eq!(opcode(4, 0x08), None);
        assert_eq!(opcode(0x84, 0x08), Some(Opcode::Result));
        assert_eq!(opcode(4, 0x04), None, "CREDENTIALS went with v1");
    }
}
