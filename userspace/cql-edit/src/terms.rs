//! [`Terms`]: what client and database have agreed on.

use std::borrow::Cow;

use crate::cutter::FrameAction;
use cql::wire::compress::{self, MAX_SEEN_BYTES};
use cql::wire::{Cursor, Flags, HEADER_BYTES, Header};
use cql::{Compression, Extensions, Fact, Offered, Opcode, StreamId};

/// Opcodes.
pub(crate) const ERROR: u8 = 0x00;
pub(crate) const RESULT: u8 = 0x08;

/// The terms that client and database have agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The version of the client's latest frame; of the accepted STARTUP, once one is.
    pub(crate) version: u8,
    pub(crate) compression: Compression,
    /// The stream of a STARTUP whose answer is out.
    pub(crate) startup: Option<StreamId>,
    pub(crate) accepted: bool,
    /// Both directions travel in segments, from their next frame on.
    pub(crate) segmented: bool,
    /// The client takes a beta version, which v5 was before Cassandra 4: without segments.
    pub(crate) may_be_beta: bool,
    /// The extensions that STARTUP has asked for.
    pub(crate) extensions: Extensions,
}

impl Terms {
    /// The next STARTUP counts. A second one does not, whatever it asks for.
    pub(crate) fn may_start(&self) -> bool {
        !self.accepted && self.startup.is_none()
    }

    /// A STARTUP is on its way.
    pub(crate) fn starts(&mut self, header: &Header, body: &[u8], offered: Option<&Offered>) {
        self.startup = Some(header.stream);
        self.may_be_beta = header.version == 5 && header.flags.any(Flags::BETA);
        let mut options = Cursor::new(body);
        if header.flags.any(Flags::CUSTOM_PAYLOAD) && options.skip_bytes_map().is_none() {
            options = Cursor::new(&[]);
        }
        self.extensions = Extensions::asked_for(options.rest(), offered);
        // One that nobody knows no database accepts; if it did, nothing compressed could be read.
        self.compression = match Compression::asked_for(options.rest()) {
            Some(Fact::Is(compression)) => compression,
            Some(Fact::Open | Fact::Absent | Fact::Unknowable) | None => Compression::None,
        };
    }

    /// A header as it is to be read under the extensions.
    pub(crate) fn extended(&self, header: &Header) -> Header {
        Header {
            metadata_id: header.metadata_id || self.extensions.metadata_id,
            ..*header
        }
    }

    /// A body as it was before compression.
    pub(crate) fn plain<'b>(&self, header: &Header, body: &'b [u8]) -> Option<Cow<'b, [u8]>> {
        match header.is_compressed() {
            true => compress::expand(self.compression, body),
            false => Some(Cow::Borrowed(body)),
        }
    }

    /// Expands a body in a buffer that may have been used before.
    pub(crate) fn plain_in<'b>(
        &self,
        header: &Header,
        body: &'b [u8],
        to: &'b mut Vec<u8>,
    ) -> Option<&'b [u8]> {
        if !header.is_compressed() {
            return Some(body);
        }
        compress::expand_into(self.compression, body, MAX_SEEN_BYTES, to)?;
        Some(to)
    }

    /// Makes the bytes of a frame with another body, compressed as the flow has negotiated.
    pub(crate) fn encoded(
        &self,
        header: &Header,
        raw: &[u8; HEADER_BYTES],
        body: &[u8],
    ) -> FrameAction {
        let shrunk = match header.is_compressed() {
            true => compress::shrink(self.compression, body),
            false => None,
        };
        let mut flags = header.flags.0;
        if shrunk.is_none() && header.version < 5 {
            flags &= !Flags::COMPRESSION.0;
        }
        let body = shrunk.as_deref().unwrap_or(body);
        let [version, _, s0, s1, opcode, ..] = *raw;
        let opcode = match header.opcode {
            Some(Opcode::Error) => ERROR,
            _ => opcode,
        };
        let mut frame = Vec::with_capacity(HEADER_BYTES + body.len());
        frame.extend([version, flags, s0, s1, opcode]);
        frame.extend((body.len() as u32).to_be_bytes());
        frame.extend_from_slice(body);
        FrameAction::Instead(frame)
    }
}
