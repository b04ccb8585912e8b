//! A server that speaks what an agent asks of an API server: it has lists. Where they change, connections end, and the next ones are answered by the
//! others.

use std::{
    convert::Infallible,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper::{
    Request, Response,
    body::{Body, Bytes, Frame, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandbox::{Sandbox, Served};
use tokio::{net::TcpListener, sync::watch};
use tokio_rustls::TlsAcceptor;

use crate::common::certs::{Authority, file};

/// The policies that it has are at the ends of these paths: the cluster's, and namespaces'.
const POLICIES: [&str; 2] = ["/clusterunderpasspolicies", "/underpasspolicies"];

/// A server of one test, which ends with this.
pub struct Played {
    /// The settings of an agent that follows it, for the top of its file.
    pub settings: String,
    lists: watch::Sender<Lists>,
    _served: Served,
}

/// The lists of policies, of the cluster's and of namespaces', and of what else is asked for.
type Lists = [Bytes; 3];

/// Lists of a version.
fn lists(version: u32, policies: [&[String]; 2]) -> Lists {
    let list = |items: &str| -> Bytes {
        let metadata = format!("{{\"resourceVersion\": \"{version}\"}}");
        format!("{{\"metadata\": {metadata}, \"items\": [{items}]}}").into()
    };
    let [clusters, namespaced] = policies.map(|policies| list(&policies.join(",")));
    [clusters, namespaced, list("")]
}

impl Played {
    /// Starts with these policies, which are objects in JSON: the cluster's, and namespaces'.
    pub fn start(host: &Sandbox, folder: &Path, policies: [&[String]; 2]) -> Self {
        let authority = Authority::new();
        let ca = file(folder, "ca.crt", &authority.pem());
        let mut config = Authority::server(&authority.signs(&["127.0.0.1"]), None);
        Arc::get_mut(&mut config).unwrap().alpn_protocols = vec![b"h2".to_vec()];
        let listener = host.server(|| std::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        let lists = watch::Sender::new(lists(7, policies));
        let told = lists.subscribe();
        let token = file(folder, "token", "t");
        fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
        let settings = format!(
            "[containers]\ndocker = []\n[host]\nname = \"node1\"\n[policy]\nsource = \"kubernetes\"\nserver = \"https://{at}\"\n\
             tls = {{ ca = {ca:?} }}\ntoken_file = {token:?}\ncache = {:?}\n",
            folder.join("policy.json"),
        );
        let serve = move || {
            let listener = TcpListener::from_std(listener).unwrap();
            accept(listener, TlsAcceptor::from(config), told)
        };
        Self {
            settings,
            lists,
            _served: Served::by(serve),
        }
    }

    /// Has these policies from now on.
    pub fn replace(&self, policies: [&[String]; 2]) {
        self.lists.send_replace(lists(8, policies));
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, told: watch::Receiver<Lists>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let (tls, mut told) = (tls.clone(), told.clone());
        tokio::spawn(async move {
            let lists = told.borrow_and_update().clone();
            let answer = service_fn(move |request| {
                let answer = answer(&request, &lists);
                std::future::ready(Ok::<_, Infallible>(answer))
            });
            // A client that goes is none of its business.
            if let Ok(stream) = tls.accept(client).await {
                let server = http2::Builder::new(TokioExecutor::new());
                tokio::select! {
                    served = server.serve_connection(TokioIo::new(stream), answer) => drop(served),
                    changed = told.changed() => drop(changed),
                }
            }
        });
    }
}

fn answer(request: &Request<Incoming>, lists: &Lists) -> Response<Said> {
    let query = request.uri().query().unwrap_or_default();
    let path = request.uri().path();
    // What else is asked for is the list without anything.
    let at = POLICIES.iter().position(|end| path.ends_with(end));
    let list = at.map_or(lists.last(), |at| lists.get(at));
    Response::new(match query.contains("watch=true") {
        true => Said::Nothing,
        false => Said::All(list.cloned()),
    })
}

/// An answer.
enum Said {
    All(Option<Bytes>),
    /// The answer that is open, and says nothing.
    Nothing,
}

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::All(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Nothing => Poll::Pending,
        }
    }
}
