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

/// With maps of its own, and no program in the kernel yet.
pub(crate) fn load() -> Result<Ebpf, EbpfError> {
    loader(&upper_layer_port()).load(ebpf::OBJECT)
}

/// Loads as [`load`] does, but takes over what outlives agents from the one before, and pins it for the
/// next.
pub(crate) fn load_after(pins: &Pins) -> Result<Ebpf, EbpfError> {
    let upper_layer_port = upper_layer_port();
    let mut loader = loader(&upper_layer_port);
    let inherited =
        STAYING.map(|staying| pins.inherited(staying.pin).filter(|pin| staying.is_at(pin)));
    for (staying, pin) in STAYING.iter().zip(&inherited) {
        if let Some(pin) = pin {
            loader.map_pin_path(staying.map, pin);
        }
    }
    let loaded = loader.load(ebpf::OBJECT)?;
    for staying in STAYING {
        let pinned = loaded
            .map(staying.map)
            .map(|map| map.pin(pins.path(staying.pin)));
        if let Some(Err(error)) = pinned {
            tracing::warn!(%error, map = staying.map, "the next agent will not know {}", staying.what);
        }
    }
    Ok(loaded)
}

/// A map of storage of sockets. The sockets outlive agents, so the map does.
struct Staying {
    map: &'static str,
    /// The name of its pin, another one for each layout of what it stores.
    pin: &'static str,
    value_bytes: usize,
    what: &'static str,
}

const STAYING: [Staying; 2] = [
    Staying {
        map: "virtuals",
        pin: "virtuals",
        value_bytes: size_of::<abi::Endpoint>(),
        what: "which virtual addresses were dialled",
    },
    // Of flows that are handed over. Both agents' programs see all of them while both run: what is not theirs they enter
    // into tables of their own, and take out again.
    Staying {
        map: "flows",
        pin: "flows_1",
        value_bytes: size_of::<abi::Flow>(),
        what: "which addresses its clients dialled",
    },
];

impl Staying {
    /// Not that of an agent which kept something else there.
    fn is_at(&self, pin: &Path) -> bool {
        MapInfo::from_pin(pin).is_ok_and(|info| {
            info.map_type().is_ok_and(|kind| kind == MapType::SkStorage)
                && info.value_size() as usize == self.value_bytes
        })
    }
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
