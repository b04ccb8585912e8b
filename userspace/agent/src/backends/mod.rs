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

mod asked;
mod check;
mod health;
mod health_check;
mod member;
mod owner;
mod view;

use std::net::SocketAddr;

pub use asked::Asked;
pub use health::{Order, longest_timeout};
pub use health_check::{Established, HealthCheck, MAX_CHECKED};
pub use owner::Owner;
use proxy::Choice;
use tokio::sync::{mpsc, oneshot, watch};
pub use view::{BackendMetrics, BackendView, BalancedCounters};

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

    /// The backends that have orders, with these. None when the agent stops.
    pub async fn orders(&self) -> Option<Vec<(SocketAddr, Order)>> {
        let views = self.views().await?;
        let ordered = views.iter().filter_map(BackendView::ordered);
        Some(ordered.collect())
    }

    /// Gives backends the orders that they had from the agent before, as far as they are still there.
    pub fn carry_on(&self, orders: impl IntoIterator<Item = (SocketAddr, Order)>) {
        for (backend, order) in orders {
            let (nobody, _) = oneshot::channel();
            // There is room for all: nobody else can ask yet.
            let _ = self
                .owner
                .try_send(Asked::Order(backend, Some(order), nobody));
        }
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
