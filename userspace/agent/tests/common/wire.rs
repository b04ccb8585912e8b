//! A host with an agent whose policy changes, a database that does as the test says, and what
//! they say.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use sandbox::{Agent, MemoryCgroup, Netns, Sandbox, run_in};
use serde_json::Value;

use crate::common::{
    BINARY, PATIENCE, accept, eventually,
    frames::{RESPONSE, RESULT, frame, segment},
};

const AUTHENTICATE: u8 = 0x03;
pub const OPTIONS: u8 = 0x05;
pub const SUPPORTED: u8 = 0x06;
pub const PREPARE: u8 = 0x09;
pub const REGISTER: u8 = 0x0B;
pub const AUTH_RESPONSE: u8 = 0x0F;
pub const AUTH_SUCCESS: u8 = 0x10;

pub fn authenticate(version: u8) -> Vec<u8> {
    frame(RESPONSE | version, 0, AUTHENTICATE, b"\0\x01x")
}

pub fn auth_response(version: u8, stream: i16, token: &[u8]) -> Vec<u8> {
    let body = [&(token.len() as i32).to_be_bytes()[..], token].concat();
    frame(version, stream, AUTH_RESPONSE, &body)
}

pub fn auth_success(version: u8, stream: i16) -> Vec<u8> {
    frame(RESPONSE | version, stream, AUTH_SUCCESS, &[255; 4])
}

/// A RESULT of kind Rows, whose contents nobody reads.
pub fn rows(version: u8, stream: i16) -> Vec<u8> {
    let body = [&2_i32.to_be_bytes()[..], &[0; 100]].concat();
    frame(RESPONSE | version, stream, RESULT, &body)
}

pub fn set_keyspace(version: u8, stream: i16, keyspace: &str) -> Vec<u8> {
    let length = (keyspace.len() as u16).to_be_bytes();
    let body = [&3_i32.to_be_bytes()[..], &length, keyspace.as_bytes()].concat();
    frame(RESPONSE | version, stream, RESULT, &body)
}

/// The ERROR that a denied client is told.
pub fn refusal(version: u8, stream: i16, rule: &str) -> Vec<u8> {
    let message = format!("underpass: denied by rule {rule}");
    let length = (message.len() as u16).to_be_bytes();
    let body = [&0x2100_i32.to_be_bytes()[..], &length, message.as_bytes()].concat();
    frame(RESPONSE | version, stream, 0x00, &body)
}

/// Clients on other hosts are the agent's, too.
pub const INCOMING: &str = "[[incoming]]\n";

/// See the module.
pub struct Host<'s> {
    pub agent: Agent<'s>,
    pub sandbox: &'s Sandbox,
    pub listener: TcpListener,
    /// The clients' host, if that is another.
    pub clients: Option<Netns>,
}

