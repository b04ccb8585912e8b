//! The flows that the keeper itself carries: taken up when their agent is gone, given away when the
//! kernel carries them.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use dataplane::Splicer;
use flow::Flow;
use socket2::SockRef;

use super::{
    process::{Change, Hands, Held, Keeping},
    protocol::{Message, cloned},
    snapshot::FlowSnapshot,
};
use crate::CarriedOn;

impl Keeping {
    /// Goes on with a flow, or closes it.
    pub(super) fn take_up(&mut self, id: u64) {
        let Some(held) = self.flows.remove(&id) else {
            return;
        };
        let Hands::Agents { accepted, dialled } = held.hands else {
            self.flows.insert(id, held);
            return;
        };
        match self.resume(&held.snapshot, accepted, dialled) {
            Ok(flow) => {
                let hands = Hands::Ours(flow);
                self.flows.insert(id, Held { hands, ..held });
            }
            Err(why) => tracing::info!(id, "a flow has ended with its agent: {why:#}"),
        }
    }

    fn resume(
        &mut self,
        snapshot: &FlowSnapshot,
        accepted: OwnedFd,
        dialled: OwnedFd,
    ) -> anyhow::Result<Arc<Flow>> {
        let resumed = self.splices(snapshot.engine).and_then(|splices| {
            let near = snapshot.near();
            let (near_leg, _) = near.sides(&accepted, &dialled);
            Ok(splices.resume(snapshot.id, near, near_leg.as_fd())?)
        });
        let resumed = match resumed {
            Ok(resumed) => resumed,
            Err(why) => {
                for socket in [accepted, dialled] {
                    // Bytes may be lost: both sides have to see that.
                    let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
                }
                return Err(why);
            }
        };
        self.next += 1;
        let flow = Arc::new(snapshot.flow(self.next, &resumed));
        let carried = crate::carry_on(
            flow.clone(),
            self.metrics.clone(),
            resumed,
            accepted,
            dialled,
        );
        let (id, changed) = (snapshot.id, self.changed.clone());
        tokio::spawn(async move {
            let carried = tokio::spawn(carried).await;
            let carried = carried.unwrap_or_else(|panic| Err(io::Error::other(panic)));
            // The receiver is gone when this process ends.
            let _ = changed.send((id, carried)).await;
        });
        Ok(flow)
    }

    fn splices(&mut self, number: u32) -> anyhow::Result<Splicer> {
        let engine = self.engines.get_mut(&number).context("no such engine")?;
        if let Some(splices) = &engine.splices {
            return Ok(splices.clone());
        }
        let (splices, _) = Splicer::adopt(cloned(&engine.descriptors)?)?;
        engine.splices = Some(splices.clone());
        if self.agent.is_none() {
            self.read_calls(number);
        }
        Ok(splices)
    }

    /// Reads the kernel's calls of this engine, because no agent does.
    pub(super) fn read_calls(&mut self, number: u32) {
        let Some(engine) = self.engines.get_mut(&number) else {
            return;
        };
        let Some(splices) = &engine.splices else {
            return;
        };
        match splices.calls() {
            Ok(calls) if engine.reader.is_none() => {
                engine.reader = Some(tokio::spawn(calls.run()).abort_handle());
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "the kernel's calls cannot be read"),
        }
    }

    pub(super) fn change(&mut self, (id, carried): Change) {
        match carried {
            Ok(CarriedOn::Given { accepted, dialled }) => self.give(id, accepted, dialled),
            Ok(CarriedOn::Ended) => drop(self.flows.remove(&id)),
            Err(error) => {
                tracing::error!(%error, "a flow has ended");
                self.flows.remove(&id);
            }
        }
        self.sweep();
    }

    /// Gives a flow that the kernel carries to the agent. If the agent has died, this process takes
    /// the flow up again.
    fn give(&mut self, id: u64, accepted: OwnedFd, dialled: OwnedFd) {
        let Some(held) = self.flows.get_mut(&id) else {
            return;
        };
        let snapshot = held.snapshot.clone();
        let sockets = cloned(&[&accepted, &dialled]);
        held.hands = Hands::Agents { accepted, dialled };
        let told = self.agent.is_some() && self.introduce(snapshot.engine).is_ok();
        match sockets {
            Ok(sockets) if told => self.tell(Message::Keep(Box::new(snapshot)), sockets),
            _ => self.take_up(id),
        }
    }

    /// Tells the agent of an engine before the agent gets a flow of it.
    fn introduce(&mut self, number: u32) -> anyhow::Result<()> {
        let engine = self.engines.get_mut(&number).context("no such engine")?;
        if !engine.told {
            let descriptors = cloned(&engine.descriptors)?;
            engine.told = true;
            self.tell(Message::Engine { engine: number }, descriptors);
        }
        Ok(())
    }
}
