//! The hooks change hands between two agents that both run: one that is about to drain, and one that takes over.
//!
//! Each has programs, maps and listeners of its own. What they share is the lock on the pins, the mark by which hooks know
//! an agent's own dials, and the links of the connect hooks, of which the kernel exchanges the programs, each at once.

use std::io;

use policy::{Action, Fail, Policy};

use super::{AttachError, Dataplane, lock};
use crate::{before::Terms, hooks};

impl Dataplane {
    /// Returns what an agent has to have that takes over from this one.
    ///
    /// # Errors
    /// Out of descriptors, or another one has taken over.
    pub fn terms(&self) -> io::Result<Terms> {
        Ok(Terms {
            lock: self.pins.lock()?.into(),
            mark: self.mark.0,
        })
    }

    /// Takes over: from here on new connections are decided by this agent's policy, and no longer by the one's before.
    ///
    /// # Errors
    /// Some connections may be this agent's: [`Self::take_back`] of the other one ends that.
    pub fn take_over(&mut self) -> Result<(), AttachError> {
        self.connect_links = hooks::exchange_connect(&mut lock(&self.ebpf), &self.pins)?;
        Ok(())
    }

    /// Decides new connections again: whoever was to take over has failed. What it has left is removed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take_back(&mut self) -> Result<(), AttachError> {
        hooks::take_back_connect(&mut lock(&self.ebpf), &self.pins)?;
        Ok(self.pins.remove_successors()?)
    }

    /// Leaves new connections, and the pins, to the agent that has taken over. The flows that this agent has go on, and
    /// those that are being observed are read no more.
    ///
    /// # Errors
    /// The kernel's. The other agent is in force all the same.
    pub fn hand_over(&mut self) -> Result<(), AttachError> {
        let handed_over = self.pins.hand_over();
        // Nobody but the other agent keeps these attached.
        self.connect_links.clear();
        // Programs for connections from other hosts stay for the dials of flows that are here, and decide nothing.
        let nothing = Policy {
            rules: Vec::new(),
            default_action: Action::Bypass,
            default_fail: Fail::Open,
        };
        self.install(&nothing)?;
        Ok(handed_over?)
    }

    /// Notes that the agent before has ended, and removes what it may have left.
    ///
    /// # Errors
    /// The kernel's.
    pub fn before_has_ended(&mut self) -> Result<(), AttachError> {
        self.is_beside = false;
        self.pins.retire_predecessors()?;
        Ok(self.tables.forget_before()?)
    }
}
