//! The wire format, for who writes CQL frames or cuts them: `cql-edit`.
//!
//! Nothing here knows a flow. The decoder builds on the same items.

pub use crate::cursor::Cursor;
pub use crate::frame::{Flags, HEADER_BYTES, Header, RESPONSE_BIT};
pub use crate::lane::TLS_HANDSHAKE;
pub use crate::prepared::MAX_ID_BYTES;
pub use crate::response::behind_prelude;
pub use crate::session::plain_user;

/// Bodies (v3 and v4) and payloads of segments (v5), compressed with LZ4 or Snappy.
pub mod compress {
    pub use crate::compress::{MAX_SEEN_BYTES, expand, expand_into, expand_to, shrink};
}

/// Segments of v5: their headers, their checksums, and how they are written.
pub mod segment {
    pub use crate::segment::{
        Broken, HEADER_BYTES, LZ4_HEADER_BYTES, MAX_PAYLOAD_BYTES, SegmentHeader, TRAILER_BYTES,
        encode,
    };
}
