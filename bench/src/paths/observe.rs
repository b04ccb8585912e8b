//! Left alone, and read in passing.

use load::workload::Protocol;

use super::{
    Topology,
    ours::{Ours, never},
};

/// The path `untouched`, of the action `observe`: passive programs on the client's packets.
pub const OBSERVE: Ours = Ours {
    name: "observe",
    at: Topology::Host,
    about: "the socket is left alone; cgroup_skb programs read CQL headers in passing",
    agent: "",
    rule: Ok("action = \"observe\""),
    introduces: false,
    carries: |job| match job.protocol {
        Protocol::Redis => Err("it reads CQL headers alone"),
        Protocol::Cql | Protocol::Connect => Ok(()),
    },
    outcome: "untouched",
    slipped: never,
    is_copied: Some(false),
};
