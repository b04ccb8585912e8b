//! Sends of a worker's turn: by one system call where the kernel gives an io_uring, and by one each where it does not.

use std::io::Write;

use crate::common::{
    eventually,
    frames::{query, ready, startup, void},
    wire::{Conversation, Host, hooked_host, host},
};

const VERSION: u8 = 4;
const POLICY: &str = "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\n";

/// Connections that ask at the same time.
const FLOWS: usize = 16;

fn sends(host: &Host<'_>) -> u64 {
    let of = |call| host.metric("sends", &format!("call=\"{call}\""));
    of("together") + of("alone")
}

/// All ask, then all are answered.
fn exchange(flows: &mut [Conversation]) {
    let (asked, answered) = (query(VERSION, 1, "SELECT v FROM ks.t"), void(VERSION, 1));
    for flow in &*flows {
        (&flow.client).write_all(&asked).unwrap();
    }
    for flow in &mut *flows {
        flow.server_gets(&asked);
        flow.server.write_all(&answered).unwrap();
    }
    flows
        .iter_mut()
        .for_each(|flow| flow.client_gets(&answered));
}

fn begun(host: &Host<'_>) -> Vec<Conversation> {
    host.policy(POLICY);
    let begin = |_| {
        let mut c = host.connect();
        c.client_sends(&startup(VERSION, &[("CQL_VERSION", "3.0.0")]));
        c.server_sends(&ready(VERSION));
        c
    };
    (0..FLOWS).map(begin).collect()
}

#[test]
fn sends_of_a_turn_share_a_call_where_the_kernel_lets_them() {
    host(|host| {
        let mut flows = begun(host);
        assert_eq!(host.agent.metric("underpass_send_rings").unwrap(), 1.0);
        let together = || host.metric("sends", "call=\"together\"");
        eventually("some go together", || {
            exchange(&mut flows);
            together() > 0
        });
        flows.into_iter().for_each(Conversation::ends);
    });
}

#[test]
fn without_a_ring_flows_send_by_themselves() {
    hooked_host("without=send_ring", |host| {
        host.agent.wait_for_log("no io_uring").unwrap();
        let mut flows = begun(host);
        (0..20).for_each(|_| exchange(&mut flows));
        assert_eq!(host.agent.metric("underpass_send_rings").unwrap(), 0.0);
        assert_eq!(sends(host), 0);
        flows.into_iter().for_each(Conversation::ends);
    });
}
