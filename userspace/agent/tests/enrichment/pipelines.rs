//! Rules with a pipeline: what the database gets, what the client is told, what is counted.

mod chosen;
mod copied;
mod strict;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::common::{
    eventually,
    frames::{RESPONSE, frame, query, ready, startup, void},
    wire::{AUTH_RESPONSE, AUTH_SUCCESS, Conversation, Host, authenticate, host},
};

const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 1";
const LOCAL_QUORUM: u8 = 6;

/// One rule, `r`.
fn policy(conditions: &str, pipeline: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\n{conditions}\naction = \"enrich\"\n\
         pipeline = [{pipeline}]\n"
    )
}

fn begin(host: &Host<'_>, version: u8) -> Conversation {
    let mut c = host.connect();
    c.client_sends(&startup(version, &[("CQL_VERSION", "3.0.0")]));
    c.server_sends(&ready(version));
    c.in_segments = version >= 5;
    c
}

/// The query [`SELECT`] at another level than ONE.
fn at_level(version: u8, stream: i16, level: u8) -> Vec<u8> {
    let mut query = query(version, stream, SELECT);
    let at = 9 + 4 + SELECT.len() + 1;
    assert_eq!(query[at], 1);
    query[at] = level;
    query
}

fn transforms(host: &Host<'_>, transform: &str, outcome: &str, reason: &str) -> u64 {
    host.metric(
        "transforms",
        &format!("outcome=\"{outcome}\",reason=\"{reason}\",rule=\"r\",transform=\"{transform}\""),
    )
}

/// Error that the client gets instead of an answer: version, stream, code, message.
fn error(c: &mut Conversation) -> (u8, i16, i32, String) {
    let mut header = [0; 6];
    if c.in_segments {
        c.client.read_exact(&mut header).unwrap();
    }
    let mut header = [0; 9];
    c.client.read_exact(&mut header).unwrap();
    assert_eq!(header[4], 0, "an ERROR");
    let mut body = vec![0; header[8].into()];
    c.client.read_exact(&mut body).unwrap();
    if c.in_segments {
        c.client.read_exact(&mut [0; 4]).unwrap();
    }
    let message = String::from_utf8(body[6..].to_vec()).unwrap();
    (
        header[0],
        i16::from_be_bytes([header[2], header[3]]),
        i32::from_be_bytes(body[..4].try_into().unwrap()),
        message,
    )
}

#[test]
fn a_level_is_raised_and_all_else_passes() {
    host(|host| {
        host.policy(&policy(
            "",
            "{ transform = \"consistency\", at_least = \"LOCAL_QUORUM\" }",
        ));
        for version in [3, 4, 5] {
            let before = transforms(host, "consistency", "changed", "");
            let mut c = begin(host, version);
            let sent = c.wrap(&query(version, 1, SELECT));
            let (first, rest) = sent.split_at(20);
            c.client.write_all(first).unwrap();
            c.client.write_all(rest).unwrap();
            let expected = c.wrap(&at_level(version, 1, LOCAL_QUORUM));
            c.server_gets(&expected);
            c.server_sends(&void(version, 1));
            // One that has it already.
            c.client_sends(&at_level(version, 2, LOCAL_QUORUM));
            c.server_sends(&void(version, 2));
            assert_eq!(transforms(host, "consistency", "changed", ""), before + 1);
            let flow = host.flow(&c);
            assert_eq!(flow["path"], "enrich", "{flow}");
            assert_eq!(
                flow["why"],
                "rule r says enrich; inline, because `consistency` may change, answer, delay or refuse requests; through consistency"
            );
            c.ends();
        }
    });
}

#[test]
fn a_login_of_many_rounds_passes_byte_for_byte() {
    const AUTH_CHALLENGE: u8 = 0x0E;
    // As of mechanisms other than PLAIN: any bytes, none, and `null`.
    let every_byte: Vec<u8> = (0..=255).collect();
    let token = |token: &[u8]| [&(token.len() as i32).to_be_bytes(), token].concat();
    let rounds = [
        token(&every_byte),
        token(&[]),
        (-1_i32).to_be_bytes().to_vec(),
        token(&every_byte.repeat(100)),
        token(b"\0s3cret\0s3cret"),
    ];
    host(|host| {
        host.policy(&policy(
            "",
            "{ transform = \"consistency\", at_least = \"LOCAL_QUORUM\" }, { transform = \"tag\" }",
        ));
        for version in [3, 4, 5] {
            let mut c = host.connect();
            c.client_sends(&startup(version, &[("CQL_VERSION", "3.0.0")]));
            c.server_sends(&authenticate(version));
            c.in_segments = version >= 5;
            for (stream, round) in (0..).zip(&rounds) {
                c.client_sends(&frame(version, stream, AUTH_RESPONSE, round));
                let challenge = frame(RESPONSE | version, stream, AUTH_CHALLENGE, round);
                c.server_sends(&challenge);
            }
            c.client_sends(&frame(version, 9, AUTH_RESPONSE, &rounds[0]));
            c.server_sends(&frame(RESPONSE | version, 9, AUTH_SUCCESS, &rounds[0]));
            // From there on it is changed as ever.
            let before = transforms(host, "consistency", "changed", "");
            c.client
                .write_all(&c.wrap(&query(version, 1, SELECT)))
                .unwrap();
            eventually("it has a level of the rule's", || {
                transforms(host, "consistency", "changed", "") > before
            });
            drop(c);
        }
        assert!(!host.agent.log().contains("s3cret"));
    });
}

