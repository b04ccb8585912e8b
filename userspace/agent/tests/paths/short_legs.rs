//! Short legs: what the agent reads skips TCP on its way from and to applications that their rule lets in.

mod long;
mod memory;

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use crate::common::{
    PATIENCE,
    asking::read_asking,
    eventually,
    frames::{query, ready, startup, void},
    operator::Operator,
    wire::{Conversation, Host, host, host_with, rows},
};

const VERSION: u8 = 4;
const SELECT: &str = "SELECT v FROM ks.t";

/// `UP_SHORTCUT_FLOW_BYTES`.
const FLOW_BYTES: u64 = 1 << 20;

/// A writer that could write nothing for so long writes no more until somebody reads.
const STANDSTILL: Duration = Duration::from_millis(200);

/// A rule that reads its flows and lets these sockets in.
fn lets_in(sides: &str) -> String {
    format!("[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\nshortcut = {sides}\n")
}

/// A flow whose handshake is over, with sockets that block or do not.
fn begun(host: &Host<'_>, blocks: bool) -> Conversation {
    begun_on(host.connect(), blocks)
}

fn begun_on(mut c: Conversation, blocks: bool) -> Conversation {
    c.client.set_nonblocking(!blocks).unwrap();
    c.server.set_nonblocking(!blocks).unwrap();
    c.client_sends(&startup(VERSION, &[("CQL_VERSION", "3.0.0")]));
    c.server_sends(&ready(VERSION));
    c
}

fn exchange(c: &mut Conversation) {
    c.client_sends(&query(VERSION, 1, SELECT));
    c.server_sends(&void(VERSION, 1));
}

fn messages(host: &Host<'_>, way: &str) -> u64 {
    host.metric("shortcut_messages", &format!("way=\"{way}\""))
}

fn short_legs(host: &Host<'_>) -> f64 {
    host.agent.metric("underpass_short_legs").unwrap()
}

fn why(host: &Host<'_>, c: &Conversation) -> String {
    host.flow(c)["why"].as_str().unwrap().to_owned()
}

/// Both ends are done.
fn ends(host: &Host<'_>, c: Conversation) {
    c.client.set_nonblocking(false).unwrap();
    c.server.set_nonblocking(false).unwrap();
    c.ends();
    eventually("no leg is left", || short_legs(host) == 0.0);
}

/// Writes all of it to a socket that does not block.
fn write(mut to: &TcpStream, mut bytes: &[u8]) {
    let began = Instant::now();
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock && began.elapsed() < PATIENCE => {
                thread::yield_now();
            }
            Err(e) => panic!("{e}"),
        }
    }
}

/// Writes copies of a frame to a socket that does not block until it takes no more. Returns how many bytes it has taken.
fn fill(mut to: &TcpStream, frame: &[u8]) -> usize {
    let block = frame.repeat((16 << 10) / frame.len());
    let (mut sent, mut stood) = (0, None::<Instant>);
    loop {
        match to.write(&block[sent % block.len()..]) {
            Ok(n) => (sent, stood) = (sent + n, None),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if stood.get_or_insert_with(Instant::now).elapsed() > STANDSTILL {
                    return sent;
                }
                thread::yield_now();
            }
            Err(e) => panic!("{e}"),
        }
    }
}

/// All that comes at a socket that does not block, and how that ends.
fn read_to_the_end(mut from: &TcpStream) -> (Vec<u8>, Result<(), ErrorKind>) {
    let (mut read, mut buffer) = (Vec::new(), [0; 1000]);
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return (read, Ok(())),
            Ok(n) => read.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(e) => return (read, Err(e.kind())),
        }
    }
}

#[test]
fn legs_are_short_on_the_sides_that_a_rule_lets_in() {
    host(|host| {
        for (sides, legs) in [
            ("\"client\"", vec!["client"]),
            ("\"database\"", vec!["database"]),
            ("true", vec!["client", "database"]),
            ("false", vec![]),
        ] {
            host.policy(&lets_in(sides));
            let mut c = begun(host, false);
            exchange(&mut c);
            let before = messages(host, "shortcut");
            (0..100).for_each(|_| exchange(&mut c));
            let taken = messages(host, "shortcut") - before;
            assert_eq!(taken, 200 * legs.len() as u64, "{sides}: {}", why(host, &c));
            assert_eq!(short_legs(host), legs.len() as f64, "{sides}");
            let why = why(host, &c);
            for side in ["client", "database"] {
                let told = why.contains(&format!("{side}'s leg skips TCP"));
                assert_eq!(told, legs.contains(&side), "{sides}: {why}");
                // Of a rule that lets nobody in nothing was expected.
                let other = format!("{side}'s leg is long: the rule's `shortcut` names the other");
                let is_other = legs.len() == 1 && !told;
                assert_eq!(why.contains(&other), is_other, "{sides}: {why}");
            }
            ends(host, c);
        }
    });
}

