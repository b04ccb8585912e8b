//! The admin interface: HTTP on a unix socket, and on TCP where the operator wants it. It only answers; nothing here
//! changes anything.
//!
//! - `listeners.rs`: the two doors, and the times in which a request has to come and its answer has to be read.
//! - `guests.rs`: how many connections there are of one peer, and of all.
//! - `closing.rs`: the end of the interface, for answers that go on.
//! - `lines.rs`: an answer that goes on, line by line.
//! - `names.rs`: for whom a request may be, so that no web page of others can ask.
//! - `state.rs`: what it answers from, and how.
//! - `page.rs`: a web page of its own.
//! - `flows.rs`, `denied.rs`: flows and refusals, each with its client's container, of which `containers.rs` tells.
//! - `explain.rs`: every rule held against one connection.
//! - `tail.rs`: statements as they pass; `capture.rs`: requests of one flow or rule; both at the socket alone.

pub mod capture;
mod closing;
mod containers;
mod denied;
mod explain;
mod flows;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod guests;
mod lines;
mod listeners;
mod names;
mod page;
mod state;
pub mod tail;

use std::sync::atomic::Ordering::Relaxed;

use axum::{
    Router,
    extract::{RawQuery, Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use listeners::Routes;
pub use listeners::{Listeners, register};
use names::{Came, Names};
pub use page::Live;
use prometheus::{IntCounterVec, TextEncoder};
pub use state::Admin;
use state::{aside, failed, json};
use tokio::time::Instant;

use crate::{namespaces, overhead};

/// Serves for ever. `hosts`: names by which it may be asked on TCP, beside this host's own.
pub async fn serve(listeners: Listeners, hosts: &[String], admin: Admin) {
    let refused = admin.refused.clone();
    let routes = Router::new()
        .route("/", get(page::page))
        .route("/live", get(page::live))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/flows", get(flows))
        .route("/backends", get(backends))
        .route("/namespaces", get(of_namespaces))
        .route("/names", get(of_names))
        .route("/denied", get(denied))
        .route("/overhead", get(overhead))
        .route("/explain", get(explain::explain))
        .route("/config", get(config))
        .route("/marks", get(marks))
        .route("/agent", get(agent))
        .route(
            "/statements",
            get(|State(admin): State<Admin>| async move {
                json(&admin.shared.services.statements.views())
            }),
        )
        .route(
            "/statements/top",
            get(
                |State(admin): State<Admin>, RawQuery(query): RawQuery| async move {
                    let with_latencies = query.as_deref() == Some("latencies");
                    json(&admin.shared.services.stats.tops.views(with_latencies))
                },
            ),
        );
    let local = routes
        .clone()
        .route("/tail", get(tail::tail))
        .route("/capture", get(capture::capture));
    let scraped = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics));
    let at = |door: Came, routes: Router<Admin>| {
        let checked = (Names::new(hosts, door), refused.clone());
        let layer = middleware::from_fn_with_state(checked, for_this_host);
        routes.with_state(admin.clone()).layer(layer)
    };
    let routes = Routes {
        local: at(Came::BySocket, local),
        remote: at(Came::ByTcp, routes),
        metrics: at(Came::ByTcp, scraped),
    };
    listeners.serve(routes, refused).await;
}

async fn for_this_host(
    State((names, refused)): State<(Names, IntCounterVec)>,
    request: Request,
    next: Next,
) -> Response {
    if names.are_asked(request.uri(), request.headers()) {
        return next.run(request).await;
    }
    refused.with_label_values(&[listeners::BAD_HOST]).inc();
    let said = "the Host header names another host: ask by an address, or add the name to agent.admin_hosts\n";
    (StatusCode::MISDIRECTED_REQUEST, said).into_response()
}

async fn readyz(State(admin): State<Admin>) -> Response {
    if admin.ready.load(Relaxed) {
        "ready\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not attached\n").into_response()
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let encode = move || TextEncoder::new().encode_to_string(&admin.registry.gather());
    match aside(encode).await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

/// Lists the flows that the agent carries, then those of which the kernel keeps the state.
async fn flows(State(admin): State<Admin>) -> Response {
    match aside(move || flows::views(&admin)).await {
        Ok(views) => json(&views),
        Err(error) => failed(&error),
    }
}

async fn of_namespaces(State(admin): State<Admin>) -> Response {
    let read = move || namespaces::views(&admin.netns_agents, &admin.shared.flows);
    match aside(read).await {
        Ok(views) => json(&views),
        Err(error) => failed(&error),
    }
}

async fn of_names(State(admin): State<Admin>) -> Response {
    let views = admin.names.borrow().views(Instant::now());
    json(&views)
}

async fn denied(State(admin): State<Admin>) -> Response {
    match aside(move || denied::views(&admin)).await {
        Ok(views) => json(&views),
        Err(error) => failed(&error),
    }
}

async fn overhead(State(admin): State<Admin>) -> Response {
    match aside(move || overhead::views(&admin.dataplane, &admin.shared)).await {
        Ok(views) => json(&views),
        Err(error) => failed(&error),
    }
}

/// The policy in force, as TOML.
async fn config(State(admin): State<Admin>) -> Response {
    let in_force = admin.in_force.borrow().clone();
    match aside(move || in_force.in_full()).await {
        Ok(text) => ([(header::CONTENT_TYPE, "application/toml")], text).into_response(),
        Err(error) => failed(&error),
    }
}

async fn marks(State(admin): State<Admin>) -> Response {
    match admin.marks.views().await {
        Some(views) => json(&views),
        None => failed(&"the agent stops"),
    }
}

/// The agent itself, and the one before it.
async fn agent(State(admin): State<Admin>) -> Response {
    let before = admin.before.borrow().clone();
    let before = before.map(
        |before| serde_json::json!({"pid": before.pid, "flows": before.flows, "stay": before.stay}),
    );
    json(&serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "before": before,
    }))
}

async fn backends(State(admin): State<Admin>) -> Response {
    match admin.backends.views().await {
        Some(views) => json(&views),
        None => failed(&"the agent stops"),
    }
}
