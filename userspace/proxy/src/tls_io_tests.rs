//! TLS on one connection, with the input cut at every place. No socket is needed for that, except where flows share a worker.

#[path = "../../agent/tests/common/certs.rs"]
#[expect(dead_code, reason = "tests of the whole agent use all of it")]
mod certs;

use std::{
    future::poll_fn,
    io::Write,
    net::{self, TcpListener},
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    task::Waker,
};

use certs::{Authority, NAME};
use prometheus::Registry;
use rustls::{ClientConnection, ServerConnection, SupportedProtocolVersion, version};
use telemetry::SendMetrics;
use tokio::runtime;

use super::*;

const VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];

/// A client, and the agent's side of its connection.
struct Wire {
    client: ClientConnection,
    tls: Tls,
    /// The plain bytes that the agent has read.
    read: Vec<u8>,
}

impl Wire {
    fn new(version: &'static SupportedProtocolVersion) -> Self {
        let authority = Authority::new();
        let own = authority.signs(&[NAME]);
        let server = ServerConnection::new(Authority::server(&own, None)).unwrap();
        let config = authority.client_of(&[version], None);
        Self {
            client: ClientConnection::new(config, NAME.try_into().unwrap()).unwrap(),
            tls: Tls::new(server),
            read: Vec::new(),
        }
    }

    fn established(version: &'static SupportedProtocolVersion) -> Self {
        let mut wire = Self::new(version);
        wire.talk(usize::MAX);
        assert!(wire.tls.is_established());
        assert!(matches!(wire.tls.news(), Some(News::Established)));
        wire
    }

    /// Takes the records that the client has to send.
    fn sent(&mut self) -> Vec<u8> {
        let mut sent = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut sent).unwrap();
        }
        sent
    }

    /// Hands these records to the agent.
    fn arrives(&mut self, bytes: &[u8]) {
        let mut out = vec![0; CHUNK_BYTES];
        let n = self.tls.take(bytes, &mut out);
        self.read.extend(&out[..n]);
    }

    /// Exchanges records until neither side has any to send. The client's come in pieces of this size.
    fn talk(&mut self, piece: usize) {
        loop {
            let sent = self.sent();
            for bytes in sent.chunks(piece.min(MAX_READ)) {
                self.arrives(bytes);
            }
            let mut answer = Vec::new();
            while self.tls.connection.wants_write() {
                self.tls.connection.write_tls(&mut answer).unwrap();
            }
            if sent.is_empty() && answer.is_empty() {
                return;
            }
            let mut answer = &answer[..];
            while !answer.is_empty() {
                self.client.read_tls(&mut answer).unwrap();
                self.client.process_new_packets().unwrap();
            }
        }
    }

    /// Returns the end as the agent sees it.
    fn end(&self) -> Option<Result<usize, ErrorKind>> {
        let end = self.tls.end.as_ref()?;
        Some(end.read(self.tls.is_established()).map_err(|e| e.kind()))
    }
}

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 31 % 251) as u8).collect()
}

#[test]
fn a_conversation_in_pieces_of_any_size() {
    for version in VERSIONS {
        for piece in [1, 2, 3, 5, 6, 7, 100, 4095, 4096, 4097, MAX_READ] {
            let mut wire = Wire::new(version);
            wire.talk(piece);
            assert!(wire.tls.is_established());
            let said = text(40_000);
            wire.client.writer().write_all(&said).unwrap();
            wire.talk(piece);
            assert!(wire.read == said, "in pieces of {piece}");
            assert_eq!(wire.end(), None);
            wire.client.send_close_notify();
            wire.talk(piece);
            assert_eq!(wire.end(), Some(Ok(0)));
        }
    }
}

#[test]
fn a_full_read_behind_a_part_of_a_record_has_room() {
    for version in VERSIONS {
        let mut wire = Wire::established(version);
        let said = text(3 * CHUNK_BYTES);
        let mut sent = Vec::new();
        for part in said.chunks(16 * 1024) {
            wire.client.writer().write_all(part).unwrap();
            sent.extend(wire.sent());
        }
        // All but the last byte of a record waits when a full read comes.
        let (first, rest) = sent.split_at(16 * 1024);
        wire.arrives(first);
        for bytes in rest.chunks(MAX_READ) {
            wire.arrives(bytes);
        }
        assert!(wire.read == said);
    }
}

