//! Rules that name what only the handshake tells: which rule is met, when, and what the
//! database and the client see of it.

mod another_user;
mod denied;
mod driver;
mod observed;
mod undecided;

use std::{
    io::{ErrorKind, Write},
    net::{TcpListener, TcpStream},
    path::Path,
};

use cassandra_protocol::{
    compression::Compression,
    frame::frame_encoder::{FrameEncoder, Lz4FrameEncoder},
};
use sandbox::{Agent, Sandbox};

use crate::common::{
    BINARY,
    frames::{frame, query, ready, startup, void},
    wire::{
        Conversation, PREPARE, auth_response, auth_success, authenticate, host, refusal, rows,
        set_keyspace,
    },
};

const OPTIONS_SENT: &[(&str, &str)] = &[
    ("CQL_VERSION", "3.0.0"),
    ("DRIVER_NAME", "Test Driver"),
    ("DRIVER_VERSION", "4.17.1"),
    ("APPLICATION_NAME", "batch-7"),
];
const SYSTEM: &str = "SELECT * FROM system.local";
const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 1";

/// Two rules: `s`, with this, and `rest`.
fn policy(session: &str, action: &str, rest: &str) -> String {
    format!(
        "[[rule]]\nname = \"s\"\nto = [\":PORT\"]\n{session}\naction = \"{action}\"\nfail = \"closed\"\n\
         [[rule]]\nname = \"rest\"\nto = [\":PORT\"]\naction = \"{rest}\"\n"
    )
}

/// A handshake with a log-in as alice, a keyspace and a request for data.
fn converse(c: &mut Conversation, version: u8) {
    c.client_sends(&startup(version, OPTIONS_SENT));
    c.server_sends(&authenticate(version));
    c.in_segments = version >= 5;
    c.client_sends(&auth_response(version, 1, b"\0alice\0secret"));
    c.server_sends(&auth_success(version, 1));
    c.client_sends(&query(version, 2, SYSTEM));
    c.server_sends(&rows(version, 2));
    c.client_sends(&query(version, 3, "USE shop"));
    c.server_sends(&set_keyspace(version, 3, "shop"));
    c.client_sends(&query(version, 4, "SELECT v FROM orders"));
    c.server_sends(&void(version, 4));
}

/// Keys of a session, with values that hold for [`converse`], and values that do not.
const KEYS: [(&str, &str, &str); 7] = [
    ("user", "\"alice\"", "\"bob\""),
    ("keyspace", "\"shop\"", "\"other\""),
    ("driver", "\"Test *\"", "\"Test\""),
    ("driver_version", "\"4.*\"", "\"3.*\""),
    ("application", "\"batch-7\"", "\"web\""),
    ("protocol", "\"VERSION\"", "\"v3\""),
    ("compression", "\"none\"", "\"lz4\", \"snappy\""),
];

#[test]
fn every_key_decides() {
    host(|host| {
        for version in [4, 5] {
            for (key, holds, misses) in KEYS {
                for (value, rule) in [(holds, "s"), (misses, "rest")] {
                    let value = value.replace("VERSION", &format!("v{version}"));
                    host.policy(&policy(&format!("{key} = [{value}]"), "enrich", "bypass"));
                    let mut c = host.connect();
                    assert_eq!(host.flow(&c)["action"], "undecided");
                    converse(&mut c, version);
                    let flow = host.flow(&c);
                    assert_eq!(flow["rule"], rule, "v{version} {key} = {value}");
                    let path = if rule == "s" { "enrich" } else { "relay" };
                    assert_eq!(flow["path"], path, "{flow}");
                    c.ends();
                }
            }
            for (value, rule) in [("false", "s"), ("true", "rest")] {
                host.policy(&policy(&format!("tls = {value}"), "bypass", "enrich"));
                let mut c = host.connect();
                converse(&mut c, version);
                let flow = host.flow(&c);
                assert_eq!(flow["rule"], rule);
                let session = &flow["session"];
                assert_eq!(session["user"], "alice");
                assert_eq!(session["protocol"], format!("v{version}"));
                assert_eq!(session["driver"], "Test Driver");
                c.ends();
            }
        }
    });
}

