//! Lines in the log that clients bring about: few, however many clients there are.

use std::{
    io::Write,
    net::{Shutdown, TcpStream},
    time::Instant,
};

use super::{
    clients::OWN,
    ends::{Secure, secure},
    ready, startup,
};
use crate::common::{eventually, frames::header, wire::Host};

/// Lines of one kind that the agent writes in a second (telemetry's `MAX_SAID`).
const MAX_SAID: u64 = 10;

/// Kinds of lines about one such client: the reason, and the flow's end.
const KINDS: u64 = 2;

/// Clients of each sort at most: more than come in the time that a test may take.
const MOST: u64 = 20_000;

/// A way to have the agent end a flow: the reason, the rule's rest, and what the client does.
type Way = (&'static str, &'static str, fn(&mut TcpStream, TcpStream));

const WAYS: [Way; 5] = [
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
    ("length", "", |client, _| {
        client.write_all(&header(4, 0, 0x01, -1)).unwrap();
    }),
    ("denied", "protocol = [\"v4\"]", |client, mut database| {
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
            let clients = come(s, reason, way);
            let what = format!("{reason}: {clients} clients");
            let log = s.host.agent.log();
            let closed = format!("reason=\"{reason}\"");
            let said = log.lines().filter(|l| l.contains(&closed)).count();
            assert!(said > 0, "{what}: an operator sees some");
            assert!(log.contains("not_said_before="), "{what}: and how many not");
        }
    });
}

fn denying(rest: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\n{rest}\naction = \"deny\"\nfail = \"closed\"\n"
    )
}

/// Has so many clients come that a line for each could not be missed. Returns how many.
fn come(s: &Secure<'_, '_>, reason: &str, way: fn(&mut TcpStream, TcpStream)) -> u64 {
    let (begun, before, closed) = (Instant::now(), lines(s.host), s.closed(reason));
    let mut clients = 0;
    let allowed = || KINDS * MAX_SAID * (2 + begun.elapsed().as_secs());
    while clients < 4 * allowed() {
        assert!(clients < MOST, "they come too slowly");
        let (mut client, database) = s.connect();
        way(&mut client, database);
        clients += 1;
    }
    eventually("each is counted", || s.closed(reason) - closed == clients);
    let said = lines(s.host) - before;
    assert!(
        said <= allowed(),
        "{reason}: {said} lines about {clients} clients"
    );
    clients
}

fn lines(host: &Host<'_>) -> u64 {
    host.agent.log().lines().count() as u64
}
