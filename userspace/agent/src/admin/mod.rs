//! The admin interface: HTTP on an address of the operator's choice, the loopback by
//! default. It only answers; nothing here changes anything.

mod limited;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus::{Registry, TextEncoder};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::proxy::Shared;

/// What the interface shows.
#[derive(Clone)]
pub struct Admin {
    /// Every metric.
    pub registry: Registry,
    /// Flows and statements.
    pub shared: Arc<Shared>,
    /// Whether hooks are attached.
    pub ready: Arc<AtomicBool>,
}

/// Serves for ever.
///
/// # Errors
/// The listener fails.
pub async fn serve(listener: TcpListener, admin: Admin) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route(
            "/flows",
            get(|State(admin): State<Admin>| async move { json(&admin.shared.flows.views()) }),
        )
        .route(
            "/statements",
            get(|State(admin): State<Admin>| async move { json(&admin.shared.statements.views()) }),
        )
        .with_state(admin);
    axum::serve(limited::Limited::new(listener), routes).await
}

async fn readyz(State(admin): State<Admin>) -> Response {
    if admin.ready.load(Relaxed) {
        "ready\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not attached\n").into_response()
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    match TextEncoder::new().encode_to_string(&admin.registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

fn json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
