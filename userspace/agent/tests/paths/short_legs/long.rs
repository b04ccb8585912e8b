//! Legs that stay long, or are long again: each says why, and carries the flow.

use std::net::TcpListener;

use sandbox::{Netns, run_in};

use super::{VERSION, begun, begun_on, ends, exchange, lets_in, messages, short_legs, why, write};
use crate::common::{
    eventually,
    wire::{Conversation, Host, hooked_host, host, rows},
};

/// Connections of which a host with [`FEW`] entries has room for some.
const MANY: usize = 12;
const FEW: &str = "entries=32";

fn says(host: &Host<'_>, c: &Conversation, side: &str, reason: &str) {
    let (told, why) = (format!("{side}'s leg is long: {reason}"), why(host, c));
    assert!(why.contains(&told), "{told}: {why}");
}

#[test]
fn legs_stay_long_on_a_host_without_the_shortcut() {
    hooked_host("without=shortcut", |host| {
        host.policy(&lets_in("true"));
        let mut c = begun(host, false);
        (0..10).for_each(|_| exchange(&mut c));
        for side in ["client", "database"] {
            says(host, &c, side, "the shortcut is off");
        }
        assert_eq!(host.metric("long_legs", "reason=\"off\""), 2);
        assert_eq!(messages(host, "shortcut"), 0);
        ends(host, c);
    });
}

#[test]
fn a_leg_to_a_database_on_another_host_stays_long() {
    host(|host| {
        let elsewhere = Netns::new().unwrap();
        let (here, there) = (["192.0.2.1/24"], ["192.0.2.2/24"]);
        host.sandbox.netns.join(&elsewhere, &here, &there).unwrap();
        let listen = || TcpListener::bind("192.0.2.2:0").unwrap();
        let listener = run_in(Some(&elsewhere), None, listen).unwrap();
        host.policy_to(listener.local_addr().unwrap().port(), &lets_in("true"));
        let mut c = begun_on(host.connect_to(&listener), false);
        (0..10).for_each(|_| exchange(&mut c));
        let reason = "its application is not in the agent's network namespace";
        // The agent sees its client at another address.
        let flows = host.agent.json("/flows").unwrap();
        let why = flows[0]["why"].as_str().unwrap();
        let told = format!("client's leg skips TCP; database's leg is long: {reason}");
        assert!(why.contains(&told), "{why}");
        assert_eq!(host.metric("long_legs", "reason=\"elsewhere\""), 1);
        assert_eq!(short_legs(host), 1.0);
        ends(host, c);
    });
}

#[test]
fn legs_for_which_there_is_no_room_stay_long() {
    hooked_host(FEW, |host| {
        host.policy(&lets_in("true"));
        let mut open: Vec<_> = (0..MANY).map(|_| begun(host, false)).collect();
        open.iter_mut().for_each(exchange);
        let refused = host.metric("long_legs", "reason=\"full\"") as usize;
        assert!((1..MANY * 2).contains(&refused), "{refused}");
        assert_eq!(short_legs(host) as usize, 2 * MANY - refused);
        let last = open.last().unwrap();
        says(
            host,
            last,
            "database",
            "as many sockets are on the shortcut as can be",
        );
        (0..10).for_each(|_| open.iter_mut().for_each(exchange));
        for c in open {
            c.client.set_nonblocking(false).unwrap();
            c.server.set_nonblocking(false).unwrap();
            c.ends();
        }
        eventually("there is room again", || {
            let mut c = begun(host, false);
            exchange(&mut c);
            let legs = short_legs(host);
            ends(host, c);
            legs == 2.0
        });
    });
}

#[test]
fn a_leg_whose_reader_stalls_takes_tcp() {
    host(|host| {
        host.policy(&lets_in("\"client\""));
        let mut c = begun(host, false);
        exchange(&mut c);
        let taken = || host.metric("shortcut_bytes", "way=\"shortcut\"");
        let before = taken();
        let answer = rows(VERSION, 1);
        let answers = answer.repeat((3 << 20) / answer.len());
        let (first, others) = answers.split_at(answer.len());
        write(&c.server, first);
        eventually("the first is past TCP", || taken() > before);
        write(&c.server, others);
        eventually("it is full", || messages(host, "flow_full") > 0);
        // It reads what FIONREAD tells it of in a sockmap, and waits.
        let past = (taken() - before) as usize;
        c.client_gets(&answers[..past]);
        eventually("it has left", || short_legs(host) == 0.0);
        says(host, &c, "client", "an application did not read on");
        c.client_gets(&answers[past..]);
        (0..10).for_each(|_| exchange(&mut c));
        assert_eq!(taken() - before, past as u64);
        ends(host, c);
    });
}
