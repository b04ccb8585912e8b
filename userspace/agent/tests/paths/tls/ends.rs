//! Both ends of a flow, encrypted or not, and a host with certificates.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use sandbox::{Agent, Sandbox};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{
    BINARY, PATIENCE, accept,
    certs::{Authority, NAME, Signed, file},
    eventually,
    wire::{self, Host},
};

/// An end of a flow.
pub enum End {
    Plain(TcpStream),
    Client(Box<StreamOwned<ClientConnection, TcpStream>>),
    Server(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl End {
    pub fn client(stream: TcpStream, config: &Arc<ClientConfig>, name: &str) -> Self {
        let name = name.to_owned().try_into().unwrap();
        let connection = ClientConnection::new(config.clone(), name).unwrap();
        Self::Client(Box::new(StreamOwned::new(connection, stream)))
    }

    pub fn server(stream: TcpStream, config: &Arc<ServerConfig>) -> Self {
        let connection = ServerConnection::new(config.clone()).unwrap();
        Self::Server(Box::new(StreamOwned::new(connection, stream)))
    }

    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Client(stream) => &stream.sock,
            Self::Server(stream) => &stream.sock,
        }
    }

    pub fn sends(&mut self, bytes: &[u8]) {
        self.write_all(bytes).unwrap();
        self.flush().unwrap();
    }

    pub fn gets(&mut self, bytes: &[u8]) {
        let mut got = vec![0; bytes.len()];
        self.read_exact(&mut got).unwrap();
        assert!(got == bytes, "{} bytes are others", bytes.len());
    }

    /// Says that nothing more comes.
    pub fn ends(&mut self) {
        match self {
            Self::Plain(_) => {}
            Self::Client(stream) => {
                stream.conn.send_close_notify();
                stream.conn.complete_io(&mut stream.sock).unwrap();
            }
            Self::Server(stream) => {
                stream.conn.send_close_notify();
                stream.conn.complete_io(&mut stream.sock).unwrap();
            }
        }
        self.socket().shutdown(Shutdown::Write).unwrap();
    }

    /// Reads all that comes until the end, which has to be announced.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.read_to_end(&mut rest).unwrap();
        rest
    }

    /// How reading on fails.
    pub fn fails(&mut self) -> io::Error {
        self.read_to_end(&mut Vec::new()).unwrap_err()
    }
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Client(stream) => stream.read(buffer),
            Self::Server(stream) => stream.read(buffer),
        }
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Client(stream) => stream.write(bytes),
            Self::Server(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Client(stream) => stream.flush(),
            Self::Server(stream) => stream.flush(),
        }
    }
}

/// A host whose agent has a certificate that `authority` has signed.
pub struct Secure<'h, 's> {
    pub host: &'h Host<'s>,
    pub authority: Authority,
    pub folder: TempDir,
}

pub fn secure(body: impl FnOnce(&Secure<'_, '_>)) {
    wire::host(|host| body(&Secure::of(host)));
}

/// Runs `body` where the agent may complain, or end.
pub fn troubled(body: impl FnOnce(&Secure<'_, '_>)) {
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let netns = Some(&sandbox.netns);
    let agent = Agent::start(Path::new(BINARY), netns, &sandbox.cgroup, "workers = 1", "");
    let host = Host {
        agent: agent.unwrap(),
        sandbox: &sandbox,
        listener: listener.unwrap().unwrap(),
        clients: None,
    };
    body(&Secure::of(&host));
}

impl<'h, 's> Secure<'h, 's> {
    fn of(host: &'h Host<'s>) -> Self {
        let secure = Self {
            host,
            authority: Authority::new(),
            folder: tempfile::tempdir().unwrap(),
        };
        secure.has("agent", &secure.authority.signs(&[NAME]));
        file(secure.folder.path(), "ca.crt", &secure.authority.pem());
        secure
    }
}

impl Secure<'_, '_> {
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `NAME.crt` and `NAME.key` are these.
    pub fn has(&self, name: &str, signed: &Signed) {
        signed.write(self.folder.path(), name);
    }

    /// One rule, `r`, which fails closed; `DIR` in it is where the files are.
    pub fn rule(&self, rest: &str) {
        self.host.policy(&format!(
            "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\nfail = \"closed\"\n{}\n",
            self.named(rest)
        ));
    }

    pub fn named(&self, text: &str) -> String {
        text.replace("DIR", &self.folder.path().display().to_string())
    }

    /// A client that has dialled, and the database that was.
    pub fn connect(&self) -> (TcpStream, TcpStream) {
        let to = self.host.listener.local_addr().unwrap();
        let client = self.host.sandbox.client(|| TcpStream::connect(to));
        let client = client.unwrap().unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.set_nodelay(true).unwrap();
        let (database, _) = accept(&self.host.listener);
        database.set_nodelay(true).unwrap();
        (client, database)
    }

    /// A connection that is encrypted, to a database whose connection is not.
    pub fn encrypted(&self) -> (End, End) {
        let (client, database) = self.connect();
        let client = End::client(client, &self.authority.client(None), NAME);
        (client, End::Plain(database))
    }

    pub fn flow(&self, client: &End) -> Value {
        let client = client.socket().local_addr().unwrap().to_string();
        let flows = self.host.agent.json("/flows").unwrap();
        let mut flows = flows.as_array().unwrap().iter();
        flows
            .find(|f| f["client"] == client.as_str())
            .unwrap()
            .clone()
    }

    pub fn failed(&self, side: &str, reason: &str) -> u64 {
        let labels = format!("reason=\"{reason}\",side=\"{side}\"");
        self.host.metric("tls_handshakes_failed", &labels)
    }

    pub fn closed(&self, reason: &str) -> u64 {
        let labels = format!("reason=\"{reason}\"");
        self.host.metric("flows_closed", &labels)
    }

    /// Waits until a flow has ended for this reason.
    pub fn ends_for(&self, reason: &str) {
        eventually(reason, || self.closed(reason) == 1);
    }
}

/// Whether this is how a peer that was told something by TLS fails.
pub fn is_alert(error: &io::Error, alert: rustls::AlertDescription) -> bool {
    let inner = error
        .get_ref()
        .and_then(|e| e.downcast_ref::<rustls::Error>());
    error.kind() == ErrorKind::InvalidData && inner == Some(&rustls::Error::AlertReceived(alert))
}
