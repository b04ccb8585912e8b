//! Puts a policy into force, atomically: the tables of the generation that nobody reads are
//! written, then one word says that it is the one in force.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use aya::{
    maps::{MapError, PerCpuValues, lpm_trie::Key},
    util::nr_cpus,
};
use ebpf::abi;
use thiserror::Error;

use crate::{
    backends::{BackendCount, BackendTables, Weights},
    causes::causes,
    compile::{Compiled, PROCESS_BYTES, Prefix, SOURCE_BYTES, TARGET_BYTES},
    counters::{Outcome, RuleCount, one_by_one},
    maps::PolicyMaps,
    quota::{FullQuotas, Quota},
    rule_names::RuleNames,
    sys::PodOf,
};
use policy::{Action, Fail, LimitPer, RuleName, Sample};

/// A policy that could not be written. The one in force still is.
#[derive(Debug, Error)]
#[error("cannot write the policy into the kernel's {table}: {}", causes(.source))]
pub struct InstallError {
    table: &'static str,
    source: MapError,
}

fn of(table: &'static str) -> impl Fn(MapError) -> InstallError {
    move |source| InstallError { table, source }
}

/// Keys that were written for one generation, to be erased when it is written over.
#[derive(Default)]
struct Written {
    targets: Vec<Key<[u8; TARGET_BYTES]>>,
    sources: Vec<Key<[u8; SOURCE_BYTES]>>,
    processes: Vec<Key<[u8; PROCESS_BYTES]>>,
    uids: Vec<abi::UidKey>,
    gids: Vec<abi::GidKey>,
    cgroups: Vec<abi::CgroupKey>,
    namespaces: Vec<abi::NetnsKey>,
    names: Arc<[RuleName]>,
    /// The number of forgettings when it was written.
    since: u32,
}

pub(crate) struct Tables {
    maps: PolicyMaps,
    backends: BackendTables,
    full_quotas: FullQuotas,
    settings: abi::AgentSettings,
    written: [Written; abi::GENERATIONS as usize],
    /// The numbers of limits, by rule and what counts as one client: a rule that comes again goes on counting.
    limits: HashMap<(RuleName, LimitPer), u32>,
    /// Counts of generations that have been written over.
    past: HashMap<RuleName, [u64; abi::OUTCOMES as usize]>,
}

impl Tables {
    pub(crate) fn new(
        maps: PolicyMaps,
        backends: BackendTables,
        full_quotas: FullQuotas,
        settings: abi::AgentSettings,
    ) -> Self {
        Self {
            maps,
            backends,
            full_quotas,
            settings,
            written: Default::default(),
            limits: HashMap::new(),
            past: HashMap::new(),
        }
    }

    /// Writes `compiled` and puts it into force. On an error the old policy stays.
    pub(crate) fn install(&mut self, compiled: &Compiled) -> Result<(), InstallError> {
        let next = 1 - self.settings.generation;
        self.erase(next)?;
        self.write(next, compiled)?;
        self.add_ports(&compiled.incoming_ports)?;
        let settings = abi::AgentSettings {
            generation: next,
            ..self.settings
        };
        self.put_settings(settings)?;
        self.keep_ports(&compiled.incoming_ports)
    }

    fn add_ports(&mut self, ports: &BTreeSet<u16>) -> Result<(), InstallError> {
        for port in ports {
            let inserted = self.maps.incoming_ports.insert(u32::from(*port), 1, 0);
            inserted.map_err(of("incoming_ports"))?;
        }
        Ok(())
    }

    /// And no others. Databases that are known already stay known.
    fn keep_ports(&mut self, ports: &BTreeSet<u16>) -> Result<(), InstallError> {
        let there: Vec<u32> = self.maps.incoming_ports.keys().flatten().collect();
        for port in there {
            if !ports.contains(&(port as u16)) {
                gone(self.maps.incoming_ports.remove(&port)).map_err(of("incoming_ports"))?;
            }
        }
        Ok(())
    }

    /// The generation of the policy in force.
    pub(crate) fn generation(&self) -> u8 {
        u8::from(self.settings.generation & 1 != 0)
    }

    /// How often everything that was remembered has been forgotten, as connections have it that come now.
    pub(crate) fn forgets(&self) -> u32 {
        self.settings.forgets
    }

    /// The names by slot of a generation, for flows that were decided under it.
    pub(crate) fn names(&self) -> [RuleNames; abi::GENERATIONS as usize] {
        self.written.each_ref().map(|w| RuleNames {
            by_slot: w.names.clone(),
            since: w.since,
        })
    }

    /// The names that there will be once a policy is installed. Flows may come under it before whoever installs it knows.
    pub(crate) fn names_with(&self, compiled: &Compiled) -> [RuleNames; abi::GENERATIONS as usize] {
        let mut names = self.names();
        if let Some(next) = names.get_mut(1 - usize::from(self.generation())) {
            *next = RuleNames {
                by_slot: compiled.names.clone().into(),
                since: self.settings.forgets,
            };
        }
        names
    }

