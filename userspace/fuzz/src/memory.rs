//! Counts the memory that is held, so that a bound can be asserted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting for each thread.
struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
    static MOST_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands every call on to the system's allocator unchanged. Counting touches thread-locals
// without a destructor, which themselves do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Threads may free what others allocated, so it may have wrapped.
        let live = LIVE_BYTES.get().wrapping_add(layout.size());
        LIVE_BYTES.set(live);
        MOST_BYTES.set(MOST_BYTES.get().max(live));
        // SAFETY: the caller's own promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_sub(layout.size()));
        // SAFETY: the caller's own promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most that `work` held at once beyond what was held before.
pub fn most_held(work: impl FnOnce()) -> usize {
    let before = LIVE_BYTES.get();
    MOST_BYTES.set(before);
    work();
    MOST_BYTES.get().saturating_sub(before)
}
