//! The doors of the admin interface, and how long whoever comes through one may stay.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::Context;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use prometheus::{IntCounterVec, Registry};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener},
    time,
};

use super::{
    closing::Closing,
    guests::{Guests, Peer, Place},
};
use crate::{
    config::Config,
    socket_file::{Door, SocketFile},
    upgrade::{Given, Listener},
};

/// The time in which a request has to be there. A scraper sends it in one packet.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The time in which an answer has to be read; of one that goes on, the time in which some of it has. Ten thousand flows
/// are 10 MiB.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause after accept(2) failed: time for something to be closed.
const PAUSE: Duration = Duration::from_millis(50);

/// Connections that were closed before they had their answer, by reason.
pub(super) const CROWDED: &str = "crowded";
pub(super) const LATE: &str = "late";
pub(super) const BAD_HOST: &str = "host";

/// The listening sockets.
#[derive(Debug)]
pub struct Listeners {
    /// The file of the socket, which is removed with it.
    file: SocketFile,
    unix: UnixListener,
    tcp: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

/// The routes behind each door.
pub(super) struct Routes {
    /// Routes of the admin socket.
    pub(super) local: Router,
    /// Routes of `agent.admin`.
    pub(super) remote: Router,
    /// Routes of `agent.metrics`.
    pub(super) metrics: Router,
}

/// Connections of the admin interface that were closed or refused, by reason.
pub fn register(registry: &Registry) -> prometheus::Result<IntCounterVec> {
    telemetry::counters(
        registry,
        "underpass_admin_refused_total",
        "Connections to the admin interface that were closed or refused, by reason: crowded (others needed the \
         room), late (no request in 5 s, or the answer was not read in a minute), host (a name that is not this \
         host's).",
        "reason",
        &[CROWDED, LATE, BAD_HOST],
    )
}

impl Listeners {
    /// Listens at the admin socket, and on TCP where the file says so: for all that the interface has, and for metrics alone.
    ///
    /// # Errors
    /// One of them is taken, or the system refuses it.
    pub async fn bind(config: &Config, given: &mut Given) -> anyhow::Result<Self> {
        let mut file = given.socket(Door::Admin, &config.admin_socket)?;
        let unix = file.listener()?;
        let tcp = listen(
            config.admin,
            &mut given.tcp,
            "for the admin interface: choose another `admin`, or leave it out to have the admin socket alone",
        );
        let tcp = tcp.await?;
        let metrics = listen(
            config.metrics,
            &mut given.metrics,
            "for metrics: choose another `metrics`, or leave it out",
        );
        Ok(Self {
            file,
            unix,
            tcp,
            metrics: metrics.await?,
        })
    }

    /// The sockets, for another agent.
    pub(crate) fn descriptors(&self) -> io::Result<Vec<(Listener, OwnedFd)>> {
        let unix = self.unix.as_fd().try_clone_to_owned()?;
        let mut found = vec![(Listener::Admin(self.file.path().to_owned()), unix)];
        if let Some(tcp) = &self.tcp {
            found.push((
                Listener::Tcp(tcp.local_addr()?),
                tcp.as_fd().try_clone_to_owned()?,
            ));
        }
        if let Some(metrics) = &self.metrics {
            let own = metrics.as_fd().try_clone_to_owned()?;
            found.push((Listener::Metrics(metrics.local_addr()?), own));
        }
        Ok(found)
    }

    /// The switch with which the socket's file is left to another agent.
    pub(crate) fn is_given(&self) -> Arc<AtomicBool> {
        self.file.is_given()
    }

    /// Where the interface can be reached, in words.
    pub fn shown(&self) -> String {
        let tcp = self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok());
        match tcp {
            Some(address) => address.to_string(),
            None => self.file.path().display().to_string(),
        }
    }

    async fn accept(&self) -> io::Result<Visitor> {
        tokio::select! {
            accepted = self.unix.accept() => {
                let (stream, _) = accepted?;
                let peer = Peer::User(stream.peer_cred()?.uid());
                Ok(Visitor { peer, stream: Box::new(stream), door: |routes| &routes.local })
            }
            accepted = accept(self.tcp.as_ref()) => Ok(visitor(accepted?, |routes| &routes.remote)),
            accepted = accept(self.metrics.as_ref()) => Ok(visitor(accepted?, |routes| &routes.metrics)),
        }
    }

    /// Serves for ever, by the routes of the door by which each visitor comes.
    pub(super) async fn serve(self, routes: Routes, refused: IntCounterVec) {
        let guests = Guests::new();
        // Dropped with this future: answers that go on end then.
        let (_opened, closing) = Closing::new(self.file.is_given());
        loop {
            let visitor = match self.accept().await {
                Ok(visitor) => visitor,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept on the admin interface");
                    time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (place, made_room) = guests.enter(visitor.peer);
            if made_room {
                refused.with_label_values(&[CROWDED]).inc();
            }
            let routes = (visitor.door)(&routes).clone();
            let routes = routes.layer(Extension(closing.clone()));
            tokio::spawn(converse(visitor.stream, place, routes, refused.clone()));
        }
    }
}

/// Listens at this address, if there is one: by what another agent has given, if it is that. `about`: for what, and what to
/// do where it is taken.
async fn listen(
    address: Option<SocketAddr>,
    given: &mut Option<(SocketAddr, OwnedFd)>,
    about: &str,
) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else {
        return Ok(None);
    };
    let is_it = |(at, _): &mut (SocketAddr, OwnedFd)| {
        at.ip() == address.ip() && (at.port() == address.port() || address.port() == 0)
    };
    if let Some((_, listener)) = given.take_if(is_it) {
        return Ok(Some(TcpListener::from_std(listener.into())?));
    }
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address} {about}"))?;
    Ok(Some(listener))
}

/// Waits for a connection; for ever where nobody listens.
async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

fn visitor((stream, from): (TcpStream, SocketAddr), door: fn(&Routes) -> &Router) -> Visitor {
    Visitor {
        peer: Peer::address(from.ip()),
        stream: Box::new(stream),
        door,
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

struct Visitor {
    peer: Peer,
    stream: Box<dyn Stream>,
    /// The routes behind the door.
    door: fn(&Routes) -> &Router,
}

/// Serves one request of a connection. A connection that could stay for another one would be idle most of the time.
async fn converse(stream: Box<dyn Stream>, place: Place, routes: Router, refused: IntCounterVec) {
    let (sent_away, overstays) = (place.sent_away(), place.overstays(ANSWER_TIMEOUT));
    let routes = routes
        .layer(Extension(place.stay()))
        .layer(Extension(place.peer()));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(place.watch(stream)),
            TowerToHyperService::new(routes),
        );
    let is_late = tokio::select! {
        served = served => served.is_err_and(|error| error.is_timeout()),
        () = sent_away => false,
        () = overstays => true,
    };
    if is_late {
        refused.with_label_values(&[LATE]).inc();
    }
}
