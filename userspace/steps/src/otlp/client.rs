//! The client of a collector: hands over messages by OTLP over gRPC, encrypted or not.
//!
//! It is for a thread that may block. One connection is kept, and made again when it has ended. A
//! collector that hangs is waited for until a deadline.

use std::{io, sync::Arc, time::Duration};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{StatusCode, body::Bytes, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use thiserror::Error;
use tls::{Endpoint, Outward};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    runtime,
    task::JoinSet,
    time,
};

use super::messages;
use crate::{grpc, register::Dials};

/// The protocol that ALPN names for gRPC.
pub(super) const PROTOCOL: &str = "h2";

/// The time limit from the dial to the end of the answer. OTLP's own default is twice as long; a
/// batch goes to a host near by.
const DEADLINE: Duration = Duration::from_secs(5);

/// The longest answer, which is a number and a sentence.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The longest headers of an answer, which are a few words.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// The threads that look names up: they block, and one is enough.
const LOOK_UPS: usize = 1;

/// The reason why a message was not taken.
#[derive(Debug, Error)]
pub(super) enum Failure {
    /// No connection could be made.
    #[error("it cannot be reached: {0}")]
    Unreachable(io::Error),
    /// The collector can be reached, but the TLS handshake failed.
    #[error("TLS: {0}")]
    Tls(io::Error),
    /// The collector did not answer in time.
    #[error("no answer in {} s", DEADLINE.as_secs())]
    Late,
    /// The connection ended, or the peer does not speak HTTP/2.
    #[error("the connection failed: {0}")]
    Cut(hyper::Error),
    /// The collector does not want the message, or not now.
    #[error("it refuses: {0}")]
    Refused(String, Again),
    /// The peer is no collector.
    #[error("its answer makes no sense")]
    Garbage,
}

/// Whether the same message may be sent once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    Yes,
    No,
}

impl Failure {
    /// The labels in metrics.
    pub(super) const LABELS: [&str; 6] =
        ["unreachable", "tls", "late", "cut", "refused", "garbage"];

    /// Returns the label, one of [`Self::LABELS`].
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Tls(_) => "tls",
            Self::Late => "late",
            Self::Cut(_) => "cut",
            Self::Refused(..) => "refused",
            Self::Garbage => "garbage",
        }
    }

    /// Whether sending the message once more may help.
    pub(super) fn again(&self) -> Again {
        match self {
            Self::Unreachable(_) | Self::Tls(_) | Self::Late | Self::Cut(_) => Again::Yes,
            Self::Refused(_, again) => *again,
            Self::Garbage => Again::No,
        }
    }

    /// Whether the failure came before anything was sent.
    pub(super) fn is_before(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Tls(_))
    }
}

/// How many spans, log records or points of metrics a collector has rejected of a message that it has taken, and the reason.
pub(super) struct Taken {
    pub(super) rejected: u64,
    pub(super) why: String,
}

/// A collector's client, with its connection and runtime.
pub(super) struct Client {
    /// The runtime. None only while the client is dropped.
    runtime: Option<runtime::Runtime>,
    endpoint: Endpoint,
    tls: Option<Arc<Outward>>,
    dials: Dials,
    connection: Option<Connection>,
}

struct Connection {
    sender: http2::SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl Client {
    /// Makes a client, which does not connect yet.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(super) fn new(
        endpoint: Endpoint,
        tls: Option<Arc<Outward>>,
        dials: Dials,
    ) -> io::Result<Self> {
        let mut builder = runtime::Builder::new_current_thread();
        let runtime = builder
            .enable_all()
            .max_blocking_threads(LOOK_UPS)
            .build()?;
        Ok(Self {
            runtime: Some(runtime),
            endpoint,
            tls,
            dials,
            connection: None,
        })
    }

    /// Sends a message to a method, and waits for the answer.
    ///
    /// # Errors
    /// The reason why the message was not taken.
    pub(super) fn export(&mut self, method: &str, message: &[u8]) -> Result<Taken, Failure> {
        let Some(runtime) = self.runtime.take() else {
            return Err(Failure::Late);
        };
        let taken = runtime.block_on(async {
            let taken = time::timeout(DEADLINE, self.ask(method, message)).await;
            taken.unwrap_or(Err(Failure::Late))
        });
        self.runtime = Some(runtime);
        taken
    }

