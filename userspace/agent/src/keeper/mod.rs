//! A second process that holds the sockets of spliced flows, so that they outlive the agent
//! ([decision 7](../../../../docs/decisions/0007-keeper.md)).
//!
//! - `protocol.rs`: what the agent and the keeper say to each other.
//! - `papers.rs`: what is known of a flow, on its way from process to process.
//! - `agent.rs`: the agent's side: finds or starts a keeper, has flows kept, adopts flows.
//! - `process.rs`: the keeper: what it holds, and for whom.
//! - `caretaker.rs`: flows that it carries itself, because they have no agent.
//! - `find.rs`: keepers by their sockets.
//!
//! **Invariant**: a flow is carried by one process at a time. While it rides, the kernel has
//! everything that is to be known of it; that is the only moment at which it changes hands.

mod agent;
mod caretaker;
mod find;
mod papers;
mod process;
mod protocol;

pub use agent::{Adopted, Keeper, Kept, NotKept, WAITING};
pub use find::{Found, end_all, find};
pub use papers::Papers;
pub use process::run;