    /// Nothing that is remembered stands any more. Gives the number of what will be from now on.
    pub(crate) fn forget(&mut self) -> Result<u32, InstallError> {
        let forgets = self.settings.forgets.wrapping_add(1);
        self.put_settings(abi::AgentSettings {
            forgets,
            ..self.settings
        })?;
        Ok(forgets)
    }

    pub(crate) fn set_full(&mut self, full: bool) -> Result<(), InstallError> {
        self.put_settings(abi::AgentSettings {
            full: full.into(),
            ..self.settings
        })
    }

    /// Whether further flows of a quota's holders are to follow their rule's `fail`.
    pub(crate) fn set_quota_full(&mut self, quota: Quota, full: bool) -> Result<(), InstallError> {
        let set = self.full_quotas.set(quota, full);
        let full_quotas = set.map_err(of("full_quotas"))?;
        self.put_settings(abi::AgentSettings {
            full_quotas,
            ..self.settings
        })
    }

    /// Notes that the process of the agent before has ended: its number may be anybody's from now on.
    pub(crate) fn forget_before(&mut self) -> Result<(), InstallError> {
        self.put_settings(abi::AgentSettings {
            before_tgid: 0,
            ..self.settings
        })
    }

    /// Whether flows that are to be observed are left alone unobserved.
    pub(crate) fn set_unmetered(&mut self, unmetered: bool) -> Result<(), InstallError> {
        self.put_settings(abi::AgentSettings {
            unmetered: unmetered.into(),
            ..self.settings
        })
    }

    /// The share of new connections that each backend gets, from now on and in later policies.
    pub(crate) fn set_weights(&mut self, weights: &Weights) -> Result<(), InstallError> {
        self.backends
            .set_weights(weights)
            .map_err(of("backend_slots"))
    }

    /// Connections by rule and backend since the start.
    pub(crate) fn backend_counts(&self) -> Result<Vec<BackendCount>, InstallError> {
        self.backends.counts().map_err(of("balanced"))
    }

    /// Connections by rule since the start, over all policies.
    pub(crate) fn rule_counts(&self) -> Result<Vec<RuleCount>, InstallError> {
        let mut sums = self.past.clone();
        for generation in 0..abi::GENERATIONS {
            self.add_counts(generation, &mut sums)?;
        }
        Ok(one_by_one(sums, Outcome::ALL))
    }

    fn put_settings(&mut self, settings: abi::AgentSettings) -> Result<(), InstallError> {
        self.maps
            .settings
            .set(0, PodOf(settings), 0)
            .map_err(of("settings"))?;
        self.settings = settings;
        Ok(())
    }

    fn slots(&self, generation: u32) -> impl Iterator<Item = (RuleName, u32)> {
        let names = self
            .written
            .get(generation as usize)
            .map(|w| w.names.clone());
        let names = names.unwrap_or_default();
        let last = names.len().saturating_sub(1);
        // The default's slot is the last one, however many rules there are.
        (0..names.len()).filter_map(move |n| {
            let slot = if n == last { abi::MAX_RULES } else { n as u32 };
            Some((names.get(n)?.clone(), generation * abi::RULE_SLOTS + slot))
        })
    }

    fn add_counts(
        &self,
        generation: u32,
        sums: &mut HashMap<RuleName, [u64; abi::OUTCOMES as usize]>,
    ) -> Result<(), InstallError> {
        for (rule, index) in self.slots(generation) {
            let per_cpu = self
                .maps
                .decisions
                .get(&index, 0)
                .map_err(of("decisions"))?;
            let sum = sums.entry(rule).or_default();
            for PodOf(cpu) in per_cpu.iter() {
                for (sum, n) in sum.iter_mut().zip(cpu.by_outcome) {
                    *sum += n;
                }
            }
        }
        Ok(())
    }

