//! The object, and its programs, as they go into the kernel.

use std::{io::ErrorKind, path::Path};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{MapInfo, MapType},
    programs::ProgramError,
};
use ebpf::abi;

use crate::pins::Pins;

/// So many entries in every map that has one for each flow or process, instead of tens of thousands: for
/// tests of what happens when they are full.
pub const ENTRIES: &str = "UNDERPASS_TEST_ENTRIES";

/// Environment variable for tests: the size of the map of pending connects. It has a switch of its own,
/// since any number of connects may begin at once in a test of the maps of flows.
const CONNECTS: &str = "UNDERPASS_TEST_CONNECTS";

/// Paths that are to be taken for unavailable, separated by commas: for tests of what happens on a
/// kernel that does not have them.
const WITHOUT: &str = "UNDERPASS_TEST_WITHOUT";

/// Sockets with this port of their own, once enrolled, pass for such as speak another protocol above
/// TCP: for tests of what happens to kTLS that is set up late, on a kernel without it.
const UPPER_LAYER: &str = "UNDERPASS_TEST_ULP";

/// Why a path is off, if a test wants it so.
pub fn switched_off(path: &str) -> Option<String> {
    let named = std::env::var(WITHOUT).is_ok_and(|paths| paths.split(',').any(|p| p == path));
    named.then(|| format!("{WITHOUT} names it"))
}

const OF_FLOWS: [&str; 12] = [
    "remembered",
    "meters",
    "near_apps",
    "far_apps",
    "near_legs",
    "far_legs",
    "far_sinks",
    "splice_orders",
    "splices",
    "shortcut_firsts",
    "shortcut_ends",
    "shortcut_socks",
];

const OF_CONNECTS: [&str; 1] = ["pending_connects"];

/// Environment variable for tests: the size, in bytes, of the ring by which the agent is told of
/// connects.
const RING: &str = "UNDERPASS_TEST_RING_BYTES";

const RINGS: [&str; 1] = ["held"];

/// The virtual addresses that sockets dialled. The sockets outlive agents, so the map does.
const VIRTUALS: &str = "virtuals";

/// With maps of its own, and no program in the kernel yet.
pub(crate) fn load() -> Result<Ebpf, EbpfError> {
    loader(&upper_layer_port()).load(ebpf::OBJECT)
}

/// Loads as [`load`] does, but takes over what outlives agents from a dead one, and pins it for the
/// next.
pub(crate) fn load_after(pins: &Pins) -> Result<Ebpf, EbpfError> {
    let upper_layer_port = upper_layer_port();
    let mut loader = loader(&upper_layer_port);
    let inherited = pins.inherited(VIRTUALS).filter(|pin| is_virtuals(pin));
    if let Some(pin) = &inherited {
        loader.map_pin_path(VIRTUALS, pin);
    }
    let loaded = loader.load(ebpf::OBJECT)?;
    if let Some(Err(error)) = loaded.map(VIRTUALS).map(|map| map.pin(pins.path(VIRTUALS))) {
        tracing::warn!(%error, "the next agent will not know which virtual addresses were dialled");
    }
    Ok(loaded)
}

/// Not that of an agent which kept something else there.
fn is_virtuals(pin: &Path) -> bool {
    MapInfo::from_pin(pin).is_ok_and(|info| {
        info.map_type().is_ok_and(|kind| kind == MapType::SkStorage)
            && info.value_size() as usize == size_of::<abi::Endpoint>()
    })
}

fn number(switch: &str) -> Option<u32> {
    std::env::var(switch).ok()?.parse().ok()
}

fn upper_layer_port() -> u32 {
    number(UPPER_LAYER).unwrap_or(0)
}

fn loader(upper_layer_port: &u32) -> EbpfLoader<'_> {
    let mut loader = EbpfLoader::new();
    if *upper_layer_port != 0 {
        tracing::warn!(
            upper_layer_port,
            "{UPPER_LAYER}: sockets pass for another protocol's, for a test"
        );
        loader.override_global("upper_layer_port", upper_layer_port, true);
    }
    for (switch, maps) in [
        (ENTRIES, &OF_FLOWS[..]),
        (CONNECTS, &OF_CONNECTS),
        (RING, &RINGS),
    ] {
        if let Some(entries) = number(switch) {
            tracing::warn!(entries, "{switch}: maps are small, for a test");
            for map in maps {
                loader.map_max_entries(map, entries);
            }
        }
    }
    loader
}

/// The verifier gives a long program up when its thread is about to be interrupted, and says EAGAIN: it
/// is asked again, as libbpf does.
const TRIES: usize = 5;

/// Has a program verified and in the kernel.
pub(crate) fn insist(
    mut load: impl FnMut() -> Result<(), ProgramError>,
) -> Result<(), ProgramError> {
    for _ in 1..TRIES {
        match load() {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.kind() == ErrorKind::WouldBlock => {}
            loaded => return loaded,
        }
    }
    load()
}
