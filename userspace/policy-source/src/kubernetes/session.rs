//! A connection to the API server: one, over which everything is asked and watched (HTTP/2).

use std::{sync::Arc, time::Duration};

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http2::{self, SendRequest},
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue},
    rt::{Read, Write},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::Deserialize;
use tokio::{task::JoinSet, time};
use tonic::transport::Uri;
use zeroize::Zeroizing;

use super::KubernetesSettings;
use crate::{Dial, Failure, Pace, session::connect};

/// The longest answer, a page of a list: 500 pods with 20 KiB each are far above what there is.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// How many times as long as for other answers is waited for a page of a list: a server may have to read it in its store, and waits
/// three seconds itself before it says that it is behind.
const LIST: u32 = 10;

/// The longest headers of an answer, which are a few words.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// Bytes that the server may send of a list before they are read.
const WINDOW_BYTES: u32 = 1 << 20;

/// A session, which ends when this is dropped. Its clones are the same one.
#[derive(Clone)]
pub(super) struct Session {
    sender: SendRequest<Full<Bytes>>,
    settings: Arc<KubernetesSettings>,
    answer: Duration,
    /// Ends the connection with the last clone.
    _driver: Arc<JoinSet<()>>,
}

/// Answer of an API server that refuses.
#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    message: String,
}

impl Session {
    /// Connects. A server that does not answer pings for [`Pace::silence`] ends the session.
    pub(super) async fn open(
        settings: &Arc<KubernetesSettings>,
        dial: &Dial,
        pace: &Pace,
    ) -> Result<Self, Failure> {
        let opening = Self::try_open(settings, dial, pace);
        time::timeout(pace.answer, opening)
            .await
            .unwrap_or(Err(Failure::Late))
    }

    async fn try_open(
        settings: &Arc<KubernetesSettings>,
        dial: &Dial,
        pace: &Pace,
    ) -> Result<Self, Failure> {
        let server = &settings.server;
        let outward = settings.outward()?;
        let stream = connect(server, Some(&outward), dial).await?;
        Self::over(TokioIo::new(stream), settings, pace).await
    }

    /// Begins over a connection that there is.
    pub(super) async fn over(
        stream: impl Read + Write + Send + Unpin + 'static,
        settings: &Arc<KubernetesSettings>,
        pace: &Pace,
    ) -> Result<Self, Failure> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEADER_BYTES)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(4 * WINDOW_BYTES)
            .keep_alive_while_idle(true)
            .keep_alive_interval(pace.probe)
            .keep_alive_timeout(pace.silence.saturating_sub(pace.probe));
        let handshake = builder.handshake(stream).await;
        let (sender, connection) = handshake.map_err(lost)?;
        let mut driver = JoinSet::new();
        // Requests get the connection's error, too.
        driver.spawn(async { drop(connection.await) });
        Ok(Self {
            sender,
            settings: settings.clone(),
            answer: pace.answer,
            _driver: Arc::new(driver),
        })
    }

    /// Asks for a list, and returns the answer's JSON.
    pub(super) async fn get(&self, path: &str) -> Result<Bytes, Failure> {
        let answered = time::timeout(LIST * self.answer, self.ask(Method::GET, path, None)).await;
        answered.unwrap_or(Err(Failure::Late))
    }

    /// Puts the fields of an object that are this writer's (server-side apply), and makes the object if it is not there.
    pub(super) async fn apply(
        &self,
        path: &str,
        object: &serde_json::Value,
    ) -> Result<(), Failure> {
        let path = format!("{path}?fieldManager=underpass&force=true");
        let body = serde_json::to_vec(object).map_err(|error| Failure::Lost(error.to_string()))?;
        let asked = self.ask(Method::PATCH, &path, Some(body));
        let answered = time::timeout(self.answer, asked).await;
        answered.unwrap_or(Err(Failure::Late)).map(drop)
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Bytes, Failure> {
        let response = self.begin(method, path, body).await?;
        let status = response.status();
        let body = body_of(response).await?;
        match status.is_success() {
            true => Ok(body),
            false => Err(refused(status, path, &body)),
        }
    }

    /// Begins to watch: the answer goes on for as long as the server wants.
    pub(super) async fn watch(&self, path: &str) -> Result<Incoming, Failure> {
        let asked = async {
            let response = self.begin(Method::GET, path, None).await?;
            match response.status() {
                StatusCode::OK => Ok(response.into_body()),
                status => Err(refused(status, path, &body_of(response).await?)),
            }
        };
        let begun = time::timeout(self.answer, asked).await;
        begun.unwrap_or(Err(Failure::Late))
    }

    async fn begin(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, Failure> {
        let uri = format!("https://{}{path}", self.settings.server.authority());
        let uri: Uri = uri
            .parse()
            .map_err(|error| Failure::Lost(format!("{path:?}: {error}")))?;
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(ACCEPT, "application/json");
        if let Some(token) = self.settings.token()? {
            let value = Zeroizing::new(format!("Bearer {}", token.trim()));
            let value = HeaderValue::from_str(&value);
            let mut value =
                value.map_err(|_| Failure::Password("token_file: expected a token".to_owned()))?;
            // Neither in a log, nor in the table of headers that HTTP/2 keeps.
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if body.is_some() {
            // JSON is YAML.
            request = request.header(CONTENT_TYPE, "application/apply-patch+yaml");
        }
        let request = request.body(Full::new(body.unwrap_or_default().into()));
        let request = request.map_err(|error| Failure::Password(error.to_string()))?;
        let mut sender = self.sender.clone();
        sender.ready().await.map_err(lost)?;
        sender.send_request(request).await.map_err(lost)
    }
}

fn lost(error: hyper::Error) -> Failure {
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    Failure::Lost(cause.unwrap_or_else(|| error.to_string()))
}

async fn body_of(response: Response<Incoming>) -> Result<Bytes, Failure> {
    let read = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
        .collect()
        .await;
    match read {
        Ok(read) => Ok(read.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Failure::TooLarge(format!(
            "it has more than {MAX_ANSWER_BYTES} bytes"
        ))),
        Err(error) => Err(Failure::Lost(error.to_string())),
    }
}

fn refused(status: StatusCode, path: &str, body: &[u8]) -> Failure {
    let said = serde_json::from_slice::<Refusal>(body).map(|refusal| refusal.message);
    let said = said.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Failure::Denied(format!(
            "the API server refuses {path}: {said}: look at the token, and at what its service account may do"
        )),
        StatusCode::NOT_FOUND => Failure::Absent(format!(
            "the API server does not know {path}: are the chart's CRDs there? {said}"
        )),
        StatusCode::GONE => Failure::Compacted,
        // It is behind what was seen, or its store is an earlier one: the store knows.
        StatusCode::GATEWAY_TIMEOUT if said.contains("Too large resource version") => {
            Failure::Compacted
        }
        status => Failure::Lost(format!("the API server answers {status}: {said}")),
    }
}
