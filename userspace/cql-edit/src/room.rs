//! How much all flows together may hold back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Frames up to this need no room of their own: there is one to a direction at most.
pub(crate) const SMALL_BYTES: usize = 64 << 10;

/// For what is held back; shared by the flows of a process.
#[derive(Debug)]
pub struct Room {
    left: AtomicUsize,
}

/// A part of it, until it is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    /// For so many bytes, in all.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(bytes),
        })
    }

    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Taken> {
        let less = |left: usize| left.checked_sub(bytes);
        self.left.fetch_update(Relaxed, Relaxed, less).ok()?;
        Some(Taken {
            room: self.clone(),
            bytes,
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.left.fetch_add(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let room = Room::new(10);
        let six = room.take(6).unwrap();
        assert!(room.take(5).is_none());
        let four = room.take(4).unwrap();
        drop(six);
        assert!(room.take(7).is_none());
        drop(four);
        assert!(room.take(10).is_some());
    }
}
