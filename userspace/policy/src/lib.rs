//! Rules, and what "the first match wins" means.
//!
//! A [`Policy`] is an ordered list of [`Rule`]s and a default. [`Policy::first_match`] is its plain
//! reading: it tries one rule after the other on a [`Candidate`], a connection at its beginning. Two
//! places read the same policy. The kernel decides at `connect()` by sets of rules, which `dataplane`
//! compiles; property tests there hold those sets to the plain reading. A rule with a condition on the
//! CQL session (user, keyspace, driver …) cannot be decided at `connect()`: the kernel sends such a flow
//! to the agent, which asks [`Policy::decide`] each time it has learned a fact of the session.
//!
//! Files, in reading order:
//!
//! - `rule.rs`: one rule, and the first of its conditions that does not hold.
//! - `patterns.rs`, `sample.rs`: the values in those conditions.
//! - `first_match.rs`: a policy, a connection, and the rule that it meets.
//! - `session.rs`, `decide.rs`: facts of the session, conditions on them, and deciding by what is known
//!   of them so far.
//! - `tried.rs`: every rule held against one connection, for whoever asks why.
//! - `copies.rs`: which rules need the bytes of a connection, and which are content with copies.
//! - `containers.rs`, `find_containers.rs`: conditions on containers, and the cgroups in which the
//!   containers are at the moment; `pods.rs`: conditions on pods of Kubernetes.
//! - `destinations.rs`, `names.rs`: a rule's `to`, of which names stand for addresses that may change.
//! - `window.rs`: days and hours during which a rule or a step holds.
//! - `filter.rs`: which entries of a list an operator wants to see; `suggest.rs`: the word that was probably meant.
//!
//! **Invariant**: knowing more of a session never changes what was decided.
//!
//! **Invariant**: a rule that names containers holds for nobody until they are found; one that names destinations holds for
//! none of these until their addresses are found.
//!
//! **Boundary**: no I/O but one look-up: a network namespace that a rule names by path is looked up at
//! that path whenever the rule is tried ([`NetnsPattern::inode`]). The crate does not know how the kernel
//! stores rules; the bounds that the kernel's tables set are constants here, and `dataplane` does not
//! build if they differ.

mod containers;
mod copies;
mod covers;
mod decide;
mod destinations;
mod filter;
mod find_containers;
mod first_match;
mod names;
mod patterns;
mod pods;
mod rule;
mod sample;
mod session;
mod suggest;
#[cfg(test)]
mod tests;
mod tried;
mod window;

pub use containers::{
    Container, ContainerConditions, Glob, MAX_CONTAINER_CONDITIONS, MAX_CONTAINER_TEXT_BYTES,
};
pub use copies::{NeedsBytes, TakesIn};
pub use covers::Doubt;
pub use decide::{Decision, PossibleMatch};
pub use destinations::{
    Destinations, Endpoint, MAX_DESTINATION_PORTS, MAX_DESTINATIONS, MAX_FOUND,
};
pub use filter::{
    Filter, FilterFact, FilterKey, Filtered, MAX_FILTER_BYTES, MAX_FILTER_CONDITIONS,
};
pub use find_containers::MAX_CGROUPS;
pub use first_match::{Candidate, Match, Policy};
pub use names::{
    Destination, Domain, MAX_CLUSTER_NAME_BYTES, MAX_DOMAIN_BYTES, Name, NamedTarget, cluster_name,
};
pub use patterns::{
    MAX_PORTS_OF_A_RANGE, MAX_PROCESS_NAME_BYTES, NETNS, NetnsPattern, ProcessPattern, Target,
    check_network, parse_network,
};
pub use pods::{KUBELETS, MAX_POD_CONDITIONS, Pod, PodConditions, owner_in_full};
pub use rule::{Action, ClientLimit, Fail, LimitPer, Miss, Rule, RuleName, Shortcut, TapDepth};
pub use sample::Sample;
pub use session::{
    Compression, Fact, Held, MAX_FACT_BYTES, Protocol, Session, SessionConditions, SessionKey,
    TextPattern,
};
pub use suggest::{HINT, did_you_mean};
pub use tried::Tried;
pub use window::{Timestamp, Window, WindowSettings, WindowState};

/// Rules in one policy; the width of a rule set in the kernel.
pub const MAX_RULES: usize = 1024;

/// Rules in shadow in one policy.
pub const MAX_SHADOWS: usize = 64;

/// Backends behind one rule's virtual addresses.
pub const MAX_BACKENDS: usize = 128;

/// Rules with backends in one policy.
pub const MAX_BALANCED: usize = 64;
