//! Counts what a thread allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting for each thread.
pub struct Counting;

thread_local! {
    pub static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    pub static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands every call on to the system's allocator unchanged. Counting touches a
// thread-local without a destructor, which itself does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_add(layout.size()));
        // SAFETY: the caller's own promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // Threads may free what others allocated.
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_sub(layout.size()));
        // SAFETY: the caller's own promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}
