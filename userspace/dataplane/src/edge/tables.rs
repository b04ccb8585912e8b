//! Puts a compiled policy into force at the edge, atomically: as [`crate::tables`] does for this
//! host's own connections. What an agent before this one wrote is found in the maps themselves.

use std::collections::HashMap;

use aya::{
    maps::{Array, LpmTrie, MapData, MapError, PerCpuValues, lpm_trie::Key},
    util::nr_cpus,
};
use ebpf::abi;
use ipnet::IpNet;

use super::{
    EdgeError,
    blocks::Blocks,
    classes::{Classes, EdgeRule, Networks},
    counts::{EdgeOutcome, EdgeRuleCount},
    maps::{Maps, Networks4, Networks6},
    prefixes::Prefixes,
};
use crate::{
    counters::one_by_one,
    sys::PodOf,
    tables::{GONE, gone},
};
use policy::{Action, RuleName};

/// Counts of one rule, by outcome.
type Counts = [u64; abi::EDGE_OUTCOMES as usize];
type Sums = HashMap<RuleName, Counts>;

const GENERATIONS: usize = abi::GENERATIONS as usize;

/// The words of a policy, and what was written for each generation.
pub(super) struct Tables {
    settings: abi::EdgeSettings,
    written: [Written; GENERATIONS],
    past: Sums,
}

#[derive(Default)]
struct Written {
    ports: Vec<u32>,
    /// By slot.
    rules: Vec<Option<RuleName>>,
}

/// A map's name, for an error about it.
pub(super) fn of(map: &'static str) -> impl Fn(MapError) -> EdgeError {
    move |source| EdgeError::Map { map, source }
}

impl Tables {
    /// Takes over what is there. `ports`: the first of the gateway's own, and how many.
    pub(super) fn read(maps: &Maps, ports: (u16, u16)) -> Result<Self, EdgeError> {
        let PodOf(settings) = maps.settings.get(&0, 0).map_err(of("settings"))?;
        let mut written: [Written; GENERATIONS] = Default::default();
        // Nothing was ever written into new maps.
        if settings.generation > 0 {
            for index in 0..abi::GENERATIONS * abi::EDGE_PORTS {
                let PodOf(port) = maps.ports.get(&index, 0).map_err(of("ports"))?;
                let of_port = written.get_mut((index / abi::EDGE_PORTS) as usize);
                if let Some(written) = of_port.filter(|_| port.class != 0) {
                    written.ports.push(index);
                }
            }
        }
        Ok(Self {
            settings: abi::EdgeSettings {
                first_port: ports.0,
                ports: ports.1,
                ..settings
            },
            written,
            past: Sums::new(),
        })
    }

    /// From now on, and for as long as the maps live, packets are looked up among the forwarded.
    pub(super) fn set_forwards(&mut self, maps: &mut Maps) -> Result<(), EdgeError> {
        self.settings.forwards = 1;
        self.put(maps, self.settings)
    }

    /// Has every connection asked about again, by the same policy.
    pub(super) fn count_up(&mut self, maps: &mut Maps) -> Result<(), EdgeError> {
        let generation = self.settings.generation.wrapping_add(abi::GENERATIONS);
        self.put(
            maps,
            abi::EdgeSettings {
                generation,
                ..self.settings
            },
        )
    }

    /// Writes `classes` and puts it into force. On an error the old policy stays. `table`: that of
    /// a rule which forwards.
    pub(super) fn install(
        &mut self,
        maps: &mut Maps,
        classes: &Classes,
        table: impl Fn(&RuleName) -> Option<u32>,
    ) -> Result<(), EdgeError> {
        let next = self.settings.generation.wrapping_add(1);
        let side = next % abi::GENERATIONS;
        self.erase(maps, side)?;
        self.write(maps, side, classes, table)?;
        let mut settings = self.settings;
        if let Some(scheme) = settings.schemes.get_mut(side as usize) {
            *scheme = abi::EdgeScheme {
                networks: classes.networks.count,
                targets: classes.target_count,
                ports: classes.early_ports(),
                uses_from: (!classes.sources.classes.is_empty()).into(),
                uses_networks: classes
                    .uses_networks
                    .first()
                    .is_some_and(|uses| *uses)
                    .into(),
                has_taken: classes.has_taken.into(),
                pad: 0,
            };
        }
        // First what nobody reads yet, then the word that has it read.
        self.put(maps, settings)?;
        settings.generation = next;
        self.put(maps, settings)
    }

