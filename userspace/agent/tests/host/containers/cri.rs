//! A server that speaks what is asked of the Container Runtime Interface.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http_body_util::BodyExt;
use hyper::{
    HeaderMap, Request, Response,
    body::{Body, Bytes, Frame, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use sandbox::Served;
use tokio::net::UnixListener;

use super::ship::{Mood, Runtime};

/// A container runtime that speaks CRI; it listens until it is dropped.
pub struct Cri {
    pub path: PathBuf,
    pub runtime: Arc<Runtime>,
    _served: Served,
}

impl Cri {
    pub fn start(path: &Path) -> Self {
        let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let runtime = Arc::new(Runtime::new());
        let known = runtime.clone();
        let serve = move || accept(UnixListener::from_std(listener).unwrap(), known);
        Self {
            path: path.to_owned(),
            runtime,
            _served: Served::by(serve),
        }
    }
}

impl Drop for Cri {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn accept(listener: UnixListener, runtime: Arc<Runtime>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let runtime = runtime.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request| answer(request, runtime.clone()));
            let server = http2::Builder::new(TokioExecutor::new());
            // A client that goes is none of its business.
            drop(server.serve_connection(TokioIo::new(client), answer).await);
        });
    }
}

type Frames = Vec<Result<Frame<Bytes>, Infallible>>;

/// Rest of an answer.
struct Said(VecDeque<Result<Frame<Bytes>, Infallible>>);

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front())
    }
}

async fn answer(
    request: Request<Incoming>,
    runtime: Arc<Runtime>,
) -> Result<Response<Said>, Infallible> {
    let method = request.uri().path().to_owned();
    let question = request.into_body().collect().await.unwrap().to_bytes();
    let message = match runtime.mood() {
        Mood::Well => message(&method, &question[5..], &runtime),
        Mood::Hanging => std::future::pending().await,
        Mood::Garbage => return Ok(said(vec![data(vec![0xff; 100]), status("0")])),
        Mood::Endless => {
            let mut frames = vec![data(vec![0, 0x06, 0, 0, 0])];
            frames.extend((0..100).map(|_| data(vec![0; 1_000_000])));
            return Ok(said(frames));
        }
        // The length of a message that does not come.
        Mood::Cut => return Ok(said(vec![data(vec![0, 0, 0, 1, 0, 1, 2]), status("0")])),
        Mood::Refusing => return Ok(said(vec![status("12")])),
    };
    Ok(match message {
        Some(message) => {
            let mut frame = vec![0];
            frame.extend((message.len() as u32).to_be_bytes());
            frame.extend(message);
            said(vec![data(frame), status("0")])
        }
        None => said(vec![status("5")]),
    })
}

fn message(method: &str, question: &[u8], runtime: &Runtime) -> Option<Vec<u8>> {
    let runs = runtime.runs();
    let map = |labels: &std::collections::BTreeMap<String, String>| -> HashMap<_, _> {
        labels.clone().into_iter().collect()
    };
    match method {
        "/runtime.v1.RuntimeService/ListContainers" => {
            // Field 1, of 4 bytes: field 2, of 2 bytes: field 1 is 1.
            assert_eq!(question, [0x0a, 4, 0x12, 2, 0x08, 1]);
            let containers = runs.iter().map(|told| Container {
                id: told.id.clone(),
                pod: format!("pod-of-{}", told.id),
                metadata: Some(Metadata {
                    name: told.name.clone(),
                    attempt: 3,
                }),
                state: 1,
                created_at: 1_700_000_000_000_000_000,
                labels: map(&told.labels),
            });
            let containers = containers.collect();
            Some(Containers { containers }.encode_to_vec())
        }
        "/runtime.v1.RuntimeService/ListPodSandbox" => {
            let items = runs.iter().map(|told| Pod {
                id: format!("pod-of-{}", told.id),
                created_at: 1_700_000_000_000_000_000,
                labels: map(&told.pod_labels),
            });
            let items = items.collect();
            Some(Pods { items }.encode_to_vec())
        }
        "/runtime.v1.RuntimeService/ContainerStatus" => {
            let question = StatusRequest::decode(question).unwrap();
            assert!(question.verbose);
            let told = runs.into_iter().find(|told| told.id == question.id)?;
            let info = format!(
                "{{\"sandboxID\":\"x\",\"pid\":{},\"config\":{{}}}}",
                told.pid
            );
            let info = HashMap::from([("info".to_owned(), info)]);
            Some(Status { info }.encode_to_vec())
        }
        other => panic!("{other} is not asked"),
    }
}

fn data(bytes: Vec<u8>) -> Result<Frame<Bytes>, Infallible> {
    Ok(Frame::data(bytes.into()))
}

fn status(code: &'static str) -> Result<Frame<Bytes>, Infallible> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.parse().unwrap());
    Ok(Frame::trailers(trailers))
}

fn said(frames: Frames) -> Response<Said> {
    let body = Said(frames.into());
    let response = Response::builder().header("content-type", "application/grpc");
    response.body(body).unwrap()
}

#[derive(Clone, PartialEq, Message)]
struct Containers {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    pod: String,
    #[prost(message, optional, tag = "3")]
    metadata: Option<Metadata>,
    #[prost(int32, tag = "6")]
    state: i32,
    #[prost(int64, tag = "7")]
    created_at: i64,
    #[prost(map = "string, string", tag = "8")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Pods {
    #[prost(message, repeated, tag = "1")]
    items: Vec<Pod>,
}

#[derive(Clone, PartialEq, Message)]
struct Pod {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(int64, tag = "4")]
    created_at: i64,
    #[prost(map = "string, string", tag = "5")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusRequest {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(bool, tag = "2")]
    verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(map = "string, string", tag = "2")]
    info: HashMap<String, String>,
}
