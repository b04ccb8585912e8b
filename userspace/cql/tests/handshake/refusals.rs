//! Tests of refusals: what a client is told in place of an answer.

use super::is;
use super::peers::Peers;
use crate::support::*;
use cassandra_protocol::compression::Compression as NoCompression;
use cassandra_protocol::frame::Envelope;
use cassandra_protocol::frame::frame_decoder::{FrameDecoder, Lz4FrameDecoder};
use cassandra_protocol::frame::message_response::ResponseBody;
use cql::Refusal;

#[test]
fn who_is_refused_at_once_is_told_so_in_his_version_on_his_stream() {
    const STARTUP: u8 = 0x01;
    for version in 3..=5 {
        let asked = [version, 0, 1, 2, STARTUP, 0, 0, 0, 22];
        let told = cql::refuse_first(asked, "no").unwrap();
        let error = [&0x2100_i32.to_be_bytes()[..], &[0, 2], b"no"].concat();
        let header = [0x80 | version, 0, 1, 2, 0, 0, 0, 0, 8];
        assert_eq!(told, [&header[..], &error].concat());
    }
    for none in [
        [2, 0, 1, 2, STARTUP, 0, 0, 0, 22],
        [6, 0, 1, 2, STARTUP, 0, 0, 0, 22],
        [0x84, 0, 1, 2, STARTUP, 0, 0, 0, 22],
        // READY, which no client says; and no opcode.
        [4, 0, 1, 2, 0x02, 0, 0, 0, 22],
        [4, 0, 1, 2, 0xEE, 0, 0, 0, 22],
        [4, 0, 1, 2, STARTUP, 0xFF, 0, 0, 22],
        *b"GET / HTT",
    ] {
        assert_eq!(cql::refuse_first(none, "no"), None, "{none:?}");
    }
}

#[test]
fn a_denied_flow_in_segments_of_lz4_is_told_in_one() {
    let compressing = [("COMPRESSION", "lz4")];
    let mut peers = Peers::started(5, 7, &compressing, READY);
    peers.compression = NoCompression::Lz4;
    peers.query(4, "SELECT a FROM shop.t");
    assert_eq!(peers.session().keyspace, is("shop"));
    let Refusal::Now(error) = peers.handshake.refusal("not for you") else {
        panic!("it can be told now")
    };
    let mut decoder = Lz4FrameDecoder::default();
    let mut rest = error;
    let envelopes = decoder.consume(&mut rest, NoCompression::Lz4).unwrap();
    assert_eq!(envelopes.len(), 1);
    assert_eq!(envelopes[0].stream_id, 4);
    assert!(rest.is_empty());
}

/// An oracle reads the refusal.
fn message(error: &[u8]) -> (i16, i32, String) {
    let parsed = Envelope::from_buffer(error, NoCompression::None).unwrap();
    assert_eq!(parsed.envelope_len, error.len());
    match parsed.envelope.response_body().unwrap() {
        ResponseBody::Error(body) => {
            let code = i32::from_be_bytes(parsed.envelope.body[..4].try_into().unwrap());
            (parsed.envelope.stream_id, code, body.message)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refusal_is_what_a_driver_understands() {
    for version in [3, 4, 5] {
        let mut peers = Peers::started(version, 1000, &[], READY);
        let Refusal::Now(error) = peers.handshake.refusal("no") else {
            panic!("in place of READY");
        };
        assert_eq!(
            message(&error),
            (0, 0x2100, "no".into()),
            "without a segment"
        );
        peers.query(0x1234, "SELECT a FROM shop.t");
        let Refusal::Now(error) = peers.handshake.refusal("no") else {
            panic!("in answer to a request");
        };
        if version < 5 {
            assert_eq!(message(&error), (0x1234, 0x2100, "no".into()));
        } else {
            let frame = &error[6..error.len() - 4];
            assert_eq!(error, segment(true, frame));
            assert_eq!(message(frame), (0x1234, 0x2100, "no".into()));
        }
    }
}

#[test]
fn a_refusal_waits_for_a_response_that_is_passing() {
    for version in [4, 5] {
        let mut peers = Peers::started(version, 1000, &[], READY);
        let rows = frame(version | 0x80, 0, 1, RESULT, &[2; 400]);
        let (begin, end) = rows.split_at(200);
        let part = |part: &[u8]| match version {
            5 => segment(false, part),
            _ => part.to_vec(),
        };
        peers.server_bytes(&part(begin));
        peers.query(2, "SELECT a FROM shop.t");
        assert_eq!(peers.handshake.refusal("no"), Refusal::Later);
        peers.server_bytes(&part(end));
        assert!(matches!(peers.handshake.refusal("no"), Refusal::Now(_)));
    }
}
