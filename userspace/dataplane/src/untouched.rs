//! Flows that the connect hooks have left to themselves, and of which the kernel keeps what they are.

use std::time::Duration;

use crate::{
    address::{ClientAddr, OrigDst, SockCookie},
    holds::Process,
};
use policy::RuleName;

/// A flow that is observed, or on the shortcut. What went over it is not in here: nobody keeps that of all flows.
#[derive(Clone, Debug)]
pub struct Untouched {
    /// The client's socket; of a client on another host, the database's.
    pub cookie: SockCookie,
    /// The client's side; None until its SYN has left.
    pub client: Option<ClientAddr>,
    /// The address that was dialled.
    pub orig_dst: OrigDst,
    /// The process that dialled.
    pub process: Process,
    /// Whether the agent gets copies of what passes.
    pub is_tapped: bool,
    /// Whether its session has to say which rule it meets, and has not yet.
    pub is_undecided: bool,
    /// Whether it was there before the policy that has it read, which joined it in its middle.
    pub was_running: bool,
    /// Whether it is tapped and not copied: there is no time for all flows of its rule.
    pub is_left_out: bool,
    /// Whether its rule holds and leaves it alone, so that others can be compared with it.
    pub is_held_out: bool,
    /// The rule that decided.
    pub rule: RuleName,
    /// Since its `connect()`; on the shortcut, since it was established; since it was joined, if it was running.
    pub age: Duration,
}
