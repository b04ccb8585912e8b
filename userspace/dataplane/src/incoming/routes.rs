//! The routing rules by which the database's answers to a client's own address come back to the
//! agent's dial, and that make the agent's IPv6 addresses this host's.
//!
//! ```text
//! ip rule add from 127.86.0.16/28 iif lo priority 86 table 8686 protocol 86
//! ip route add local default dev lo table 8686 protocol 86
//! ```
//!
//! and the same for IPv6. They concern packets from and to those addresses, which nobody else uses,
//! and nothing else. Priority, table and protocol are always these: what a dead agent has left is
//! taken over, and nothing is removed that is not exactly this.

use std::{io, net::IpAddr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{LinkFlags, LinkMessage},
    route::{RouteAttribute, RouteMessage, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleMessage},
};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use nix::net::if_::if_nametoindex;

use super::addresses::{NETWORK_4, NETWORK_4_BITS, NETWORK_6, NETWORK_6_BITS};
use crate::netlink::{PROTOCOL, add, ask, delete};

/// Right behind the table of local addresses, which has priority 0.
const PRIORITY: u32 = 86;
const TABLE: u32 = 8686;

/// Families that have the routing they need, or why they do not.
#[derive(Debug)]
pub(super) struct Routed {
    pub v4: io::Result<()>,
    pub v6: io::Result<()>,
}

/// Makes what is not there. In the calling thread's namespace.
pub(super) fn make() -> Routed {
    Routed {
        v4: each(Family::V4, add),
        v6: each(Family::V6, add),
    }
}

/// Removes it, and nothing else. In the calling thread's namespace.
pub(super) fn remove() -> io::Result<()> {
    let gone = [Family::V4, Family::V6].map(|family| each(family, delete));
    gone.into_iter().collect()
}

/// In a namespace that is new.
pub(super) fn raise_loopback() -> io::Result<()> {
    let mut loopback = LinkMessage::default();
    loopback.header.index = if_nametoindex("lo")?;
    loopback.header.flags = LinkFlags::Up;
    loopback.header.change_mask = LinkFlags::Up;
    let socket = Socket::new(NETLINK_ROUTE)?;
    ask(&socket, RouteNetlinkMessage::SetLink(loopback), 0)
}

#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
}

type Change = fn(&Socket, RouteNetlinkMessage) -> io::Result<()>;

/// Both directions are needed: the route for the rule to find it.
fn each(family: Family, change: Change) -> io::Result<()> {
    let socket = Socket::new(NETLINK_ROUTE)?;
    change(&socket, RouteNetlinkMessage::NewRoute(route(family)?))?;
    let rules = match family {
        Family::V4 => vec![rule(family, Direction::From)],
        // The loopback has all of 127.0.0.0/8, and no IPv6 address but ::1.
        Family::V6 => vec![rule(family, Direction::From), rule(family, Direction::To)],
    };
    let mut rules = rules.into_iter();
    rules.try_for_each(|rule| change(&socket, RouteNetlinkMessage::NewRule(rule)))
}

fn route(family: Family) -> io::Result<RouteMessage> {
    let mut route = RouteMessage::default();
    route.header.address_family = family.number();
    route.header.protocol = PROTOCOL;
    route.header.scope = RouteScope::Host;
    route.header.kind = RouteType::Local;
    route.attributes = vec![
        RouteAttribute::Table(TABLE),
        RouteAttribute::Oif(if_nametoindex("lo")?),
    ];
    Ok(route)
}

#[derive(Clone, Copy)]
enum Direction {
    From,
    To,
}

fn rule(family: Family, direction: Direction) -> RuleMessage {
    let (network, bits) = match family {
        Family::V4 => (IpAddr::V4(NETWORK_4), NETWORK_4_BITS),
        Family::V6 => (IpAddr::V6(NETWORK_6), NETWORK_6_BITS),
    };
    let mut rule = RuleMessage::default();
    rule.header.family = family.number();
    rule.header.action = RuleAction::ToTable;
    let end = match direction {
        Direction::From => {
            rule.header.src_len = bits;
            RuleAttribute::Source(network)
        }
        Direction::To => {
            rule.header.dst_len = bits;
            RuleAttribute::Destination(network)
        }
    };
    rule.attributes = vec![
        end,
        // What this host sends; nobody gets here from outside.
        RuleAttribute::Iifname("lo".into()),
        RuleAttribute::Priority(PRIORITY),
        RuleAttribute::Table(TABLE),
        RuleAttribute::Protocol(PROTOCOL),
    ];
    rule
}

impl Family {
    fn number(self) -> AddressFamily {
        match self {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        }
    }
}
