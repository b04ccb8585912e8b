//! The limit on the memory of long answers that wait for flows which do not take them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The longest answer that needs no room: a flow's own connection has as much under way.
pub(super) const SMALL_BYTES: usize = 4 << 10;

/// The room in bytes: four of the longest answers that are taken at all.
const MAX_BYTES: usize = 64 << 20;

/// The bytes that are left for long answers.
#[derive(Debug)]
pub(super) struct Room(AtomicUsize);

/// A part of the room, given back when it is dropped.
#[derive(Debug)]
struct Taken {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(MAX_BYTES)))
    }

    /// Takes room for an answer of this size, until the answer goes on. `Err`: there is none.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Result<Option<cql_edit::Note>, ()> {
        if bytes <= SMALL_BYTES {
            return Ok(None);
        }
        let less = |left: usize| left.checked_sub(bytes);
        match self.0.fetch_update(Relaxed, Relaxed, less) {
            Err(_) => Err(()),
            Ok(_) => Ok(Some(Arc::new(Taken {
                room: self.clone(),
                bytes,
            }))),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.0.fetch_add(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let room = Room::new();
        assert!(room.take(SMALL_BYTES).unwrap().is_none());
        let all = room.take(MAX_BYTES).unwrap();
        assert!(room.take(SMALL_BYTES + 1).is_err());
        assert!(room.take(SMALL_BYTES).is_ok());
        drop(all);
        assert!(room.take(MAX_BYTES).unwrap().is_some());
    }
}
