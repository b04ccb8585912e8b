//! The addresses of a namespace: what they dial is this host's own, and `incoming.h` cannot
//! tell it from what comes in.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
};

use aya::maps::{HashMap, MapData};
use ebpf::abi;
use nix::ifaddrs::getifaddrs;

use crate::{address, causes::other, netns_handle::NetnsHandle, sys::PodOf};

pub(super) type OwnAddresses = HashMap<MapData, PodOf<abi::DatabaseKey>, u32>;

/// Has the map in step with a namespace; `known` is what it has of it.
pub(super) fn put(
    map: &mut OwnAddresses,
    netns: &NetnsHandle,
    number: u32,
    known: &mut HashSet<IpAddr>,
) -> io::Result<()> {
    let now = netns.within(addresses)?;
    let key = |ip: &IpAddr| {
        PodOf(abi::DatabaseKey {
            at: address::to_abi(SocketAddr::new(*ip, 0)),
            netns_index: number,
        })
    };
    for new in now.difference(known) {
        map.insert(key(new), 1, 0).map_err(other)?;
    }
    for gone in known.difference(&now) {
        map.remove(&key(gone)).map_err(other)?;
    }
    *known = now;
    Ok(())
}

/// The calling thread's namespace's.
fn addresses() -> io::Result<HashSet<IpAddr>> {
    let all = getifaddrs()?.filter_map(|one| one.address);
    Ok(all
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| Some(IpAddr::V6(address.as_sockaddr_in6()?.ip())))
        })
        .collect())
}