#[test]
fn a_timestamp_is_compared_with_the_time_of_day() {
    const HOUR_US: u64 = 3_600_000_000;
    let now_us = || {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        since_epoch.unwrap().as_micros() as u64
    };
    host(|host| {
        host.policy(&policy(
            "",
            "{ transform = \"rewrite\", timestamps = { max_ahead = \"1m\" } }",
        ));
        for version in [4, 5] {
            let mut c = begin(host, version);
            let text = "INSERT INTO shop.orders (id) VALUES (1)";
            let with = |us: u64| {
                let mut body = (text.len() as i32).to_be_bytes().to_vec();
                body.extend(text.as_bytes());
                body.extend([0, 1]);
                let flags: &[u8] = if version < 5 {
                    &[0x20]
                } else {
                    &[0, 0, 0, 0x20]
                };
                body.extend(flags);
                body.extend(us.to_be_bytes());
                frame(version, 1, 0x07, &body)
            };
            let before = now_us();
            let sent = c.wrap(&with(before + HOUR_US));
            c.client.write_all(&sent).unwrap();
            let mut got = sent.clone();
            c.server.read_exact(&mut got).unwrap();
            let end = got.len() - if version < 5 { 0 } else { 4 };
            let capped = u64::from_be_bytes(got[end - 8..end].try_into().unwrap());
            let minute = HOUR_US / 60;
            assert!(
                (before + minute..=now_us() + minute).contains(&capped),
                "{capped}"
            );
            assert_eq!(got, c.wrap(&with(capped)));
            c.server_sends(&void(version, 1));
            c.client_sends(&with(before + minute / 2));
            c.server_sends(&void(version, 1));
            assert_eq!(
                transforms(host, "rewrite", "changed", ""),
                u64::from(version) - 3
            );
            c.ends();
        }
    });
}

#[test]
fn what_is_too_much_is_answered_in_place_of_the_database() {
    host(|host| {
        host.policy(&policy(
            "",
            "{ transform = \"throttle\", rate = 0.001, burst = 1, mode = \"overloaded\" }",
        ));
        for (version, nth) in [(4, 0), (5, 1)] {
            // A reload begins with full buckets.
            let mut c = begin(host, version);
            if nth == 0 {
                c.client_sends(&query(version, 1, SELECT));
            }
            let bytes = c.wrap(&query(version, 7, SELECT));
            c.client.write_all(&bytes).unwrap();
            let (first, stream, code, message) = error(&mut c);
            assert_eq!((first, stream, code), (RESPONSE | version, 7, 0x1001));
            assert!(message.contains("too many"), "{message}");
            c.server_gets_nothing();
            if nth == 0 {
                c.server_sends(&void(version, 1));
            }
            assert_eq!(transforms(host, "throttle", "refused", "rate"), nth + 1);
            c.ends();
        }
    });
}

#[test]
fn a_flow_is_slowed_down_and_nothing_is_lost() {
    const REQUESTS: i16 = 5;
    host(|host| {
        host.policy(&policy(
            "",
            "{ transform = \"throttle\", rate = 20, burst = 1 }",
        ));
        let mut c = begin(host, 4);
        let started = Instant::now();
        for stream in 0..REQUESTS {
            c.client_sends(&query(4, stream, SELECT));
        }
        // A token for the first; 50 ms for each of the next three, and the last one's is owed.
        let least = Duration::from_millis(50 * (REQUESTS as u64 - 2));
        assert!(started.elapsed() >= least, "{:?}", started.elapsed());
        for stream in 0..REQUESTS {
            c.server_sends(&void(4, stream));
        }
        assert!(transforms(host, "throttle", "slowed", "") >= 3);
        c.ends();
    });
}

#[test]
fn requests_that_come_at_once_are_slowed_down_one_by_one() {
    const REQUESTS: i16 = 41;
    const RATE: u64 = 200;
    host(|host| {
        let step = format!("{{ transform = \"throttle\", rate = {RATE}, burst = 1 }}");
        host.policy(&policy("", &step));
        let mut c = begin(host, 4);
        let frames: Vec<Vec<u8>> = (0..REQUESTS)
            .map(|stream| query(4, stream, SELECT))
            .collect();
        let started = Instant::now();
        c.client.write_all(&frames.concat()).unwrap();
        for (nth, frame) in (0..).zip(&frames) {
            let mut bytes = vec![0; frame.len()];
            c.server.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, *frame);
            // Of waits below 4 ms the next request has the whole.
            let at = started.elapsed() + Duration::from_millis(4);
            assert!(
                at >= Duration::from_millis(nth * 1000 / RATE),
                "{nth}: {at:?}"
            );
        }
        for stream in 0..REQUESTS {
            c.server_sends(&void(4, stream));
        }
        c.ends();
    });
}

