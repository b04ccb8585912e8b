//! How much of long answers may wait for flows that do not take them, in all.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Answers up to this need no room: the share of a flow is that of what its own connection has under way.
pub(super) const SMALL_BYTES: usize = 4 << 10;

/// Four of the longest that are taken at all.
const MAX_BYTES: usize = 64 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Room(AtomicUsize);

/// A part of it, until it is dropped.
#[derive(Debug)]
struct Taken {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(MAX_BYTES)))
    }

    /// For an answer of so many bytes, until it goes on. `Err`: there is none.
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
