//! The control socket: HTTP on a unix socket that only its owner, root, can speak to. Whoever can
//! reach the admin interface can read; whoever can reach this one changes what happens to flows.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use policy::{Action, Policy};
use proxy::ProxyContext;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot};

use super::{
    Mark, MarkView, Target, Wanted,
    apply::{self, Applied},
    lasting,
};
use crate::{
    backends::{Backends, Order},
    log::{Log, LogLevel, NoLevel},
    observed::SharedDataplane,
    socket_file::SocketFile,
};

/// A selector has a few keys of at most 256 bytes, and a path.
const BODY_BYTES: usize = 16 * 1024;

/// Requests to whoever owns the policy; further ones wait.
const QUEUE: usize = 8;

/// A request to the owner of the policy.
pub enum Asked {
    /// Put a mark into force.
    Set(Wanted, oneshot::Sender<Result<Set, String>>),
    /// End a mark.
    End(u64, oneshot::Sender<Option<Arc<Mark>>>),
    /// List all marks that hold.
    List(oneshot::Sender<Vec<MarkView>>),
}

/// A mark that is in force.
pub struct Set {
    /// The mark.
    pub mark: Arc<Mark>,
    /// The policy that begins with it.
    pub policy: Arc<Policy>,
}

/// A way to see the marks, and to change none.
#[derive(Clone)]
pub struct MarkReader {
    owner: mpsc::Sender<Asked>,
    setting: Arc<Mutex<()>>,
}

/// A time in which marks and backends' orders stay as they are: whoever changes one waits.
pub type Still = OwnedMutexGuard<()>;

impl MarkReader {
    /// The marks that hold. None: the agent stops.
    pub async fn views(&self) -> Option<Vec<MarkView>> {
        let (answer, answered) = oneshot::channel();
        self.owner.send(Asked::List(answer)).await.ok()?;
        answered.await.ok()
    }

    /// Has the marks stay as they are until this is dropped.
    pub async fn hold_still(&self) -> Still {
        self.setting.clone().lock_owned().await
    }
}

/// The state with which requests are answered.
#[derive(Clone)]
pub struct Desk {
    shared: Arc<ProxyContext>,
    backends: Backends,
    dataplane: SharedDataplane,
    owner: mpsc::Sender<Asked>,
    /// The lock that lets one mark be set after the other, for a flow holds one command; or none ([`Still`]).
    setting: Arc<Mutex<()>>,
    log: Log,
}

/// The reason why a request is refused.
struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, as_json(&json!({"error": self.1}))).into_response()
    }
}

fn bad(why: impl Into<String>) -> Refused {
    Refused(StatusCode::BAD_REQUEST, why.into())
}

fn stopping<E>(_: E) -> Refused {
    Refused(StatusCode::SERVICE_UNAVAILABLE, "the agent stops".into())
}

impl Desk {
    /// Makes the desk, with the other end for the owner of the policy.
    pub fn new(
        shared: Arc<ProxyContext>,
        backends: Backends,
        dataplane: SharedDataplane,
        log: Log,
    ) -> (Self, mpsc::Receiver<Asked>) {
        let (owner, asked) = mpsc::channel(QUEUE);
        let desk = Self {
            shared,
            backends,
            dataplane,
            owner,
            setting: Arc::default(),
            log,
        };
        (desk, asked)
    }

    /// The way to the marks for whoever may not change them.
    pub fn reader(&self) -> MarkReader {
        MarkReader {
            owner: self.owner.clone(),
            setting: self.setting.clone(),
        }
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Asked) -> Result<T, Refused> {
        let (answer, answered) = oneshot::channel();
        self.owner.send(ask(answer)).await.map_err(stopping)?;
        answered.await.map_err(stopping)
    }

    async fn set(self, wanted: Wanted) -> Result<Marked, Refused> {
        let _in_turn = self.setting.lock().await;
        if let Some(number) = wanted.target.flow() {
            let (shared, dataplane) = (self.shared.clone(), self.dataplane.clone());
            let there = move || apply::is_there(&shared, &dataplane, number);
            let there = tokio::task::spawn_blocking(there).await.map_err(stopping)?;
            if !there {
                let why = format!("there is no flow {}: see `underpass flows`", wanted.target);
                return Err(Refused(StatusCode::NOT_FOUND, why));
            }
        }
        let reset = wanted.reset;
        let set = self.ask(|answer| Asked::Set(wanted, answer)).await?;
        let Set { mark, policy } = set.map_err(|why| Refused(StatusCode::CONFLICT, why))?;
        let applied = apply::apply(&self.shared, &self.dataplane, &mark, &policy, reset).await;
        Ok(Marked {
            mark: mark.view(),
            doubt: mark.target.doubt(),
            applied,
        })
    }
}

