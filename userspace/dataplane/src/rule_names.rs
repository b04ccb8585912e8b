//! Names of rules, by the numbers that the kernel has for them.
//!
//! A rule's number is another rule's two policies later. So a number names a rule only for connections that have come since its
//! policy did ([`RuleNames::since`]), and the names of older flows are kept from when their numbers held ([`FlowRules`]).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ebpf::abi;

use crate::tables::GONE;
use policy::RuleName;

/// The rules of one of the policies that the kernel has.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleNames {
    /// By slot, the default's last.
    pub by_slot: Arc<[RuleName]>,
    /// The number of forgettings (`up_connect.forgets`) when the policy came into force. A connection that has less is of an
    /// earlier policy, which had the same generation.
    pub since: u32,
}

impl RuleNames {
    fn has(&self, connect: &abi::Connect) -> bool {
        connect.forgets.wrapping_sub(self.since).cast_signed() >= 0
    }
}

/// The names by generation, shared with whoever installs policies.
pub(crate) type Names = Arc<Mutex<[RuleNames; abi::GENERATIONS as usize]>>;

/// Locks the names. A thread that panicked while it held them does not take them from the others.
pub(crate) fn lock(names: &Names) -> MutexGuard<'_, [RuleNames; abi::GENERATIONS as usize]> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the name of a slot's rule, of what was decided just now.
pub(crate) fn name_of(generation: u8, slot: u32, names: &Names) -> RuleName {
    let names = lock(names);
    let of_generation = names.get(usize::from(generation));
    named(of_generation, slot)
}

/// Returns the name of the rule that decided on a connection: [`GONE`] if that was under a policy which the kernel has no more.
pub(crate) fn rule_name(connect: &abi::Connect, names: &Names) -> RuleName {
    let names = lock(names);
    match names.get(usize::from(connect.generation)) {
        Some(of_later) if !of_later.has(connect) => RuleName::new(GONE),
        of_generation => named(of_generation, connect.slot),
    }
}

fn named(of_generation: Option<&RuleNames>, slot: u32) -> RuleName {
    let named = of_generation.and_then(|names| names.by_slot.get(slot as usize));
    named.cloned().unwrap_or_else(RuleName::of_default)
}

/// The place of a rule: a policy's generation and when that came into force, and the slot in it.
type Place = (u8, u32, u32);

fn place(connect: &abi::Connect) -> Place {
    (connect.generation, connect.forgets, connect.slot)
}

/// The rules of flows, by cookie and beginning, and the places that they had when they were looked up. A flow's place is
/// another one when its session has become known.
#[derive(Debug, Default)]
pub(crate) struct Known(HashMap<(u64, u64), (RuleName, Place)>);

impl Known {
    pub(crate) fn with_capacity(flows: usize) -> Self {
        Self(HashMap::with_capacity(flows))
    }

    /// Notes the rule of a flow that began at `opened_ns`.
    pub(crate) fn note(&mut self, connect: &abi::Connect, opened_ns: u64, rule: RuleName) {
        let key = (connect.cookie, opened_ns);
        self.0.insert(key, (rule, place(connect)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn get(&self, connect: &abi::Connect, opened_ns: u64) -> Option<&RuleName> {
        let known = self.0.get(&(connect.cookie, opened_ns));
        let known = known.filter(|(_, at)| *at == place(connect));
        known.map(|(rule, _)| rule)
    }
}

/// The rules of observed flows, shared by all who name such flows.
#[derive(Clone, Debug)]
pub(crate) struct FlowRules {
    names: Names,
    known: Arc<Mutex<Arc<Known>>>,
}

impl FlowRules {
    pub(crate) fn new(names: Names) -> Self {
        let known = Arc::default();
        Self { names, known }
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// The rules that are known.
    pub(crate) fn known(&self) -> Arc<Known> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    /// Knows these from now on. To be called before a policy comes into force, with all flows that there are.
    pub(crate) fn keep(&self, known: Known) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
    }

    /// Returns the name of a flow's rule. `opened_ns`: when the flow began.
    pub(crate) fn name(&self, connect: &abi::Connect, opened_ns: u64) -> RuleName {
        self.name_by(&self.known(), connect, opened_ns)
    }

    /// Returns the name of a flow's rule, as [`Self::name`] does for one who asks for many.
    pub(crate) fn name_by(
        &self,
        known: &Known,
        connect: &abi::Connect,
        opened_ns: u64,
    ) -> RuleName {
        let known = known.get(connect, opened_ns).cloned();
        known.unwrap_or_else(|| rule_name(connect, &self.names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[&str], since: u32) -> RuleNames {
        RuleNames {
            by_slot: of.iter().map(|name| RuleName::new(name)).collect(),
            since,
        }
    }

    fn flow(cookie: u64, (generation, forgets, slot): Place) -> abi::Connect {
        let nobody = abi::Endpoint {
            addr: [0; 16],
            port_be: 0,
            family: 0,
            pad: 0,
        };
        abi::Connect {
            opener: abi::Opener {
                start_ns: 0,
                execs: 0,
                cgroup_id: 0,
                netns_cookie: 0,
                orig_dst: nobody,
                tgid: 0,
                uid: 0,
                gid: 0,
                comm: [0; 16],
            },
            cookie,
            slot,
            forgets,
            bound: 0,
            bound_port: 0,
            held: 0,
            generation,
            taps: 0,
            unlimited: 0,
            group: 0,
            pad: [0; 1],
            holder_cgroup_id: 0,
        }
    }

    /// Two policies later, with a rule more in front each time.
    #[test]
    fn a_slot_names_a_rule_only_as_long_as_its_policy_is_there() {
        let all = Arc::new(Mutex::new([
            names(&["r", "default"], u32::MAX),
            names(&["x", "r", "default"], 0),
        ]));
        let rules = FlowRules::new(all.clone());
        let (early, late) = (flow(1, (0, u32::MAX, 0)), flow(2, (1, 0, 1)));
        let name = |connect: &abi::Connect| rules.name(connect, 7).to_string();
        assert_eq!((name(&early), name(&late)), ("r".into(), "r".into()));
        let mut known = Known::default();
        known.note(&early, 7, rules.name(&early, 7));
        rules.keep(known);
        lock(&all)[0] = names(&["y", "x", "r", "default"], 1);
        assert_eq!((name(&early), name(&late)), ("r".into(), "r".into()));
        // Another flow with its cookie, and one of which nobody has noted the rule.
        assert_eq!(rules.name(&early, 8).to_string(), GONE);
        assert_eq!(name(&flow(3, (0, u32::MAX, 0))), GONE);
        assert_eq!(name(&flow(3, (0, 1, 0))), "y");
        assert_eq!(name_of(0, 0, &all).to_string(), "y");
        // Its session has become known: its place is another.
        assert_eq!(name(&flow(1, (0, 2, 1))), "x");
    }
}
