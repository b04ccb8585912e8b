//! Counts of a node's received and sent messages, taken where it happens: the truth that observers
//! are held to.

use std::sync::{Arc, Mutex, PoisonError};

use super::wire::HEADER_LEN;

/// Opcodes of the native protocol, 0x00 to 0x10.
const OPCODES: usize = 17;

/// Counts over all connections since the node's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Whole frames received, by opcode.
    pub requests: [u64; OPCODES],
    /// Frames sent, by opcode.
    pub responses: [u64; OPCODES],
    /// Bytes read from sockets.
    pub bytes_in: u64,
    /// Bytes written to sockets.
    pub bytes_out: u64,
    /// With [`super::Delays`]: of each statement, from its having been read to its answer's
    /// having been written, in µs, in the order of answers.
    pub took_us: Vec<u32>,
}

/// The node's thread writes; any thread reads.
#[derive(Debug, Clone, Default)]
pub(super) struct Tallied(Arc<Mutex<Tally>>);

impl Tallied {
    pub(super) fn update(&self, change: impl FnOnce(&mut Tally)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn read(&self) -> Tally {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Tally {
    pub(super) fn request(&mut self, opcode: u8) {
        if let Some(count) = self.requests.get_mut(usize::from(opcode)) {
            *count += 1;
        }
    }

    /// Whole frames that have been written, and as how many bytes.
    pub(super) fn sent(&mut self, mut frames: &[u8], bytes: usize) {
        self.bytes_out += bytes as u64;
        while let Some((&[_, _, _, _, opcode, a, b, c, d], _)) =
            frames.split_first_chunk::<HEADER_LEN>()
        {
            if let Some(count) = self.responses.get_mut(usize::from(opcode)) {
                *count += 1;
            }
            let frame = HEADER_LEN + u32::from_be_bytes([a, b, c, d]) as usize;
            frames = frames.get(frame..).unwrap_or_default();
        }
    }
}
