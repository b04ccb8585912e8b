//! Connections that the kernel's hooks refused, as `denial.h` tells of them.

use std::{io, net::SocketAddr};

use aya::maps::{MapData, RingBuf};
use ebpf::abi;
use policy::RuleName;
use tokio::io::unix::AsyncFd;

use crate::{
    address,
    counters::Cause,
    holds::{self, Process},
    rule_names::{self, Names},
    sys,
};

/// A connection that was refused before it came to the agent.
#[derive(Clone, Debug)]
pub struct KernelDenial {
    /// The client's process. None: the client is on another host.
    pub process: Option<Process>,
    /// The client's address, if it is on another host.
    pub client: Option<SocketAddr>,
    /// The address that the client dialled.
    pub to: SocketAddr,
    /// The rule that it met.
    pub rule: RuleName,
    /// Why the agent could not serve it, so that the rule's `fail` refused it. None: the rule denies.
    pub cause: Option<Cause>,
    /// Further denials since the last that was told. All are counted.
    pub untold: u32,
}

/// The stream of denials by the kernel's hooks: at most ten a second from each processor.
pub struct KernelDenials {
    ring: AsyncFd<RingBuf<MapData>>,
    names: Names,
}

impl KernelDenials {
    pub(crate) fn new(ring: RingBuf<MapData>, names: Names) -> io::Result<Self> {
        Ok(Self {
            ring: sys::watch(ring)?,
            names,
        })
    }

    /// Waits for the next one.
    ///
    /// # Errors
    /// The ring cannot be waited for: there is no way on.
    pub async fn next(&mut self) -> io::Result<KernelDenial> {
        loop {
            let mut ready = self.ring.readable_mut().await?;
            let record = ready.get_inner_mut().next();
            let Some(denial) = record.map(|bytes| sys::bytes::read::<abi::Denial>(&bytes)) else {
                ready.clear_ready();
                continue;
            };
            if let Some(denial) = denial {
                return Ok(self.read(&denial));
            }
        }
    }

    fn read(&self, denial: &abi::Denial) -> KernelDenial {
        let is_elsewhere = denial.client.family != 0;
        let cause = Cause::ALL.get(usize::from(denial.cause));
        KernelDenial {
            process: (!is_elsewhere).then(|| holds::process_of(&denial.opener, None)),
            client: is_elsewhere.then(|| address::from_abi(&denial.client)),
            to: address::from_abi(&denial.opener.orig_dst),
            rule: rule_names::name_of(denial.generation, denial.slot, &self.names),
            cause: cause.copied(),
            untold: denial.untold,
        }
    }
}
