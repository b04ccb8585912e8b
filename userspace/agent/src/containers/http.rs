//! Requests over a unix socket, with limits on what is read.

use std::path::Path;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::{Body, Bytes, Incoming},
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::UnixStream, task::JoinSet};

use super::Failure;

/// A runtime's answer has a dozen short headers.
const MAX_HEADER_BYTES: usize = 16 * 1024;

/// The least that hyper reads with.
const READ_BYTES: usize = 64 * 1024;

/// A connection, which ends when this is dropped.
pub(super) struct Connection {
    sender: Sender,
    _driver: JoinSet<()>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A whole answer.
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: HeaderMap,
}

impl Connection {
    pub(super) async fn http1(socket: &Path) -> Result<Self, Failure> {
        let stream = TokioIo::new(UnixStream::connect(socket).await?);
        let mut builder = http1::Builder::new();
        builder.max_buf_size(READ_BYTES);
        let (sender, connection) = builder.handshake(stream).await?;
        Ok(Self::driven(Sender::Http1(sender), connection))
    }

    pub(super) async fn http2(socket: &Path) -> Result<Self, Failure> {
        let stream = TokioIo::new(UnixStream::connect(socket).await?);
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.max_header_list_size(MAX_HEADER_BYTES as u32);
        let (sender, connection) = builder.handshake(stream).await?;
        Ok(Self::driven(Sender::Http2(sender), connection))
    }

    fn driven<E>(
        sender: Sender,
        connection: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> Self {
        let mut driver = JoinSet::new();
        // The request gets the connection's error, too.
        driver.spawn(async { drop(connection.await) });
        Self {
            sender,
            _driver: driver,
        }
    }

    /// Sends a request. Returns the response, whose body has not been read.
    pub(super) async fn begin(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Failure> {
        let response = match &mut self.sender {
            Sender::Http1(sender) => sender.send_request(request).await,
            Sender::Http2(sender) => sender.send_request(request).await,
        };
        Ok(response?)
    }

    /// Sends a request. Returns the response with its body, which has `most` bytes at most.
    pub(super) async fn ask(
        &mut self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<Answer, Failure> {
        let (head, body) = self.begin(request).await?.into_parts();
        // The announced length is too long: nothing of the body need be read.
        if body.size_hint().lower() > most as u64 {
            return Err(Failure::TooLong(most));
        }
        let read = Limited::new(body, most).collect().await;
        let read = read.map_err(|error| match error.is::<LengthLimitError>() {
            true => Failure::TooLong(most),
            false => match error.downcast::<hyper::Error>() {
                Ok(error) => (*error).into(),
                Err(error) => Failure::garbage(error),
            },
        })?;
        let trailers = read.trailers().cloned().unwrap_or_default();
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: read.to_bytes(),
            trailers,
        })
    }
}
