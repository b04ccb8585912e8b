//! [`Verdict`]: what a decoder asks for after a chunk, and its reasons.

use crate::labelled;

/// The decoder's decision on a flow after a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Forward the chunk.
    Continue,
    /// Forward the chunk and all that follows in both directions, and stop calling the decoder:
    /// it does not understand this flow. Nothing is wrong with the flow itself.
    Undecodable(Undecodable),
    /// Framing is lost. Forward `bytes[..keep]` of this chunk and close the flow.
    ///
    /// `keep` is where the offending frame (v5: segment) begins in this chunk, and 0 if it began in
    /// an earlier one. Of a frame that began earlier, its beginning was already forwarded; so was
    /// most of a segment whose CRC32, at its very end, turns out to be wrong. The peer then sees a
    /// segment cut short, which it cannot take for a whole one.
    Close {
        /// How many bytes of the chunk may still be forwarded.
        keep: usize,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a flow cannot be decoded. It can still be relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Undecodable {
    /// The first byte is that of a TLS handshake record (RFC 8446 §5.1).
    Tls,
    /// A protocol version other than v3, v4 and v5, or v5 without segments, as a server before 4.0 speaks it with a client
    /// that takes beta versions.
    Version,
    /// The first frame of a direction is none.
    NotCql,
    /// v5 with a COMPRESSION in STARTUP that is not LZ4, which the protocol has no other than. Also when
    /// STARTUP could not be read, so that nobody knows.
    SegmentCompression,
    /// No frame begins where one was expected, after the flow had not been read for a while.
    Lost,
}

labelled!(Undecodable {
    Tls => "tls",
    Version => "version",
    NotCql => "not_cql",
    SegmentCompression => "segment_compression",
    Lost => "lost",
});

/// Why a flow has to be closed: what follows cannot be cut into frames any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// A frame's length is negative or above [`MAX_BODY_BYTES`](crate::MAX_BODY_BYTES).
    Length,
    /// A response from the client, or a request from the server.
    Direction,
    /// A frame's version is not the one agreed on.
    VersionChanged,
    /// A segment's header (CRC24) or payload (CRC32) does not match its checksum.
    SegmentCrc,
    /// A compressed segment that does not become what its header says.
    SegmentCompression,
    /// A self-contained segment that does not hold whole frames.
    SegmentLength,
}

labelled!(CloseReason {
    Length => "length",
    Direction => "direction",
    VersionChanged => "version_changed",
    SegmentCrc => "segment_crc",
    SegmentCompression => "segment_compression",
    SegmentLength => "segment_length",
});
