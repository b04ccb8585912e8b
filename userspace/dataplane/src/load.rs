//! The object, as it goes into the kernel.

use aya::{Ebpf, EbpfError, EbpfLoader};

/// So many entries in every map that has one for each flow, instead of tens of thousands: for tests
/// of what happens when they are full.
pub const ENTRIES: &str = "UNDERPASS_TEST_ENTRIES";

const OF_FLOWS: [&str; 9] = [
    "meters",
    "clients",
    "accepteds",
    "upstreams",
    "splice_orders",
    "splices",
    "shortcut_firsts",
    "shortcut_ends",
    "shortcut_socks",
];

/// With maps of its own, and no program in the kernel yet.
pub(crate) fn load() -> Result<Ebpf, EbpfError> {
    let mut loader = EbpfLoader::new();
    if let Some(entries) = std::env::var(ENTRIES).ok().and_then(|n| n.parse().ok()) {
        tracing::warn!(entries, "{ENTRIES}: maps are small, for a test");
        for map in OF_FLOWS {
            loader.map_max_entries(map, entries);
        }
    }
    loader.load(ebpf::OBJECT)
}
