//! The object, and its programs, as they go into the kernel.

use std::{io::ErrorKind, path::Path};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{MapInfo, MapType},
    programs::ProgramError,
};
use ebpf::abi;

use crate::pins::Pins;

/// The maps that have an entry for each flow or process.
const OF_FLOWS: [&str; 13] = [
    "client_connections",
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

/// The map of pending connects.
const OF_CONNECTS: [&str; 1] = ["pending_connects"];

/// The ring by which the agent is told of connects.
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

/// The hook's port, which has to outlive the loader; 0 for none.
fn upper_layer_port() -> u32 {
    test_hooks::get().upper_layer_port.unwrap_or(0)
}

fn loader(upper_layer_port: &u32) -> EbpfLoader<'_> {
    let mut loader = EbpfLoader::new();
    if *upper_layer_port != 0 {
        tracing::warn!(
            upper_layer_port,
            "sockets pass for another protocol's, for a test"
        );
        loader.override_global("upper_layer_port", upper_layer_port, true);
    }
    let hooks = test_hooks::get();
    for (entries, maps) in [
        (hooks.entries, &OF_FLOWS[..]),
        (hooks.connects, &OF_CONNECTS),
        (hooks.ring_bytes, &RINGS),
    ] {
        if let Some(entries) = entries {
            tracing::warn!(entries, ?maps, "maps are small, for a test");
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
pub(crate) fn retry_load(
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
