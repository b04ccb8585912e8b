//! Backends: the health of the databases behind virtual addresses, and the choice among them for
//! new connections.
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

/// The settings of health checks, and of what follows from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The time from one check to the next, approximately.
    pub interval: Duration,
    /// The time after which a check has failed. `fall` checks of this length fit into nine tenths
    /// of an interval, so that a backend that dies gets no new connections two intervals later.
    pub timeout: Duration,
    /// The number of good checks in a row that bring a backend back.
    pub rise: u32,
    /// The number of failed checks in a row that take a backend out.
    pub fall: u32,
    /// The time after which a backend that comes back gets its full share.
    pub slow_start: Duration,
    /// Whether a backend has to answer as CQL does; otherwise it is enough to accept a connection.
    pub cql: bool,
    /// The treatment of connections to a backend that is found dead.
    pub established: Established,
}

/// The treatment of connections to a backend that is found dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// The connections end as they would end without us.
    Leave,
    /// The connections are reset: those that the agent carries, and those of its network namespace
    /// that connect() has sent straight to the backend.
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
    /// Makes the handle, with the owner's ends.
    pub fn new() -> (Self, mpsc::Receiver<Asked>, watch::Sender<Choice>) {
        let (owner, asked) = mpsc::channel(QUEUE);
        let (tell, choice) = watch::channel(Choice::default());
        (Self { owner, choice }, asked, tell)
    }

    /// Returns the choice for new connections, at any time: the first value may still be empty.
    pub fn choice(&self) -> watch::Receiver<Choice> {
        self.choice.clone()
    }

    /// Reports a failed dial. The report may be lost where many dials fail: one is enough.
    pub fn suspect(&self, backend: SocketAddr, why: String) {
        let _ = self.owner.try_send(Asked::Suspect(backend, why));
    }

    /// Returns the views of all backends; None when the agent stops.
    pub async fn views(&self) -> Option<Vec<BackendView>> {
        let (answer, answered) = oneshot::channel();
        self.owner.send(Asked::List(answer)).await.ok()?;
        answered.await.ok()
    }

    /// Gives a backend an order, or takes it back. Returns the backend's view then, or None where
    /// there is no such backend; the outer None when the agent stops.
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
