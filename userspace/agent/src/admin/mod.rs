//! The admin interface: HTTP on a unix socket, and on TCP where the operator wants it. It only answers; nothing here
//! changes anything.
//!
//! - `listeners.rs`: the two doors, and the times in which a request has to come and its answer has to be read.
//! - `guests.rs`: how many connections there are of one peer, and of all.
//! - `names.rs`: for whom a request may be, so that no web page of others can ask.
//! - `state.rs`: what it answers from, and how.
//! - `page.rs`: a web page of its own.
//! - `explain.rs`: every rule held against one connection.
//! - `tail.rs`: statements as they pass; `capture.rs`: requests of one flow or rule; both at the socket alone.

pub mod capture;
mod explain;
mod guests;
mod listeners;
mod names;
mod page;
mod state;
pub mod tail;

use std::{sync::atomic::Ordering::Relaxed, time::SystemTime};

use axum::{
    Router,
    extract::{RawQuery, Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use flow::FlowView;
use listeners::Routes;
pub use listeners::{Listeners, register};
use names::{Came, Names};
pub use page::Live;
use prometheus::{IntCounterVec, TextEncoder};
use serde::Serialize;
pub use state::Admin;
use state::{aside, failed, json, left_alone};
use steps::containers::Contained;
use telemetry::Denial;
use tokio::time::Instant;

use crate::{namespaces, observed::ObservedView, overhead, shortcuts::ShortcutView};

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
    #[derive(Serialize)]
    struct Carried<'a> {
        #[serde(flatten)]
        flow: &'a FlowView,
        /// The container that the process is in, where its cgroup is the container's.
        #[serde(flatten)]
        container: Option<&'a Contained>,
    }
    #[derive(Serialize)]
    #[serde(untagged)]
    enum View<'a> {
        Carried(Carried<'a>),
        Observed(&'a ObservedView),
        Shortcut(&'a ShortcutView),
    }
    let carried = admin.shared.flows.views();
    let container = |flow: &FlowView| {
        let containers = &admin.shared.services.containers;
        flow.cgroup_id
            .and_then(|cgroup| containers.numbered(cgroup))
    };
    let containers: Vec<_> = carried.iter().map(container).collect();
    match aside(move || left_alone(&admin)).await {
        Ok((observed, shortcuts)) => {
            let carried = carried.iter().zip(&containers);
            let carried = carried.map(|(flow, container)| {
                let container = container.as_deref();
                View::Carried(Carried { flow, container })
            });
            let observed = observed.iter().map(View::Observed);
            let shortcuts = shortcuts.iter().map(View::Shortcut);
            json(&carried.chain(observed).chain(shortcuts).collect::<Vec<_>>())
        }
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
    let denials = admin.shared.metrics.denials.recent();
    let views: Vec<_> = denials.iter().map(denied_view).collect();
    json(&views)
}

fn denied_view(denial: &Denial) -> serde_json::Value {
    let at = denial.at.duration_since(SystemTime::UNIX_EPOCH);
    serde_json::json!({
        "at_unix_ms": at.unwrap_or_default().as_millis() as u64,
        "rule": denial.rule,
        "cause": denial.cause,
        "reason": denial.reason,
        "process": denial.process,
        "pid": denial.pid,
        "uid": denial.uid,
        "user": denial.user,
        "client": denial.client,
        "orig_dst": denial.to,
        "not_listed_before": denial.more,
    })
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
    let before = *admin.before.borrow();
    let before = before.map(|before| serde_json::json!({"pid": before.pid, "flows": before.flows}));
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