/// Runs `body`; afterwards no flow is left and the agent has not complained.
pub fn host(body: impl FnOnce(&Host<'_>)) {
    host_by(Path::new(BINARY), "", body);
}

/// Runs `body` with an agent that has these settings, too.
pub fn host_with(settings: &str, body: impl FnOnce(&Host<'_>)) {
    host_by(Path::new(BINARY), settings, body);
}

/// Runs `body` with an agent whose journals may be pipes and devices, which stand for slow and full disks.
pub fn host_with_any_journal(body: impl FnOnce(&Host<'_>)) {
    hooked_host("any_journal=true", body);
}

/// Runs `body` with an agent that has these test hooks.
pub fn hooked_host(hooks: &str, body: impl FnOnce(&Host<'_>)) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("underpass");
    let hook = format!("{}={hooks}", test_hooks::VARIABLE);
    sandbox::program::switched(&script, BINARY, &hook).unwrap();
    host_by(&script, "", body);
}

fn host_by(binary: &Path, more: &str, body: impl FnOnce(&Host<'_>)) {
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let netns = Some(&sandbox.netns);
    let settings = format!("max_flows = 4000\nworkers = 1\n{more}");
    let agent = Agent::start(binary, netns, &sandbox.cgroup, &settings, "").unwrap();
    let host = Host {
        sandbox: &sandbox,
        agent,
        listener,
        clients: None,
    };
    in_cgroup(&sandbox, || body(&host));
    eventually("every flow ends", || {
        host.agent.metric("underpass_flows").unwrap() == 0.0
    });
    let log = host.agent.log();
    let bad = ["panicked", " ERROR "];
    let bad: Vec<&str> = log
        .lines()
        .filter(|l| bad.iter().any(|b| l.contains(b)))
        .collect();
    assert_eq!(bad, [""; 0], "the agent complained");
}

/// Runs `body` while a thread is in the clients' cgroup: by one the agent finds its path, and those that dial are soon gone.
fn in_cgroup(sandbox: &Sandbox, body: impl FnOnce()) {
    let (over, is_over) = mpsc::channel::<()>();
    let (enters, entered) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let stays = move || {
                enters.send(()).unwrap();
                is_over.recv().is_err()
            };
            sandbox.client(stays).unwrap()
        });
        entered.recv().unwrap();
        // Goes with `body`, also if that fails.
        let _over = over;
        body();
    });
}

impl Host<'_> {
    /// Puts a policy into force; `PORT` in it is the database's.
    pub fn policy(&self, policy: &str) {
        self.policy_to(self.listener.local_addr().unwrap().port(), policy);
    }

    /// Sets the policy for a database at another port.
    pub fn policy_to(&self, port: u16, policy: &str) {
        let loaded = "underpass_reloads_total{result=\"ok\"}";
        let before = self.agent.metric(loaded).unwrap();
        let incoming = self.clients.as_ref().map_or("", |_| INCOMING);
        self.agent
            .write_policy(&(incoming.to_owned() + &policy.replace("PORT", &port.to_string())))
            .unwrap();
        self.agent.signal(nix::sys::signal::Signal::SIGHUP).unwrap();
        eventually("the policy is in force", || {
            self.agent.metric(loaded).unwrap() > before
        });
    }

    /// A client's connection to the database, before a byte has passed.
    pub fn connect(&self) -> Conversation {
        self.connect_to(&self.listener)
    }

    /// A client's connection to whoever has this listener.
    pub fn connect_to(&self, listener: &TcpListener) -> Conversation {
        self.conversation(self.dial(listener), accept(listener).0)
    }

    /// A client's connection to the database, with the memory of one side's socket accounted.
    pub fn connect_accounted(&self, side: &str, memory: &MemoryCgroup) -> Conversation {
        let listener = &self.listener;
        let (dial, accept) = (|| self.dial(listener), || accept(listener).0);
        let (client, server) = match side {
            "client" => (memory.run(dial).unwrap(), accept()),
            _ => (dial(), memory.run(accept).unwrap()),
        };
        self.conversation(client, server)
    }

    fn dial(&self, listener: &TcpListener) -> TcpStream {
        let to = listener.local_addr().unwrap();
        let dial = || TcpStream::connect(to);
        let client = match &self.clients {
            Some(elsewhere) => run_in(Some(elsewhere), None, dial),
            None => self.sandbox.client(dial),
        };
        client.unwrap().unwrap()
    }

    fn conversation(&self, client: TcpStream, server: TcpStream) -> Conversation {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        Conversation {
            client,
            server,
            in_segments: false,
        }
    }

    /// A flow, as the operator sees it.
    pub fn flow(&self, c: &Conversation) -> Value {
        let client = c.client.local_addr().unwrap().to_string();
        let flows = self.agent.json("/flows").unwrap();
        let mut flows = flows.as_array().unwrap().iter();
        flows
            .find(|f| f["client"] == client.as_str())
            .unwrap()
            .clone()
    }

    /// Waits until the flow is listed under this rule: the database may have its bytes a moment before.
    pub fn meets(&self, c: &Conversation, rule: &str) {
        eventually("the rule is met", || self.flow(c)["rule"] == rule);
    }

    /// Waits until the flow, which was there before its rule, is read: it is looked for when the policy is in force.
    pub fn finds(&self, c: &Conversation) {
        let client = c.client.local_addr().unwrap().to_string();
        eventually("the running connection is found", || {
            let flows = self.agent.json("/flows").unwrap();
            let mut flows = flows.as_array().unwrap().iter();
            flows.any(|f| f["client"] == client.as_str())
        });
    }

    pub fn metric(&self, name: &str, labels: &str) -> u64 {
        let sample = format!("underpass_{name}_total{{{labels}}}");
        self.agent.metric(&sample).unwrap() as u64
    }
}

