//! A connection to one member of etcd. The agent makes it itself, so that it has the agent's mark and the project's own TLS.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use etcd_client::{
    Channel, Client, ConnectOptions, GetOptions, GetResponse, KeyValue, SortOrder, SortTarget,
};
use hyper_util::rt::TokioIo;
use tls::{Endpoint, Outward};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    time,
};
use tonic::transport::{Endpoint as Target, Uri};
use tower::service_fn;

use crate::{Failure, Fragments, MAX_FRAGMENTS, Settings, Unusable, fleet::Pushed, keys::Keys};

/// The longest message that is taken from etcd: tonic's own limit, far above a policy.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// The longest headers of an answer, which are a few words.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// How a connection is made: an agent gives it its mark.
pub type Dial = Arc<
    dyn Fn(SocketAddr) -> Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>> + Send + Sync,
>;

/// Connects as anybody does.
pub fn dial_plainly() -> Dial {
    Arc::new(|to| Box::pin(TcpStream::connect(to)))
}

/// A session with one member.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) keys: Keys,
    pub(crate) answer: Duration,
}

/// Bytes to and from a member, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Session {
    /// Connects to the member whose turn it is, and logs in.
    pub(crate) async fn open_next(
        settings: &Settings,
        turn: usize,
        dial: &Dial,
        answer: Duration,
    ) -> Result<Self, Failure> {
        let members = settings.endpoints.iter().cycle();
        let mut members = members.skip(turn % settings.endpoints.len().max(1));
        match members.next() {
            Some(member) => Self::open(settings, member, dial, answer).await,
            None => Err(Failure::Absent("no endpoint is named".to_owned())),
        }
    }

    /// Connects to a member, and logs in.
    pub(crate) async fn open(
        settings: &Settings,
        to: &Endpoint,
        dial: &Dial,
        answer: Duration,
    ) -> Result<Self, Failure> {
        let outward = settings.outward(to)?.map(Arc::new);
        // Made here, and not in the channel: it says why there is none.
        let first = within(answer, connect(to, outward.as_deref(), dial)).await?;
        let channel = channel(to, first, answer)?;
        let mut options = ConnectOptions::new().with_require_leader(true);
        if let Some((user, password)) = settings.password()? {
            // etcd forgets its tokens after minutes in which nothing was asked, as while a watch has nothing to tell.
            options = options
                .with_user(user, password.as_str())
                .with_auto_token_refresh(true);
        }
        let client = Client::from_channel(Channel::Tonic(channel), Some(options));
        let client = ask(answer, client).await?;
        let keys = Keys::new(&settings.prefix);
        Ok(Self {
            client,
            keys,
            answer,
        })
    }

    /// Checks that the member has a leader: only with one does it answer what is to be the same at all of them.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) async fn agrees(&mut self) -> Result<(), Failure> {
        let key = self.keys.pushed();
        let counted = GetOptions::new().with_count_only();
        match ask(self.answer, self.client.get(key, Some(counted))).await {
            // Whoever may not know has been told so by all.
            Ok(_) | Err(Failure::Denied(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Reads the policy, and the revision of etcd at which it was read.
    pub(crate) async fn list(&mut self) -> Result<(i64, Result<Fragments, Unusable>), Failure> {
        let prefix = self.keys.rules();
        let read = self
            .page(&prefix, prefix.as_bytes(), MAX_FRAGMENTS + 1)
            .await?;
        let now = read.header().map_or(0, |header| header.revision());
        let changed = read.kvs().iter().map(|kv| kv.mod_revision()).max();
        let values = read.kvs().iter();
        let values =
            values.map(|kv| (kv.key().get(prefix.len()..).unwrap_or_default(), kv.value()));
        // Of a policy without files nobody knows when the last one went.
        let changed = changed.unwrap_or(now);
        let fragments = match Fragments::of_values(changed, values) {
            Ok(fragments) => fragments,
            Err(why) => return Ok((now, Err(why))),
        };
        let version = self.version(read.kvs(), now).await?;
        Ok((
            now,
            Ok(Fragments {
                version,
                ..fragments
            }),
        ))
    }

    /// The number of the push that has made these files what they were at a revision. None: somebody has changed them since without a
    /// push, or this user may not know.
    pub(crate) async fn version(
        &mut self,
        files: &[KeyValue],
        now: i64,
    ) -> Result<Option<u64>, Failure> {
        let key = self.keys.pushed();
        let read = match ask(self.answer, self.client.get(key, None)).await {
            // A role for agents that did not ask for it.
            Err(Failure::Denied(_)) => return Ok(None),
            read => read?,
        };
        let Some(found) = read.kvs().first() else {
            return Ok(None);
        };
        let then = found.mod_revision();
        let is_since = files.iter().any(|file| file.mod_revision() > then);
        let pushed: Option<Pushed> = serde_json::from_slice(found.value()).ok();
        // A push of a moment ago is read with its files, of which the watch tells.
        let pushed = pushed.filter(|p| then <= now && !is_since && p.files == files.len());
        Ok(pushed.map(|pushed| pushed.version))
    }

    /// Reads keys with a prefix, from one on, in their order.
    pub(crate) async fn page(
        &mut self,
        prefix: &str,
        from: &[u8],
        most: usize,
    ) -> Result<GetResponse, Failure> {
        let options = GetOptions::new()
            .with_range(end_of(prefix))
            .with_limit(most as i64)
            .with_sort(SortTarget::Key, SortOrder::Ascend);
        ask(self.answer, self.client.get(from, Some(options))).await
    }
}

/// The first key behind all keys with a prefix, which ends in `/`.
fn end_of(prefix: &str) -> String {
    format!("{}0", prefix.trim_end_matches('/'))
}

/// Asks, for as long as an answer may take.
pub(crate) async fn ask<T>(
    answer: Duration,
    question: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Failure> {
    within(answer, async { Ok(question.await?) }).await
}

async fn within<T>(
    most: Duration,
    asked: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    time::timeout(most, asked)
        .await
        .unwrap_or(Err(Failure::Late))
}

pub(crate) async fn connect(
    to: &Endpoint,
    outward: Option<&Outward>,
    dial: &Dial,
) -> Result<Box<dyn Stream>, Failure> {
    let unreachable = |error| Failure::Unreachable(to.authority().to_owned(), error);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in lookup_host(to.authority()).await.map_err(unreachable)? {
        match dial(address).await {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(unreachable)?;
                return match outward {
                    None => Ok(Box::new(stream)),
                    Some(tls) => match tls.begin(stream).await {
                        Ok(stream) => Ok(Box::new(stream)),
                        Err(error) => Err(Failure::Tls(to.authority().to_owned(), error)),
                    },
                };
            }
            Err(error) => last = error,
        }
    }
    Err(unreachable(last))
}

/// A channel over one connection. When that has ended there is no other: a new session chooses its member anew.
fn channel(
    to: &Endpoint,
    first: Box<dyn Stream>,
    answer: Duration,
) -> Result<tonic::transport::Channel, Failure> {
    // The scheme is not sent anywhere where it counts; `https` would want tonic's TLS.
    let target = Target::from_shared(format!("http://{}", to.authority()));
    let target = target.map_err(|error| Failure::Lost(error.to_string()))?;
    let target = target
        .connect_timeout(answer)
        .http2_max_header_list_size(MAX_HEADER_BYTES);
    let first = Arc::new(std::sync::Mutex::new(Some(first)));
    Ok(
        target.connect_with_connector_lazy(service_fn(move |_: Uri| {
            let mut kept = first
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let taken = kept.take();
            async move {
                let ended =
                    || io::Error::new(io::ErrorKind::NotConnected, "the connection has ended");
                taken.map(TokioIo::new).ok_or_else(ended)
            }
        })),
    )
}
