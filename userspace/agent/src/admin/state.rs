//! The data that the interface answers from, and how a page is made of it.

use std::sync::{Arc, Mutex, atomic::AtomicBool};

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use dataplane::{Dataplane, NetnsAgents};
use prometheus::{IntCounterVec, Registry};
use proxy::ProxyContext;
use serde::Serialize;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinError,
};

use super::page::Live;
use crate::{
    backends::Backends,
    config::InForce,
    marks::MarkReader,
    observed::{self, ObservedView},
    shortcuts::{self, ShortcutView},
    upgrade::Draining,
};

/// The data that the interface shows.
#[derive(Clone)]
pub struct Admin {
    /// Every metric.
    pub registry: Registry,
    /// Flows and statements.
    pub shared: Arc<ProxyContext>,
    /// Backends.
    pub backends: Backends,
    /// The flows that are left alone.
    pub dataplane: Arc<Mutex<Option<Dataplane>>>,
    /// Other network namespaces.
    pub netns_agents: Arc<NetnsAgents>,
    /// Connections that were closed or refused, by reason.
    pub refused: IntCounterVec,
    /// Whether hooks are attached.
    pub ready: Arc<AtomicBool>,
    /// The names that are followed.
    pub names: watch::Receiver<::names::Book>,
    /// Whether whoever watches or captures statements may see values, also where he is not root.
    pub tail_values: bool,
    /// The samples that pages are told.
    pub live: Arc<Live>,
    /// The files that are in force, and what they mean: also of rules whose windows are closed.
    pub in_force: watch::Receiver<Arc<InForce>>,
    /// The marks.
    pub marks: MarkReader,
    /// The agent before this one, while it drains.
    pub before: watch::Receiver<Option<Draining>>,
}

/// Pages that read the kernel's tables at the same time; further ones wait.
const MAX_READERS: usize = 4;

static READERS: Semaphore = Semaphore::const_new(MAX_READERS);

/// The flows that the agent does not carry. Reads the kernel's tables.
pub(super) fn left_alone(admin: &Admin) -> (Vec<ObservedView>, Vec<ShortcutView>) {
    let dataplane = &admin.dataplane;
    (
        observed::views(dataplane, &admin.shared),
        shortcuts::views(dataplane),
    )
}

/// Reading the kernel's tables of thousands of flows takes tens of milliseconds, in which
/// connections would wait.
pub(super) async fn aside<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    // Nobody closes the semaphore.
    let _turn = READERS.acquire().await;
    tokio::task::spawn_blocking(read).await
}

pub(super) fn failed(error: &impl std::fmt::Display) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
}

pub(super) fn json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => failed(&error),
    }
}
