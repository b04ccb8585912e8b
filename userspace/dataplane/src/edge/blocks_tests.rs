//! Blocks answer as the trie does, or say that they leave it to the trie.

use std::net::Ipv4Addr;

use proptest::{collection::btree_map, prelude::*};

use super::*;

/// The class that the program reads from the blocks; None: the trie knows.
fn class_of(root: &[u16], blocks: &Blocks, ip: Ipv4Addr) -> Option<u16> {
    let [a, b, c, d] = ip.octets().map(usize::from);
    let mut cell = root[a << 8 | b];
    for byte in [c, d] {
        if cell & IN_BLOCK != 0 && cell != IN_TRIE {
            cell = blocks.0[usize::from(cell & !IN_BLOCK)][byte];
        }
    }
    (cell != IN_TRIE).then_some(cell)
}

fn networks(all: impl IntoIterator<Item = (Ipv4Net, u32)>) -> Networks {
    let mut classes: Vec<_> = all.into_iter().map(|(n, c)| (IpNet::V4(n), c)).collect();
    classes.sort_unstable();
    Networks { classes, count: 0 }
}

/// Few bytes, so that they meet.
fn address() -> impl Strategy<Value = Ipv4Addr> {
    [0..2_u8, 0..3, 0..3, 0..3].prop_map(|bytes| bytes.map(|byte| byte * 100).into())
}

fn network() -> impl Strategy<Value = Ipv4Net> {
    (address(), 0..=32_u8).prop_map(|(ip, bits)| Ipv4Net::new(ip, bits).unwrap().trunc())
}

proptest! {
    #[test]
    fn blocks_answer_as_the_longest_prefix_does(
        all in btree_map(network(), 1..1000_u32, 0..40),
        ips in proptest::collection::vec(address(), 1..40),
    ) {
        let networks = networks(all);
        let mut blocks = Blocks::default();
        let root = blocks.root(&networks);
        for ip in ips {
            let class = class_of(&root, &blocks, ip);
            prop_assert_eq!(class.map(u32::from), Some(networks.class_of(ip.into())), "{}", ip);
        }
    }
}

#[test]
fn what_finds_no_block_is_left_to_the_trie() {
    let hosts = (0..3000_u32).map(|n| (Ipv4Net::from(Ipv4Addr::from(n << 16 | 0x0507)), n + 1));
    let wide = Ipv4Net::new(Ipv4Addr::new(8, 0, 0, 0), 8).unwrap();
    let networks = networks(hosts.chain([(wide, 5000)]));
    let mut blocks = Blocks::default();
    let root = blocks.root(&networks);
    assert_eq!(blocks.0.len(), abi::EDGE_BLOCKS as usize);
    let mut left = 0;
    for n in 0..3000_u32 {
        for last in [0x0507, 0x0508, 0x0607] {
            let ip = Ipv4Addr::from(n << 16 | last);
            match class_of(&root, &blocks, ip) {
                Some(class) => assert_eq!(u32::from(class), networks.class_of(ip.into()), "{ip}"),
                None => left += 1,
            }
        }
    }
    // Two blocks each: 2,048 hosts have theirs.
    assert_eq!(left, 952 * 3);
    let free = Ipv4Addr::new(99, 1, 2, 3);
    assert_eq!(class_of(&root, &blocks, free), Some(0));
}