#[test]
fn a_leg_of_an_application_that_blocks_stays_long() {
    host(|host| {
        host.policy(&lets_in("true"));
        let mut c = begun(host, true);
        (0..10).for_each(|_| exchange(&mut c));
        let why = why(host, &c);
        for side in ["client", "database"] {
            let told = format!("{side}'s leg is long: its application's socket blocks");
            assert!(why.contains(&told), "{why}");
        }
        assert_eq!(host.metric("long_legs", "reason=\"blocks\""), 2);
        assert_eq!(messages(host, "shortcut"), 0);
        ends(host, c);
    });
}

/// An application that blocks later is sent to by TCP, where its `recv()` waits.
#[test]
fn an_application_that_blocks_later_is_answered_by_tcp() {
    host(|host| {
        host.policy(&lets_in("\"client\""));
        let mut c = begun(host, false);
        exchange(&mut c);
        c.client.set_nonblocking(false).unwrap();
        (0..10).for_each(|_| exchange(&mut c));
        assert!(messages(host, "reader_blocks") >= 10);
        ends(host, c);
    });
}

#[test]
fn an_application_that_stops_reading_is_sent_no_more_than_a_mebibyte_past_tcp() {
    for side in ["client", "database"] {
        host(|host| {
            host.policy(&lets_in(&format!("\"{side}\"")));
            let mut c = begun(host, false);
            exchange(&mut c);
            let taken = || host.metric("shortcut_bytes", "way=\"shortcut\"");
            let before = taken();
            let (from, frame) = match side {
                "client" => (&c.server, rows(VERSION, 1)),
                _ => (&c.client, query(VERSION, 1, SELECT)),
            };
            let all = frame.repeat((3 << 20) / frame.len());
            // Bulk takes TCP when nothing is past it.
            let (first, others) = all.split_at(frame.len());
            write(from, first);
            eventually("the first is past TCP", || taken() > before);
            write(from, others);
            eventually("it is full", || messages(host, "flow_full") > 0);
            thread::sleep(Duration::from_millis(20));
            let past = taken() - before;
            assert!(past <= FLOW_BYTES, "{side}: {past}");
            match side {
                "client" => c.client_gets(&all),
                _ => c.server_gets(&all),
            }
            exchange(&mut c);
            ends(host, c);
        });
    }
}

/// The agent's own end is bounded as an application's is.
#[test]
fn an_agent_that_does_not_run_is_sent_no_more_than_a_mebibyte_past_tcp() {
    for side in ["client", "database"] {
        host(|host| {
            host.policy(&lets_in(&format!("\"{side}\"")));
            let mut c = begun(host, false);
            exchange(&mut c);
            let taken = || host.metric("shortcut_bytes", "way=\"shortcut\"");
            let (from, frame) = match side {
                "client" => (&c.client, query(VERSION, 1, SELECT)),
                _ => (&c.server, rows(VERSION, 1)),
            };
            let from = from.try_clone().unwrap();
            let before = taken();
            host.agent.signal(Signal::SIGSTOP).unwrap();
            let sent = fill(&from, &frame);
            host.agent.signal(Signal::SIGCONT).unwrap();
            let past = taken() - before;
            assert!(past > 0 && past <= FLOW_BYTES, "{side}: {past} of {sent}");
            assert!(messages(host, "flow_full") > 0, "{side}");
            // With the rest of a frame that was cut.
            let all = frame.repeat(sent / frame.len() + 1);
            thread::scope(|scope| {
                scope.spawn(|| write(&from, &all[sent..]));
                match side {
                    "client" => c.server_gets(&all),
                    _ => c.client_gets(&all),
                }
            });
            exchange(&mut c);
            ends(host, c);
        });
    }
}