    async fn ask(&mut self, method: &str, message: &[u8]) -> Result<Taken, Failure> {
        let uri = self.endpoint.url(method);
        // The connection is put back only when all of the answer has come.
        if let Some(mut kept) = self.connection.take() {
            match kept.ask(&uri, message).await {
                // The connection may have ended long ago.
                Err(Failure::Cut(_)) => {}
                taken => {
                    self.connection = Some(kept);
                    return taken;
                }
            }
        }
        let stream = self.dial().await.map_err(Failure::Unreachable)?;
        let mut connection = Connection::open(stream, self.tls.as_deref()).await?;
        let taken = connection.ask(&uri, message).await?;
        self.connection = Some(connection);
        Ok(taken)
    }

    /// Connects, so that no hook of this agent changes the connection.
    async fn dial(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
        for address in lookup_host(self.endpoint.authority()).await? {
            let dialled = match self.dials.get() {
                Some(probe) => probe.connect(address).await,
                None => TcpStream::connect(address).await,
            };
            match dialled {
                Ok(stream) => return stream.set_nodelay(true).map(|()| stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Drop for Client {
    /// Drops the runtime without waiting for a name that is being looked up.
    fn drop(&mut self) {
        self.connection = None;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Connection {
    async fn open(stream: TcpStream, tls: Option<&Outward>) -> Result<Self, Failure> {
        match tls {
            None => Self::begin(stream).await,
            Some(tls) => Self::begin(tls.begin(stream).await.map_err(Failure::Tls)?).await,
        }
    }

    async fn begin(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, Failure> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.max_header_list_size(MAX_HEADER_BYTES);
        let begun = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = begun.map_err(Failure::Cut)?;
        let mut driver = JoinSet::new();
        // The request gets the connection's error, too.
        driver.spawn(async { drop(connection.await) });
        Ok(Self {
            sender,
            _driver: driver,
        })
    }

    async fn ask(&mut self, uri: &str, message: &[u8]) -> Result<Taken, Failure> {
        self.sender.ready().await.map_err(Failure::Cut)?;
        // The URI was checked before.
        let request = grpc::request(uri, message).map_err(|_| Failure::Garbage)?;
        let answer = self.sender.send_request(request).await;
        let (head, body) = answer.map_err(Failure::Cut)?.into_parts();
        if head.status != StatusCode::OK {
            let again = match head.status.as_u16() {
                429 | 502 | 503 | 504 => Again::Yes,
                _ => Again::No,
            };
            return Err(Failure::Refused(head.status.to_string(), again));
        }
        let read = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        let read = read.map_err(|error| match error.downcast::<hyper::Error>() {
            Ok(error) => Failure::Cut(*error),
            Err(_) => Failure::Garbage,
        })?;
        let trailers = read.trailers().cloned().unwrap_or_default();
        match grpc::status(&head.headers, &trailers) {
            Some(("0", _)) => {}
            Some((status, text)) => {
                return Err(Failure::Refused(
                    format!("status {status} {text}"),
                    again(status),
                ));
            }
            None => return Err(Failure::Garbage),
        }
        let answer = read.to_bytes();
        let answer = grpc::unframed(&answer).and_then(messages::rejected);
        let (rejected, why) = answer.ok_or(Failure::Garbage)?;
        Ok(Taken { rejected, why })
    }
}

/// Says whether OTLP allows a retry after a gRPC status
/// (<https://opentelemetry.io/docs/specs/otlp/#failures>): after CANCELLED, DEADLINE_EXCEEDED,
/// ABORTED, OUT_OF_RANGE, UNAVAILABLE and DATA_LOSS.
fn again(status: &str) -> Again {
    match status {
        "1" | "4" | "10" | "11" | "14" | "15" => Again::Yes,
        _ => Again::No,
    }
}
