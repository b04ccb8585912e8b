//! A server that speaks what an agent asks of an API server: it has lists, and nothing in them changes.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
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
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::common::certs::{Authority, file};

/// The policies that it has are at the end of this path.
const POLICIES: &str = "/clusterunderpasspolicies";

/// A server of one test, which ends with this.
pub struct Played {
    pub at: SocketAddr,
    /// The authority that has signed its certificate.
    pub ca: PathBuf,
    _served: Served,
}

impl Played {
    /// Starts with these policies, which are objects in JSON.
    pub fn start(host: &Sandbox, folder: &Path, policies: &[String]) -> Self {
        let authority = Authority::new();
        let ca = file(folder, "ca.crt", &authority.pem());
        let mut config = Authority::server(&authority.signs(&["127.0.0.1"]), None);
        Arc::get_mut(&mut config).unwrap().alpn_protocols = vec![b"h2".to_vec()];
        let listener = host.server(|| std::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        let list = |items: &str| -> Bytes {
            format!("{{\"metadata\": {{\"resourceVersion\": \"7\"}}, \"items\": [{items}]}}").into()
        };
        let lists = [list(&policies.join(",")), list("")];
        let serve = move || {
            let listener = TcpListener::from_std(listener).unwrap();
            accept(listener, TlsAcceptor::from(config), lists)
        };
        Self {
            at,
            ca,
            _served: Served::by(serve),
        }
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, lists: [Bytes; 2]) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let (tls, lists) = (tls.clone(), lists.clone());
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let answer = answer(&request, &lists);
                std::future::ready(Ok::<_, Infallible>(answer))
            });
            // A client that goes is none of its business.
            if let Ok(stream) = tls.accept(client).await {
                let server = http2::Builder::new(TokioExecutor::new());
                drop(server.serve_connection(TokioIo::new(stream), answer).await);
            }
        });
    }
}

fn answer(request: &Request<Incoming>, [policies, nothing]: &[Bytes; 2]) -> Response<Said> {
    let query = request.uri().query().unwrap_or_default();
    Response::new(match request.uri().path().ends_with(POLICIES) {
        _ if query.contains("watch=true") => Said::Nothing,
        true => Said::All(Some(policies.clone())),
        false => Said::All(Some(nothing.clone())),
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