#[test]
fn an_end_at_every_place_is_seen_as_what_it_is() {
    for version in VERSIONS {
        let mut wire = Wire::established(version);
        wire.client.writer().write_all(&text(300)).unwrap();
        let mut sent = wire.sent();
        let said = sent.len();
        wire.client.send_close_notify();
        sent.extend(wire.sent());
        for cut in 0..=sent.len() {
            // The same bytes cannot come twice on one connection: each has its keys and numbers.
            let mut wire = Wire::established(version);
            wire.client.writer().write_all(&text(300)).unwrap();
            let mut sent = wire.sent();
            wire.client.send_close_notify();
            sent.extend(wire.sent());
            let (first, rest) = sent.split_at(cut);
            if !first.is_empty() {
                wire.arrives(first);
            }
            let whole = cut >= said;
            assert_eq!(wire.read.len(), if whole { 300 } else { 0 }, "cut at {cut}");
            if rest.is_empty() {
                assert_eq!(wire.end(), Some(Ok(0)));
                continue;
            }
            wire.arrives(&[]);
            assert_eq!(
                wire.end(),
                Some(Err(ErrorKind::UnexpectedEof)),
                "cut at {cut}"
            );
        }
    }
}

#[test]
fn a_handshake_that_is_cut_fails() {
    for version in VERSIONS {
        let hello = Wire::new(version).sent().len();
        for cut in [1, 4, 5, 6, hello / 2, hello - 1, hello] {
            let mut wire = Wire::new(version);
            let sent = wire.sent();
            wire.arrives(&sent[..cut.min(sent.len())]);
            wire.arrives(&[]);
            assert_eq!(wire.end(), Some(Err(ErrorKind::InvalidData)));
            let news = wire.tls.news();
            let ended = matches!(news, Some(News::NotEstablished(Failure::Ended, _)));
            assert!(ended, "cut at {cut}");
        }
    }
}

#[test]
fn a_byte_that_is_wrong_at_any_place_is_not_handed_on() {
    for version in VERSIONS {
        let length = {
            let mut wire = Wire::established(version);
            wire.client.writer().write_all(&text(60)).unwrap();
            wire.sent().len()
        };
        for wrong in 0..length {
            let mut wire = Wire::established(version);
            wire.client.writer().write_all(&text(60)).unwrap();
            let mut sent = wire.sent();
            sent[wrong] ^= 0x40;
            wire.arrives(&sent);
            // A length that is too long waits for more.
            wire.arrives(&[]);
            // A record's version means nothing since TLS 1.3.
            let good: &[u8] = if (1..3).contains(&wrong) {
                &wire.read
            } else {
                b""
            };
            assert_eq!(wire.read, good, "wrong at {wrong}");
            assert!(good.is_empty() || good == text(60));
            let end = wire.end().unwrap().unwrap_err();
            let is_seen = [ErrorKind::InvalidData, ErrorKind::UnexpectedEof].contains(&end);
            assert!(is_seen, "wrong at {wrong}: {end}");
        }
    }
}

#[test]
fn what_is_no_tls_fails() {
    let mut wire = Wire::new(&version::TLS13);
    wire.arrives(b"\x16\x03\x01\x00\x05hello and more");
    assert_eq!(wire.end(), Some(Err(ErrorKind::InvalidData)));
    let news = wire.tls.news();
    let malformed = matches!(news, Some(News::NotEstablished(Failure::Malformed, _)));
    assert!(malformed);
}

#[test]
fn what_comes_behind_the_end_is_nobodys() {
    let mut wire = Wire::established(&version::TLS13);
    wire.client.writer().write_all(b"last").unwrap();
    wire.client.send_close_notify();
    let mut sent = wire.sent();
    sent.extend(text(1000));
    wire.arrives(&sent);
    assert_eq!(wire.read, b"last");
    assert_eq!(wire.end(), Some(Ok(0)));
}

#[test]
fn what_came_before_something_bad_is_good() {
    for version in VERSIONS {
        let mut wire = Wire::established(version);
        wire.client.writer().write_all(b"good").unwrap();
        let mut sent = wire.sent();
        wire.client.writer().write_all(b"bad").unwrap();
        let mut bad = wire.sent();
        *bad.last_mut().unwrap() ^= 1;
        sent.extend(bad);
        wire.arrives(&sent);
        assert_eq!(wire.read, b"good");
        assert_eq!(wire.end(), Some(Err(ErrorKind::InvalidData)));
    }
}

#[test]
fn answers_of_others_do_not_wait_for_a_handshake() {
    let metrics = SendMetrics::register(&Registry::new()).unwrap();
    outbox::install(outbox::SendRings::make(1, metrics).each().next().unwrap());
    let worker = runtime::Builder::new_current_thread().enable_all().build();
    worker.unwrap().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        let accepted = TcpStream::from_std(accepted).unwrap();
        let mut wire = Wire::new(&version::TLS13);
        client.write_all(&wire.sent()).unwrap();
        accepted.readable().await.unwrap();
        let (answered, _asks) = UnixStream::pair().unwrap();
        let answer = outbox::post(answered.as_raw_fd(), b"x", Waker::noop()).unwrap();
        let mut out = vec![0; CHUNK_BYTES];
        let mut reads = Reads::default();
        poll_fn(|cx| {
            let read = wire.tls.poll_read(cx, &accepted, &mut reads, &mut out);
            Poll::Ready(read.is_ready())
        })
        .await;
        assert!(answer.is_sent());
    });
}
