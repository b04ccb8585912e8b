//! Urgent data on a flow that goes through the agent: its byte is in nobody's stream, and all others arrive.

use std::io::Write as _;

use nix::sys::signal::Signal;
use socket2::SockRef;

use crate::common::{
    frames::{query, ready, startup, void},
    wire::host,
};

const VERSION: u8 = 4;
const POLICY: &str =
    "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\npath = \"inline\"\naction = \"enrich\"\n";

#[test]
fn what_is_behind_urgent_data_arrives() {
    host(|host| {
        host.policy(POLICY);
        let mut c = host.connect();
        c.client_sends(&startup(VERSION, &[("CQL_VERSION", "3.0.0")]));
        c.server_sends(&ready(VERSION));
        let asks = [1, 2].map(|stream| query(VERSION, stream, "SELECT v FROM ks.t"));
        let answers = [1, 2].map(|stream| void(VERSION, stream));
        for (is_clients, frames) in [(true, asks), (false, answers)] {
            let mut from = if is_clients { &c.client } else { &c.server };
            // All is there when the agent reads.
            host.agent.signal(Signal::SIGSTOP).unwrap();
            from.write_all(&frames[0]).unwrap();
            assert_eq!(SockRef::from(from).send_out_of_band(b"X").unwrap(), 1);
            from.write_all(&frames[1]).unwrap();
            host.agent.signal(Signal::SIGCONT).unwrap();
            match is_clients {
                true => c.server_gets(&frames.concat()),
                false => c.client_gets(&frames.concat()),
            }
        }
        c.ends();
    });
}
