//! Flows that are taken over from the keeper.

use std::{os::fd::AsFd, sync::Arc};

use flow::CloseReason;

use super::{
    close,
    context::ProxyContext,
    entered::{Adoption, Entered},
    keeper::Adopted,
    resume::stream,
    session,
    workers::{Pair, Workers},
};

/// Takes a flow over from the keeper. If that fails the flow is given back, and the keeper goes on
/// with it.
pub(super) async fn adopt(shared: &Arc<ProxyContext>, adopted: Adopted, workers: &Workers) {
    let Adopted {
        snapshot,
        splices,
        accepted,
        dialled,
        kept,
    } = adopted;
    let Ok(permit) = shared.admission.enter(snapshot.process().holder) else {
        return kept.give_back();
    };
    let (client, database) = match (stream(accepted), stream(dialled)) {
        (Ok(client), Ok(database)) => (client, database),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "a kept flow cannot be adopted");
            return kept.give_back();
        }
    };
    let near = snapshot.near();
    let (near_leg, _) = near.sides(&client, &database);
    let resumed = match splices.resume(snapshot.id(), near, near_leg.as_fd()) {
        Ok(resumed) => resumed,
        Err(error) => {
            tracing::warn!(%error, "a kept flow cannot be adopted");
            return kept.give_back();
        }
    };
    shared.metrics.keeper.adopted.inc();
    let flow = shared.flows.adopt(|number| snapshot.flow(number, &resumed));
    tracing::info!(flow = ?flow.id, client = %flow.client, orig_dst = %flow.orig_dst, "adopted");
    // The flow was dialled to a virtual address.
    if let Ok(peer) = database.peer_addr()
        && peer != flow.orig_dst.socket_addr()
    {
        flow.goes_to(peer);
    }
    let denied = session::denied_before(&flow, &shared.policy.borrow());
    let adoption = Adoption { resumed, kept };
    let entered = Entered::adopted(shared, flow, snapshot.client_cookie(), permit, adoption);
    if let Some(mark) = denied {
        tracing::debug!(flow = ?entered.flow.id, %mark, "denied before it was adopted");
        close::flow(&entered.flow, &shared.metrics, CloseReason::Marked);
        close::reset(&client);
        return close::reset(&database);
    }
    workers
        .carry(Pair {
            client,
            database,
            entered,
        })
        .await;
}
