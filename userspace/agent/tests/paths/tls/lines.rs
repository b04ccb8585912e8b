//! Lines in the log that clients bring about: few, however many clients there are.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};

use super::{
    clients::OWN,
    ends::{Secure, secure},
    ready, startup,
};
use crate::common::{
    eventually,
    frames::{QUERY, header},
    traffic::PATIENCE,
    wire::Host,
};

/// Lines of one kind that the agent writes in a second (telemetry's `MAX_SAID`).
const MAX_SAID: u64 = 10;

/// Kinds of lines about one such client: the reason, and the flow's end.
const KINDS: u64 = 2;

/// The length of a period of the log.
const PERIOD: Duration = Duration::from_secs(1);

/// A way to have the agent end a flow: the reason, the rule's rest, and what the client does.
type Way = (
    &'static str,
    &'static str,
    fn(&mut TcpStream, &mut TcpStream),
);

const WAYS: [Way; 6] = [
    ("tls_required", OWN, |client, _| {
        client.write_all(&startup(4, &[])).unwrap();
    }),
    ("client_tls", OWN, |client, _| {
        client
            .write_all(b"\x16\x03\x01\x00\x05hello, and more")
            .unwrap();
    }),
    ("client_tls", OWN, |client, _| {
        client.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
    }),
    // A frame of a length that cannot be, behind one that is good.
    ("length", "", |client, _| {
        let bad = header(4, 1, QUERY, -1);
        client.write_all(&[startup(4, &[]), bad].concat()).unwrap();
    }),
    ("both_ended", "", |client, database| {
        client.write_all(b"\x04garbage, which is relayed").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        database.read_to_end(&mut Vec::new()).unwrap();
        database.shutdown(Shutdown::Write).unwrap();
    }),
    ("denied", "protocol = [\"v4\"]", |client, database| {
        client.write_all(&startup(4, &[])).unwrap();
        // The client is told in the place of this.
        let _ = database.write_all(&ready(4));
    }),
];

#[test]
fn what_clients_bring_about_costs_few_lines() {
    secure(|s| {
        for (reason, rest, way) in WAYS {
            match reason {
                "denied" => s.host.policy(&denying(rest)),
                _ => s.rule(rest),
            }
            come(s, reason, way);
            let log = s.host.agent.log();
            let closed = format!("reason=\"{reason}\"");
            let mut said = log.lines().filter(|l| l.contains(&closed));
            assert!(
                said.any(|l| l.contains("not_said_before=")),
                "{reason}: an operator sees some of them, and how many more there were"
            );
        }
    });
}

fn denying(rest: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\n{rest}\naction = \"deny\"\nfail = \"closed\"\n"
    )
}

/// Has so many clients come that a line for each could not be missed, and another one when the log has a turn again.
fn come(s: &Secure<'_, '_>, reason: &str, way: fn(&mut TcpStream, &mut TcpStream)) {
    let (begun, before, closed) = (Instant::now(), lines(s.host), s.closed(reason));
    let mut clients = 0;
    let mut comes = || {
        let (mut client, mut database) = s.connect();
        way(&mut client, &mut database);
        // Until the agent has ended it.
        let _ = client.read_to_end(&mut Vec::new());
        clients += 1;
        clients
    };
    let allowed = || KINDS * MAX_SAID * (2 + begun.elapsed().as_secs());
    while comes() < 4 * allowed() {
        assert!(begun.elapsed() < PATIENCE, "they come too slowly");
    }
    thread::sleep(PERIOD);
    let clients = comes();
    eventually("each is counted", || s.closed(reason) - closed == clients);
    let said = lines(s.host) - before;
    assert!(
        said <= allowed(),
        "{reason}: {said} lines about {clients} clients"
    );
}

fn lines(host: &Host<'_>) -> u64 {
    host.agent.log().lines().count() as u64
}
