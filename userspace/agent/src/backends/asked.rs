//! Questions and orders to the task that owns backends.

use std::net::SocketAddr;

use tokio::sync::oneshot;

use super::{health::Order, view::BackendView};

/// A request to the owner.
pub enum Asked {
    /// Return the views of all backends.
    List(oneshot::Sender<Vec<BackendView>>),
    /// Follow an order from now on, or none.
    Order(
        SocketAddr,
        Option<Order>,
        oneshot::Sender<Option<BackendView>>,
    ),
    /// Note that a connection to this backend has failed.
    Suspect(SocketAddr, String),
}
