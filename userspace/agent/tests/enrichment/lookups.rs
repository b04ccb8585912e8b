//! Statements that were prepared before the agent saw the flow: the database is asked, and neither client nor operator
//! has to do anything.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
};

use serde_json::Value;

use crate::common::{
    BINARY, PATIENCE, accept, eventually,
    frames::{RESPONSE, RESULT, frame, query, ready, startup, void},
    wire::{Conversation, Host, PREPARE, auth_success, authenticate, host},
};

const TEXT: &str = "SELECT v FROM shop.orders WHERE id = ?";

/// The MD5 of [`TEXT`].
const HEX: &str = "e01edb0e37aa5a3d44c850467e5304f2";

/// On which the agent asks.
const STREAM: i16 = i16::MIN;

fn id() -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&HEX[at..at + 2], 16).unwrap();
    (0..HEX.len()).step_by(2).map(byte).collect()
}

/// One rule, `r`.
fn policy(pipeline: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\npipeline = [{pipeline}]\n"
    )
}

fn begin(host: &Host<'_>, version: u8) -> Conversation {
    let mut c = host.connect();
    c.client_sends(&startup(version, &[("CQL_VERSION", "3.0.0")]));
    c.server_sends(&ready(version));
    c.in_segments = version >= 5;
    c
}

fn execute(version: u8, stream: i16) -> Vec<u8> {
    let metadata: &[u8] = if version < 5 { &[] } else { &[0, 1, b'm'] };
    let flags: &[u8] = if version < 5 { &[0] } else { &[0; 4] };
    let body = [&[0, 16], &id()[..], metadata, &[0, 1], flags].concat();
    frame(version, stream, 0x0A, &body)
}

fn question(version: u8) -> Vec<u8> {
    let text = format!(
        "SELECT logged_keyspace, query_string FROM system.prepared_statements WHERE prepared_id = 0x{HEX}"
    );
    query(version, STREAM, &text)
}

/// Two columns without names, and a row of null and [`TEXT`].
fn answer(version: u8) -> Vec<u8> {
    let mut body = [2_i32, 4, 2, 1, -1, TEXT.len() as i32]
        .map(i32::to_be_bytes)
        .concat();
    body.extend(TEXT.as_bytes());
    frame(RESPONSE | version, STREAM, RESULT, &body)
}

fn lookups(host: &Host<'_>, outcome: &str) -> u64 {
    host.metric("lookups", &format!("outcome=\"{outcome}\",rule=\"r\""))
}

/// How often this statement was asked for, by the list of the most frequent ones.
fn top(host: &Host<'_>, fingerprint: &str) -> u64 {
    let top = host.agent.json("/statements/top").unwrap();
    let mut rows = top.as_array().unwrap().iter();
    let row = rows.find(|row| row["fingerprint"] == fingerprint);
    row.map_or(0, |row: &Value| row["count"].as_u64().unwrap())
}

/// The client executes, and the database gets that behind the question.
fn expect_question(c: &mut Conversation, version: u8) {
    let execute = execute(version, 1);
    c.client.write_all(&c.wrap(&execute)).unwrap();
    // Both are in one segment.
    let both = [question(version), execute].concat();
    let both = c.wrap(&both);
    c.server_gets(&both);
}

#[test]
fn reporters_know_what_was_prepared_before() {
    for version in [3, 4, 5] {
        host(|host| {
            host.policy(&policy(
                "{ transform = \"lookup\" }, { transform = \"stats\" }",
            ));
            let mut c = begin(host, version);
            expect_question(&mut c, version);
            // Nothing has waited: this is not known yet.
            c.server_sends(&void(version, 1));
            assert_eq!(top(host, "unknown"), 1);
            // The client gets what is behind, and nothing before that.
            c.server.write_all(&c.wrap(&answer(version))).unwrap();
            eventually("the answer is there", || lookups(host, "found") == 1);
            for _ in 0..2 {
                c.client_sends(&execute(version, 2));
                c.server_sends(&void(version, 2));
            }
            assert_eq!((top(host, TEXT), top(host, "unknown")), (2, 1));
            c.ends();
            // Another flow knows it.
            let mut c = begin(host, version);
            c.client_sends(&execute(version, 3));
            c.server_sends(&void(version, 3));
            assert_eq!((top(host, TEXT), lookups(host, "found")), (3, 1));
            c.ends();
        });
    }
}

