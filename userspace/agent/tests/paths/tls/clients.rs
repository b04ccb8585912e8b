//! Towards clients.

use std::{io::ErrorKind, thread};

use rustls::version::{TLS12, TLS13};

use super::{
    SELECT,
    ends::{End, secure},
    query, ready, startup, void,
};
use crate::common::{certs::NAME, eventually};

pub const OWN: &str = "tls = { cert = \"DIR/agent.crt\", key = \"DIR/agent.key\" }";

#[test]
fn a_client_that_encrypts_is_read_and_its_database_need_not() {
    secure(|s| {
        s.rule(&format!("{OWN}\npipeline = [{{ transform = \"stats\" }}]"));
        for (version, tls) in [(4, &TLS12), (5, &TLS13)] {
            let (client, database) = s.connect();
            let config = s.authority.client_of(&[tls], None);
            let mut client = End::client(client, &config, NAME);
            let mut database = End::Plain(database);
            client.sends(&startup(version, &[("CQL_VERSION", "3.0.0")]));
            database.gets(&startup(version, &[("CQL_VERSION", "3.0.0")]));
            database.sends(&ready(version));
            client.gets(&ready(version));
            let wrap = |frame: Vec<u8>| match version {
                5 => crate::common::frames::segment(&frame),
                _ => frame,
            };
            for stream in 1..=3 {
                client.sends(&wrap(query(version, stream, SELECT)));
                database.gets(&wrap(query(version, stream, SELECT)));
                database.sends(&wrap(void(version, stream)));
                client.gets(&wrap(void(version, stream)));
            }
            let flow = s.flow(&client);
            assert_eq!(flow["path"], "enrich", "{flow}");
            let seen = &flow["tls"]["client"];
            let expected = if version == 4 { "1.2" } else { "1.3" };
            assert_eq!(seen["version"], expected, "{flow}");
            assert!(
                seen["cipher"].as_str().unwrap().starts_with("TLS"),
                "{flow}"
            );
            assert!(flow["tls"]["database"].is_null(), "{flow}");
            client.ends();
            assert_eq!(database.rest(), b"");
            database.ends();
            assert_eq!(client.rest(), b"");
        }
        let rows = s.host.agent.json("/statements").unwrap();
        let mut rows = rows.as_array().unwrap().iter();
        let orders = rows.find(|row| row["table"] == "orders").unwrap();
        assert_eq!(orders["count"], 6, "{orders}");
        assert_eq!(orders["consistency"]["one"], 6, "{orders}");
        let done = s.host.metric("tls_handshakes", "side=\"client\"");
        assert_eq!(done, 2);
        eventually("both have ended", || s.closed("both_ended") == 2);
    });
}

#[test]
fn half_a_flow_goes_on_when_the_other_half_has_ended() {
    secure(|s| {
        s.rule(OWN);
        let (mut client, mut database) = s.encrypted();
        client.sends(&startup(4, &[]));
        client.ends();
        assert_eq!(database.rest(), startup(4, &[]));
        database.sends(&ready(4));
        client.gets(&ready(4));
        database.ends();
        assert_eq!(client.rest(), b"", "its end is said");
        s.ends_for("both_ended");
    });
}

#[test]
fn an_end_that_is_not_said_is_known_as_one() {
    secure(|s| {
        s.rule(OWN);
        let (mut client, mut database) = s.encrypted();
        client.sends(&startup(4, &[]));
        database.gets(&startup(4, &[]));
        client.socket().shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(database.rest(), b"");
        s.ends_for("client_truncated");
    });
}

#[test]
fn large_frames_pass_both_ways_at_once() {
    const LARGE: usize = 16 << 20;
    secure(|s| {
        s.rule(OWN);
        for version in [4, 5] {
            let (mut client, mut database) = s.encrypted();
            client.sends(&startup(version, &[]));
            database.gets(&startup(version, &[]));
            database.sends(&ready(version));
            client.gets(&ready(version));
            let text = format!("{SELECT}{}", " ".repeat(LARGE));
            let asked = wrapped(version, &query(version, 1, &text));
            let body = [&2_i32.to_be_bytes()[..], &vec![7; LARGE]].concat();
            let answer = crate::common::frames::frame(0x80 | version, 2, 0x08, &body);
            let answered = wrapped(version, &answer);
            // Something to answer, and then both send at once.
            let small = wrapped(version, &query(version, 2, SELECT));
            client.sends(&small);
            database.gets(&small);
            exchange(&mut client, &asked, &database, &answered);
        }
    });
}

