//! The edge's maps, typed.

use aya::{
    Ebpf,
    maps::{Array, HashMap, LpmTrie, MapData, PerCpuArray},
};
use ebpf::abi;

use crate::{
    maps::{MapsError, take},
    sys::PodOf,
};

/// The names of the object's maps, each of which is pinned.
pub(super) const NAMES: [&str; 22] = [
    "edge_settings",
    "edge_sources4",
    "edge_sources6",
    "edge_networks4",
    "edge_networks6",
    "edge_roots",
    "edge_blocks",
    "edge_lengths",
    "edge_buckets",
    "edge_ports",
    "edge_early",
    "edge_targets",
    "edge_matches",
    "edge_rules",
    "edge_interfaces",
    "edge_turns",
    "edge_backends",
    "edge_syns",
    FLOWS,
    "edge_changes",
    "edge_packets",
    "edge_counts",
];
/// The table of connections.
pub(super) const FLOWS: &str = "edge_flows";
/// The map of each processor's route cache; a program begins with an empty one.
pub(super) const ROUTES: &str = "edge_routes";

/// Networks of IPv4: the key is the generation and an address, behind the prefix length.
pub(super) type Networks4 = LpmTrie<MapData, [u8; 8], u32>;
pub(super) type Networks6 = LpmTrie<MapData, [u8; 20], u32>;

pub(super) struct Maps {
    pub settings: Array<MapData, PodOf<abi::EdgeSettings>>,
    pub sources: (Networks4, Networks6),
    pub networks: (Networks4, Networks6),
    pub roots: Array<MapData, PodOf<abi::EdgeRoot>>,
    pub blocks: Array<MapData, PodOf<abi::EdgeBlock>>,
    pub lengths: Array<MapData, PodOf<abi::EdgeLengths>>,
    pub buckets: Array<MapData, PodOf<abi::EdgeBucket>>,
    pub ports: Array<MapData, PodOf<abi::EdgePort>>,
    pub early: Array<MapData, PodOf<abi::EdgeLine>>,
    pub targets: Array<MapData, PodOf<abi::EdgeLine>>,
    pub matches: Array<MapData, PodOf<abi::EdgeLine>>,
    pub rules: Array<MapData, PodOf<abi::EdgeRule>>,
    pub interfaces: HashMap<MapData, u32, PodOf<abi::EdgeInterface>>,
    pub turns: Array<MapData, PodOf<abi::EdgeTurns>>,
    pub backends: Array<MapData, PodOf<abi::EdgeBackend>>,
    pub flows: HashMap<MapData, PodOf<abi::EdgeTuple>, PodOf<abi::EdgeFlow>>,
    pub packets: PerCpuArray<MapData, u64>,
    pub counts: PerCpuArray<MapData, PodOf<abi::EdgeRuleCount>>,
}

impl Maps {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, MapsError> {
        Ok(Self {
            settings: take(ebpf, "edge_settings")?,
            sources: (take(ebpf, "edge_sources4")?, take(ebpf, "edge_sources6")?),
            networks: (take(ebpf, "edge_networks4")?, take(ebpf, "edge_networks6")?),
            roots: take(ebpf, "edge_roots")?,
            blocks: take(ebpf, "edge_blocks")?,
            lengths: take(ebpf, "edge_lengths")?,
            buckets: take(ebpf, "edge_buckets")?,
            ports: take(ebpf, "edge_ports")?,
            early: take(ebpf, "edge_early")?,
            targets: take(ebpf, "edge_targets")?,
            matches: take(ebpf, "edge_matches")?,
            rules: take(ebpf, "edge_rules")?,
            interfaces: take(ebpf, "edge_interfaces")?,
            turns: take(ebpf, "edge_turns")?,
            backends: take(ebpf, "edge_backends")?,
            flows: take(ebpf, FLOWS)?,
            packets: take(ebpf, "edge_packets")?,
            counts: take(ebpf, "edge_counts")?,
        })
    }
}
