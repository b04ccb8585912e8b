//! The ring that drivers are told of: nodes of one token each, at equal distances.

use std::net::SocketAddr;

/// The nodes of a cluster.
#[derive(Debug)]
pub(super) struct Ring {
    nodes: Vec<RingNode>,
    own: usize,
}

/// A node of the ring, and the last token (Murmur3) of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingNode {
    pub(super) addr: SocketAddr,
    pub(super) token: i64,
}

impl Ring {
    /// With `own` among `nodes`; one that is not is alone.
    pub(super) fn new(own: SocketAddr, nodes: Vec<SocketAddr>) -> Self {
        let (own, nodes) = match nodes.iter().position(|node| *node == own) {
            Some(at) => (at, nodes),
            None => (0, vec![own]),
        };
        let share = u64::MAX / nodes.len() as u64;
        let token = |n: usize| (share * n as u64).cast_signed();
        let nodes = nodes.into_iter().enumerate();
        Self {
            nodes: nodes
                .map(|(n, addr)| RingNode {
                    addr,
                    token: token(n),
                })
                .collect(),
            own,
        }
    }

    pub(super) fn own_token(&self) -> i64 {
        self.nodes.get(self.own).map_or(0, |node| node.token)
    }

    /// All but itself.
    pub(super) fn peers(&self) -> impl Iterator<Item = RingNode> {
        let others = self.nodes.iter().enumerate();
        others
            .filter(|(n, _)| *n != self.own)
            .map(|(_, node)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_distinct_and_evenly_apart() {
        let all: Vec<SocketAddr> = (1..=3).map(|n| ([127, 0, 0, n], 9042).into()).collect();
        let tokens: Vec<i64> = all
            .iter()
            .map(|own| Ring::new(*own, all.clone()).own_token())
            .collect();
        assert_eq!(
            tokens,
            [0, 6_148_914_691_236_517_205, -6_148_914_691_236_517_206]
        );
        let ring = Ring::new(all[1], all.clone());
        assert_eq!(
            ring.peers().map(|n| n.addr).collect::<Vec<_>>(),
            [all[0], all[2]]
        );
        assert_eq!(Ring::new(all[1], vec![all[0]]).peers().count(), 0);
    }
}
