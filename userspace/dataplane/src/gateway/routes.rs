//! Virtual addresses that the agent takes are this host's, by a route for each:
//!
//! ```text
//! ip route add local 10.9.0.10 dev lo table local protocol 86
//! ```
//!
//! In the table of local addresses, because there the kernel looks whether a socket may send from an
//! address. What has this protocol there is the agent's; of an address that somebody has made local
//! nothing is added, and nothing removed.

use std::{collections::BTreeSet, io, net::IpAddr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteScope, RouteType},
};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use nix::{libc, net::if_::if_nametoindex};

use crate::netlink::{PROTOCOL, add, delete, routes};

/// `RT_TABLE_LOCAL` of linux/rtnetlink.h.
const TABLE_LOCAL: u8 = 255;

/// Has these be this host's. In the calling thread's namespace.
pub(super) fn make(addresses: &BTreeSet<IpAddr>) -> io::Result<()> {
    let socket = Socket::new(NETLINK_ROUTE)?;
    let mut each = addresses.iter();
    each.try_for_each(|ip| add(&socket, RouteNetlinkMessage::NewRoute(route(*ip)?)))
}

/// Removes those of the agent's that are for other addresses, whichever agent made them. In the
/// calling thread's namespace.
pub(super) fn keep_only(addresses: &BTreeSet<IpAddr>) -> io::Result<()> {
    let socket = Socket::new(NETLINK_ROUTE)?;
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let there = match routes(like(family)) {
            // A family that the host does not have.
            Err(e) if is_absent(&e) => continue,
            there => there?,
        };
        for ip in there.iter().filter_map(destination) {
            if !addresses.contains(&ip) {
                delete(&socket, RouteNetlinkMessage::NewRoute(route(ip)?))?;
            }
        }
    }
    Ok(())
}

fn is_absent(error: &io::Error) -> bool {
    let absent = [libc::EAFNOSUPPORT, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|n| absent.contains(&n))
}

fn like(family: AddressFamily) -> RouteMessage {
    let mut like = RouteMessage::default();
    like.header.address_family = family;
    like.header.table = TABLE_LOCAL;
    like.header.protocol = PROTOCOL;
    like.header.kind = RouteType::Local;
    like
}

fn route(ip: IpAddr) -> io::Result<RouteMessage> {
    let (family, bits) = match ip {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    let mut route = like(family);
    route.header.destination_prefix_length = bits;
    route.header.scope = RouteScope::Host;
    route.attributes = vec![
        RouteAttribute::Destination(ip.into()),
        RouteAttribute::Oif(if_nametoindex("lo")?),
    ];
    Ok(route)
}

fn destination(route: &RouteMessage) -> Option<IpAddr> {
    let mut attributes = route.attributes.iter();
    attributes.find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        RouteAttribute::Destination(RouteAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })
}