#[test]
fn a_client_that_asks_fionread_gets_everything() {
    host(|host| {
        host.policy(&lets_in("\"client\""));
        for answers in [10, 1_000, 50_000] {
            let mut c = begun(host, false);
            exchange(&mut c);
            let sent = rows(VERSION, 1).repeat(answers);
            let read = thread::scope(|scope| {
                scope.spawn(|| write(&c.server, &sent));
                read_asking(&c.client, sent.len())
            });
            assert!(read == sent, "{answers}: other bytes");
            exchange(&mut c);
            ends(host, c);
        }
    });
}

#[test]
fn a_flow_that_is_read_no_more_is_relayed_and_spliced_and_read_again() {
    for (splice, carried) in [("off", "relay"), ("auto", "splice")] {
        host_with(&format!("splice = \"{splice}\""), |host| {
            host.policy(&lets_in("true"));
            if splice == "auto" {
                host.agent
                    .wait_for_log("path works path=\"splice_egress\"")
                    .unwrap();
            }
            let operator = Operator::of(host);
            let mut c = begun(host, false);
            exchange(&mut c);
            assert_eq!(short_legs(host), 2.0);
            for action in ["bypass", "enrich", "bypass"] {
                let marked = operator.mark(&[&host.flow(&c)["id"].to_string(), action]);
                assert_eq!(marked["counts"]["changed"], 1, "{marked}");
                (0..10).for_each(|_| exchange(&mut c));
                match action {
                    "bypass" => eventually("it is carried", || host.flow(&c)["path"] == carried),
                    _ if splice == "off" => assert_eq!(short_legs(host), 2.0),
                    _ => eventually("it says why its legs are long", || {
                        why(host, &c)
                            .matches("leg is long: it was taken back")
                            .count()
                            == 2
                    }),
                }
                (0..10).for_each(|_| exchange(&mut c));
            }
            // A relay has no use for the place in a sockmap that the splice needs.
            let legs = if splice == "off" { 2.0 } else { 0.0 };
            assert_eq!(short_legs(host), legs, "{splice}: {}", why(host, &c));
            ends(host, c);
        });
    }
}

/// Legs that are on their way out go on leaving, whatever the next mark says.
#[test]
fn a_flow_that_is_read_again_at_once_says_how_its_bytes_travel() {
    host_with("splice = \"auto\"", |host| {
        host.policy(&lets_in("true"));
        host.agent
            .wait_for_log("path works path=\"splice_egress\"")
            .unwrap();
        let operator = Operator::of(host);
        for _ in 0..4 {
            let mut c = begun(host, false);
            exchange(&mut c);
            assert_eq!(short_legs(host), 2.0);
            for action in ["bypass", "enrich"] {
                let marked = operator.mark(&[&host.flow(&c)["id"].to_string(), action]);
                assert_eq!(marked["counts"]["changed"], 1, "{marked}");
            }
            // As long as legs that are asked to leave may take.
            thread::sleep(Duration::from_secs(1));
            exchange(&mut c);
            let skips = why(host, &c).matches("leg skips TCP").count();
            assert_eq!(skips as f64, short_legs(host), "{}", why(host, &c));
            ends(host, c);
        }
    });
}

/// The application reads what was sent before the end, also when it lies past TCP.
#[test]
fn ends_and_resets_come_behind_what_was_sent() {
    host(|host| {
        host.policy(&lets_in("true"));
        let answer = rows(VERSION, 1).repeat(100);
        for resets in [false, true] {
            let mut c = begun(host, false);
            exchange(&mut c);
            write(&c.server, &answer);
            eventually("it is past TCP", || c.client.peek(&mut [0; 1]).is_ok());
            if resets {
                socket2::SockRef::from(&c.server)
                    .set_linger(Some(Duration::ZERO))
                    .unwrap();
            }
            drop(c.server);
            let (read, end) = read_to_the_end(&c.client);
            assert!(read == answer, "{resets}: {} bytes", read.len());
            let expected = match resets {
                false => Ok(()),
                true => Err(ErrorKind::ConnectionReset),
            };
            assert_eq!(end, expected, "{resets}");
            drop(c.client);
            eventually("no leg is left", || short_legs(host) == 0.0);
        }
    });
}
