//! Choice of the backend for a new connection: Maglev's table (Eisenbud et al., NSDI 2016, section 3.4)
//! with weights, and the hash by which the edge's program looks it up. The agent, and other gateways
//! with the same backends, choose as the program does.

use std::net::{IpAddr, SocketAddr};

use ebpf::abi;

use crate::backends::Weight;

/// Turns in one table; a prime.
pub(super) const TURNS: usize = abi::EDGE_TURNS as usize;

/// Backends by hash: each hash is one backend's turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table(Vec<u8>);

impl Table {
    /// Builds the table for backends with their weights, at most [`policy::MAX_BACKENDS`]; backends of
    /// weight 0 get no turn. None: no backend gets one.
    pub fn new(backends: &[(SocketAddr, Weight)]) -> Option<Self> {
        let most = backends.iter().map(|(_, weight)| *weight).max()?;
        let mut walks: Vec<Walk> = backends
            .iter()
            .zip(0..)
            .filter(|((_, weight), _)| *weight > 0)
            .map(|((address, weight), number)| Walk::new(*address, *weight, number))
            .collect();
        // Turns that several want go to the same one, in whatever order the file has them.
        walks.sort_unstable_by_key(|walk| walk.address);
        if walks.is_empty() {
            return None;
        }
        const FREE: u8 = u8::MAX;
        let mut turns = vec![FREE; TURNS];
        let mut left = TURNS;
        while left > 0 {
            for walk in &mut walks {
                // One of half the weight takes a turn in every other round.
                walk.credit += u64::from(walk.weight);
                if walk.credit < u64::from(most) {
                    continue;
                }
                walk.credit -= u64::from(most);
                while let Some(turn) = turns.get_mut(walk.next()) {
                    if *turn == FREE {
                        *turn = walk.number;
                        left -= 1;
                        break;
                    }
                }
                if left == 0 {
                    break;
                }
            }
        }
        Some(Self(turns))
    }

    /// The number of the backend for a connection from `client` to `virtual_address`.
    pub fn choose(&self, client: SocketAddr, virtual_address: SocketAddr) -> usize {
        self.at(hash(client, virtual_address))
    }

    fn at(&self, hash: u64) -> usize {
        let turn = ((hash >> 32) * TURNS as u64) >> 32;
        self.0.get(turn as usize).copied().unwrap_or(0).into()
    }

    pub(super) fn to_abi(&self) -> abi::EdgeTurns {
        let mut turns = abi::EdgeTurns {
            backend: [0; abi::EDGE_TURN_BYTES as usize],
        };
        for (to, turn) in turns.backend.iter_mut().zip(&self.0) {
            *to = *turn;
        }
        turns
    }
}

/// A backend's own order of preference: every turn once, as TURNS is a prime.
struct Walk {
    address: SocketAddr,
    number: u8,
    weight: Weight,
    credit: u64,
    at: usize,
    step: usize,
}

impl Walk {
    fn new(address: SocketAddr, weight: Weight, number: u8) -> Self {
        let port = u64::from(address.port());
        let [high, low] = words(address.ip());
        let hashed = [high, low, port]
            .into_iter()
            .fold(0, |h, word| mix(h ^ word));
        let again = mix(hashed);
        Self {
            address,
            number,
            weight,
            credit: 0,
            at: (hashed % TURNS as u64) as usize,
            step: (again % (TURNS as u64 - 1)) as usize + 1,
        }
    }

    fn next(&mut self) -> usize {
        let at = self.at;
        self.at = (at + self.step) % TURNS;
        at
    }
}

/// The hash of a connection, as `forward.h` computes it.
fn hash(client: SocketAddr, virtual_address: SocketAddr) -> u64 {
    let [from_high, from_low] = words(client.ip());
    let [to_high, to_low] = words(virtual_address.ip());
    let ports = u64::from(client.port()) << 16 | u64::from(virtual_address.port());
    [from_high, from_low, to_high, to_low, ports]
        .into_iter()
        .fold(0, |hash, word| mix(hash ^ word))
}

/// The address in network order, IPv4 mapped, as two words of the host's.
fn words(ip: IpAddr) -> [u64; 2] {
    let bits = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

/// The finalizer of MurmurHash3: every bit of the input moves every bit of the output.
fn mix(mut word: u64) -> u64 {
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

#[cfg(test)]
#[path = "maglev_tests.rs"]
mod tests;
