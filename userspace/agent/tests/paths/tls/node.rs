//! With a database that answers: the embedded node, and one that encrypts in front of it.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    sync::Arc,
    thread,
};

use cql_node::{Node, NodeOptions};
use rustls::ServerConfig;

use super::{
    clients::{OWN, wrapped},
    ends::{End, Secure, secure},
    query, startup,
};
use crate::common::{
    PATIENCE,
    certs::{Authority, NAME},
};

const LARGE_BYTES: usize = 16 << 20;

/// One frame, whatever is around it.
fn frame(from: &mut impl Read, in_segments: bool) -> std::io::Result<Vec<u8>> {
    let mut frame = Vec::new();
    loop {
        let whole = match frame.get(5..9) {
            Some(length) => 9 + u32::from_be_bytes(length.try_into().unwrap()) as usize,
            None => 9,
        };
        if frame.len() == whole && whole > 9 || frame.len() >= 9 && frame[5..9] == [0; 4] {
            return Ok(frame);
        }
        let mut more = match in_segments {
            false => vec![0; whole - frame.len()],
            true => {
                let mut header = [0; 6];
                from.read_exact(&mut header)?;
                let [a, b, c, ..] = header;
                vec![0; (u32::from_le_bytes([a, b, c, 0]) & 0x1_FFFF) as usize]
            }
        };
        from.read_exact(&mut more)?;
        frame.extend(more);
        if in_segments {
            from.read_exact(&mut [0; 4])?;
        }
    }
}

/// A client that has been let in.
struct Session {
    end: End,
    version: u8,
}

impl Session {
    fn begin(mut end: End, version: u8) -> Self {
        end.sends(&startup(version, &[("CQL_VERSION", "3.0.0")]));
        assert_eq!(frame(&mut end, false).unwrap()[4], 0x02, "READY");
        Self { end, version }
    }

    /// The answer's opcode and body.
    fn asks(&mut self, text: &str) -> Vec<u8> {
        let asked = query(self.version, 1, text);
        self.end.sends(&wrapped(self.version, &asked));
        let answer = frame(&mut self.end, self.version >= 5).unwrap();
        assert_eq!(
            answer[4],
            0x08,
            "RESULT: {:?}",
            String::from_utf8_lossy(&answer)
        );
        answer
    }
}

/// A database that encrypts, in front of one that does not: a frame each way, in turns. It serves one
/// client at a time until that ends.
fn in_front_of(node: SocketAddr, config: &Arc<ServerConfig>, client: TcpStream) {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = End::server(client, config);
    let mut node = TcpStream::connect(node).unwrap();
    loop {
        let asked = match frame(&mut client, false) {
            Ok(asked) => asked,
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return,
            Err(e) => panic!("the agent: {e}"),
        };
        node.write_all(&asked).unwrap();
        client.sends(&frame(&mut node, false).unwrap());
    }
}

/// Writes a large value, and reads it.
fn writes_and_reads(s: &Secure<'_, '_>, end: End, version: u8) {
    let mut session = Session::begin(end, version);
    session.asks(
        "CREATE KEYSPACE IF NOT EXISTS shop WITH replication = \
         {'class': 'SimpleStrategy', 'replication_factor': 1}",
    );
    session.asks("CREATE TABLE IF NOT EXISTS shop.orders (id int PRIMARY KEY, v text)");
    let value = "v".repeat(LARGE_BYTES);
    session.asks(&format!(
        "INSERT INTO shop.orders (id, v) VALUES ({version}, '{value}')"
    ));
    let answer = session.asks(&format!("SELECT v FROM shop.orders WHERE id = {version}"));
    assert!(answer.ends_with(value.as_bytes()), "{} bytes", answer.len());
    let rows = s.host.agent.json("/statements").unwrap();
    let count = |kind: &str| {
        let mut rows = rows.as_array().unwrap().iter();
        let row = rows.find(|r| r["kind"] == kind && r["table"] == "orders");
        row.unwrap()["count"].as_u64().unwrap()
    };
    assert_eq!(count("insert"), count("select"));
    session.end.ends();
    assert_eq!(session.end.rest(), b"");
}

fn node(s: &Secure<'_, '_>) -> Node {
    let start = || Node::start(NodeOptions::default());
    s.host.sandbox.server(start).unwrap().unwrap()
}

impl Secure<'_, '_> {
    fn dial(&self, to: SocketAddr) -> TcpStream {
        let dial = || TcpStream::connect(to);
        let client = self.host.sandbox.client(dial).unwrap().unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }
}

#[test]
fn large_values_are_written_and_read_and_counted() {
    secure(|s| {
        let node = node(s);
        let rule = format!(
            "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\n{OWN}\n\
             pipeline = [{{ transform = \"stats\" }}]\n"
        );
        s.host.policy_to(node.addr().port(), &s.named(&rule));
        for version in [4, 5] {
            let client = s.dial(node.addr());
            let client = End::client(client, &s.authority.client(None), NAME);
            writes_and_reads(s, client, version);
        }
    });
}

#[test]
fn the_same_where_only_the_database_encrypts() {
    secure(|s| {
        let node = node(s);
        s.rule("upstream_tls = { ca = \"DIR/ca.crt\", server_name = \"db.example\" }");
        let config = Authority::server(&s.authority.signs(&[NAME]), None);
        let (client, database) = s.connect();
        let at = node.addr();
        thread::scope(|scope| {
            // Not as an application: what it dials is left alone.
            scope.spawn(|| {
                s.host
                    .sandbox
                    .server(|| in_front_of(at, &config, database))
                    .unwrap()
            });
            writes_and_reads(s, End::Plain(client), 4);
        });
    });
}

#[test]
fn a_driver_that_encrypts_by_openssl() {
    let name = "a_driver_that_encrypts_by_openssl";
    let Some(python) = sandbox::skip::provided(name, "UNDERPASS_PYTHON") else {
        return;
    };
    secure(|s| {
        let node = node(s);
        let port = node.addr().port();
        s.has("app", &s.authority.signs(&["app.example"]));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/paths/tls/driver.py");
        for (ca, shows) in [("", false), (", client_ca = \"DIR/ca.crt\"", true)] {
            let own = OWN.replace(" }", &format!("{ca} }}"));
            let rule =
                format!("[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\n{own}\n");
            s.host.policy_to(port, &s.named(&rule));
            for version in ["4", "5"] {
                let mut driver = Command::new(&python);
                driver.arg(script).arg(port.to_string());
                driver.arg(s.path("ca.crt")).arg(version);
                if shows {
                    driver.args([s.path("app.crt"), s.path("app.key")]);
                }
                let said = s.host.sandbox.client(|| driver.output()).unwrap().unwrap();
                assert!(
                    said.status.success(),
                    "{}",
                    String::from_utf8_lossy(&said.stderr)
                );
            }
        }
        let failed = s.host.agent.get("/metrics").unwrap();
        let failed = failed
            .lines()
            .filter(|l| l.starts_with("underpass_tls_handshakes_failed"));
        let failed: Vec<&str> = failed.filter(|l| !l.ends_with(" 0")).collect();
        assert_eq!(failed, [""; 0]);
    });
}
