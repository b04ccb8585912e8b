//! Hands a flow that the agent reads to the agent that has taken over.
//!
//! The flow goes when nothing of it is under way: all that was read is written on, and what was asked is answered, so that nothing is
//! in this process but how it is to be read on. Until then no further request is read, for a while.
//!
//! **Invariant**: one process at a time reads a flow's sockets. This one does not while it waits for the other one's answer, and
//! that one not before it has given it (`handed.rs`).

use std::os::fd::AsFd;

use dataplane::{Application, Near};
use flow::{Flow, Handing, Path, Stays};
use telemetry::Rarely;
use tokio::{net::TcpStream, sync::oneshot};

use super::{
    context::ProxyContext,
    keeper::FlowSnapshot,
    read_on::{Handed, HandedFlow, NotTaken, ReadOn},
};

/// Lines about flows that are declined: after a change of rules there may be thousands.
static DECLINED: Rarely = Rarely::new();

/// Returns why a flow would not be handed over, as far as that can be known beforehand.
pub fn would_stay(shared: &ProxyContext, flow: &Flow) -> Option<Stays> {
    let pipeline = shared.pipelines.borrow().edits_of(&flow.rule());
    let mut steps = pipeline.iter().flat_map(|steps| steps.iter());
    if flow.path() == Path::Splice {
        return None;
    }
    if flow.tls().is_some() {
        return Some(Stays::Tls);
    }
    if flow.near() != Near::Client {
        return Some(Stays::Incoming);
    }
    let is_read = flow.path() == Path::Enrich;
    (is_read && steps.any(|step| step.wants_opening())).then_some(Stays::Opening)
}

/// Hands a flow over, of which nothing is under way. Returns whether another agent goes on with it.
pub(super) async fn hand_over(
    shared: &ProxyContext,
    flow: &Flow,
    reading: ReadOn,
    application: Option<&Application>,
    (client, database): (&TcpStream, &TcpStream),
) -> bool {
    // It is asked again where nothing else is said here.
    flow.hand_over(Handing::No);
    let Some(hands) = shared.handing.get() else {
        return false;
    };
    let hands = match hands.try_reserve() {
        Ok(hands) => hands,
        // There is no room now, or nobody is there.
        Err(_) => return false,
    };
    let cookie = match application {
        Some(Application::Client(cookie, _)) => cookie.number(),
        _ => 0,
    };
    let handed = HandedFlow {
        flow: FlowSnapshot::of_carried(flow, cookie),
        reading,
    };
    let Some(handed) = handed.sealed() else {
        flow.stay(Stays::Long);
        return false;
    };
    let cloned = |stream: &TcpStream| stream.as_fd().try_clone_to_owned();
    let (Ok(accepted), Ok(dialled)) = (cloned(client), cloned(database)) else {
        // Descriptors are missing.
        return false;
    };
    let (answer, answered) = oneshot::channel();
    hands.send(Handed {
        flow: handed,
        accepted,
        dialled,
        answer,
    });
    match answered.await {
        Ok(Ok(_)) => true,
        Ok(Err(NotTaken::Declined(why))) => {
            DECLINED.say(|not_said_before| {
                tracing::info!(flow = ?flow.id, why, not_said_before, "the agent that has taken over does not take a flow");
            });
            flow.stay(Stays::Declined);
            false
        }
        Ok(Err(NotTaken::NotNow(why))) => {
            tracing::debug!(flow = ?flow.id, why, "a flow is not taken now");
            false
        }
        Ok(Err(NotTaken::Gone)) => false,
        // This process ends, and that agent may read the flow.
        Err(_) => std::future::pending().await,
    }
}
