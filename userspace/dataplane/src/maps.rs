//! The maps of `maps.h`, typed, and the names by which the object has them.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use aya::{
    Ebpf,
    maps::{Array, HashMap, LpmTrie, Map, MapData, MapError, PerCpuArray, RingBuf},
};
use ebpf::abi;
use thiserror::Error;

use crate::{
    backends::BackendMaps,
    causes::causes,
    compile::{PROCESS_BYTES, SOURCE_BYTES, TARGET_BYTES},
    splice::SpliceMaps,
    sys::PodOf,
};

/// A map that the object should have and does not, or has with another layout: the object
/// and this crate were built from different sources.
#[derive(Debug, Error)]
pub enum MapsError {
    /// No such map.
    #[error("the BPF object has no map `{0}`")]
    Missing(&'static str),
    /// Sizes or type differ.
    #[error("map `{0}` is not what this agent expects: {error}", error = causes(.1))]
    Layout(&'static str, MapError),
}

/// The maps of the policy's tables.
pub(crate) struct PolicyMaps {
    pub settings: Array<MapData, PodOf<abi::AgentSettings>>,
    pub policies: Array<MapData, PodOf<abi::Policy>>,
    pub rules: Array<MapData, PodOf<abi::Rule>>,
    pub targets: LpmTrie<MapData, [u8; TARGET_BYTES], PodOf<abi::RuleSet>>,
    pub sources: LpmTrie<MapData, [u8; SOURCE_BYTES], PodOf<abi::RuleSet>>,
    pub processes: LpmTrie<MapData, [u8; PROCESS_BYTES], PodOf<abi::RuleSet>>,
    pub uids: HashMap<MapData, PodOf<abi::UidKey>, PodOf<abi::RuleSet>>,
    pub gids: HashMap<MapData, PodOf<abi::GidKey>, PodOf<abi::RuleSet>>,
    pub cgroups: HashMap<MapData, PodOf<abi::CgroupKey>, PodOf<abi::RuleSet>>,
    pub namespaces: HashMap<MapData, PodOf<abi::NetnsKey>, PodOf<abi::RuleSet>>,
    pub decisions: PerCpuArray<MapData, PodOf<abi::Decisions>>,
    pub incoming_ports: HashMap<MapData, u32, u32>,
}

/// The maps of single flows.
pub(crate) struct FlowMaps {
    pub pending_connects: HashMap<MapData, PodOf<abi::ConnectKey>, PodOf<abi::Connect>>,
    pub releases: HashMap<MapData, u64, PodOf<abi::Release>>,
    pub fresh: HashMap<MapData, PodOf<abi::ConnectKey>, u64>,
}

/// Decisions that stand for later connections.
pub(crate) type RememberedMap = HashMap<MapData, PodOf<abi::Opener>, PodOf<abi::Remembered>>;

/// The agent's listeners by namespace.
pub(crate) type NetnsAgentsMap = HashMap<MapData, u64, PodOf<abi::NetnsAgent>>;

/// Quotas that are used up.
pub(crate) type FullQuotasMap = HashMap<MapData, PodOf<abi::Quota>, u32>;

pub(crate) struct Maps {
    pub policy: PolicyMaps,
    pub backends: BackendMaps,
    pub flow: FlowMaps,
    pub meters: HashMap<MapData, u64, PodOf<abi::Meter>>,
    pub remembered: RememberedMap,
    pub full_quotas: FullQuotasMap,
    pub causes: PerCpuArray<MapData, u64>,
    pub held: RingBuf<MapData>,
    pub netns_agents: NetnsAgentsMap,
    pub unserved: RingBuf<MapData>,
    pub denials: RingBuf<MapData>,
    pub splice: SpliceMaps,
}

impl Maps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapsError> {
        Ok(Self {
            policy: PolicyMaps {
                settings: take(ebpf, "settings")?,
                policies: take(ebpf, "policies")?,
                rules: take(ebpf, "rules")?,
                targets: take(ebpf, "targets")?,
                sources: take(ebpf, "sources")?,
                processes: take(ebpf, "processes")?,
                uids: take(ebpf, "uids")?,
                gids: take(ebpf, "gids")?,
                cgroups: take(ebpf, "cgroups")?,
                namespaces: take(ebpf, "namespaces")?,
                decisions: take(ebpf, "decisions")?,
                incoming_ports: take(ebpf, "incoming_ports")?,
            },
            backends: BackendMaps {
                backend_slots: take(ebpf, "backend_slots")?,
                backends: take(ebpf, "backends")?,
                balanced: take(ebpf, "balanced")?,
            },
            flow: FlowMaps {
                pending_connects: take(ebpf, "pending_connects")?,
                releases: take(ebpf, "releases")?,
                fresh: take(ebpf, "fresh")?,
            },
            meters: take(ebpf, "meters")?,
            remembered: take(ebpf, "remembered")?,
            full_quotas: take(ebpf, "full_quotas")?,
            causes: take(ebpf, "causes")?,
            held: take(ebpf, "held")?,
            netns_agents: take(ebpf, "netns_agents")?,
            unserved: take(ebpf, "unserved")?,
            denials: take(ebpf, "denials")?,
            splice: SpliceMaps::take(ebpf)?,
        })
    }
}

impl SpliceMaps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapsError> {
        let names = [
            "near_apps",
            "far_apps",
            "near_legs",
            "far_legs",
            "far_sinks",
            "splice_orders",
            "splices",
            "splice_calls",
        ];
        let cloned = names.map(|name| descriptor(ebpf, name));
        Self::of(cloned.into_iter().collect::<Result<_, _>>()?)
    }

