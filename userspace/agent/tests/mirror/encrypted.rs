//! Mirrors that speak TLS: who they have to be, what they are shown, and what is said of mistakes.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread::{self, JoinHandle},
};

use rustls::ServerConfig;
use tokio::{net::TcpStream, runtime, sync::oneshot};
use tokio_rustls::TlsAcceptor;

use super::{
    certs::{Authority, file},
    common::eventually,
    world::{World, world},
};

/// What encrypts in front of a node, until it is dropped.
struct Front {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    fn of(world: &World<'_>, node: SocketAddr, config: Arc<ServerConfig>) -> Self {
        let (stop, stopped) = oneshot::channel();
        // Its thread is in the namespace of the one that starts it.
        let begun = world.sandbox.server(move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            let thread = thread::spawn(move || {
                let runtime = runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(async {
                    tokio::select! {
                        () = encrypts(listener, node, config) => {}
                        _ = stopped => {}
                    }
                });
            });
            (addr, thread)
        });
        let (addr, thread) = begun.unwrap();
        Self {
            addr,
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(thread::panicking() || ended.is_ok(), "the front");
        }
    }
}

async fn encrypts(listener: TcpListener, node: SocketAddr, config: Arc<ServerConfig>) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        let accepting = TlsAcceptor::from(config.clone()).accept(stream);
        tokio::spawn(async move {
            if let Ok(mut encrypted) = accepting.await {
                let mut node = TcpStream::connect(node).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut encrypted, &mut node).await;
            }
        });
    }
}

#[test]
fn writes_reach_one_whose_certificate_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, agents) = (Authority::new(), Authority::new());
    let ca = file(folder.path(), "ca.crt", &authority.pem());
    let (cert, key) = agents.signs(&["agent"]).write(folder.path(), "own");
    // More than one record, and more than a socket takes at once.
    let large = "x".repeat(4 << 20);
    world(|world| {
        let mirror = world.mirror();
        let named = authority.signs(&["mirror.example"]);
        let front = Front::of(
            world,
            mirror.addr(),
            Authority::server(&named, Some(&agents)),
        );
        world.rule(
            front.addr,
            &format!(
                ", timeout = \"10s\", dual_write = true, compare = true, tls = {{ ca = {ca:?}, server_name = \
                 \"mirror.example\", cert = {cert:?}, key = {key:?} }}"
            ),
        );
        let mut client = world.client(4);
        for (id, value) in [(1, "one"), (2, &large), (3, "three")] {
            client.inserts(id, value);
            let found = world.value_at(mirror.addr(), id);
            assert!(found.as_deref() == Some(value), "{id}");
        }
        let id = client.prepares("INSERT INTO shop.orders (id, v) VALUES (?, ?)");
        let execute = client.execute(&id, &[&4_i32.to_be_bytes(), b"bound"]);
        client.ask(&execute);
        assert_eq!(world.value_at(mirror.addr(), 4).as_deref(), Some("bound"));
        assert_eq!(world.fate("acknowledged"), 4);
    });
}

#[test]
fn one_whose_certificate_is_not_good_gets_nothing_until_that_is_mended() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new(), Authority::new());
    let ca = file(folder.path(), "ca.crt", &other.pem());
    world(|world| {
        let mirror = world.mirror();
        let signed = authority.signs(&["127.0.0.1"]);
        let front = Front::of(world, mirror.addr(), Authority::server(&signed, None));
        let settings = format!(", timeout = \"10s\", tls = {{ ca = {ca:?} }}");
        world.rule(front.addr, &settings);
        let mut client = world.client(4);
        client.inserts(1, "one");
        eventually("it is not trusted", || world.fate("away") == 1);
        let advice = "have `ca` of its `tls` hold who signed its certificate";
        eventually("it is told", || world.agent.log().contains(advice));
        assert_eq!(world.value_at(mirror.addr(), 1), None);
        // The same settings, of another file.
        fs::write(&ca, authority.pem()).unwrap();
        world.rule(front.addr, &settings);
        let mut next = 2;
        eventually("it is asked", || {
            client.inserts(next, "again");
            next += 1;
            world.fate("acknowledged") > 0
        });
    });
}

#[test]
fn one_that_does_not_encrypt_gets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ca = file(folder.path(), "ca.crt", &Authority::new().pem());
    world(|world| {
        let mirror = world.mirror();
        let settings = format!(", timeout = \"10s\", tls = {{ ca = {ca:?} }}");
        world.rule(mirror.addr(), &settings);
        let mut client = world.client(4);
        client.inserts(1, "one");
        eventually("it is not asked", || world.fate("away") == 1);
        assert_eq!(world.value_at(mirror.addr(), 1), None);
    });
}
