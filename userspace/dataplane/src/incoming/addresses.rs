//! The addresses that the agent dials a database of this host at. Nobody listens there: the kernel's
//! program takes the connection to the database that is meant.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ebpf::abi;

/// Beside those of the listeners.
pub(super) const NETWORK_4: Ipv4Addr = Ipv4Addr::from_bits(abi::DIALLED_NETWORK_4);
pub(super) const NETWORK_4_BITS: u8 = abi::DIALLED_NETWORK_4_BITS as u8;

/// A unique local network (RFC 4193): `underpa` in ASCII.
pub(super) const NETWORK_6: Ipv6Addr = Ipv6Addr::new(0xfd75, 0x6e64, 0x6572, 0x7061, 0, 0, 0, 0x10);
pub(super) const NETWORK_6_BITS: u8 = 124;

/// So many: a client may have one port connected to as many databases of this host at once.
const ADDRESSES: u8 = 16;

/// Returns the addresses of the client's family.
pub(super) fn of_family(client: IpAddr) -> impl Iterator<Item = IpAddr> {
    (0..ADDRESSES).map(move |n| match client {
        IpAddr::V4(_) => {
            let [a, b, c, d] = NETWORK_4.octets();
            Ipv4Addr::new(a, b, c, d + n).into()
        }
        IpAddr::V6(_) => Ipv6Addr::from(NETWORK_6.to_bits() + u128::from(n)).into(),
    })
}

/// Whether it is one of them.
pub(super) fn is_one(address: IpAddr) -> bool {
    of_family(address).any(|one| one == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_in_the_network_that_is_routed() {
        for (any, network, bits) in [
            (
                IpAddr::from([10, 0, 0, 1]),
                IpAddr::V4(NETWORK_4),
                NETWORK_4_BITS,
            ),
            (
                "::1".parse().unwrap(),
                IpAddr::V6(NETWORK_6),
                NETWORK_6_BITS,
            ),
        ] {
            let network = ipnet::IpNet::new(network, bits).unwrap();
            assert_eq!(network.network(), network.addr());
            let all: Vec<_> = of_family(any).collect();
            assert_eq!(all.len(), usize::from(ADDRESSES));
            assert!(all.iter().all(|address| network.contains(address)));
            assert_eq!(all.last(), Some(&network.broadcast()));
        }
    }
}