/// One flow, both of whose ends are the test's.
pub struct Conversation {
    pub client: TcpStream,
    pub server: TcpStream,
    /// Whether all that is said from here on is in segments.
    pub in_segments: bool,
}

impl Conversation {
    pub fn wrap(&self, frame: &[u8]) -> Vec<u8> {
        match self.in_segments {
            true => segment(frame),
            false => frame.to_vec(),
        }
    }

    /// Nobody is in between: each end's other side is the other end's own socket.
    pub fn is_direct(&self) -> bool {
        let peers = [&self.client, &self.server].map(|end| end.peer_addr().unwrap());
        let own = [&self.server, &self.client].map(|end| end.local_addr().unwrap());
        peers == own
    }

    /// From the client to the database, every byte of it.
    pub fn client_sends(&mut self, frame: &[u8]) {
        let bytes = self.wrap(frame);
        self.client.write_all(&bytes).unwrap();
        self.server_gets(&bytes);
    }

    /// From the database to the client, every byte of it.
    pub fn server_sends(&mut self, frame: &[u8]) {
        let bytes = self.wrap(frame);
        self.server.write_all(&bytes).unwrap();
        self.client_gets(&bytes);
    }

    pub fn server_gets(&mut self, bytes: &[u8]) {
        gets(&mut self.server, bytes, "the database");
    }

    pub fn client_gets(&mut self, bytes: &[u8]) {
        gets(&mut self.client, bytes, "the client");
    }

    /// Nothing has arrived at the database for a while.
    pub fn server_gets_nothing(&mut self) {
        let patience = self.server.read_timeout().unwrap();
        self.server
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let got = self.server.read(&mut [0; 64]);
        assert_eq!(got.map_err(|e| e.kind()), Err(ErrorKind::WouldBlock));
        self.server.set_read_timeout(patience).unwrap();
    }

    /// Both sides see FIN, after this and nothing else.
    pub fn ends_with(mut self, to_client: &[u8], to_server: &[u8]) {
        let rest = |stream: &mut TcpStream| {
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            rest
        };
        assert_eq!(rest(&mut self.client), to_client, "to the client");
        assert_eq!(rest(&mut self.server), to_server, "to the database");
    }

    /// Ends as a client does that is done.
    pub fn ends(self) {
        self.client.shutdown(Shutdown::Write).unwrap();
        let mut server = &self.server;
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"", "to the database");
        self.server.shutdown(Shutdown::Write).unwrap();
        self.ends_with(b"", b"");
    }
}

fn gets(stream: &mut TcpStream, bytes: &[u8], who: &str) {
    let (mut arrived, mut got) = (vec![0; bytes.len()], 0);
    let deadline = Instant::now() + PATIENCE;
    while got < bytes.len() {
        match stream.read(&mut arrived[got..]) {
            Ok(0) => panic!("{who} got not all: it ended"),
            Ok(n) => got += n,
            // Its socket may be one that does not block.
            Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                thread::yield_now();
            }
            Err(e) => panic!("{who} got not all: {e}"),
        }
    }
    assert_eq!(arrived, bytes, "{who}");
}
