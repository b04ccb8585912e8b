//! Kubernetes' Container Runtime Interface, over gRPC. Messages and field numbers are those of
//! `k8s.io/cri-api`, `runtime.v1`, as far as they are needed here.

use std::{collections::HashMap, path::Path};

use hyper::StatusCode;
use prost::Message;
use serde::Deserialize;
use steps::grpc;

use super::{book::Running, failure::Failure, http::Connection};

/// The longest message, as kubelets allow it (`maxMsgSize`).
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

const CONTAINER_RUNNING: i32 = 1;

/// The status `NOT_FOUND` of gRPC.
const NOT_FOUND: &str = "5";

#[derive(Clone, PartialEq, Message)]
struct ListContainersRequest {
    #[prost(message, optional, tag = "1")]
    filter: Option<ContainerFilter>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerFilter {
    #[prost(message, optional, tag = "2")]
    state: Option<ContainerStateValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStateValue {
    #[prost(int32, tag = "1")]
    state: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    metadata: Option<ContainerMetadata>,
    #[prost(int32, tag = "6")]
    state: i32,
    #[prost(map = "string, string", tag = "8")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerMetadata {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ListPodSandboxRequest {}

#[derive(Clone, PartialEq, Message)]
struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandbox {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(map = "string, string", tag = "5")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatusRequest {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(bool, tag = "2")]
    verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatusResponse {
    /// The verbose information: `info` is JSON, in which containerd and CRI-O have `pid`.
    #[prost(map = "string, string", tag = "2")]
    info: HashMap<String, String>,
}

#[derive(Deserialize)]
struct Info {
    pid: u32,
}

pub(super) struct Cri(Connection);

impl Cri {
    pub(super) async fn open(socket: &Path) -> Result<Self, Failure> {
        Connection::http2(socket).await.map(Self)
    }

    /// Lists the running containers. Their labels are their own and their pod's.
    pub(super) async fn list(&mut self) -> Result<Vec<Running>, Failure> {
        let state = Some(ContainerStateValue {
            state: CONTAINER_RUNNING,
        });
        let filter = Some(ContainerFilter { state });
        let question = ListContainersRequest { filter };
        let containers = self.call("ListContainers", &question).await?;
        let pods = self
            .call("ListPodSandbox", &ListPodSandboxRequest {})
            .await?;
        listed(&containers.unwrap_or_default(), &pods.unwrap_or_default())
    }

    /// The number of its first process. None: it has ended.
    pub(super) async fn pid(&mut self, id: &str) -> Result<Option<u32>, Failure> {
        let question = ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: true,
        };
        match self.call("ContainerStatus", &question).await? {
            Some(status) => inspected(&status),
            None => Ok(None),
        }
    }

    /// Calls a method, and returns the answer's message. None where there is no such thing.
    async fn call(
        &mut self,
        method: &str,
        question: &impl Message,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let uri = format!("http://cri/runtime.v1.RuntimeService/{method}");
        let request = grpc::request(&uri, &question.encode_to_vec()).map_err(Failure::garbage)?;
        let answer = self.0.ask(request, MAX_MESSAGE_BYTES).await?;
        if answer.status != StatusCode::OK {
            return Err(Failure::Refused(answer.status.to_string()));
        }
        match grpc::status(&answer.headers, &answer.trailers) {
            Some(("0", _)) => {
                let cut =
                    || Failure::Garbage("a message that is cut, or compressed unasked".into());
                let message = grpc::unframed(&answer.body).ok_or_else(cut)?;
                Ok(Some(message.to_owned()))
            }
            Some((NOT_FOUND, _)) => Ok(None),
            Some((status, message)) => Err(Failure::Refused(format!("status {status} {message}"))),
            None => Err(Failure::Garbage("no gRPC status".into())),
        }
    }
}

/// Reads a list of containers, and one of pods. Labels of a container are its own and its pod's.
pub(super) fn listed(containers: &[u8], pods: &[u8]) -> Result<Vec<Running>, Failure> {
    let listed = ListContainersResponse::decode(containers).map_err(Failure::garbage)?;
    let pods = ListPodSandboxResponse::decode(pods).map_err(Failure::garbage)?;
    let pods = pods.items.into_iter();
    let pods: HashMap<String, HashMap<String, String>> =
        pods.map(|pod| (pod.id, pod.labels)).collect();
    let containers = listed.containers.into_iter();
    let running = containers.filter(|container| container.state == CONTAINER_RUNNING);
    let running = running.map(|container| {
        let of_pod = pods.get(&container.pod_sandbox_id).cloned();
        let labels = of_pod.unwrap_or_default().into_iter();
        Running {
            id: container.id,
            names: container.metadata.map(|m| m.name).into_iter().collect(),
            labels: labels.chain(container.labels).collect(),
        }
    });
    Ok(running.collect())
}

/// Reads the status of a container: the number of its first process. None: it has ended.
pub(super) fn inspected(status: &[u8]) -> Result<Option<u32>, Failure> {
    let status = ContainerStatusResponse::decode(status).map_err(Failure::garbage)?;
    let info = status.info.get("info").map_or("", String::as_str);
    let info: Info = serde_json::from_str(info).map_err(Failure::garbage)?;
    Ok(Some(info.pid).filter(|pid| *pid != 0))
}
