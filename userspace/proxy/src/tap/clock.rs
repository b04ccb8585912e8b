//! The clock of the kernel's copies.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Now, by that clock, in ns.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}
