//! The agent that runs, as one knows it that takes over from it.

use std::{fs::File, os::fd::OwnedFd};

use crate::{
    netns_agents::{NetnsAgents, NewNetnsListeners},
    pins::PinsError,
};

/// The agent that runs, as one that takes over from it has to know it.
#[derive(Debug)]
pub struct Before {
    /// The lock on the pins.
    pub lock: OwnedFd,
    /// The mark of the agent's own sockets.
    pub mark: u32,
    /// The agent's process.
    pub pid: u32,
    /// A process in each network namespace that it serves beside its own.
    pub namespaces: Vec<u32>,
}

/// The part of [`Before`] that the data plane knows.
#[derive(Debug)]
pub struct Terms {
    /// See [`Before::lock`].
    pub lock: OwnedFd,
    /// See [`Before::mark`].
    pub mark: u32,
}

impl Before {
    pub(crate) fn lock(&self) -> Result<File, PinsError> {
        let lock = self.lock.try_clone().map(File::from);
        lock.map_err(|source| PinsError::Io {
            path: "the lock of the agent that runs".into(),
            source,
        })
    }

    /// Serves the same namespaces, before anybody there is sent here.
    pub(crate) fn serve(&self, agents: &NetnsAgents) -> Vec<NewNetnsListeners> {
        let served = self.namespaces.iter().filter_map(|pid| {
            let served = agents.serve_process(*pid);
            served
                .inspect_err(
                    |error| tracing::debug!(pid, %error, "a network namespace is not served yet"),
                )
                .ok()?
        });
        served.collect()
    }
}