#[test]
fn a_guard_lets_pass_what_it_may() {
    host(|host| {
        host.policy(&policy(
            "{ transform = \"guard\", tables = [\"shop\"] }, { transform = \"lookup\" }",
        ));
        let mut c = begin(host, 4);
        c.client.write_all(&execute(4, 1)).unwrap();
        c.server_gets(&question(4));
        let message = b"the statement has to be prepared again";
        let code = 0x2500_i32.to_be_bytes();
        let length = [0, message.len() as u8];
        let body = [&code[..], &length, message, &[0, 16], &id()].concat();
        c.client_gets(&frame(RESPONSE | 4, 1, 0, &body));
        c.server.write_all(&answer(4)).unwrap();
        eventually("the answer is there", || lookups(host, "found") == 1);
        c.client_sends(&execute(4, 2));
        c.server_sends(&void(4, 2));
        c.ends();
    });
}

#[test]
fn an_answer_that_is_out_never_reaches_the_client() {
    host(|host| {
        host.policy(&policy("{ transform = \"lookup\" }"));
        let mut c = begin(host, 4);
        expect_question(&mut c, 4);
        // Its pipeline is taken from it while it waits.
        let number = host.flow(&c)["id"].to_string();
        let mut mark = Command::new(BINARY);
        mark.args(["mark", &number, "bypass", "--control"]);
        let marked = mark.arg(host.agent.control()).output().unwrap();
        assert!(marked.status.success(), "{marked:?}");
        c.server.write_all(&answer(4)).unwrap();
        c.server_sends(&void(4, 1));
        assert_eq!(lookups(host, "found"), 1);
        c.ends();
    });
}

/// The agent's own connection, as the database sees it.
struct Own(TcpStream);

impl Own {
    fn comes(host: &Host<'_>) -> Self {
        let (stream, _) = accept(&host.listener);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// A request's opcode and body.
    fn asks(&mut self) -> (u8, Vec<u8>) {
        let mut header = [0; 9];
        self.0.read_exact(&mut header).unwrap();
        let [version, _, _, _, opcode, length @ ..] = header;
        assert_eq!(version, 4);
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut body).unwrap();
        (opcode, body)
    }

    fn answers(&mut self, frame: &[u8]) {
        self.0.write_all(frame).unwrap();
    }

    /// The question for [`id`].
    fn asks_for_text(&mut self) {
        let (opcode, body) = self.asks();
        let text = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(opcode, 7, "{text}");
        assert!(text.contains(&format!("prepared_id = 0x{HEX}")), "{text}");
    }
}