/// Custom payload of a request, and the bytes behind it.
fn payload(frame: &[u8]) -> (BTreeMap<String, Vec<u8>>, &[u8]) {
    assert_eq!(frame[1] & 4, 4, "it has a custom payload");
    let mut rest = &frame[9..];
    let mut take = |n: usize| {
        let (taken, behind) = rest.split_at(n);
        rest = behind;
        taken
    };
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, b| n << 8 | usize::from(*b));
    let said = (0..number(take(2))).map(|_| {
        let key = number(take(2));
        let key = String::from_utf8(take(key).to_vec()).unwrap();
        let value = number(take(4));
        (key, take(value).to_vec())
    });
    let said = said.collect();
    (said, rest)
}

#[test]
fn the_database_is_told_who_is_calling() {
    host(|host| {
        host.policy(&policy("", "{ transform = \"tag\", service = \"shop\" }"));
        let cgroup = host.sandbox.cgroup.rule_path();
        for version in [4, 5] {
            let mut c = begin(host, version);
            let asked = query(version, 1, SELECT);
            let bytes = c.wrap(&asked);
            c.client.write_all(&bytes).unwrap();
            let mut header = [0; 9];
            if c.in_segments {
                c.server.read_exact(&mut header[..6]).unwrap();
            }
            c.server.read_exact(&mut header).unwrap();
            let length = u32::from_be_bytes(header[5..].try_into().unwrap());
            let mut got = header.to_vec();
            got.resize(9 + length as usize, 0);
            c.server.read_exact(&mut got[9..]).unwrap();
            if c.in_segments {
                c.server.read_exact(&mut [0; 4]).unwrap();
            }
            let (said, behind) = payload(&got);
            let process = host.flow(&c)["process"].as_str().unwrap().to_owned();
            let expected = [
                ("underpass.cgroup", cgroup.to_str().unwrap()),
                ("underpass.client", "127.0.0.1"),
                ("underpass.process", &process),
                ("underpass.rule", "r"),
                ("underpass.service", "shop"),
            ];
            let expected = expected.map(|(key, value)| (key.to_owned(), value.into()));
            assert_eq!(said, BTreeMap::from(expected));
            assert_eq!(behind, &asked[9..]);
            c.server_sends(&void(version, 1));
            c.ends();
        }
    });
}

#[test]
fn a_refusal_waits_for_the_end_of_a_response() {
    host(|host| {
        host.policy(&policy(
            "",
            "{ transform = \"throttle\", rate = 0.001, burst = 1, mode = \"overloaded\" }",
        ));
        let mut c = begin(host, 4);
        c.client_sends(&query(4, 1, SELECT));
        let response = void(4, 1);
        let (begun, rest) = response.split_at(10);
        c.server.write_all(begun).unwrap();
        c.client_gets(begun);
        c.client.write_all(&query(4, 2, SELECT)).unwrap();
        c.server_gets_nothing();
        c.server.write_all(rest).unwrap();
        c.client_gets(rest);
        assert_eq!(error(&mut c).1, 2);
        c.ends();
    });
}

#[test]
fn whoever_does_not_read_refusals_is_not_read() {
    /// Bytes that sockets hold, several times over; a flood goes on for ever otherwise.
    const BOUND: usize = 64 << 20;
    const STALLED: Duration = Duration::from_millis(500);
    host(|host| {
        host.policy(&policy(
            "",
            "{ transform = \"throttle\", rate = 0.001, burst = 1, mode = \"overloaded\" }",
        ));
        let mut c = begin(host, 4);
        c.client_sends(&query(4, 1, SELECT));
        let one = query(4, 7, SELECT);
        let many = one.repeat(1000);
        c.client.set_nonblocking(true).unwrap();
        let (mut sent, mut moved) = (0, Instant::now());
        while moved.elapsed() < STALLED {
            match c.client.write(&many[sent % one.len()..]) {
                Ok(n) => {
                    sent += n;
                    moved = Instant::now();
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(e) => panic!("{e}"),
            }
            assert!(sent < BOUND, "nobody stops the client");
        }
        c.client.set_nonblocking(false).unwrap();
        let whole = sent.div_ceil(one.len());
        let missing = one[one.len() - (whole * one.len() - sent)..].to_vec();
        let mut client = c.client.try_clone().unwrap();
        let writer = std::thread::spawn(move || client.write_all(&missing).unwrap());
        for _ in 0..whole {
            assert_eq!(error(&mut c).1, 7);
        }
        writer.join().unwrap();
        c.server_sends(&void(4, 1));
        assert_eq!(
            transforms(host, "throttle", "refused", "rate"),
            whole as u64
        );
        c.ends();
    });
}
