//! Address roles as types, so that no function can be handed the wrong one.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use ebpf::abi;

macro_rules! role {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(SocketAddr);

        impl $name {
            /// Takes an address into this role; IPv4-mapped IPv6 becomes IPv4.
            pub fn new(addr: SocketAddr) -> Self {
                Self(canonical(addr))
            }

            /// The address, never IPv4-mapped.
            pub fn socket_addr(self) -> SocketAddr {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

role!(
    /// The client's own socket, as the agent's listener sees it.
    ClientAddr
);
role!(
    /// The original destination: the address that the client dialled.
    OrigDst
);
role!(
    /// The local address that the client's socket would have had without us.
    LocalAddr
);

/// The kernel's number for a socket; never used twice while the host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SockCookie(pub(crate) u64);

impl SockCookie {
    /// Wraps a number that the kernel gave.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SockCookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// An address as `struct up_endpoint` has it: 16 bytes, IPv4 mapped.
pub(crate) fn to_abi(addr: SocketAddr) -> abi::Endpoint {
    let (ip, family) = match addr.ip().to_canonical() {
        IpAddr::V4(v4) => (v4.to_ipv6_mapped(), 4),
        IpAddr::V6(v6) => (v6, 6),
    };
    abi::Endpoint {
        addr: ip.octets(),
        port_be: addr.port().to_be(),
        family,
        pad: 0,
    }
}

pub(crate) fn from_abi(endpoint: &abi::Endpoint) -> SocketAddr {
    let ip = IpAddr::V6(Ipv6Addr::from(endpoint.addr)).to_canonical();
    SocketAddr::new(ip, u16::from_be(endpoint.port_be))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_into_the_kernel_and_back() {
        for text in ["10.1.2.3:9042", "[fd00::1]:9142", "127.0.0.1:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(from_abi(&to_abi(addr)), addr);
        }
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let mapped: SocketAddr = "[::ffff:10.1.2.3]:9042".parse().unwrap();
        let plain: SocketAddr = "10.1.2.3:9042".parse().unwrap();
        assert_eq!(ClientAddr::new(mapped), ClientAddr::new(plain));
        assert_eq!(to_abi(mapped).family, 4);
    }
}