/// Each sends and gets all of what the other does, both at once.
fn exchange(client: &mut End, asked: &[u8], database: &End, answered: &[u8]) {
    let End::Plain(database) = database else {
        panic!("the database does not encrypt");
    };
    thread::scope(|scope| {
        let (mut reading, mut writing) = (database, database);
        scope.spawn(move || {
            let mut got = vec![0; asked.len()];
            std::io::Read::read_exact(&mut reading, &mut got).unwrap();
            assert!(got == asked, "the database got other bytes");
        });
        scope.spawn(move || std::io::Write::write_all(&mut writing, answered).unwrap());
        // One connection, one thread: it sends first, while what comes waits.
        client.sends(asked);
        client.gets(answered);
    });
}

/// v5: in segments, none of which has more than a part of it.
pub fn wrapped(version: u8, frame: &[u8]) -> Vec<u8> {
    use cassandra_protocol::frame::frame_encoder::{FrameEncoder, UncompressedFrameEncoder};
    const MAX_PAYLOAD: usize = (1 << 17) - 1;
    if version < 5 {
        return frame.to_vec();
    }
    if frame.len() <= MAX_PAYLOAD {
        return crate::common::frames::segment(frame);
    }
    let part = |part: &[u8]| {
        let mut encoder = UncompressedFrameEncoder::default();
        encoder.finalize_non_self_contained(part).1.to_vec()
    };
    frame.chunks(MAX_PAYLOAD).flat_map(part).collect()
}

#[test]
fn one_that_does_not_encrypt_is_told_so_unless_it_need_not() {
    secure(|s| {
        s.rule(OWN);
        let (client, database) = s.connect();
        let (mut client, mut database) = (End::Plain(client), End::Plain(database));
        // In two pieces: its header has to be there to be answered.
        let startup = startup(4, &[("CQL_VERSION", "3.0.0")]);
        client.sends(&startup[..5]);
        client.sends(&startup[5..]);
        let told = client.rest();
        assert_eq!(&told[..5], [0x84, 0, 0, 0, 0], "an ERROR on its stream");
        let told = String::from_utf8_lossy(&told[15..]).into_owned();
        assert_eq!(told, "underpass: rule r wants TLS");
        assert_eq!(database.rest(), b"", "nothing reaches the database");
        s.ends_for("tls_required");
        assert_eq!(s.failed("client", "plain"), 1);

        s.rule(&OWN.replace(" }", ", required = false }"));
        let (client, database) = s.connect();
        let (mut client, mut database) = (End::Plain(client), End::Plain(database));
        client.sends(&startup);
        database.gets(&startup);
        assert!(s.flow(&client)["tls"].is_null());
        let (mut client, mut database) = s.encrypted();
        client.sends(&startup);
        database.gets(&startup);
        assert_eq!(s.flow(&client)["tls"]["client"]["version"], "1.3");
    });
}

#[test]
fn what_is_no_tls_behind_its_first_byte_ends() {
    secure(|s| {
        s.rule(OWN);
        let (client, database) = s.connect();
        let (mut client, mut database) = (End::Plain(client), End::Plain(database));
        client.sends(b"\x16\x03\x01\x00\x05hello, and more");
        client.rest();
        assert_eq!(database.rest(), b"");
        s.ends_for("client_tls");
        assert_eq!(s.failed("client", "malformed"), 1);
    });
}

#[test]
fn garbage_behind_a_handshake_ends_it() {
    secure(|s| {
        s.rule(OWN);
        let (mut client, mut database) = s.encrypted();
        client.sends(&startup(4, &[]));
        database.gets(&startup(4, &[]));
        std::io::Write::write_all(&mut client.socket(), &[0xAA; 500]).unwrap();
        assert_eq!(client.fails().kind(), ErrorKind::InvalidData);
        assert_eq!(database.rest(), b"");
        s.ends_for("client_tls");
    });
}

#[test]
fn one_that_goes_in_the_middle_of_a_handshake_takes_nothing_with_it() {
    secure(|s| {
        s.rule(OWN);
        let (client, database) = s.connect();
        let mut client = End::client(client, &s.authority.client(None), NAME);
        let End::Client(stream) = &mut client else {
            panic!("a client");
        };
        stream.conn.write_tls(&mut stream.sock).unwrap();
        let mut database = End::Plain(database);
        drop(client);
        // With what the agent has said unread, it is a reset.
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut database, &mut rest);
        assert_eq!(rest, b"");
        eventually("it is counted", || {
            s.failed("client", "ended") + s.failed("client", "connection") == 1
        });
        let (mut client, mut database) = s.encrypted();
        client.sends(&startup(4, &[]));
        database.gets(&startup(4, &[]));
    });
}

