//! [`Resident`]: a process in a network namespace, as a container has one.

use std::process::{Child, Command};

use anyhow::Context;

use crate::{Cgroup, Netns, run_in};

/// A process that does nothing, so that its namespace is somebody's: clients are threads of a test. Killed when dropped.
#[derive(Debug)]
pub struct Resident(Child);

impl Resident {
    /// Starts it.
    ///
    /// # Errors
    /// The namespace or the cgroup cannot be joined, or there is no such program.
    pub fn start(netns: &Netns, cgroup: Option<&Cgroup>) -> anyhow::Result<Self> {
        let sleeps = || Command::new("sleep").arg("3600").spawn();
        let started = run_in(Some(netns), cgroup, sleeps)?;
        Ok(Self(started.context("sleep (coreutils) does not run")?))
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // It may have been ended by somebody else.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