/// A frame as a peer sends it that compresses.
fn compressed(version: u8, compression: Compression, frame: &[u8]) -> Vec<u8> {
    if version == 5 {
        let mut encoder = Lz4FrameEncoder::default();
        encoder.add_envelope(frame.to_vec());
        return encoder.finalize_self_contained().to_vec();
    }
    let (header, body) = frame.split_at(9);
    let body = compression.encode(body).unwrap();
    let length = (body.len() as u32).to_be_bytes();
    [
        &[header[0], header[1] | 1],
        &header[2..5],
        &length,
        &body[..],
    ]
    .concat()
}

/// Versions, and how their frames may be compressed.
const COMPRESSED: [(u8, Compression); 3] = [
    (4, Compression::Lz4),
    (4, Compression::Snappy),
    (5, Compression::Lz4),
];

/// All that [`converse`] says, compressed.
fn converse_compressed(c: &mut Conversation, version: u8, compression: Compression) {
    let option = ("COMPRESSION", compression.as_str().unwrap());
    let sent = |frame: &[u8]| compressed(version, compression, frame);
    c.client_sends(&startup(version, &[OPTIONS_SENT, &[option]].concat()));
    c.server_sends(&authenticate(version));
    c.client_sends(&sent(&auth_response(version, 1, b"\0alice\0secret")));
    c.server_sends(&sent(&auth_success(version, 1)));
    c.client_sends(&sent(&query(version, 2, SYSTEM)));
    c.server_sends(&sent(&rows(version, 2)));
    c.client_sends(&sent(&query(version, 3, "USE shop")));
    c.server_sends(&sent(&set_keyspace(version, 3, "shop")));
    c.client_sends(&sent(&query(version, 4, "SELECT v FROM orders")));
    c.server_sends(&sent(&void(version, 4)));
}

#[test]
fn what_is_compressed_decides_as_well() {
    host(|host| {
        for (version, compression) in COMPRESSED {
            for (key, holds, misses) in [
                ("user", "alice", "bob"),
                ("keyspace", "shop", "other"),
                ("compression", compression.as_str().unwrap(), "none"),
            ] {
                for (value, rule) in [(holds, "s"), (misses, "rest")] {
                    host.policy(&policy(
                        &format!("{key} = [\"{value}\"]"),
                        "enrich",
                        "bypass",
                    ));
                    let mut c = host.connect();
                    converse_compressed(&mut c, version, compression);
                    let flow = host.flow(&c);
                    assert_eq!(flow["rule"], rule, "v{version} {key} = {value}: {flow}");
                    c.ends();
                }
            }
        }
        // Whoever is denied is told without compression, which everybody understands.
        host.policy(&policy("keyspace = [\"shop\"]", "deny", "bypass"));
        let mut c = host.connect();
        let options = [OPTIONS_SENT, &[("COMPRESSION", "lz4")]].concat();
        c.client_sends(&startup(4, &options));
        c.server_sends(&ready(4));
        let select = compressed(4, Compression::Lz4, &query(4, 7, SELECT));
        c.client.write_all(&select).unwrap();
        c.ends_with(&refusal(4, 7, "s"), b"");
    });
}

#[test]
fn what_is_encrypted_tells_that_and_nothing_else() {
    let hello = b"\x16\x03\x01\x00\x05hello";
    host(|host| {
        host.policy(&policy("tls = true", "deny", "bypass"));
        let mut c = host.connect();
        c.client.write_all(hello).unwrap();
        // No words of ours would be understood.
        c.ends_with(b"", b"");
        assert_eq!(host.metric("sessions_undecidable", "reason=\"tls\""), 0);

        let closed = policy("user = [\"alice\"]", "deny", "enrich");
        host.policy(&closed.replace("closed", "open"));
        let mut c = host.connect();
        c.client_sends(hello);
        let flow = host.flow(&c);
        assert_eq!(
            (&flow["rule"], &flow["path"]),
            (&"rest".into(), &"relay".into())
        );
        assert_eq!(flow["session"]["tls"], true);
        c.server_sends(b"anything");
        c.ends();
        assert_eq!(host.metric("sessions_undecidable", "reason=\"tls\""), 1);
        assert_eq!(host.metric("undecodable_flows", "reason=\"tls\""), 1);
    });
}

#[test]
fn statements_count_under_the_rule_that_decided() {
    host(|host| {
        host.policy(&policy("user = [\"alice\"]", "enrich", "enrich"));
        let mut c = host.connect();
        c.client_sends(&startup(4, OPTIONS_SENT));
        c.server_sends(&ready(4));
        for stream in 0..3 {
            c.client_sends(&query(4, stream, SELECT));
            c.server_sends(&void(4, stream));
        }
        c.ends();
        let rows = host.agent.json("/statements").unwrap();
        let mut rows = rows.as_array().unwrap().iter();
        let row = rows.find(|row| row["table"] == "orders").unwrap();
        assert_eq!((&row["rule"], &row["count"]), (&"rest".into(), &3.into()));
    });
}

