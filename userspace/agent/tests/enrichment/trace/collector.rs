//! A collector that keeps what it is sent: OTLP by OpenTelemetry's own definitions, which the agent has not
//! been made with.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use rustls::ServerConfig;
use sandbox::Sandbox;
use tokio::{
    io::DuplexStream,
    runtime,
    sync::{mpsc, oneshot},
};
use tokio_rustls::TlsAcceptor;
use tonic::{
    Request, Response, Status,
    codegen::tokio_stream::wrappers::ReceiverStream,
    transport::{Server, server::TcpIncoming},
};

/// Answer of the collector to each batch.
#[derive(Clone, Copy)]
pub enum Says {
    Thanks,
    /// One span of each batch is rejected.
    NotThatOne,
    /// Each batch is refused.
    No,
    /// Each batch is to be sent again later.
    Later,
}

/// See the module.
pub struct Collector {
    keeps: Arc<Mutex<Keeps>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Keeps {
    spans: Vec<Span>,
    /// `service.name` of each.
    services: Vec<String>,
}

struct Service {
    keeps: Arc<Mutex<Keeps>>,
    says: Says,
}

/// Listener of a collector, in the agent's namespace.
pub fn listen(sandbox: &Sandbox) -> TcpListener {
    listen_at(sandbox, ([127, 0, 0, 1], 0).into())
}

pub fn listen_at(sandbox: &Sandbox, at: SocketAddr) -> TcpListener {
    let listener = sandbox.server(|| TcpListener::bind(at));
    listener.unwrap().unwrap()
}

/// Frames of HTTP/2 on their way between TLS and the service, in bytes.
const BETWEEN: usize = 64 << 10;

/// Connections that have shaken hands, as the service reads them.
fn decrypted(
    listener: tokio::net::TcpListener,
    config: Arc<ServerConfig>,
) -> ReceiverStream<io::Result<DuplexStream>> {
    let (sender, connections) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let accepting = TlsAcceptor::from(config.clone()).accept(stream);
            let sender = sender.clone();
            tokio::spawn(async move {
                let Ok(mut encrypted) = accepting.await else {
                    return;
                };
                let (mut outer, inner) = tokio::io::duplex(BETWEEN);
                if sender.send(Ok(inner)).await.is_ok() {
                    let _ = tokio::io::copy_bidirectional(&mut encrypted, &mut outer).await;
                }
            });
        }
    });
    ReceiverStream::new(connections)
}

impl Collector {
    pub fn start(listener: TcpListener, says: Says) -> Self {
        Self::start_with(listener, says, None)
    }

    /// `tls`: it only takes what is encrypted.
    pub fn start_with(listener: TcpListener, says: Says, tls: Option<Arc<ServerConfig>>) -> Self {
        let keeps = Arc::new(Mutex::new(Keeps::default()));
        let service = TraceServiceServer::new(Service {
            keeps: keeps.clone(),
            says,
        });
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                listener.set_nonblocking(true).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let server = Server::builder().add_service(service);
                let serves = async {
                    match tls {
                        None => {
                            server
                                .serve_with_incoming(TcpIncoming::from(listener))
                                .await
                        }
                        Some(config) => {
                            server
                                .serve_with_incoming(decrypted(listener, config))
                                .await
                        }
                    }
                };
                tokio::select! {
                    served = serves => served.unwrap(),
                    _ = stopped => {}
                }
            });
        };
        Self {
            keeps,
            stop: Some(stop),
            thread: Some(thread::spawn(run)),
        }
    }

    /// Spans that have come so far.
    pub fn spans(&self) -> Vec<Span> {
        self.keeps.lock().unwrap().spans.clone()
    }

    pub fn services(&self) -> Vec<String> {
        self.keeps.lock().unwrap().services.clone()
    }
}

/// A dropped collector's connections are cut.
impl Drop for Collector {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(thread::panicking() || ended.is_ok(), "the collector");
        }
    }
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        match self.says {
            Says::No => return Err(Status::invalid_argument("no")),
            Says::Later => return Err(Status::unavailable("later")),
            Says::Thanks | Says::NotThatOne => {}
        }
        let mut keeps = self.keeps.lock().unwrap();
        for of in request.into_inner().resource_spans {
            let resource = of.resource.unwrap();
            let service = text(&resource.attributes, "service.name").unwrap();
            for scope in of.scope_spans {
                assert_eq!(scope.scope.unwrap().name, "underpass");
                keeps
                    .services
                    .extend(scope.spans.iter().map(|_| service.clone()));
                keeps.spans.extend(scope.spans);
            }
        }
        let partial_success = match self.says {
            Says::NotThatOne => Some(ExportTracePartialSuccess {
                rejected_spans: 1,
                error_message: "not that one".to_owned(),
            }),
            _ => None,
        };
        Ok(Response::new(ExportTraceServiceResponse {
            partial_success,
        }))
    }
}

/// An attribute's value, numbers in decimal.
pub fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let mut of = attributes.iter().filter(|attribute| attribute.key == key);
    let value = of.next()?.value.clone().unwrap().value.unwrap();
    assert!(of.next().is_none(), "{key} twice");
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => panic!("{key}: {other:?}"),
    })
}
