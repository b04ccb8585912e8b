//! Docker Engine's API, which Podman speaks, too: JSON over HTTP/1.1. Paths without a version are
//! answered in the newest version of the daemon; nothing that is read here has ever changed.

use std::{collections::BTreeMap, path::Path};

use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode, body::Bytes, header::HOST};
use serde::Deserialize;
use tokio::sync::Notify;

use super::{book::Running, failure::Failure, http::Connection};

/// A list has one to two KiB for a container, and labels may be long.
const MAX_LIST_BYTES: usize = 16 * 1024 * 1024;

/// The longest description of a container; one has 10 to 20 KiB.
const MAX_CONTAINER_BYTES: usize = 1024 * 1024;

/// `filters` of `/events`, encoded for a URL: containers that begin, end, or are renamed.
const EVENTS: &str = "/events?filters=%7B%22type%22%3A%5B%22container%22%5D%2C\
                      %22event%22%3A%5B%22start%22%2C%22die%22%2C%22rename%22%5D%7D";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    names: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    state: State,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    /// 0: it does not run.
    pid: u32,
}

pub(super) struct Docker(Connection);

impl Docker {
    pub(super) async fn open(socket: &Path) -> Result<Self, Failure> {
        Connection::http1(socket).await.map(Self)
    }

    /// Lists the running containers.
    pub(super) async fn list(&mut self) -> Result<Vec<Running>, Failure> {
        let body = self.get("/containers/json", MAX_LIST_BYTES).await?;
        let body = body.ok_or_else(|| Failure::Refused("404 Not Found".into()))?;
        listed(&body)
    }

    /// The number of its first process. None: it has ended.
    pub(super) async fn pid(&mut self, id: &str) -> Result<Option<u32>, Failure> {
        let path = format!("/containers/{id}/json");
        match self.get(&path, MAX_CONTAINER_BYTES).await? {
            Some(body) => inspected(&body),
            None => Ok(None),
        }
    }

    /// Gets a path. None where there is no such thing.
    async fn get(&mut self, path: &str, most: usize) -> Result<Option<Bytes>, Failure> {
        let answer = self.0.ask(request(path)?, most).await?;
        match answer.status {
            StatusCode::OK => Ok(Some(answer.body)),
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(Failure::Refused(status.to_string())),
        }
    }

    /// Tells of everything that happens, until the daemon ends. What it is, a look at the list says.
    pub(super) async fn listen(mut self, news: &Notify) -> Result<(), Failure> {
        let response = self.0.begin(request(EVENTS)?).await?;
        if response.status() != StatusCode::OK {
            return Err(Failure::Refused(response.status().to_string()));
        }
        let mut events = response.into_body();
        // Events come one at a time, and none is kept.
        while let Some(event) = events.frame().await {
            event?;
            news.notify_one();
        }
        Ok(())
    }
}

/// Reads a list of containers.
pub(super) fn listed(body: &[u8]) -> Result<Vec<Running>, Failure> {
    let listed: Vec<Listed> = serde_json::from_slice(body).map_err(Failure::garbage)?;
    let running = listed.into_iter().map(|container| Running {
        id: container.id,
        names: own_names(&container.names.unwrap_or_default()),
        labels: container.labels.unwrap_or_default(),
    });
    Ok(running.collect())
}

/// Reads the description of a container: the number of its first process. None: it has ended.
pub(super) fn inspected(body: &[u8]) -> Result<Option<u32>, Failure> {
    let inspected: Inspected = serde_json::from_slice(body).map_err(Failure::garbage)?;
    Ok(Some(inspected.state.pid).filter(|pid| *pid != 0))
}

fn request(path: &str) -> Result<Request<Full<Bytes>>, Failure> {
    let request = Request::get(path).header(HOST, "docker");
    request.body(Full::default()).map_err(Failure::garbage)
}

fn own_names(names: &[String]) -> Vec<String> {
    names.iter().filter_map(|name| own_name(name)).collect()
}

/// `/name`; `/other/alias` is what another container calls it.
fn own_name(name: &str) -> Option<String> {
    let name = name.strip_prefix('/').unwrap_or(name);
    (!name.contains('/')).then(|| name.to_owned())
}
