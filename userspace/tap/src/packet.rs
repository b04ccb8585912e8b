//! [`Packet`]: the kernel's copy of a packet.

/// A direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the database.
    Requests,
    /// From the database to the client.
    Responses,
}

/// The framing of a direction, as the kernel's own walk over headers has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFraming {
    /// Frames as they are: v3, v4, and v5 until the connection is ready.
    Frames,
    /// v5 segments that are not compressed.
    Segments,
    /// v5 segments of LZ4. The kernel does not see whether one that is compressed begins with a frame.
    SegmentsLz4,
    /// v5 segments of which it is not known yet whether they are compressed.
    Unsure,
}

/// The kernel's copy of a packet: a range of one direction's bytes, of which some may not have been
/// copied, because nobody reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// When the packet passed, by the kernel's monotonic clock, in ns.
    pub at_ns: u64,
    /// The TCP sequence number of the packet's first byte of payload.
    pub seq: u32,
    /// Bytes of payload before `bytes` that were not copied.
    pub before: u32,
    /// The bytes that were copied.
    pub bytes: &'a [u8],
    /// Bytes of payload behind `bytes` that were not copied.
    pub after: u32,
    /// All bytes of the direction up to this sequence number have passed before this packet. A byte before
    /// it that was not seen will not be seen any more, unless it is sent again for no reason.
    pub passed: u32,
    /// The sequence number of the first frame, or segment of whole frames, that begins in the packet; of LZ4 any segment's
    /// that may be one. None: the kernel does not know of any.
    pub frame_at: Option<u32>,
    /// How the kernel reads the direction.
    pub framing: KernelFraming,
    /// Bytes of the direction have passed without a copy since the packet before it. Sequence numbers alone show that of less than
    /// 2 GiB.
    pub missed: bool,
}

impl Packet<'_> {
    /// Bytes of payload, copied or not. A packet is smaller than TCP's window, so they fit.
    pub(crate) fn length(&self) -> u32 {
        let copied = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.before
            .saturating_add(copied)
            .saturating_add(self.after)
    }
}

/// How far `to` lies behind `from`, in a stream whose numbers wrap; negative: before it.
pub(crate) fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}
