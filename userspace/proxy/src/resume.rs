//! Flows that another process has begun, carried on from where the kernel has them.

use std::{io, os::fd::OwnedFd, sync::Arc};

use dataplane::{Application, Resumed};
use flow::Flow;
use telemetry::Metrics;
use tokio::net::TcpStream;

use super::{
    close::{self, FlowEnd},
    context::ProxyContext,
    entered::{Adoption, Entered},
    relay::{self, Relay},
    splice::{Counters, KernelCarry, SpliceSource},
};
use crate::keeper::Kept;

/// The outcome of carrying a flow on.
pub enum CarriedOn {
    /// The flow has ended.
    Ended,
    /// The flow was to be given away, and the kernel carries it: the process that has its sockets
    /// can resume it.
    Given {
        /// The agent's end of the client's connection.
        accepted: OwnedFd,
        /// The agent's end of the database's connection.
        dialled: OwnedFd,
    },
}

/// Carries a flow without an agent, in the keeper.
pub(crate) async fn carry_on(
    flow: Arc<Flow>,
    metrics: Metrics,
    resumed: Resumed,
    accepted: OwnedFd,
    dialled: OwnedFd,
) -> io::Result<CarriedOn> {
    let (near, far) = flow.near().sides(stream(accepted)?, stream(dialled)?);
    let how = Onward {
        resumed,
        kept: None,
        application: None,
        shared: None,
    };
    match to_the_end(&flow, &metrics, how, &near, far).await {
        FlowEnd::GivenAway { far } => {
            let (client, database) = flow.near().sides(near, far);
            Ok(CarriedOn::Given {
                accepted: client.into_std()?.into(),
                dialled: database.into_std()?.into(),
            })
        }
        FlowEnd::Closed { reason, far } => {
            flow.commands.close();
            close::flow(&flow, &metrics, reason);
            close::sides(flow.near(), reason, near, far).await;
            Ok(CarriedOn::Ended)
        }
    }
}

/// Carries a flow that the agent has adopted.
pub(super) async fn carry(
    client: TcpStream,
    database: TcpStream,
    entered: Box<Entered>,
    Adoption { resumed, kept }: Adoption,
) {
    let (shared, flow) = (&entered.shared, &entered.flow);
    let metrics = &shared.metrics;
    let how = Onward {
        resumed,
        kept: Some(kept),
        application: entered.application.clone(),
        shared: Some(shared.clone()),
    };
    let (near, far) = flow.near().sides(client, database);
    let FlowEnd::Closed { reason, far } = to_the_end(flow, metrics, how, &near, far).await else {
        return; // Only the keeper gives flows away.
    };
    close::flow(flow, metrics, reason);
    close::sides(flow.near(), reason, near, far).await;
}

/// A flow that another process has begun, and what an agent has of it.
struct Onward {
    resumed: Resumed,
    kept: Option<Kept>,
    application: Option<Application>,
    shared: Option<Arc<ProxyContext>>,
}

async fn to_the_end(
    flow: &Arc<Flow>,
    metrics: &Metrics,
    how: Onward,
    near: &TcpStream,
    far: TcpStream,
) -> FlowEnd {
    let Onward {
        resumed,
        kept,
        application,
        shared,
    } = how;
    let mut relay = Relay::new(None, flow, metrics);
    let counters = match &shared {
        Some(shared) => Counters::Shared(shared.clone()),
        None => Counters::Own(Box::new(metrics.clone())),
    };
    let mut ride = KernelCarry::new(SpliceSource::Closed, application, flow, counters);
    if let Err(reason) = ride.resume(&mut relay, resumed, kept, shared, &far) {
        return FlowEnd::closed(reason, far);
    }
    let ended = relay::to_the_end(&mut relay, &mut ride, near, far).await;
    ride.count(&relay);
    relay.finish();
    ended
}

pub(super) fn stream(socket: OwnedFd) -> io::Result<TcpStream> {
    let socket = std::net::TcpStream::from(socket);
    // The socket is non-blocking already, unless another process has it, too.
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket)
}
