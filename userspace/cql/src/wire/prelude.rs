//! [`behind_prelude`]: a response's body proper.

use crate::wire::cursor::Cursor;
use crate::wire::header::{Flags, Header};

/// Skips everything in front of a response's body proper (`native_protocol_v5.spec` §2.4.1.2): the tracing
/// id, the warnings and the custom payload, in the order in which Cassandra's `Message.encode` writes them.
#[inline]
pub fn behind_prelude<'b>(header: &Header, body: &'b [u8]) -> Option<Cursor<'b>> {
    let mut body = Cursor::new(body);
    if header.flags.any(Flags::TRACING) {
        body.take(16)?;
    }
    if header.flags.any(Flags::WARNING) {
        body.skip_string_list()?;
    }
    if header.flags.any(Flags::CUSTOM_PAYLOAD) {
        body.skip_bytes_map()?;
    }
    Some(body)
}
