//! Takes a flow over that the agent before this one has read (`hand_over.rs`).

use std::{io, os::fd::OwnedFd, sync::Arc};

use cql::NoPosition;
use dataplane::Application;
use flow::CloseReason;
use tokio::sync::oneshot;

use super::{
    admission::NotAdmitted,
    close,
    context::ProxyContext,
    entered::Entered,
    keeper::FlowSnapshot,
    read_on::{Handed, HandedFlow, NotTaken, SealedFlow},
    resume::stream,
    session,
    workers::{Pair, Workers},
};

/// Takes a flow over, and says so. Its bytes move once that is sent to the other agent.
pub(super) fn take(shared: &Arc<ProxyContext>, handed: Handed, workers: Arc<Workers>) {
    let Handed {
        flow,
        accepted,
        dialled,
        answer,
    } = handed;
    match entered(shared, &flow, accepted, dialled) {
        Ok(pair) => {
            let (go, goes) = oneshot::channel();
            // One that is not asked any more leaves the flow as it was.
            if answer.send(Ok(go)).is_err() {
                return;
            }
            tokio::spawn(async move {
                if goes.await.is_ok() {
                    begin(pair, &workers).await;
                }
            });
        }
        Err(why) => drop(answer.send(Err(why))),
    }
}

fn entered(
    shared: &Arc<ProxyContext>,
    flow: &SealedFlow,
    accepted: OwnedFd,
    dialled: OwnedFd,
) -> Result<Pair, NotTaken> {
    let HandedFlow {
        flow: snapshot,
        reading,
    } = flow.open().map_err(NotTaken::Declined)?;
    if reading.is_edited() {
        goes_on_there(shared, &snapshot).map_err(NotTaken::Declined)?;
    }
    if reading.is_decoded() {
        let positions = reading.positions();
        let lost = |why: NoPosition| format!("it cannot be read on: {}", why.as_str());
        positions.map_err(|why| NotTaken::Declined(lost(why)))?;
    }
    let permit = shared.admission.enter(snapshot.process().holder);
    let permit = permit.map_err(|why| {
        let why = match why {
            NotAdmitted::Full => "it is full",
            NotAdmitted::OverQuota(_) => "its user or cgroup has as many flows as it may",
        };
        NotTaken::NotNow(why.to_owned())
    })?;
    let failed = |error: io::Error| NotTaken::NotNow(error.to_string());
    let client = stream(accepted).map_err(failed)?;
    let database = stream(dialled).map_err(failed)?;
    let flow = shared.flows.adopt(|number| snapshot.carried(number));
    flow.opt_in(shared.policy.borrow().shortcut_of(&flow.rule()));
    // The flow was dialled to a virtual address.
    if let Ok(peer) = database.peer_addr()
        && peer != flow.orig_dst.socket_addr()
    {
        flow.goes_to(peer);
    }
    let is_here = flow.netns.is_none() && !flow.process.is_elsewhere();
    let cookie = snapshot.client_cookie();
    let application = is_here.then(|| Application::Client(cookie, None));
    Ok(Pair {
        client,
        database,
        entered: Entered::handed(shared, flow, application, permit, reading),
    })
}

/// Whether the pipeline of the flow's rule can go on with a flow that has begun elsewhere.
fn goes_on_there(shared: &ProxyContext, snapshot: &FlowSnapshot) -> Result<(), String> {
    let rule = snapshot.rule();
    let Some(pipeline) = shared.pipelines.borrow().edits_of(&rule) else {
        return Err(format!(
            "here rule {rule} has no steps that change requests"
        ));
    };
    match pipeline.iter().find(|step| step.wants_opening()) {
        None => Ok(()),
        Some(step) => Err(format!(
            "here rule {rule} has the step {}, which has to know how flows have logged in",
            step.name()
        )),
    }
}

async fn begin(pair: Pair, workers: &Workers) {
    let Entered { shared, flow, .. } = &pair.entered;
    let denied = session::denied_before(flow, &shared.policy.borrow());
    if let Some(mark) = denied {
        tracing::debug!(flow = ?flow.id, %mark, "denied before it was handed over");
        close::flow(flow, &shared.metrics, CloseReason::Marked);
        close::reset(&pair.client);
        return close::reset(&pair.database);
    }
    tracing::debug!(flow = ?flow.id, client = %flow.client, orig_dst = %flow.orig_dst, "taken over");
    shared.metrics.upgrade.taken.inc();
    workers.carry(pair).await;
}
