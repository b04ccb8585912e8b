//! How much of a receive buffer, and of the host's TCP memory, there must be left for the shortcut.

use std::fs;

use ebpf::abi;

/// The bytes that may lie past TCP for a reader whose receive buffer grows by itself: half of what it may grow to, the third
/// number of `net.ipv4.tcp_rmem`, for the kernel counts them against it. At most [`abi::SHORTCUT_FLOW_BYTES`].
pub(super) fn flow_bytes() -> u32 {
    let sizes = fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem");
    sizes.map_or(abi::SHORTCUT_FLOW_BYTES, |sizes| {
        half_of_the_largest(&sizes)
    })
}

fn half_of_the_largest(sizes: &str) -> u32 {
    let largest = sizes.split_whitespace().nth(2).and_then(|n| n.parse().ok());
    largest.map_or(abi::SHORTCUT_FLOW_BYTES, |largest: u32| {
        (largest / 2).min(abi::SHORTCUT_FLOW_BYTES)
    })
}

/// The kernel's own low mark, below which its TCP is under no pressure: the first number of
/// `net.ipv4.tcp_mem`, in pages. Beyond it bytes take TCP, which knows what to do.
pub(super) fn host_pages() -> u64 {
    if let Some(pages) = test_hooks::get().host_pages {
        return pages;
    }
    let low_mark = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem")
        .ok()
        .and_then(|marks| marks.split_whitespace().next()?.parse().ok());
    low_mark
        .or_else(|| low_mark_by_memory(&fs::read_to_string("/proc/meminfo").ok()?))
        .unwrap_or(0)
}

/// The file is there in the first network namespace only. As the kernel computes its default
/// (`tcp_init_mem`): three quarters of a sixteenth.
fn low_mark_by_memory(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 4 / 64 * 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_cannot_grow_far_is_shared_with_tcp() {
        for (sizes, bytes) in [
            ("4096\t131072\t33554432\n", abi::SHORTCUT_FLOW_BYTES),
            ("4096\t131072\t262144\n", 131_072),
            ("", abi::SHORTCUT_FLOW_BYTES),
        ] {
            assert_eq!(half_of_the_largest(sizes), bytes, "{sizes:?}");
        }
    }

    #[test]
    fn the_low_mark_is_three_sixty_fourths_of_the_memory() {
        assert_eq!(
            low_mark_by_memory("MemTotal:       24643584 kB\nMemFree: 1 kB\n"),
            Some(288_792)
        );
        assert_eq!(low_mark_by_memory(""), None);
    }
}