    /// Writes a rule of the policy in force again, which has another table now.
    pub(super) fn set_table(
        &self,
        maps: &mut Maps,
        rule: &RuleName,
        table: u32,
    ) -> Result<(), EdgeError> {
        let side = self.settings.generation % abi::GENERATIONS;
        let rules = self.written.get(side as usize).map(|w| &w.rules);
        let slot = rules.and_then(|r| r.iter().position(|name| name.as_ref() == Some(rule)));
        let Some(slot) = slot else {
            return Ok(());
        };
        let index = side * abi::MAX_RULES + slot as u32;
        let PodOf(old) = maps.rules.get(&index, 0).map_err(of("rules"))?;
        let new = abi::EdgeRule { table, ..old };
        maps.rules.set(index, PodOf(new), 0).map_err(of("rules"))
    }

    /// Tables that the policy in force names.
    pub(super) fn tables_in_force(&self, maps: &Maps) -> Result<Vec<u32>, EdgeError> {
        let side = self.settings.generation % abi::GENERATIONS;
        let mut tables = Vec::new();
        for slot in 0..abi::MAX_RULES {
            let index = side * abi::MAX_RULES + slot;
            let PodOf(rule) = maps.rules.get(&index, 0).map_err(of("rules"))?;
            if rule.forwards != 0 {
                tables.push(rule.table);
            }
        }
        Ok(tables)
    }

    /// By rule, over all policies that this agent has put into force.
    pub(super) fn counts(&self, maps: &Maps) -> Result<Vec<EdgeRuleCount>, EdgeError> {
        let mut sums = self.past.clone();
        for side in 0..abi::GENERATIONS {
            self.add_counts(maps, side, &mut sums)?;
        }
        Ok(one_by_one(sums, EdgeOutcome::ALL))
    }

    fn put(&mut self, maps: &mut Maps, settings: abi::EdgeSettings) -> Result<(), EdgeError> {
        let set = maps.settings.set(0, PodOf(settings), 0);
        set.map_err(of("settings"))?;
        self.settings = settings;
        Ok(())
    }

    fn named(&self, side: u32) -> impl Iterator<Item = (u32, &RuleName)> {
        let rules = self.written.get(side as usize).map(|w| &w.rules);
        let slots = (side * abi::MAX_RULES..).zip(rules.into_iter().flatten());
        slots.filter_map(|(index, name)| Some((index, name.as_ref()?)))
    }

    fn add_counts(&self, maps: &Maps, side: u32, sums: &mut Sums) -> Result<(), EdgeError> {
        for (index, name) in self.named(side) {
            let per_cpu = maps.counts.get(&index, 0).map_err(of("counts"))?;
            let sum = sums.entry(name.clone()).or_default();
            for PodOf(cpu) in per_cpu.iter() {
                for (sum, n) in sum.iter_mut().zip(cpu.by_outcome) {
                    *sum += n;
                }
            }
        }
        Ok(())
    }

    /// Keeps what a side has counted, and empties it.
    fn erase(&mut self, maps: &mut Maps, side: u32) -> Result<(), EdgeError> {
        let mut past = self.past.clone();
        self.add_counts(maps, side, &mut past)?;
        let zero = PodOf(abi::EdgeRuleCount {
            by_outcome: [0; abi::EDGE_OUTCOMES as usize],
        });
        let cpus = nr_cpus().map_err(|(_, e)| of("counts")(MapError::IoError(e)))?;
        for slot in 0..abi::MAX_RULES {
            let index = side * abi::MAX_RULES + slot;
            let counted = maps.counts.get(&index, 0).map_err(of("counts"))?;
            if counted
                .iter()
                .all(|PodOf(n)| n.by_outcome == zero.0.by_outcome)
            {
                continue;
            }
            let zeros = PerCpuValues::try_from(vec![zero; cpus]);
            let zeros = zeros.map_err(|e| of("counts")(MapError::IoError(e)))?;
            maps.counts.set(index, zeros, 0).map_err(of("counts"))?;
        }
        self.past = past;
        clear(&mut maps.sources.0, side)?;
        clear(&mut maps.sources.1, side)?;
        clear(&mut maps.networks.0, side)?;
        clear(&mut maps.networks.1, side)?;
        let Some(written) = self.written.get_mut(side as usize) else {
            return Ok(());
        };
        let unnamed = abi::EdgePort {
            class: 0,
            strict: 0,
            uses_networks: 0,
        };
        for index in &written.ports {
            let set = maps.ports.set(*index, PodOf(unnamed), 0);
            set.map_err(of("ports"))?;
        }
        *written = Written::default();
        self.fold_past();
        Ok(())
    }

