//! The wire format: frames, segments, compression. Nothing here knows what a flow is.
//!
//! The decoder builds on this, and so does whoever writes frames or cuts them himself (`cql-edit`).
//!
//! - `cursor`: the notations of the specifications ([`Cursor`]); `header`: frames' headers; `scanner`: bytes, cut
//!   into frames; `prelude`: what stands in front of a response's body.
//! - [`segment`]: v5's segments; `segment_reader`: bytes, cut into them; `crc`: their checksums.
//! - [`compress`]: bodies and payloads that are compressed; `compression`: which way a STARTUP asks for.
//! - `position`: where in a frame one direction is, found without reading what it says.

pub mod compress;
pub(crate) mod compression;
pub(crate) mod crc;
pub(crate) mod cursor;
pub(crate) mod header;
pub(crate) mod position;
pub(crate) mod prelude;
pub(crate) mod scanner;
pub mod segment;
pub(crate) mod segment_reader;

pub use cursor::Cursor;
pub use header::{Flags, HEADER_BYTES, Header, RESPONSE_BIT, TLS_HANDSHAKE};
pub use prelude::behind_prelude;
