//! The table of prefixes answers as the trie does, or says that it leaves it to the trie.

use proptest::{collection::btree_map, prelude::*};

use super::*;

/// The class that the program reads from the prefixes; None: the trie knows.
fn class_of(prefixes: &Prefixes, ip: Ipv6Addr) -> Option<u16> {
    let lengths = &prefixes.lengths;
    let (mut from, mut to, mut best) = (0, lengths.count as usize, lengths.class as u16);
    let mut asked = 0;
    while from < to {
        asked += 1;
        let at = (from + to) / 2;
        let [first, rest] = lengths.masks[at].halves.map(u128::from);
        let cut = Ipv6Addr::from(u128::from(ip) & (first << 64 | rest));
        let bucket = &prefixes.buckets[bucket_of(lengths.multiplier, at as u8, cut)];
        let found = (0..IN_BUCKET).find(|n| {
            usize::from(bucket.lengths[*n]) == at
                && bucket.prefixes[*n].halves == halves(cut.into())
        });
        match found {
            Some(n) => (best, from) = (bucket.classes[n], at + 1),
            None if bucket.is_full != 0 => return None,
            None => to = at,
        }
    }
    assert!(asked <= abi::EDGE_HALVINGS, "{asked}");
    Some(best)
}

fn networks(all: impl IntoIterator<Item = (Ipv6Net, u32)>) -> Networks {
    let mut classes: Vec<_> = all.into_iter().map(|(n, c)| (IpNet::V6(n), c)).collect();
    classes.sort_unstable();
    Networks { classes, count: 0 }
}

/// Few values for each byte, so that they meet.
fn address() -> impl Strategy<Value = Ipv6Addr> {
    proptest::array::uniform16(0..2_u8).prop_map(|bytes| bytes.map(|byte| byte * 0x91).into())
}

fn network() -> impl Strategy<Value = Ipv6Net> {
    (address(), 0..=128_u8).prop_map(|(ip, bits)| Ipv6Net::new(ip, bits).unwrap().trunc())
}

proptest! {
    #[test]
    fn prefixes_answer_as_the_longest_one_does(
        all in btree_map(network(), 1..1000_u32, 0..60),
        others in proptest::collection::vec(address(), 1..20),
    ) {
        let inside = all.keys().map(|network| network.broadcast());
        let ips: Vec<_> = inside.chain(all.keys().map(Ipv6Net::network)).chain(others).collect();
        let networks = networks(all);
        let prefixes = Prefixes::of(&networks);
        for ip in ips {
            let class = class_of(&prefixes, ip);
            prop_assert_eq!(class.map(u32::from), Some(networks.class_of(ip.into())), "{}", ip);
        }
    }
}

#[test]
fn every_length_at_once_is_found() {
    let ip: Ipv6Addr = "fd00:9a5c:1234:5678:9abc:def0:1234:5678".parse().unwrap();
    let all = (0..=128_u8).map(|bits| (Ipv6Net::new(ip, bits).unwrap().trunc(), bits.into()));
    let networks = networks(all);
    let prefixes = Prefixes::of(&networks);
    for other in 0..128 {
        // It has so many bits in common.
        let other = Ipv6Addr::from(u128::from(ip) ^ 1 << (127 - other));
        let class = class_of(&prefixes, other).map(u32::from);
        assert_eq!(class, Some(networks.class_of(other.into())), "{other}");
    }
    assert_eq!(class_of(&prefixes, ip), Some(128));
}

#[test]
fn what_has_no_room_is_left_to_the_trie() {
    let host = |n: u32| Ipv6Addr::from((0xfd_u128 << 120) | u128::from(n) << 64);
    let of = |hosts: u32| networks((0..hosts).map(|n| (Ipv6Net::new(host(n), 64).unwrap(), n + 1)));
    // More than there are entries: some of them, and of those that are none, meet a full bucket.
    let too_many = (BUCKETS * IN_BUCKET) as u32 + 1_000;
    for (hosts, most) in [(1_000, 0), (too_many, 2 * too_many)] {
        let networks = of(hosts);
        let prefixes = Prefixes::of(&networks);
        let mut left = 0;
        for n in 0..2 * hosts {
            let own = if n < hosts { n + 1 } else { 0 };
            match class_of(&prefixes, host(n)) {
                Some(class) => assert_eq!(u32::from(class), own),
                None => left += 1,
            }
        }
        assert!(left <= most, "{left} of {hosts}");
        assert!(left > 0 || most == 0);
    }
}