    /// Rules that neither side has any more count together.
    fn fold_past(&mut self) {
        let known = |name: &RuleName| {
            let sides = self.written.iter();
            sides.flat_map(|w| &w.rules).flatten().any(|n| n == name)
        };
        let mut folded = Sums::new();
        for (name, counts) in &self.past {
            let name = if known(name) {
                name.clone()
            } else {
                RuleName::new(GONE)
            };
            let sum = folded.entry(name).or_default();
            for (sum, n) in sum.iter_mut().zip(counts) {
                *sum += n;
            }
        }
        self.past = folded;
    }

    /// Notes each port before it is written, so that a write that fails half-way is erased by the
    /// next attempt.
    fn write(
        &mut self,
        maps: &mut Maps,
        side: u32,
        classes: &Classes,
        table: impl Fn(&RuleName) -> Option<u32>,
    ) -> Result<(), EdgeError> {
        let Some(written) = self.written.get_mut(side as usize) else {
            return Ok(());
        };
        write_networks(&mut maps.sources, side, &classes.sources)?;
        write_networks(&mut maps.networks, side, &classes.networks)?;
        write_blocks(maps, side, classes)?;
        write_prefixes(maps, side, classes)?;
        for (port, class, denies) in &classes.ports {
            let index = side * abi::EDGE_PORTS + u32::from(*port);
            written.ports.push(index);
            let value = abi::EdgePort {
                class: *class,
                strict: (*denies).into(),
                uses_networks: classes
                    .uses_networks
                    .get(usize::from(*class))
                    .is_some_and(|uses| *uses)
                    .into(),
            };
            let set = maps.ports.set(index, PodOf(value), 0);
            set.map_err(of("ports"))?;
        }
        write_cells(&mut maps.early, "early", side, &classes.early)?;
        write_cells(&mut maps.targets, "targets", side, &classes.targets)?;
        write_cells(&mut maps.matches, "matches", side, &classes.verdicts)?;
        let none = abi::EdgeRule {
            action: abi::ACTION_BYPASS as u8,
            strict: 0,
            forwards: 0,
            pad: 0,
            table: 0,
        };
        for slot in 0..abi::MAX_RULES {
            let rule = classes.rules.get(slot as usize).and_then(Option::as_ref);
            let value = rule.map_or(none, |rule| rule_abi(rule, table(&rule.name)));
            let index = side * abi::MAX_RULES + slot;
            let set = maps.rules.set(index, PodOf(value), 0);
            set.map_err(of("rules"))?;
        }
        let names = classes.rules.iter();
        written.rules = names.map(|r| r.as_ref().map(|r| r.name.clone())).collect();
        Ok(())
    }
}

fn rule_abi(rule: &EdgeRule, table: Option<u32>) -> abi::EdgeRule {
    let action = match rule.action {
        Action::Bypass => abi::ACTION_BYPASS,
        Action::Observe => abi::ACTION_OBSERVE,
        Action::Enrich => abi::ACTION_ENRICH,
        Action::Deny => abi::ACTION_DENY,
    };
    abi::EdgeRule {
        action: action as u8,
        strict: rule.names_ports.into(),
        forwards: (rule.forwards && table.is_some()).into(),
        pad: 0,
        table: table.unwrap_or(0),
    }
}

