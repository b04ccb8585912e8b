//! The keeper: a second process that holds the sockets of spliced flows, so that they outlive the
//! agent ([decision 7](../../../../docs/decisions/0007-keeper.md)).
//!
//! - `protocol.rs`: the messages between the agent and the keeper.
//! - `snapshot.rs`: a flow's state, on its way from process to process.
//! - `agent.rs`: the agent's side: has flows kept, adopts flows; `meet.rs`: finds a keeper, or starts one.
//! - `process.rs`: the keeper's process: the flows that it holds, and their agent.
//! - `caretaker.rs`: flows that the keeper carries itself, because they have no agent.
//! - `find.rs`: the search for keepers by their sockets.
//! - `shortcuts.rs`: readers on the shortcut of an agent that is dead, or does not run.
//!
//! **Invariant**: one process at a time carries a flow. While the kernel carries it, the kernel has
//! all of its state; a flow changes hands only then.

mod agent;
mod caretaker;
mod find;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod meet;
mod process;
mod protocol;
mod shortcuts;
mod snapshot;

pub use agent::{Adopted, Keeper, Kept, NotKept, WAITING};
pub use find::{Found, end_all, find};
pub use meet::{ADOPTION_LIMIT, ADOPTION_LIMIT_OF_UPGRADES};
pub use process::run;
pub use snapshot::FlowSnapshot;
