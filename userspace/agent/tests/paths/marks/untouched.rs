//! Connections that nobody carries and nobody reads, and that were open before a mark, or before a rule that refuses their like.

use crate::common::{
    eventually,
    frames::{query, ready, startup, void},
    operator::Operator,
    wire::{Conversation, Host, host},
};

fn asks(c: &mut Conversation) {
    c.client_sends(&query(4, 1, "SELECT v FROM shop.orders"));
    c.server_sends(&void(4, 1));
}

fn begun(host: &Host<'_>) -> Conversation {
    let mut c = host.connect();
    c.client_sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
    c.server_sends(&ready(4));
    c
}

#[test]
fn running_connections_are_observed_under_a_mark() {
    host(|host| {
        host.policy("");
        let mut c = begun(host);
        Operator::of(host).mark(&["to=:PORT", "observe"]);
        host.finds(&c);
        asks(&mut c);
        let flow = || host.flow(&c);
        eventually("it is counted", || flow()["requests"] == 1);
        assert_eq!(flow()["action"], "observe");
        c.ends();
    });
}

#[test]
fn running_connections_have_to_connect_again_for_an_agent_that_reads_them() {
    host(|host| {
        host.policy("");
        let mut c = begun(host);
        Operator::of(host).mark(&["to=:PORT", "enrich"]);
        let again = "underpass_observed_not_adopted{reason=\"needs_agent\"}";
        eventually("it is counted", || host.agent.metric(again).unwrap() == 1.0);
        asks(&mut c);
        c.ends();
    });
}

#[test]
fn running_connections_outlive_a_rule_that_denies() {
    host(|host| {
        host.policy("");
        let mut c = begun(host);
        host.policy("[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"deny\"\n");
        asks(&mut c);
        Operator::of(host).mark(&["to=:PORT", "deny"]);
        asks(&mut c);
        c.ends();
    });
}
