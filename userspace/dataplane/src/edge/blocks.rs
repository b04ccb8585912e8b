//! Classes of IPv4 networks as the program finds them without a walk: a cell for each value of an
//! address's first two bytes, and blocks of 256 cells where longer prefixes tell more apart. Where
//! no block is left, the cell says that the trie knows.

use ebpf::abi;
use ipnet::{IpNet, Ipv4Net};

use super::classes::Networks;

const IN_BLOCK: u16 = abi::EDGE_IN_BLOCK as u16;
const IN_TRIE: u16 = abi::EDGE_IN_TRIE as u16;
const ROOT_BITS: u8 = 16;
const BLOCK_BITS: u8 = 8;

type Block = [u16; abi::EDGE_BLOCK as usize];

/// The blocks of one generation.
#[derive(Default)]
pub(super) struct Blocks(pub Vec<Block>);

impl Blocks {
    /// The cells by the first two bytes; what they do not know is in blocks.
    pub(super) fn root(&mut self, networks: &Networks) -> Vec<u16> {
        let mut root = vec![0; abi::EDGE_ROOT as usize];
        // Networks are in order: each comes behind those that it is in, and those have its cells.
        for (network, class) in &networks.classes {
            if let IpNet::V4(network) = network {
                self.write(&mut root, network, *class as u16);
            }
        }
        root
    }

    fn write(&mut self, root: &mut [u16], network: &Ipv4Net, class: u16) {
        let (bits, bytes) = (network.prefix_len(), network.network().octets());
        let [a, b, c, d] = bytes.map(usize::from);
        let first = a << BLOCK_BITS | b;
        if bits <= ROOT_BITS {
            let cells = root.iter_mut().skip(first);
            cells
                .take(1 << (ROOT_BITS - bits))
                .for_each(|cell| *cell = class);
            return;
        }
        let Some(block) = root.get_mut(first).and_then(|cell| self.behind(cell)) else {
            return;
        };
        match (ROOT_BITS + BLOCK_BITS).checked_sub(bits) {
            Some(free) => self.fill(block, c, free, class),
            None => {
                if let Some(inner) = self.inner(block, c) {
                    self.fill(inner, d, 32 - bits, class);
                }
            }
        }
    }

    /// The cells of a block that have all but `free` bits in common with this one.
    fn fill(&mut self, block: usize, first: usize, free: u8, class: u16) {
        let cells = self.0.get_mut(block).into_iter().flatten();
        cells
            .skip(first)
            .take(1 << free)
            .for_each(|cell| *cell = class);
    }

    /// The block behind a cell of one.
    fn inner(&mut self, block: usize, at: usize) -> Option<usize> {
        let mut cell = *self.0.get(block)?.get(at)?;
        let inner = self.behind(&mut cell);
        *self.0.get_mut(block)?.get_mut(at)? = cell;
        inner
    }

    /// The block behind a cell, made if there was none. None: the trie
    /// knows.
    fn behind(&mut self, cell: &mut u16) -> Option<usize> {
        if *cell == IN_TRIE {
            return None;
        }
        if *cell & IN_BLOCK != 0 {
            return Some(usize::from(*cell & !IN_BLOCK));
        }
        let number = self.0.len();
        if number == abi::EDGE_BLOCKS as usize {
            *cell = IN_TRIE;
            return None;
        }
        self.0.push([*cell; abi::EDGE_BLOCK as usize]);
        *cell = IN_BLOCK | number as u16;
        Some(number)
    }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