    fn erase(&mut self, generation: u32) -> Result<(), InstallError> {
        let mut past = std::mem::take(&mut self.past);
        let kept = self.add_counts(generation, &mut past);
        self.past = fold(past, &self.written);
        kept?;
        let cpus = nr_cpus().map_err(|(_, e)| of("decisions")(MapError::IoError(e)))?;
        for (_, index) in self.slots(generation).collect::<Vec<_>>() {
            let zero = PodOf(abi::Decisions {
                by_outcome: [0; abi::OUTCOMES as usize],
            });
            let zeros = PerCpuValues::try_from(vec![zero; cpus])
                .map_err(|e| of("decisions")(MapError::IoError(e)))?;
            self.maps
                .decisions
                .set(index, zeros, 0)
                .map_err(of("decisions"))?;
        }
        let Some(written) = self.written.get_mut(generation as usize) else {
            return Ok(());
        };
        let written = std::mem::take(written);
        for key in &written.targets {
            gone(self.maps.targets.remove(key)).map_err(of("targets"))?;
        }
        for key in &written.sources {
            gone(self.maps.sources.remove(key)).map_err(of("sources"))?;
        }
        for key in &written.processes {
            gone(self.maps.processes.remove(key)).map_err(of("processes"))?;
        }
        for key in &written.uids {
            gone(self.maps.uids.remove(&PodOf(*key))).map_err(of("uids"))?;
        }
        for key in &written.gids {
            gone(self.maps.gids.remove(&PodOf(*key))).map_err(of("gids"))?;
        }
        for key in &written.cgroups {
            gone(self.maps.cgroups.remove(&PodOf(*key))).map_err(of("cgroups"))?;
        }
        for key in &written.namespaces {
            gone(self.maps.namespaces.remove(&PodOf(*key))).map_err(of("namespaces"))?;
        }
        Ok(())
    }

    /// Notes each key before it is written, so that a write that fails half-way is erased by
    /// the next attempt.
    fn write(&mut self, generation: u32, compiled: &Compiled) -> Result<(), InstallError> {
        let Some(written) = self.written.get_mut(generation as usize) else {
            return Ok(());
        };
        for (prefix, set) in &compiled.targets {
            let key = Key::new(prefix.bits, in_generation(prefix, generation));
            written.targets.push(key);
            let value = PodOf(set.to_abi());
            self.maps
                .targets
                .insert(&key, value, 0)
                .map_err(of("targets"))?;
        }
        for (prefix, set) in &compiled.sources {
            let key = Key::new(prefix.bits, in_generation(prefix, generation));
            written.sources.push(key);
            let value = PodOf(set.to_abi());
            self.maps
                .sources
                .insert(&key, value, 0)
                .map_err(of("sources"))?;
        }
        for (prefix, set) in &compiled.processes {
            let key = Key::new(prefix.bits, in_generation(prefix, generation));
            written.processes.push(key);
            let value = PodOf(set.to_abi());
            self.maps
                .processes
                .insert(&key, value, 0)
                .map_err(of("processes"))?;
        }
        for (uid, set) in &compiled.uids {
            let key = abi::UidKey {
                generation,
                uid: *uid,
            };
            written.uids.push(key);
            let value = PodOf(set.to_abi());
            self.maps
                .uids
                .insert(PodOf(key), value, 0)
                .map_err(of("uids"))?;
        }
        for (gid, set) in &compiled.gids {
            let key = abi::GidKey {
                generation,
                gid: *gid,
            };
            written.gids.push(key);
            let value = PodOf(set.to_abi());
            self.maps
                .gids
                .insert(PodOf(key), value, 0)
                .map_err(of("gids"))?;
        }
        for (cgroup_id, set) in &compiled.cgroups {
            let key = abi::CgroupKey {
                cgroup_id: *cgroup_id,
                generation,
                pad: 0,
            };
            written.cgroups.push(key);
            let value = PodOf(set.to_abi());
            self.maps
                .cgroups
                .insert(PodOf(key), value, 0)
                .map_err(of("cgroups"))?;
        }
        for (inode, set) in &compiled.namespaces {
            let inode = *inode;
            let key = abi::NetnsKey { generation, inode };
            written.namespaces.push(key);
            let value = PodOf(set.to_abi());
            self.maps
                .namespaces
                .insert(PodOf(key), value, 0)
                .map_err(of("namespaces"))?;
        }
        for (n, (action, fail)) in compiled.rules.iter().enumerate() {
            let (limit, limit_id, limit_by) = limit_abi(&mut self.limits, compiled, n);
            let rule = abi::Rule {
                action: action_abi(*action),
                fail: fail_abi(*fail),
                shortcut: compiled.shortcuts.get(n).is_some_and(|s| *s).into(),
                recalls: compiled.recalls.get(n).is_some_and(|r| *r).into(),
                balanced: balanced_number(compiled, n),
                taps: compiled.taps.get(n).copied().unwrap_or_default(),
                protects: compiled.guards.get(n).is_some_and(|g| *g).into(),
                limit_by,
                sample: steps(&compiled.samples, n),
                holdout: steps(&compiled.holdouts, n),
                limit,
                limit_id,
            };
            let index = generation * abi::MAX_RULES + n as u32;
            self.maps
                .rules
                .set(index, PodOf(rule), 0)
                .map_err(of("rules"))?;
        }
        written.names = compiled.names.clone().into();
        written.since = self.settings.forgets;
        let backends = self.backends.write(generation, &compiled.balanced);
        backends.map_err(of("backends"))?;
        let policy = policy_abi(compiled);
        self.maps
            .policies
            .set(generation, PodOf(policy), 0)
            .map_err(of("policies"))
    }
}

