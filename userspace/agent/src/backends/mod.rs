//! Backends: which of the databases behind virtual addresses get new connections.
//!
//! - `health.rs`: one backend's standing; pure.
//! - `check.rs`: what is asked of a backend.
//! - `owner.rs`: the task that has them all checked, and tells whoever chooses.
//! - `view.rs`: what there is to see.
//!
//! The kernel chooses by the same weights (`dataplane::backends`), for connections that do not come
//! to the agent.

mod check;
mod health;
mod owner;
mod view;

use std::{net::SocketAddr, time::Duration};

pub use health::{Order, longest_timeout};
pub use owner::{Asked, Owner};
use proxy::Choice;
use tokio::sync::{mpsc, oneshot, watch};
pub use view::{BackendMetrics, BackendView, BalancedCounters};

/// Backends that are checked: each costs a connection in every interval.
pub const MAX_CHECKED: usize = 1024;

/// How health is found out, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// From one check to the next, more or less.
    pub interval: Duration,
    /// A check that takes longer has failed. `fall` of them fit into nine tenths of an interval: so a
    /// backend that dies gets no new connections two intervals later.
    pub timeout: Duration,
    /// So many good checks in a row bring a backend back.
    pub rise: u32,
    /// So many failed ones take it out.
    pub fall: u32,
    /// A backend that comes back gets its full share only after so long.
    pub slow_start: Duration,
    /// It has to answer as CQL does; otherwise to accept a connection is enough.
    pub cql: bool,
    /// What becomes of connections to a backend that is found dead.
    pub established: Established,
}

/// See [`Settings::established`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// They end as they would without us.
    Leave,
    /// They are reset: those that the agent carries, and those of its network namespace that
    /// connect() has sent straight there.
    Reset,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            timeout: Duration::from_millis(400),
            rise: 2,
            fall: 2,
            slow_start: Duration::from_secs(10),
            cql: true,
            established: Established::Leave,
        }
    }
}

/// The way to the owner, and what it tells.
#[derive(Clone)]
pub struct Backends {
    owner: mpsc::Sender<Asked>,
    choice: watch::Receiver<Choice>,
}

/// Questions and orders that wait for the owner; it answers each at once.
const QUEUE: usize = 64;

impl Backends {
    /// With the owner's ends.
    pub fn new() -> (Self, mpsc::Receiver<Asked>, watch::Sender<Choice>) {
        let (owner, asked) = mpsc::channel(QUEUE);
        let (tell, choice) = watch::channel(Choice::default());
        (Self { owner, choice }, asked, tell)
    }

    /// Who gets new connections, at any time: the first value may still be empty.
    pub fn choice(&self) -> watch::Receiver<Choice> {
        self.choice.clone()
    }

    /// A dial has failed. It may be lost where many do: one is enough.
    pub fn suspect(&self, backend: SocketAddr, why: String) {
        let _ = self.owner.try_send(Asked::Suspect(backend, why));
    }

    /// What there is to see; None when the agent stops.
    pub async fn views(&self) -> Option<Vec<BackendView>> {
        let (answer, answered) = oneshot::channel();
        self.owner.send(Asked::List(answer)).await.ok()?;
        answered.await.ok()
    }

    /// Takes an order, or takes it back. Gives what it is then, or None where there is no such backend;
    /// the outer None when the agent stops.
    pub async fn order(
        &self,
        backend: SocketAddr,
        order: Option<Order>,
    ) -> Option<Option<BackendView>> {
        let (answer, answered) = oneshot::channel();
        let asked = Asked::Order(backend, order, answer);
        self.owner.send(asked).await.ok()?;
        answered.await.ok()
    }
}