#[test]
fn a_handshake_that_takes_too_long_is_given_up() {
    secure(|s| {
        s.rule(OWN);
        let (client, database) = s.connect();
        // Silent from the beginning, and in the middle.
        let (slow, other) = s.connect();
        let mut slow = End::client(slow, &s.authority.client(None), NAME);
        let End::Client(stream) = &mut slow else {
            panic!("a client");
        };
        let mut hello = Vec::new();
        stream.conn.write_tls(&mut hello).unwrap();
        std::io::Write::write_all(&mut stream.sock, &hello[..20]).unwrap();
        for socket in [&client, &database, slow.socket(), &other] {
            let patience = crate::common::PATIENCE + crate::common::PATIENCE;
            socket.set_read_timeout(Some(patience)).unwrap();
        }
        assert_eq!(End::Plain(client).rest(), b"");
        assert_eq!(End::Plain(database).rest(), b"");
        assert_eq!(End::Plain(other).rest(), b"");
        eventually("both are counted", || s.failed("client", "deadline") == 2);
        assert_eq!(s.closed("client_tls"), 2);
    });
}

#[test]
fn a_client_that_trusts_somebody_else_goes() {
    secure(|s| {
        s.rule(OWN);
        let (client, database) = s.connect();
        let stranger = crate::common::certs::Authority::new();
        let mut client = End::client(client, &stranger.client(None), NAME);
        assert!(std::io::Write::write_all(&mut client, b"x").is_err());
        drop(client);
        assert_eq!(End::Plain(database).rest(), b"");
        eventually("its alert is counted", || s.failed("client", "alert") == 1);
        let log = s
            .host
            .agent
            .wait_for_log("does not accept the rule's `cert`");
        log.unwrap();
    });
}

#[test]
fn one_that_resets_before_its_first_word_resets_the_database() {
    secure(|s| {
        s.rule(OWN);
        let (client, database) = s.connect();
        let linger = Some(std::time::Duration::ZERO);
        socket2::SockRef::from(&client).set_linger(linger).unwrap();
        drop(client);
        let error = End::Plain(database).fails();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        s.ends_for("client_reset");
    });
}

#[test]
fn garbage_behind_a_client_hello_ends_it() {
    secure(|s| {
        s.rule(OWN);
        let (client, database) = s.connect();
        let mut client = End::client(client, &s.authority.client(None), NAME);
        let End::Client(stream) = &mut client else {
            panic!("a client");
        };
        stream.conn.write_tls(&mut stream.sock).unwrap();
        std::io::Write::write_all(&mut stream.sock, &[0x99; 300]).unwrap();
        assert_eq!(End::Plain(database).rest(), b"");
        s.ends_for("client_tls");
        assert_eq!(s.failed("client", "malformed"), 1);
    });
}

#[test]
fn one_that_does_not_read_stops_its_database() {
    /// More than all buffers on the way have room for.
    const TOO_MUCH: usize = 64 << 20;
    /// Attempts in a row at which nothing is taken.
    const STOPPED: usize = 20;
    secure(|s| {
        s.rule(OWN);
        let (mut client, database) = s.encrypted();
        let End::Plain(mut database) = database else {
            panic!("the database does not encrypt");
        };
        client.sends(&startup(4, &[]));
        std::io::Read::read_exact(&mut database, &mut vec![0; startup(4, &[]).len()]).unwrap();
        let body = [&2_i32.to_be_bytes()[..], &vec![7; TOO_MUCH]].concat();
        let answer = crate::common::frames::frame(0x84, 0, 0x08, &body);
        database.set_nonblocking(true).unwrap();
        let (mut sent, mut stopped) = (0, 0);
        while stopped < STOPPED {
            match std::io::Write::write(&mut database, &answer[sent..]) {
                Ok(n) => (sent, stopped) = (sent + n, 0),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    stopped += 1;
                    thread::sleep(std::time::Duration::from_millis(50));
                }
                Err(e) => panic!("{e}"),
            }
            assert!(sent < TOO_MUCH, "nobody stops it");
        }
        database.set_nonblocking(false).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| std::io::Write::write_all(&mut database, &answer[sent..]).unwrap());
            client.gets(&answer);
        });
    });
}
