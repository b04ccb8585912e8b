//! The kernel's tables of slots.
//!
//! Which backend is behind which number is written once per generation; what its health changes are
//! the slots alone, in place (`struct up_backend_slots` says why a reader may see both at once).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use aya::maps::{Array, MapData, MapError};
use ebpf::abi;

use super::{BackendCount, BackendSlots, Weights};
use crate::{address, compile::Balanced, sys::PodOf};
use policy::RuleName;

const GENERATIONS: usize = abi::GENERATIONS as usize;

pub(crate) struct BackendMaps {
    pub backend_slots: Array<MapData, PodOf<abi::BackendSlots>>,
    pub backends: Array<MapData, PodOf<abi::Endpoint>>,
    pub balanced: Array<MapData, u64>,
}

pub(crate) struct BackendTables {
    maps: BackendMaps,
    written: [Vec<Balanced>; GENERATIONS],
    weights: Weights,
    /// Counts of generations that have been written over.
    past: Counts,
}

type Counts = BTreeMap<(RuleName, SocketAddr), u64>;

impl BackendTables {
    pub(crate) fn new(maps: BackendMaps) -> Self {
        Self {
            maps,
            written: Default::default(),
            weights: Weights::new(),
            past: Counts::new(),
        }
    }

    /// Writes one generation, which nobody reads yet.
    pub(crate) fn write(&mut self, generation: u32, balanced: &[Balanced]) -> Result<(), MapError> {
        let mut past = std::mem::take(&mut self.past);
        let read = self.add_counts(generation, &mut past);
        self.past = past;
        read?;
        let Some(written) = self.written.get_mut(generation as usize) else {
            return Ok(());
        };
        *written = balanced.to_vec();
        self.forget_rules_that_are_gone();
        for (n, rule) in balanced.iter().enumerate() {
            for (index, at) in (first_backend(generation, n)..).zip(&rule.backends) {
                let at = PodOf(address::to_abi(*at));
                self.maps.backends.set(index, at, 0)?;
                self.maps.balanced.set(index, 0, 0)?;
            }
            self.write_slots(generation, n, &rule.backends)?;
        }
        Ok(())
    }

    /// From now on new connections go by these.
    pub(crate) fn set_weights(&mut self, weights: &Weights) -> Result<(), MapError> {
        self.weights.clone_from(weights);
        for generation in 0..abi::GENERATIONS {
            for (n, rule) in self.of(generation).iter().enumerate() {
                self.write_slots(generation, n, &rule.backends)?;
            }
        }
        Ok(())
    }

    /// Connections since the start.
    pub(crate) fn counts(&self) -> Result<Vec<BackendCount>, MapError> {
        let mut counts = self.past.clone();
        for generation in 0..abi::GENERATIONS {
            self.add_counts(generation, &mut counts)?;
        }
        let as_count = |((rule, backend), connections)| BackendCount {
            rule,
            backend,
            connections,
        };
        Ok(counts.into_iter().map(as_count).collect())
    }

    fn of(&self, generation: u32) -> Vec<Balanced> {
        let written = self.written.get(generation as usize);
        written.cloned().unwrap_or_default()
    }

    fn write_slots(
        &mut self,
        generation: u32,
        n: usize,
        of: &[SocketAddr],
    ) -> Result<(), MapError> {
        let slots = PodOf(BackendSlots::of(of, &self.weights).to_abi());
        self.maps
            .backend_slots
            .set(rule_index(generation, n), slots, 0)
    }

    fn add_counts(&self, generation: u32, sums: &mut Counts) -> Result<(), MapError> {
        for (n, rule) in self.of(generation).iter().enumerate() {
            for (index, at) in (first_backend(generation, n)..).zip(&rule.backends) {
                let count = self.maps.balanced.get(&index, 0)?;
                *sums.entry((rule.name.clone(), *at)).or_default() += count;
            }
        }
        Ok(())
    }

    /// So that generated names and addresses cannot pile up: what neither generation has any more
    /// is not told of any more either.
    fn forget_rules_that_are_gone(&mut self) {
        let known: BTreeSet<(&RuleName, &SocketAddr)> = self
            .written
            .iter()
            .flatten()
            .flat_map(|rule| rule.backends.iter().map(|at| (&rule.name, at)))
            .collect();
        self.past
            .retain(|(rule, at), _| known.contains(&(rule, at)));
    }
}

fn rule_index(generation: u32, n: usize) -> u32 {
    generation * abi::MAX_BALANCED + n as u32
}

fn first_backend(generation: u32, n: usize) -> u32 {
    rule_index(generation, n) * abi::MAX_BACKENDS
}
