//! Connections to a backend that is found dead.

use std::net::SocketAddr;

use ebpf::abi;

use super::{Edge, EdgeError};
use crate::{address, sys::PodOf};

/// Overwrites, and enters nothing (linux/bpf.h).
const BPF_EXIST: u64 = 2;

impl Edge {
    /// Gives up the forwarded connections to a backend: the next packet of each one's client is answered
    /// with a reset. Returns how many there are. It looks at every entry of the table.
    ///
    /// # Errors
    /// Some may have been given up then.
    pub fn reset(&mut self, backend: SocketAddr) -> Result<usize, EdgeError> {
        let backend = address::to_abi(backend);
        // Where an entry goes while it is looked at the kernel begins again.
        let most = 2 * self.connections as usize;
        let keys: Vec<_> = self.maps.flows.keys().take(most).flatten().collect();
        let mut given_up = 0;
        for key in keys {
            let Ok(PodOf(flow)) = self.maps.flows.get(&key, 0) else {
                continue;
            };
            let is_reply = u32::from(flow.direction) == abi::EDGE_REPLY;
            let goes_there = flow.to.dst == backend.addr && flow.to.dport_be == backend.port_be;
            if is_reply || !goes_there {
                continue;
            }
            let given = abi::EdgeFlow {
                ended: flow.ended | abi::EDGE_ENDED_BY_AGENT as u8,
                ..flow
            };
            // It may have gone.
            given_up += usize::from(self.maps.flows.insert(key, PodOf(given), BPF_EXIST).is_ok());
        }
        if given_up > 0 {
            // What processors remember of them ends.
            self.tables.count_up(&mut self.maps)?;
        }
        Ok(given_up)
    }
}