/// A rule's limit, its number, and what counts as one client.
fn limit_abi(
    limits: &mut HashMap<(RuleName, LimitPer), u32>,
    compiled: &Compiled,
    n: usize,
) -> (u32, u32, u8) {
    let limit = compiled.limits.get(n).copied().flatten();
    let (Some(limit), Some(name)) = (limit, compiled.names.get(n)) else {
        return (0, 0, 0);
    };
    let next = limits.len() as u32;
    let number = *limits.entry((name.clone(), limit.per)).or_insert(next);
    let by = match limit.per {
        LimitPer::Uid => abi::LIMIT_BY_UID,
        LimitPer::Process => abi::LIMIT_BY_PROCESS,
        LimitPer::Address => abi::LIMIT_BY_ADDRESS,
    };
    (limit.connections, number, by as u8)
}

/// A rule's fraction of its flows, as the kernel has it; 0: the rule has none.
fn steps(fractions: &[Option<Sample>], n: usize) -> u32 {
    fractions.get(n).copied().flatten().map_or(0, Sample::steps)
}

/// Rules that neither generation has any more count together, so that generated names
/// cannot pile up. No rule can have this name.
pub(crate) const GONE: &str = "(gone)";

type Sums = HashMap<RuleName, [u64; abi::OUTCOMES as usize]>;

fn fold(past: Sums, written: &[Written]) -> Sums {
    let known = |name: &RuleName| written.iter().any(|w| w.names.contains(name));
    let mut folded = Sums::new();
    for (name, counts) in past {
        let name = if known(&name) {
            name
        } else {
            RuleName::new(GONE)
        };
        let sum = folded.entry(name).or_default();
        for (sum, n) in sum.iter_mut().zip(counts) {
            *sum += n;
        }
    }
    folded
}

/// Success also where there was nothing to erase.
pub(crate) fn gone(removed: Result<(), MapError>) -> Result<(), MapError> {
    match removed {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(e)) if e.io_error.kind() == std::io::ErrorKind::NotFound => {
            Ok(())
        }
        other => other,
    }
}

/// Every key begins with the generation.
fn in_generation<const N: usize>(prefix: &Prefix<N>, generation: u32) -> [u8; N] {
    let mut bytes = prefix.bytes;
    if let Some(first) = bytes.first_mut() {
        *first = generation as u8;
    }
    bytes
}

fn policy_abi(compiled: &Compiled) -> abi::Policy {
    let (action, fail) = compiled.default;
    abi::Policy {
        any_uid: compiled.any_uid.to_abi(),
        any_gid: compiled.any_gid.to_abi(),
        any_process: compiled.any_process.to_abi(),
        any_cgroup: compiled.any_cgroup.to_abi(),
        any_netns: compiled.any_netns.to_abi(),
        settles: compiled.settles.to_abi(),
        any_source: compiled.any_source.to_abi(),
        here: compiled.here.to_abi(),
        elsewhere: compiled.elsewhere.to_abi(),
        shadows: compiled.shadows.to_abi(),
        uses_uid: (!compiled.uids.is_empty()).into(),
        uses_gid: (!compiled.gids.is_empty()).into(),
        uses_process: (!compiled.processes.is_empty()).into(),
        // A rule whose cgroup does not exist yet must not hold for everybody.
        uses_cgroup: compiled
            .any_cgroup
            .misses_one_of(compiled.rules.len())
            .into(),
        default_action: action_abi(action),
        default_fail: fail_abi(fail),
        uses_backends: (!compiled.balanced.is_empty()).into(),
        uses_source: (!compiled.sources.is_empty()).into(),
        // Likewise.
        uses_netns: compiled
            .any_netns
            .misses_one_of(compiled.rules.len())
            .into(),
        uses_shadows: (compiled.shadows.members() > 0).into(),
        pad: [0; 6],
    }
}

/// From 1: at most [`abi::MAX_BALANCED`].
fn balanced_number(compiled: &Compiled, rule: usize) -> u8 {
    let mut rules = compiled.balanced.iter();
    let found = rules.position(|balanced| balanced.rule == rule);
    found.map_or(0, |n| n as u8 + 1)
}

fn action_abi(action: Action) -> u8 {
    (match action {
        Action::Bypass => abi::ACTION_BYPASS,
        Action::Observe => abi::ACTION_OBSERVE,
        Action::Enrich => abi::ACTION_ENRICH,
        Action::Deny => abi::ACTION_DENY,
    }) as u8
}

fn fail_abi(fail: Fail) -> u8 {
    (match fail {
        Fail::Open => abi::FAIL_OPEN,
        Fail::Closed => abi::FAIL_CLOSED,
    }) as u8
}