fn clear<const N: usize>(
    trie: &mut LpmTrie<MapData, [u8; N], u32>,
    side: u32,
) -> Result<(), EdgeError> {
    let keys: Result<Vec<Key<[u8; N]>>, _> = trie.keys().collect();
    for key in keys.map_err(of("networks"))? {
        if key.data().starts_with(&side.to_ne_bytes()) {
            gone(trie.remove(&key)).map_err(of("networks"))?;
        }
    }
    Ok(())
}

fn write_networks(
    tries: &mut (Networks4, Networks6),
    side: u32,
    networks: &Networks,
) -> Result<(), EdgeError> {
    const GENERATION_BITS: u32 = 32;
    for (network, class) in &networks.classes {
        let bits = GENERATION_BITS + u32::from(network.prefix_len());
        let inserted = match network {
            IpNet::V4(net) => {
                let key = joined(side.to_ne_bytes(), &net.network().octets());
                tries.0.insert(&Key::new(bits, key), class, 0)
            }
            IpNet::V6(net) => {
                let key = joined(side.to_ne_bytes(), &net.network().octets());
                tries.1.insert(&Key::new(bits, key), class, 0)
            }
        };
        inserted.map_err(of("networks"))?;
    }
    Ok(())
}

/// In whole, so that nothing of an older policy needs to be erased.
fn write_blocks(maps: &mut Maps, side: u32, classes: &Classes) -> Result<(), EdgeError> {
    let mut blocks = Blocks::default();
    for (of_packet, networks) in [
        (abi::EDGE_SOURCES, &classes.sources),
        (abi::EDGE_DESTINATIONS, &classes.networks),
    ] {
        let mut value = Box::new(abi::EdgeRoot {
            cells: [0; abi::EDGE_ROOT as usize],
        });
        for (to, cell) in value.cells.iter_mut().zip(blocks.root(networks)) {
            *to = cell;
        }
        let index = side * abi::EDGE_SIDES + of_packet;
        maps.roots
            .set(index, PodOf(*value), 0)
            .map_err(of("roots"))?;
    }
    for (index, cells) in (side * abi::EDGE_BLOCKS..).zip(blocks.0) {
        let value = PodOf(abi::EdgeBlock { cells });
        maps.blocks.set(index, value, 0).map_err(of("blocks"))?;
    }
    Ok(())
}

/// In whole as well; but the table is not read where there are no prefixes.
fn write_prefixes(maps: &mut Maps, side: u32, classes: &Classes) -> Result<(), EdgeError> {
    for (of_packet, networks) in [
        (abi::EDGE_SOURCES, &classes.sources),
        (abi::EDGE_DESTINATIONS, &classes.networks),
    ] {
        let index = side * abi::EDGE_SIDES + of_packet;
        let Prefixes { lengths, buckets } = Prefixes::of(networks);
        let set = maps.lengths.set(index, PodOf(lengths), 0);
        set.map_err(of("lengths"))?;
        if lengths.count == 0 {
            continue;
        }
        for (index, bucket) in (index * abi::EDGE_BUCKETS..).zip(buckets) {
            let set = maps.buckets.set(index, PodOf(bucket), 0);
            set.map_err(of("buckets"))?;
        }
    }
    Ok(())
}

fn joined<const N: usize>(generation: [u8; 4], address: &[u8]) -> [u8; N] {
    let mut key = [0; N];
    let bytes = generation.iter().chain(address);
    for (to, byte) in key.iter_mut().zip(bytes) {
        *to = *byte;
    }
    key
}

fn write_cells(
    map: &mut Array<MapData, PodOf<abi::EdgeLine>>,
    name: &'static str,
    side: u32,
    cells: &[u16],
) -> Result<(), EdgeError> {
    for (line, part) in (side * abi::EDGE_LINES..).zip(cells.chunks(abi::EDGE_LINE as usize)) {
        let mut value = abi::EdgeLine {
            cells: [0; abi::EDGE_LINE as usize],
        };
        for (to, cell) in value.cells.iter_mut().zip(part) {
            *to = *cell;
        }
        map.set(line, PodOf(value), 0).map_err(of(name))?;
    }
    Ok(())
}
