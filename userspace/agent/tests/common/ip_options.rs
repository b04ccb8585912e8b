//! Options in the headers of each packet of a socket, behind which TCP's header comes later than usual.

use std::os::fd::AsFd;

use nix::{libc, setsockopt_impl, sockopt_impl, sys::socket::setsockopt};

use super::Family;

sockopt_impl!(
    /// Options behind IPv4's header.
    Options,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_OPTIONS,
    [u8; 4]
);
sockopt_impl!(
    /// Options that packets of IPv6 have for their destination.
    ForDestination,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_DSTOPTS,
    [u8; 8]
);
sockopt_impl!(
    /// Options that packets of IPv6 have for every hop.
    ForEveryHop,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_HOPOPTS,
    [u8; 8]
);

/// Four no-operations.
const NOTHING4: [u8; 4] = [1; 4];
/// A header, and four bytes of padding (RFC 8200, 4.2).
const NOTHING6: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];

/// Gives a socket's packets options that ask for nothing.
pub fn set(socket: &impl AsFd, family: Family) {
    match family {
        Family::V4 => setsockopt(socket, Options, &NOTHING4),
        _ => setsockopt(socket, ForDestination, &NOTHING6)
            .and_then(|()| setsockopt(socket, ForEveryHop, &NOTHING6)),
    }
    .unwrap();
}
