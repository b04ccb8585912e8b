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
    compile::{PROCESS_BYTES, SOURCE_BYTES, TARGET_BYTES},
    splices::SpliceMaps,
    sys::Shared,
};

/// A map that the object should have and does not, or has with another layout: the object
/// and this crate were built from different sources.
#[derive(Debug, Error)]
pub enum MapsError {
    /// No such map.
    #[error("the BPF object has no map `{0}`")]
    Missing(&'static str),
    /// Sizes or type differ.
    #[error("map `{0}` is not what this agent expects: {1}")]
    Layout(&'static str, MapError),
}

/// What the policy tables consist of.
pub(crate) struct PolicyMaps {
    pub settings: Array<MapData, Shared<abi::Settings>>,
    pub policies: Array<MapData, Shared<abi::Policy>>,
    pub rules: Array<MapData, Shared<abi::Rule>>,
    pub targets: LpmTrie<MapData, [u8; TARGET_BYTES], Shared<abi::RuleSet>>,
    pub sources: LpmTrie<MapData, [u8; SOURCE_BYTES], Shared<abi::RuleSet>>,
    pub processes: LpmTrie<MapData, [u8; PROCESS_BYTES], Shared<abi::RuleSet>>,
    pub uids: HashMap<MapData, Shared<abi::UidKey>, Shared<abi::RuleSet>>,
    pub cgroups: HashMap<MapData, Shared<abi::CgroupKey>, Shared<abi::RuleSet>>,
    pub namespaces: HashMap<MapData, Shared<abi::NetnsKey>, Shared<abi::RuleSet>>,
    pub decisions: PerCpuArray<MapData, Shared<abi::Decisions>>,
    pub incoming_ports: HashMap<MapData, u32, u32>,
}

/// What belongs to single flows.
pub(crate) struct FlowMaps {
    pub legs: HashMap<MapData, Shared<abi::LegKey>, Shared<abi::Leg>>,
    pub releases: HashMap<MapData, u64, Shared<abi::Release>>,
    pub fresh: HashMap<MapData, Shared<abi::LegKey>, u64>,
}

/// Decisions that stand for later connections.
pub(crate) type RememberedMap = HashMap<MapData, Shared<abi::Opener>, Shared<abi::Remembered>>;

/// The agent's listeners by namespace.
pub(crate) type OutpostsMap = HashMap<MapData, u64, Shared<abi::Outpost>>;

pub(crate) struct Maps {
    pub policy: PolicyMaps,
    pub backends: BackendMaps,
    pub flow: FlowMaps,
    pub meters: HashMap<MapData, u64, Shared<abi::Meter>>,
    pub remembered: RememberedMap,
    pub causes: PerCpuArray<MapData, u64>,
    pub held: RingBuf<MapData>,
    pub outposts: OutpostsMap,
    pub unserved: RingBuf<MapData>,
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
                cgroups: take(ebpf, "cgroups")?,
                namespaces: take(ebpf, "namespaces")?,
                decisions: take(ebpf, "decisions")?,
                incoming_ports: take(ebpf, "incoming_ports")?,
            },
            backends: BackendMaps {
                lots: take(ebpf, "lots")?,
                backends: take(ebpf, "backends")?,
                balanced: take(ebpf, "balanced")?,
            },
            flow: FlowMaps {
                legs: take(ebpf, "legs")?,
                releases: take(ebpf, "releases")?,
                fresh: take(ebpf, "fresh")?,
            },
            meters: take(ebpf, "meters")?,
            remembered: take(ebpf, "remembered")?,
            causes: take(ebpf, "causes")?,
            held: take(ebpf, "held")?,
            outposts: take(ebpf, "outposts")?,
            unserved: take(ebpf, "unserved")?,
            splice: SpliceMaps::take(ebpf)?,
        })
    }
}

impl SpliceMaps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapsError> {
        let names = [
            "clients",
            "senders",
            "accepteds",
            "upstreams",
            "sinks",
            "splice_orders",
            "splices",
            "splice_calls",
        ];
        let cloned = names.map(|name| descriptor(ebpf, name));
        Self::of(cloned.into_iter().collect::<Result<_, _>>()?)
    }

    /// Of descriptors, in this order.
    pub(crate) fn of(descriptors: Vec<OwnedFd>) -> Result<Self, MapsError> {
        let mut each = descriptors.iter();
        let mut next = |name| {
            let descriptor = each.next().ok_or(MapsError::Missing(name))?;
            let descriptor = descriptor.try_clone().map_err(MapError::IoError);
            let map = descriptor.and_then(map);
            map.map_err(|e| MapsError::Layout(name, e))
        };
        Ok(Self {
            clients: typed("clients", next("clients")?)?,
            senders: typed("senders", next("senders")?)?,
            accepteds: typed("accepteds", next("accepteds")?)?,
            upstreams: typed("upstreams", next("upstreams")?)?,
            sinks: typed("sinks", next("sinks")?)?,
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
        Map::HashMap(data) | Map::SockHash(data) | Map::RingBuf(data) | Map::SkStorage(data) => {
            data.fd().as_fd().try_clone_to_owned()
        }
        _ => Err(io::Error::other("a map of another type")),
    }
}

/// The map of a descriptor.
pub(crate) fn map(descriptor: OwnedFd) -> Result<Map, MapError> {
    Map::from_map_data(MapData::from_fd(descriptor)?)
}
