//! A collector that keeps what it is sent: OTLP by OpenTelemetry's own definitions, which the agent has not
//! been made with.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::{
            ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
            logs_service_server::{LogsService, LogsServiceServer},
        },
        metrics::v1::{
            ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::{InstrumentationScope, KeyValue, any_value::Value},
    logs::v1::LogRecord,
    metrics::v1::Metric,
    resource::v1::Resource,
    trace::v1::Span,
};
use rustls::ServerConfig;
use sandbox::{Sandbox, Served};
use tokio::{io::DuplexStream, sync::mpsc};
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
    /// One span, log record or point of each message is rejected.
    NotThatOne,
    /// Each batch is refused.
    No,
    /// Each batch is to be sent again later.
    Later,
}

/// See the module.
pub struct Collector {
    keeps: Arc<Mutex<Keeps>>,
    _served: Served,
}

#[derive(Default)]
struct Keeps {
    spans: Vec<Span>,
    /// `service.name` of each.
    services: Vec<String>,
    logs: Vec<LogRecord>,
    /// The metrics of each message.
    metrics: Vec<Vec<Metric>>,
    /// The latest sender.
    resource: Resource,
}

#[derive(Clone)]
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
        let service = Service {
            keeps: keeps.clone(),
            says,
        };
        let serve = move || async move {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let server = Server::builder()
                .add_service(TraceServiceServer::new(service.clone()))
                .add_service(LogsServiceServer::new(service.clone()))
                .add_service(MetricsServiceServer::new(service));
            let served = match tls {
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
            };
            served.unwrap();
        };
        Self {
            keeps,
            _served: Served::by(serve),
        }
    }

    /// Spans that have come so far.
    pub fn spans(&self) -> Vec<Span> {
        self.keeps.lock().unwrap().spans.clone()
    }

    pub fn services(&self) -> Vec<String> {
        self.keeps.lock().unwrap().services.clone()
    }

    /// Log records that have come so far.
    pub fn logs(&self) -> Vec<LogRecord> {
        self.keeps.lock().unwrap().logs.clone()
    }

    /// The metrics of each message that has come so far.
    pub fn metrics(&self) -> Vec<Vec<Metric>> {
        self.keeps.lock().unwrap().metrics.clone()
    }

    /// The sender of the latest message.
    pub fn resource(&self) -> Resource {
        self.keeps.lock().unwrap().resource.clone()
    }
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let rejects = self.rejects()?;
        for of in request.into_inner().resource_spans {
            let service = self.came_from(of.resource);
            for of in of.scope_spans {
                check_scope(of.scope);
                let mut keeps = self.keeps.lock().unwrap();
                keeps
                    .services
                    .extend(of.spans.iter().map(|_| service.clone()));
                keeps.spans.extend(of.spans);
            }
        }
        let partial_success = rejects.then(|| ExportTracePartialSuccess {
            rejected_spans: 1,
            error_message: "not that one".to_owned(),
        });
        Ok(Response::new(ExportTraceServiceResponse {
            partial_success,
        }))
    }
}

#[tonic::async_trait]
impl LogsService for Service {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let rejects = self.rejects()?;
        for of in request.into_inner().resource_logs {
            self.came_from(of.resource);
            for of in of.scope_logs {
                check_scope(of.scope);
                self.keeps.lock().unwrap().logs.extend(of.log_records);
            }
        }
        let partial_success = rejects.then(|| ExportLogsPartialSuccess {
            rejected_log_records: 1,
            error_message: "not that one".to_owned(),
        });
        Ok(Response::new(ExportLogsServiceResponse { partial_success }))
    }
}

#[tonic::async_trait]
impl MetricsService for Service {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let rejects = self.rejects()?;
        for of in request.into_inner().resource_metrics {
            self.came_from(of.resource);
            for of in of.scope_metrics {
                check_scope(of.scope);
                self.keeps.lock().unwrap().metrics.push(of.metrics);
            }
        }
        let partial_success = rejects.then(|| ExportMetricsPartialSuccess {
            rejected_data_points: 1,
            error_message: "not that one".to_owned(),
        });
        Ok(Response::new(ExportMetricsServiceResponse {
            partial_success,
        }))
    }
}

impl Service {
    /// Whether one of what has come is rejected.
    fn rejects(&self) -> Result<bool, Status> {
        match self.says {
            Says::No => Err(Status::invalid_argument("no")),
            Says::Later => Err(Status::unavailable("later")),
            Says::Thanks => Ok(false),
            Says::NotThatOne => Ok(true),
        }
    }

    /// Keeps who has sent a message, and returns the service's name.
    fn came_from(&self, resource: Option<Resource>) -> String {
        let resource = resource.unwrap();
        let service = text(&resource.attributes, "service.name").unwrap();
        self.keeps.lock().unwrap().resource = resource;
        service
    }
}

fn check_scope(scope: Option<InstrumentationScope>) {
    assert_eq!(scope.unwrap().name, "underpass");
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
