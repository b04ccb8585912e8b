//! The tables of backends: which address is whose number, and whose turn it is. Each is written in
//! whole, into a table that no rule names, before a rule is told of it.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr, UdpSocket},
};

use ebpf::abi;

use super::{EdgeError, maglev, maps::Maps, tables::of};
use crate::{address, backends::Weight, sys::PodOf};
use policy::{Policy, RuleName};

/// A backend, and its share of the new connections; 0: it gets none.
pub type Weighted = (SocketAddr, Weight);

/// Backends of every rule that forwards.
#[derive(Default)]
pub(super) struct Backends {
    placed: HashMap<RuleName, Placed>,
    /// Tables that the policy before this agent's first one names.
    foreign: Vec<u32>,
}

#[derive(Clone)]
struct Placed {
    table: u32,
    backends: Vec<Weighted>,
    /// The gateway's own addresses towards them.
    sources: Vec<Option<IpAddr>>,
}

impl Backends {
    pub(super) fn beside(foreign: Vec<u32>) -> Self {
        Self {
            placed: HashMap::new(),
            foreign,
        }
    }

    pub(super) fn table(&self, rule: &RuleName) -> Option<u32> {
        Some(self.placed.get(rule)?.table)
    }

    /// Writes the tables of a policy's rules. A backend that is known keeps its weight; one that is
    /// new has weight 1. What is in force stays as it is; [`Self::settle`] ends that.
    pub(super) fn prepare(&self, maps: &mut Maps, policy: &Policy) -> Result<Self, EdgeError> {
        let mut next = Self::beside(self.in_use());
        for rule in policy.rules.iter().filter(|r| !r.backends.is_empty()) {
            let old = self.placed.get(&rule.name);
            let weight = |backend: &SocketAddr| {
                let known = old.and_then(|old| old.backends.iter().find(|(b, _)| b == backend));
                known.map_or(1, |(_, weight)| *weight)
            };
            let backends: Vec<Weighted> = rule.backends.iter().map(|b| (*b, weight(b))).collect();
            let sources = sources(&backends);
            let same = old.filter(|old| old.backends == backends && old.sources == sources);
            let placed = match same {
                Some(same) => same.clone(),
                None => next.write(maps, backends, sources)?,
            };
            next.placed.insert(rule.name.clone(), placed);
        }
        Ok(next)
    }

    /// Nobody but these rules names tables any more.
    pub(super) fn settle(&mut self) {
        self.foreign.clear();
    }

    /// Writes a rule's backends into another table, which it returns. None: no such rule, or
    /// nothing has changed.
    pub(super) fn set(
        &mut self,
        maps: &mut Maps,
        rule: &RuleName,
        wanted: &[Weighted],
    ) -> Result<Option<u32>, EdgeError> {
        let Some(old) = self.placed.get(rule) else {
            return Ok(None);
        };
        let weight = |backend: &SocketAddr| {
            let found = wanted.iter().find(|(b, _)| b == backend);
            found.map(|(_, weight)| *weight)
        };
        let backends = old.backends.iter();
        let backends: Vec<Weighted> = backends
            .map(|(backend, had)| (*backend, weight(backend).unwrap_or(*had)))
            .collect();
        let sources = sources(&backends);
        if old.backends == backends && old.sources == sources {
            return Ok(None);
        }
        let placed = self.write(maps, backends, sources)?;
        let table = placed.table;
        self.placed.insert(rule.clone(), placed);
        Ok(Some(table))
    }

    /// The rules whose gateway's addresses are not what they were.
    pub(super) fn moved(&self) -> Vec<(RuleName, Vec<Weighted>)> {
        let moved = self.placed.iter();
        moved
            .filter(|(_, placed)| sources(&placed.backends) != placed.sources)
            .map(|(rule, placed)| (rule.clone(), placed.backends.clone()))
            .collect()
    }

    /// Every backend, once.
    pub(super) fn all(&self) -> BTreeSet<SocketAddr> {
        let placed = self.placed.values();
        placed.flat_map(|p| &p.backends).map(|(b, _)| *b).collect()
    }

    fn in_use(&self) -> Vec<u32> {
        let own = self.placed.values().map(|placed| placed.table);
        own.chain(self.foreign.iter().copied()).collect()
    }

    fn write(
        &self,
        maps: &mut Maps,
        backends: Vec<Weighted>,
        sources: Vec<Option<IpAddr>>,
    ) -> Result<Placed, EdgeError> {
        let in_use = self.in_use();
        let mut tables = 0..abi::MAX_EDGE_TABLES;
        let table = tables.find(|table| !in_use.contains(table));
        let table = table.ok_or(EdgeError::TooManyTables)?;
        let first = table * abi::MAX_BACKENDS;
        let numbered = (first..).zip(backends.iter().zip(&sources));
        for (index, ((backend, _), source)) in numbered {
            let set = maps.backends.set(index, PodOf(entry(*backend, *source)), 0);
            set.map_err(of("backends"))?;
        }
        let nobody = abi::EdgeTurns {
            backend: [NOBODY; abi::EDGE_TURN_BYTES as usize],
        };
        let turns = maglev::Table::new(&backends).map_or(nobody, |turns| turns.to_abi());
        maps.turns
            .set(table, PodOf(turns), 0)
            .map_err(of("turns"))?;
        Ok(Placed {
            table,
            backends,
            sources,
        })
    }
}

/// No backend has this number.
const NOBODY: u8 = u8::MAX;

fn entry(backend: SocketAddr, source: Option<IpAddr>) -> abi::EdgeBackend {
    let to = address::to_abi(backend);
    let from = source.map(|ip| address::to_abi(SocketAddr::new(ip, 0)));
    abi::EdgeBackend {
        addr: to.addr,
        source: from.map_or([0; 16], |from| from.addr),
        port_be: to.port_be,
        has_source: source.is_some().into(),
        pad: [0; 5],
    }
}

/// Source addresses that the kernel would choose for connections of this host's own to the backends.
fn sources(backends: &[Weighted]) -> Vec<Option<IpAddr>> {
    backends
        .iter()
        .map(|(backend, _)| source(*backend))
        .collect()
}

fn source(backend: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = match backend {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(backend).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