/// Two columns with names, and a row of null and [`TEXT`].
fn named_answer() -> Vec<u8> {
    const GLOBAL: i32 = 1;
    const VARCHAR: [u8; 2] = [0, 13];
    let string = |text: &str| [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat();
    let mut body = [2, GLOBAL, 2].map(i32::to_be_bytes).concat();
    body.extend(string("system"));
    body.extend(string("prepared_statements"));
    for name in ["logged_keyspace", "query_string"] {
        body.extend([&string(name)[..], &VARCHAR].concat());
    }
    body.extend([1, -1, TEXT.len() as i32].map(i32::to_be_bytes).concat());
    body.extend(TEXT.as_bytes());
    frame(RESPONSE | 4, 0, RESULT, &body)
}

/// The flow is the client's own, or read by the agent; and nobody else's bytes are on it.
#[test]
fn a_connection_of_the_agents_own_asks() {
    for (path, shown) in [("tap", "tap"), ("inline", "enrich")] {
        let folder = tempfile::tempdir().unwrap();
        let password = folder.path().join("password");
        std::fs::write(&password, "secret\n").unwrap();
        let step = format!(
            "{{ transform = \"lookup\", connection = \"own\", username = \"eve\", password_file = {password:?} }}"
        );
        host(|host| {
            let pipeline = format!("{step}, {{ transform = \"stats\" }}");
            host.policy(&format!("{}path = \"{path}\"\n", policy(&pipeline)));
            let mut c = begin(host, 4);
            c.client_sends(&execute(4, 1));
            c.server_sends(&void(4, 1));
            let mut own = Own::comes(host);
            assert_eq!(own.asks().0, 1);
            own.answers(&authenticate(4));
            let (opcode, token) = own.asks();
            assert_eq!((opcode, &token[4..]), (15, &b"\0eve\0secret"[..]));
            own.answers(&auth_success(4, 0));
            own.asks_for_text();
            own.answers(&named_answer());
            eventually("the answer is there", || lookups(host, "found") == 1);
            for stream in 2..4 {
                c.client_sends(&execute(4, stream));
                c.server_sends(&void(4, stream));
            }
            // Copies are read a little later.
            eventually("it is known", || top(host, TEXT) == 2);
            assert_eq!(top(host, "unknown"), 1);
            assert_eq!(host.flow(&c)["path"], shown);
            c.ends();
        });
    }
}

#[test]
fn a_database_that_does_not_tell_is_left_in_peace() {
    host(|host| {
        let step = "{ transform = \"lookup\", connection = \"own\" }, { transform = \"stats\" }";
        host.policy(&policy(step));
        let mut c = begin(host, 4);
        c.client_sends(&execute(4, 1));
        c.server_sends(&void(4, 1));
        let mut own = Own::comes(host);
        assert_eq!(own.asks().0, 1);
        // No credentials.
        own.answers(&authenticate(4));
        eventually("it fails", || lookups(host, "failed") == 1);
        assert_eq!(own.0.read(&mut [0]).unwrap(), 0);
        let another = frame(4, 2, 0x0A, &[&[0, 2, 7, 7][..], &[0, 1, 0]].concat());
        c.client_sends(&another);
        c.server_sends(&void(4, 2));
        eventually("the next one, too", || lookups(host, "failed") == 2);
        host.listener.set_nonblocking(true).unwrap();
        let comes = host.listener.accept().map_err(|e| e.kind());
        assert_eq!(comes.err(), Some(ErrorKind::WouldBlock));
        host.listener.set_nonblocking(false).unwrap();
        c.ends();
        let log = host.agent.log();
        let lines = log
            .lines()
            .filter(|line| line.contains("it wants a log-in"));
        assert_eq!(lines.count(), 1, "{log}");
    });
}

/// Somebody else listens under the same rule, and answers a PREPARE of his own with the id of the database's statement.
#[test]
fn another_address_does_not_say_what_the_databases_statements_are() {
    const OTHER: &str = "SELECT v FROM x.y";
    for version in [3, 4, 5] {
        host(|host| {
            host.policy(&policy(
                "{ transform = \"guard\", tables = [\"x\"], mode = \"enforce\" }, { transform = \"stats\" }",
            ));
            let port = host.listener.local_addr().unwrap().port();
            let other = host
                .sandbox
                .server(|| TcpListener::bind(("127.0.0.2", port)));
            let other = other.unwrap().unwrap();
            let mut c = host.connect_to(&other);
            c.client_sends(&startup(version, &[("CQL_VERSION", "3.0.0")]));
            c.server_sends(&ready(version));
            c.in_segments = version >= 5;
            let flags: &[u8] = if version < 5 { &[] } else { &[0; 4] };
            let length = (OTHER.len() as u32).to_be_bytes();
            let body = [&length[..], OTHER.as_bytes(), flags].concat();
            c.client_sends(&frame(version, 1, PREPARE, &body));
            let answer = [&4_i32.to_be_bytes()[..], &[0, 16], &id()].concat();
            c.server_sends(&frame(RESPONSE | version, 1, RESULT, &answer));
            // There it is what he says.
            c.client_sends(&execute(version, 2));
            c.server_sends(&void(version, 2));
            assert_eq!(top(host, OTHER), 1);
            c.ends();
            // The database's statement names a table that is closed, and the guard has not seen it.
            let mut c = begin(host, version);
            let asked = c.wrap(&execute(version, 3));
            c.client.write_all(&asked).unwrap();
            let message = b"the statement has to be prepared again";
            let code = 0x2500_i32.to_be_bytes();
            let told = [
                &code[..],
                &[0, message.len() as u8],
                message,
                &[0, 16],
                &id(),
            ]
            .concat();
            let told = c.wrap(&frame(RESPONSE | version, 3, 0, &told));
            c.client_gets(&told);
            c.ends();
            assert_eq!(top(host, OTHER), 1);
            // Where nobody guards, reporters do not take it for his.
            host.policy(&policy("{ transform = \"stats\" }"));
            let mut c = begin(host, version);
            c.client_sends(&execute(version, 4));
            c.server_sends(&void(version, 4));
            assert_eq!((top(host, OTHER), top(host, "unknown")), (1, 1));
            c.ends();
        });
    }
}
