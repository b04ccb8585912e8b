//! A front that speaks TLS for a node that does not, and tells what it has seen.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
};

use rustls::ServerConfig;
use sandbox::{Sandbox, Served};
use tokio::{
    io::{AsyncWriteExt, copy, sink, split},
    net::TcpStream,
    sync::Notify,
};
use tokio_rustls::TlsAcceptor;

/// How one connection to it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Went {
    /// TLS has not begun.
    Waits,
    /// TLS never began.
    Refused,
    Talks,
    /// The agent has said that nothing more comes.
    Ended,
    /// The agent has ended without saying so.
    CutOff,
}

/// Connections of the front in their order: how each went, and the server name that the agent asked
/// for.
type Seen = Arc<Mutex<Vec<(Went, Option<String>)>>>;

/// With what it shakes hands. `None`: not at all.
type Shows = Option<Arc<ServerConfig>>;

/// Until it is dropped.
pub struct Front {
    pub addr: SocketAddr,
    shows: Arc<Mutex<Shows>>,
    seen: Seen,
    cuts: Arc<Mutex<Vec<Arc<Notify>>>>,
    _served: Served,
}

impl Front {
    pub fn of(sandbox: &Sandbox, node: SocketAddr, config: &Arc<ServerConfig>) -> Self {
        let shows = Arc::new(Mutex::new(Some(config.clone())));
        let (seen, cuts) = (Seen::default(), Arc::default());
        let (shown, sees, cut) = (shows.clone(), seen.clone(), Arc::clone(&cuts));
        // Its thread is in the namespace of the one that starts it.
        let begun = sandbox.server(move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            let serve = move || async move { accepts(listener, node, &shown, &sees, &cut).await };
            (addr, Served::by(serve))
        });
        let (addr, served) = begun.unwrap();
        Self {
            addr,
            shows,
            seen,
            cuts,
            _served: served,
        }
    }

    /// From the next connection on. `None`: it takes connections, and says nothing.
    pub fn shows(&self, config: Option<&Arc<ServerConfig>>) {
        *self.shows.lock().unwrap() = config.cloned();
    }

    pub fn seen(&self) -> Vec<(Went, Option<String>)> {
        self.seen.lock().unwrap().clone()
    }

    /// How many went so.
    pub fn count(&self, went: Went) -> usize {
        let seen = self.seen();
        seen.iter().filter(|(how, _)| *how == went).count()
    }

    /// Ends this connection without a word.
    pub fn cuts(&self, nth: usize) {
        self.cuts.lock().unwrap()[nth].notify_one();
    }
}

async fn accepts(
    listener: TcpListener,
    node: SocketAddr,
    shows: &Mutex<Shows>,
    seen: &Seen,
    cuts: &Mutex<Vec<Arc<Notify>>>,
) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        let cut = Arc::new(Notify::new());
        cuts.lock().unwrap().push(cut.clone());
        let mut all = seen.lock().unwrap();
        let nth = all.len();
        all.push((Went::Waits, None));
        drop(all);
        let config = shows.lock().unwrap().clone();
        let seen = seen.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = carries(stream, config, node, &seen, nth) => {}
                () = cut.notified() => {}
            }
        });
    }
}

async fn carries(stream: TcpStream, config: Shows, node: SocketAddr, seen: &Seen, nth: usize) {
    let is = |went, name: Option<String>| {
        let mut all = seen.lock().unwrap();
        let name = name.or_else(|| all[nth].1.take());
        all[nth] = (went, name);
    };
    let Some(config) = config else {
        let mut stream = stream;
        let _ = copy(&mut stream, &mut sink()).await;
        return;
    };
    let Ok(encrypted) = TlsAcceptor::from(config).accept(stream).await else {
        return is(Went::Refused, None);
    };
    let name = encrypted.get_ref().1.server_name();
    is(Went::Talks, name.map(str::to_owned));
    let mut node = TcpStream::connect(node).await.unwrap();
    let (mut from_agent, mut to_agent) = split(encrypted);
    let (mut from_node, mut to_node) = node.split();
    let up = async {
        let moved = copy(&mut from_agent, &mut to_node).await;
        let _ = to_node.shutdown().await;
        is(
            match moved {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Went::CutOff,
                Err(_) => Went::Refused,
                Ok(_) => Went::Ended,
            },
            None,
        );
    };
    let down = async {
        let _ = copy(&mut from_node, &mut to_agent).await;
        let _ = to_agent.shutdown().await;
    };
    tokio::join!(up, down);
}