/// Wherever the bytes are cut, the same is decided and the same bytes pass.
#[test]
fn cuts_change_nothing() {
    host(|host| {
        host.policy(&policy(
            "user = [\"alice\"]\nkeyspace = [\"shop\"]",
            "bypass",
            "deny",
        ));
        for version in [4, 5] {
            for size in [1, 2, 7, 1000] {
                let mut c = host.connect();
                let say = |c: &mut Conversation, from_client: bool, frame: &[u8]| {
                    let bytes = c.wrap(frame);
                    for piece in bytes.chunks(size) {
                        let side = if from_client {
                            &mut c.client
                        } else {
                            &mut c.server
                        };
                        side.write_all(piece).unwrap();
                    }
                    if from_client {
                        c.server_gets(&bytes);
                    } else {
                        c.client_gets(&bytes);
                    }
                };
                say(&mut c, true, &startup(version, OPTIONS_SENT));
                say(&mut c, false, &authenticate(version));
                c.in_segments = version >= 5;
                say(&mut c, true, &auth_response(version, 1, b"\0alice\0secret"));
                say(&mut c, false, &auth_success(version, 1));
                say(&mut c, true, &query(version, 2, SYSTEM));
                say(&mut c, false, &rows(version, 2));
                say(
                    &mut c,
                    true,
                    &frame(version, 3, PREPARE, &long(SELECT, version)),
                );
                say(&mut c, false, &rows(version, 3));
                let flow = host.flow(&c);
                assert_eq!(
                    (&flow["rule"], &flow["path"]),
                    (&"s".into(), &"relay".into())
                );
                c.ends();
            }
        }
    });
}

fn long(text: &str, version: u8) -> Vec<u8> {
    let flags: &[u8] = if version < 5 { &[] } else { &[0; 4] };
    [
        &(text.len() as i32).to_be_bytes()[..],
        text.as_bytes(),
        flags,
    ]
    .concat()
}

#[test]
fn layer_4_rules_before_decide_at_connect_and_cgroups_are_known_in_the_agent() {
    host(|host| {
        let first = "[[rule]]\nname = \"first\"\nto = [\":PORT\"]\naction = \"bypass\"\n";
        host.policy(&(first.to_owned() + &policy("tls = false", "deny", "deny")));
        let mut c = host.connect();
        c.client_sends(&query(4, 1, SELECT));
        assert_eq!(host.agent.metric("underpass_flows").unwrap(), 0.0);
        drop(c);

        let own = host.sandbox.cgroup.rule_path();
        for (cgroup, rule) in [(own.as_path(), "s"), ("/nowhere".as_ref(), "rest")] {
            let session = format!("cgroup = [{cgroup:?}]\ntls = false");
            let ask = "[[rule]]\nname = \"ask\"\nto = [\":PORT\"]\ntls = true\naction = \"deny\"\n";
            host.policy(&(ask.to_owned() + &policy(&session, "enrich", "enrich")));
            let mut c = host.connect();
            c.client_sends(&startup(4, OPTIONS_SENT));
            c.server_sends(&ready(4));
            host.meets(&c, rule);
            c.ends();
        }
    });
}

#[test]
fn without_the_agent_a_session_rules_fail_holds_whatever_its_action() {
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let to = listener.unwrap().unwrap();
    let address = to.local_addr().unwrap();
    for action in ["bypass", "deny"] {
        let policy = policy("user = [\"alice\"]", action, "bypass");
        let policy = policy.replace("PORT", &address.port().to_string());
        for (fail, refused) in [("closed", true), ("open", false)] {
            let policy = policy.replace("closed", fail);
            let (binary, netns) = (Path::new(BINARY), Some(&sandbox.netns));
            let mut agent = Agent::start(binary, netns, &sandbox.cgroup, "", &policy).unwrap();
            agent.kill().unwrap();
            let dialled = sandbox.client(|| TcpStream::connect(address)).unwrap();
            let kind = dialled.err().map(|e| e.kind());
            assert_eq!(
                kind == Some(ErrorKind::PermissionDenied),
                refused,
                "{action} {fail}"
            );
        }
    }
}
