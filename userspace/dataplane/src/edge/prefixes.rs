//! Classes of IPv6 networks as the program finds them without a walk: the lengths of prefixes that there
//! are, in order, and a table of them all. A look-up halves the lengths: where the address has an entry
//! in the table, longer ones are asked, otherwise shorter ones. So that it finds its way, a network has
//! entries at the shorter lengths that are asked before its own, each with the class that holds there
//! (Waldvogel et al., "Scalable High Speed IP Routing Lookups"). Where a bucket of the table is full,
//! the trie knows.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::Ipv6Addr,
};

use ebpf::abi;
use ipnet::{IpNet, Ipv6Net};

use super::classes::Networks;

const BUCKETS: usize = abi::EDGE_BUCKETS as usize;
const IN_BUCKET: usize = abi::EDGE_IN_BUCKET as usize;
const NO_LENGTH: u8 = abi::EDGE_NO_LENGTH as u8;
/// Odd ones, as a hash by multiplication wants; the one by which most find room is taken.
const MULTIPLIERS: [u64; 4] = [
    0x9e37_79b9_7f4a_7c15,
    0xc4ce_b9fe_1a85_ec53,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
];

const EMPTY: abi::EdgeBucket = abi::EdgeBucket {
    prefixes: [abi::EdgePrefix { halves: [0; 2] }; IN_BUCKET],
    classes: [0; IN_BUCKET],
    lengths: [NO_LENGTH; IN_BUCKET],
    is_full: 0,
    pad: [0; 6],
};

/// The networks of one side of a packet.
pub(super) struct Prefixes {
    pub lengths: abi::EdgeLengths,
    pub buckets: Vec<abi::EdgeBucket>,
}

/// Class by a length's place among the lengths, and the address as far as it goes.
type Entries = BTreeMap<(u8, Ipv6Addr), u16>;

impl Prefixes {
    pub(super) fn of(networks: &Networks) -> Self {
        let known: HashMap<Ipv6Net, u16> = networks
            .classes
            .iter()
            .filter_map(|(network, class)| match network {
                IpNet::V6(network) => Some((*network, *class as u16)),
                IpNet::V4(_) => None,
            })
            .collect();
        let anywhere = known.get(&Ipv6Net::default()).copied().unwrap_or(0);
        let bits = known.keys().map(Ipv6Net::prefix_len).filter(|n| *n > 0);
        let bits: BTreeSet<u8> = bits.collect();
        let bits: Vec<u8> = bits.into_iter().collect();
        let mut masks = [abi::EdgePrefix { halves: [0; 2] }; abi::EDGE_LENGTHS as usize];
        for (mask, bits) in masks.iter_mut().zip(&bits) {
            mask.halves = halves(u128::MAX << (128 - u32::from(*bits)));
        }
        let entries = entries(&known, &bits, anywhere);
        let mut best: Option<Filled> = None;
        for multiplier in MULTIPLIERS {
            let filled = fill(&entries, multiplier);
            let has_room_for_all = filled.left_out == 0;
            if best
                .as_ref()
                .is_none_or(|best| filled.left_out < best.left_out)
            {
                best = Some(filled);
            }
            if has_room_for_all {
                break;
            }
        }
        let Filled {
            multiplier,
            buckets,
            ..
        } = best.unwrap_or_default();
        Self {
            lengths: abi::EdgeLengths {
                masks,
                multiplier,
                count: bits.len() as u32,
                class: anywhere.into(),
            },
            buckets,
        }
    }
}

/// Each network's own, and those by which it is found.
fn entries(known: &HashMap<Ipv6Net, u16>, bits: &[u8], anywhere: u16) -> Entries {
    let mut entries = Entries::new();
    for (network, class) in known {
        let Ok(own) = bits.binary_search(&network.prefix_len()) else {
            continue;
        };
        let (mut from, mut to) = (0, bits.len());
        while from < to {
            let at = (from + to) / 2;
            if at < own {
                let holds = || class_at(known, bits, network, at).unwrap_or(anywhere);
                let cut = cut(network, bits, at);
                entries
                    .entry((at as u8, cut.network()))
                    .or_insert_with(holds);
                from = at + 1;
            } else {
                to = at;
            }
            if at == own {
                entries.insert((own as u8, network.network()), *class);
                break;
            }
        }
    }
    entries
}

/// The class of the longest network around this one that is no longer than the length at `at`.
fn class_at(
    known: &HashMap<Ipv6Net, u16>,
    bits: &[u8],
    network: &Ipv6Net,
    at: usize,
) -> Option<u16> {
    let shorter = (0..=at).rev();
    let mut around = shorter.filter_map(|at| known.get(&cut(network, bits, at)));
    around.next().copied()
}

fn cut(network: &Ipv6Net, bits: &[u8], at: usize) -> Ipv6Net {
    let bits = bits.get(at).copied().unwrap_or(0);
    Ipv6Net::new(network.network(), bits).map_or(*network, |net| net.trunc())
}

/// A table of prefixes.
#[derive(Default)]
struct Filled {
    multiplier: u64,
    buckets: Vec<abi::EdgeBucket>,
    /// The number of entries that the table has no room for.
    left_out: usize,
}

/// Fills a table whose hash has this multiplier.
fn fill(entries: &Entries, multiplier: u64) -> Filled {
    let mut buckets = vec![EMPTY; BUCKETS];
    let mut left_out = 0;
    for ((length, addr), class) in entries {
        let Some(bucket) = buckets.get_mut(bucket_of(multiplier, *length, *addr)) else {
            continue;
        };
        let free = bucket.lengths.iter().position(|at| *at == NO_LENGTH);
        let room = free.and_then(|free| {
            let prefix = bucket.prefixes.get_mut(free)?;
            Some((
                prefix,
                bucket.classes.get_mut(free)?,
                bucket.lengths.get_mut(free)?,
            ))
        });
        match room {
            Some((prefix, its_class, its_length)) => {
                prefix.halves = halves(u128::from(*addr));
                (*its_class, *its_length) = (*class, *length);
            }
            None => {
                bucket.is_full = 1;
                left_out += 1;
            }
        }
    }
    Filled {
        multiplier,
        buckets,
        left_out,
    }
}

/// The bucket of a prefix, as filter.h computes it.
fn bucket_of(multiplier: u64, length: u8, addr: Ipv6Addr) -> usize {
    let [first, rest] = halves(addr.into());
    let rest = (rest ^ u64::from(length)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = first.wrapping_mul(multiplier).wrapping_add(rest);
    (hash >> (u64::BITS - abi::EDGE_BUCKET_BITS)) as usize
}

fn halves(addr: u128) -> [u64; 2] {
    [(addr >> 64) as u64, addr as u64]
}

#[cfg(test)]
#[path = "prefixes_tests.rs"]
mod tests;
