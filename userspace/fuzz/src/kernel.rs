//! The kernel's readers, compiled for this host (`kernel/host.c`, `kernel/edge.c`).

use std::{marker::PhantomData, mem::MaybeUninit};

use ebpf::abi;

/// Bytes of the ring: of one packet's records.
const RING_BYTES: usize = 1 << 16;

unsafe extern "C" {
    fn up_host_walk_packet(position: *mut abi::FramePosition, bytes: *const u8, n: u32);
    fn up_host_walk_message(
        position: *mut abi::FramePosition,
        bytes: *const u8,
        n: u32,
        piece: u32,
    ) -> u32;
    fn up_host_begin(taps: u8, request_seq: u32, response_seq: u32);
    fn up_host_packet(
        is_request: u32,
        seq: u32,
        passed: u32,
        now_ns: u64,
        bytes: *const u8,
        n: u32,
        ring: *mut u8,
        ring_bytes: u32,
    ) -> u32;
    fn up_host_meter() -> *const abi::Meter;
    fn up_host_parse(bytes: *const u8, first: u32, n: u32, out: *mut Parsed) -> u32;
}

/// A frame as the edge's program sees it: `struct up_host_parsed` of `kernel/edge.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Parsed {
    pub tuple: abi::EdgeTuple,
    pub kind: u32,
    pub flags: u8,
    pub is_ipv6: u8,
    pub opens: u8,
    pub oddity: u8,
}

/// Looks at a frame of `n` bytes, of which the first buffer has these.
pub fn parse(first: &[u8], n: usize) -> Parsed {
    let mut parsed = MaybeUninit::<Parsed>::uninit();
    let bytes = first.len() as u32;
    // SAFETY: it reads so many bytes, and writes all of what it has seen unless it fails.
    let failed = unsafe { up_host_parse(first.as_ptr(), bytes, n as u32, parsed.as_mut_ptr()) };
    assert_eq!(failed, 0, "there is no memory below 4 GiB");
    // SAFETY: it has not failed.
    unsafe { parsed.assume_init() }
}

/// Walks over a packet.
pub fn walk_packet(position: &mut abi::FramePosition, bytes: &[u8]) {
    // SAFETY: the walk reads so many bytes, and writes the position.
    unsafe { up_host_walk_packet(position, bytes.as_ptr(), bytes.len() as u32) }
}

/// Walks over a message that lies in pieces of so many bytes.
pub fn walk_message(position: &mut abi::FramePosition, bytes: &[u8], piece: usize) {
    // SAFETY: as for a packet.
    let misuse =
        unsafe { up_host_walk_message(position, bytes.as_ptr(), bytes.len() as u32, piece as u32) };
    assert_eq!(misuse, 0, "the walk asks for bytes of two pieces at once");
}

/// The meter of this thread's flow.
pub struct Meter {
    ring: Vec<u64>,
    /// The flow is the thread's.
    thread: PhantomData<*const ()>,
}

impl Meter {
    /// Begins a flow, in place of the one before.
    pub fn begin(taps: u32, [request_seq, response_seq]: [u32; 2]) -> Self {
        // SAFETY: it writes to memory of its own.
        unsafe { up_host_begin(taps as u8, request_seq, response_seq) };
        Self {
            ring: vec![0; RING_BYTES / 8],
            thread: PhantomData,
        }
    }

    /// Lets a packet pass, and gives the records that are made of it. `passed`: all bytes up to there have before it.
    pub fn packet(&mut self, is_request: bool, seq: u32, passed: u32, bytes: &[u8]) -> Vec<Record> {
        let n = bytes.len() as u32;
        let ring = self.ring.as_mut_ptr().cast();
        let (bytes, request) = (bytes.as_ptr(), u32::from(is_request));
        // SAFETY: it reads so many bytes of the packet, and writes no more than so many to the ring, which is aligned to eight.
        let used =
            unsafe { up_host_packet(request, seq, passed, 7, bytes, n, ring, RING_BYTES as u32) };
        let words = self.ring.get(..used as usize / 8).unwrap_or_default();
        let mut rest: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut records = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk::<8>() {
            let length = u64::from_ne_bytes(*length) as usize;
            let (record, behind) = behind.split_at(length.next_multiple_of(8));
            records.push(Record::read(record));
            rest = behind.to_vec();
        }
        records
    }

    /// Returns the meter's counts.
    pub fn counted(&self) -> abi::Meter {
        // SAFETY: it is the thread's own, and nobody writes it now.
        unsafe { std::ptr::read(up_host_meter()) }
    }
}

/// A record of the tap.
pub struct Record {
    /// The kernel's account of the copy.
    pub head: abi::TapRecord,
    /// The copy.
    pub bytes: Vec<u8>,
}

impl Record {
    fn read(record: &[u8]) -> Self {
        let (head, copy) = record.split_at(size_of::<abi::TapRecord>());
        // SAFETY: there are as many bytes, and any of them are such a record.
        let head: abi::TapRecord = unsafe { std::ptr::read_unaligned(head.as_ptr().cast()) };
        let (bytes, _) = copy.split_at(head.copied as usize);
        Self {
            bytes: bytes.to_vec(),
            head,
        }
    }
}