    /// Takes the maps from descriptors, in this order.
    pub(crate) fn of(descriptors: Vec<OwnedFd>) -> Result<Self, MapsError> {
        let mut each = descriptors.iter();
        let mut next = |name| {
            let descriptor = each.next().ok_or(MapsError::Missing(name))?;
            let descriptor = descriptor.try_clone().map_err(MapError::IoError);
            let map = descriptor.and_then(map);
            map.map_err(|e| MapsError::Layout(name, e))
        };
        Ok(Self {
            near_apps: typed("near_apps", next("near_apps")?)?,
            far_apps: typed("far_apps", next("far_apps")?)?,
            near_legs: typed("near_legs", next("near_legs")?)?,
            far_legs: typed("far_legs", next("far_legs")?)?,
            far_sinks: typed("far_sinks", next("far_sinks")?)?,
            orders: typed("splice_orders", next("splice_orders")?)?,
            splices: typed("splices", next("splices")?)?,
            calls: typed("splice_calls", next("splice_calls")?)?,
            descriptors,
        })
    }
}

pub(crate) fn take<M: TryFrom<Map, Error = MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<M, MapsError> {
    typed(name, ebpf.take_map(name).ok_or(MapsError::Missing(name))?)
}

fn typed<M: TryFrom<Map, Error = MapError>>(name: &'static str, map: Map) -> Result<M, MapsError> {
    M::try_from(map).map_err(|e| MapsError::Layout(name, e))
}

/// Another descriptor of the object's map.
pub(crate) fn descriptor(ebpf: &Ebpf, name: &'static str) -> Result<OwnedFd, MapsError> {
    let map = ebpf.map(name).ok_or(MapsError::Missing(name))?;
    cloned(map).map_err(|e| MapsError::Layout(name, MapError::IoError(e)))
}

fn cloned(map: &Map) -> io::Result<OwnedFd> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::SockHash(data)
        | Map::RingBuf(data)
        | Map::SkStorage(data) => data.fd().as_fd().try_clone_to_owned(),
        _ => Err(io::Error::other("a map of another type")),
    }
}

/// The map of a descriptor.
pub(crate) fn map(descriptor: OwnedFd) -> Result<Map, MapError> {
    Map::from_map_data(MapData::from_fd(descriptor)?)
}
