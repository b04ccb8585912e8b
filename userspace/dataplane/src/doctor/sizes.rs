//! The sizes of a process's maps, as the kernel accounts for them.

use std::{collections::BTreeMap, fs, io};

/// A map that a process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSize {
    /// The kernel's number of the map.
    pub id: u32,
    /// The map's name, of which the kernel keeps 15 bytes. Empty, if the kernel does not tell.
    pub name: String,
    /// Bytes of a key.
    pub key_size: u64,
    /// Bytes of a value.
    pub value_size: u64,
    /// Entries that the map has room for; of a ring, its bytes.
    pub max_entries: u64,
    /// Bytes that the kernel has taken for the map.
    pub bytes: u64,
}

/// Lists the maps of a process, by their numbers.
///
/// # Errors
/// There is no such process, or it belongs to another user.
pub fn map_sizes(pid: u32) -> io::Result<Vec<MapSize>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor may be closed meanwhile.
        let Ok(text) = fs::read_to_string(entry?.path()) else {
            continue;
        };
        if let Some(map) = parse(&text) {
            found.insert(map.id, map);
        }
    }
    for map in aya::maps::loaded_maps().flatten() {
        if let Some(held) = found.get_mut(&map.id()) {
            held.name = map.name_as_str().unwrap_or_default().to_owned();
        }
    }
    Ok(found.into_values().collect())
}

/// Reads the lines that fdinfo has of a map. None: it is of something else.
fn parse(text: &str) -> Option<MapSize> {
    let value = |key: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.strip_prefix(':')?.trim().parse().ok()
    };
    Some(MapSize {
        id: value("map_id")?.try_into().ok()?,
        name: String::new(),
        key_size: value("key_size")?,
        value_size: value("value_size")?,
        max_entries: value("max_entries")?,
        bytes: value("memlock")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_told_from_other_descriptors() {
        let map = "pos:\t0\nflags:\t02000002\nmap_type:\t1\nkey_size:\t8\nvalue_size:\t16\nmax_entries:\t64\n\
                   map_flags:\t0x0\nmap_extra:\t0x0\nmemlock:\t4096\nmap_id:\t7\nfrozen:\t0\n";
        let parsed = parse(map).unwrap();
        assert_eq!(
            (
                parsed.id,
                parsed.key_size,
                parsed.value_size,
                parsed.max_entries,
                parsed.bytes
            ),
            (7, 8, 16, 64, 4096)
        );
        assert_eq!(
            parse("pos:\t0\nflags:\t02\nprog_id:\t9\nmemlock:\t4096\n"),
            None
        );
    }
}
