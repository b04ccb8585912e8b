//! A host of a test's own: a network namespace, a cgroup, an agent.
//!
//! **Invariant**: nothing outlives its owner. A namespace lives by a descriptor alone, so
//! even a killed test leaves none; cgroups, pins and processes go when their guard is
//! dropped, and each test has its own, so tests run side by side.

mod agent;
mod cgroup;
pub mod dns;
pub mod driver;
mod etcd;
pub mod measured;
mod memory;
mod netns;
mod pattern;
pub mod program;
mod resident;
mod served;
pub mod skip;
pub mod soaked;
mod wire;

use std::{env, thread};

use anyhow::Context;

pub use agent::{Agent, Former, Metric};
pub use cgroup::Cgroup;
pub use etcd::{Certificates, Etcd};
pub use memory::MemoryCgroup;
pub use netns::Netns;
pub use pattern::pattern;
pub use resident::Resident;
pub use served::Served;
pub use wire::{Carried, Faults, Wire, stay_on_one_processor};

/// Returns where tests' random numbers start: 0, but for a soak's rounds (`UNDERPASS_SEED`).
///
/// # Panics
/// The variable is no number.
#[expect(
    clippy::panic,
    reason = "a run with another seed than the one that was meant has failed"
)]
pub fn seed() -> u64 {
    env::var("UNDERPASS_SEED").map_or(0, |seed| match seed.parse() {
        Ok(seed) => seed,
        Err(_) => panic!("UNDERPASS_SEED={seed} is no number"),
    })
}

/// A namespace with its loopback up, and a cgroup for the clients in it.
#[derive(Debug)]
pub struct Sandbox {
    /// The network.
    pub netns: Netns,
    /// The cgroup that agents of this sandbox attach to.
    pub cgroup: Cgroup,
}

impl Sandbox {
    /// Makes a sandbox. Needs root.
    ///
    /// # Errors
    /// The host has no cgroup2, or this is not root.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self {
            netns: Netns::new()?,
            cgroup: Cgroup::new()?,
        })
    }

    /// Runs `client` as an application: in the namespace and in the cgroup.
    ///
    /// Processes that it starts are in both, too.
    ///
    /// # Panics
    /// As `client` does.
    pub fn client<T: Send>(&self, client: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        self.run(Some(&self.cgroup), client)
    }

    /// Runs `server` as a database: in the namespace, and seen by no hook.
    ///
    /// # Panics
    /// As `server` does.
    pub fn server<T: Send>(&self, server: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        self.run(None, server)
    }

    fn run<T: Send>(
        &self,
        cgroup: Option<&Cgroup>,
        body: impl FnOnce() -> T + Send,
    ) -> anyhow::Result<T> {
        run_in(Some(&self.netns), cgroup, body)
    }
}

/// Runs `body` on a thread of its own that has joined a namespace, a cgroup, or both.
///
/// # Errors
/// The thread cannot join.
///
/// # Panics
/// As `body` does.
pub fn run_in<T: Send>(
    netns: Option<&Netns>,
    cgroup: Option<&Cgroup>,
    body: impl FnOnce() -> T + Send,
) -> anyhow::Result<T> {
    let joins = || {
        netns
            .map(Netns::enter)
            .transpose()
            .context("cannot join the network namespace")?;
        cgroup
            .map(Cgroup::enter)
            .transpose()
            .context("cannot join the cgroup")?;
        Ok(())
    };
    run_after(joins, body)
}

/// Runs `body` on a thread of its own, once that has joined something.
fn run_after<T: Send>(
    joins: impl FnOnce() -> anyhow::Result<()> + Send,
    body: impl FnOnce() -> T + Send,
) -> anyhow::Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            joins()?;
            Ok(body())
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