/// The answer to a mark.
#[derive(Serialize)]
struct Marked {
    mark: MarkView,
    doubt: Option<&'static str>,
    #[serde(flatten)]
    applied: Applied,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWanted {
    target: String,
    action: String,
    #[serde(default, rename = "for")]
    lasts: Option<String>,
    #[serde(default)]
    reset: bool,
}

impl RawWanted {
    fn parse(self) -> Result<Wanted, String> {
        let action = Action::parse(&self.action).ok_or_else(|| {
            let names = Action::ALL.map(Action::as_str).join(", ");
            format!("action: expected one of {names}; found {:?}", self.action)
        })?;
        let lasts = self.lasts.as_deref().map(lasting).transpose();
        Ok(Wanted {
            target: Target::parse(&self.target, action)?,
            action,
            lasts: lasts.map_err(|why| format!("for: {why}"))?,
            reset: self.reset,
        })
    }
}

/// Serves for ever.
///
/// # Errors
/// The listener fails.
pub async fn serve(socket: &mut SocketFile, desk: Desk) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/marks", get(list).post(set))
        .route("/marks/{id}", delete(end))
        .route("/backends", post(order))
        .route("/log", get(level).post(set_level))
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(desk);
    axum::serve(socket.listener()?, routes).await
}

async fn list(State(desk): State<Desk>) -> Result<Response, Refused> {
    Ok(as_json(&desk.ask(Asked::List).await?))
}

/// Reads what is asked for.
pub(super) fn said(body: &str) -> Result<Wanted, String> {
    let wanted: RawWanted = serde_json::from_str(body).map_err(|e| e.to_string())?;
    wanted.parse()
}

async fn set(State(desk): State<Desk>, body: String) -> Result<Response, Refused> {
    let wanted = said(&body).map_err(bad)?;
    // The mark is set even if nobody waits for the answer any more.
    let done = tokio::spawn(desk.set(wanted)).await;
    Ok(as_json(&done.map_err(stopping)??))
}

async fn end(State(desk): State<Desk>, Path(id): Path<String>) -> Result<Response, Refused> {
    let id: u64 = id
        .parse()
        .map_err(|_| bad(format!("expected a mark's number; found {id:?}")))?;
    let _in_turn = desk.setting.lock().await;
    match desk.ask(|answer| Asked::End(id, answer)).await? {
        Some(mark) => Ok(as_json(&mark.view())),
        None => Err(Refused(
            StatusCode::NOT_FOUND,
            format!("there is no mark {id}: see `underpass marks`"),
        )),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawOrder {
    backend: SocketAddr,
    order: String,
}

async fn order(State(desk): State<Desk>, body: String) -> Result<Response, Refused> {
    let RawOrder { backend, order }: RawOrder =
        serde_json::from_str(&body).map_err(|e| bad(e.to_string()))?;
    let wanted = match order.as_str() {
        "drain" => Some(Order::Drain),
        "down" => Some(Order::Down),
        "up" => None,
        _ => {
            return Err(bad(format!(
                "order: expected drain, up or down; found {order:?}"
            )));
        }
    };
    let _in_turn = desk.setting.lock().await;
    let ordered = desk.backends.order(backend, wanted).await;
    match ordered.ok_or(()).map_err(stopping)? {
        Some(view) => Ok(as_json(&view)),
        None => Err(Refused(
            StatusCode::NOT_FOUND,
            format!("no rule has the backend {backend}: see `underpass backends`"),
        )),
    }
}

async fn level(State(desk): State<Desk>) -> Response {
    as_json(&json!({"level": desk.log.level()}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLevel {
    level: String,
}

async fn set_level(State(desk): State<Desk>, body: String) -> Result<Response, Refused> {
    let RawLevel { level } = serde_json::from_str(&body).map_err(|e| bad(e.to_string()))?;
    let level: LogLevel = level.parse().map_err(|e: NoLevel| bad(e.to_string()))?;
    let before = desk.log.change_level(&level);
    Ok(as_json(
        &json!({"level": level.to_string(), "before": before}),
    ))
}

fn as_json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
