//! Connections from other hosts to a database on this one, or to a virtual address.
//!
//! The kernel hands such a connection to the agent after it has accepted it, and only if the
//! database listens or some backend takes new connections. The agent dials the database and carries
//! the flow like any other.

use std::{net::SocketAddr, sync::Arc};

use dataplane::{Arrived, IncomingListener, Refusal};
use flow::{Newcomer, Path};
use policy::{Action, Candidate};
use telemetry::Rarely;
use tokio::time;

use super::{
    admission::ACCEPT_PAUSE,
    close,
    context::ProxyContext,
    entered::Entered,
    workers::{Pair, Workers},
};

/// Lines about connections that are denied, or lose their client's address: whoever connects decides how often that
/// is.
static DENIED: Rarely = Rarely::new();
static ADDRESS_LOST: Rarely = Rarely::new();

/// Accepts connections from other hosts. Runs for ever.
pub(super) async fn accept(
    shared: Arc<ProxyContext>,
    listener: IncomingListener,
    workers: Arc<Workers>,
) {
    loop {
        match listener.accept().await {
            Ok(Some(arrived)) => {
                let (shared, workers) = (shared.clone(), workers.clone());
                tokio::spawn(async move { begin(&shared, arrived, &workers).await });
            }
            Ok(None) => shared.metrics.intake.strangers.inc(),
            Err(error) => {
                shared.admission.accept_failed(&error);
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Begins a flow by the policy in force, which may be another than the kernel's when the client's
/// SYN came.
async fn begin(shared: &Arc<ProxyContext>, arrived: Arrived, workers: &Workers) {
    let Ok(permit) = shared.admission.enter(None) else {
        return close::reset(&arrived.stream);
    };
    let (client, orig_dst) = (arrived.client, arrived.orig_dst);
    let candidate = Candidate::elsewhere(client.socket_addr().ip(), orig_dst.socket_addr());
    let met = shared.policy.borrow().first_match(&candidate);
    if met.action == Action::Deny {
        DENIED.say(|not_said_before| {
            tracing::info!(%client, %orig_dst, rule = %met.rule, not_said_before, "denied while it connected");
        });
        return close::reset(&arrived.stream);
    }
    let entered = Entered::new(shared, &Newcomer::elsewhere(&arrived, &met.rule), permit);
    if met.action != Action::Enrich {
        entered.flow.set_action(&met.rule, Action::Bypass);
        entered.flow.travels(Path::Relay);
    }
    let backend = backend(shared, &arrived, &candidate);
    if let Some(backend) = backend {
        entered.flow.goes_to(backend);
    }
    let dialled = match arrived.dial(backend).await {
        Ok(dialled) => dialled,
        Err(error) => {
            entered.report_failed_dial(backend, &error);
            let answer = [Refusal::Reset.as_str()];
            shared
                .metrics
                .intake
                .dial_failures
                .with_label_values(&answer)
                .inc();
            return close::reset(&arrived.stream);
        }
    };
    if let Some(why) = dialled.not_kept {
        let reason = [why.as_str()];
        let counter = &shared.metrics.intake.client_addresses_lost;
        counter.with_label_values(&reason).inc();
        ADDRESS_LOST.say(|not_said_before| {
            tracing::warn!(
                %client,
                %orig_dst,
                why = why.as_str(),
                not_said_before,
                "the database does not see the client's address"
            );
        });
    }
    workers
        .carry(Pair {
            client: arrived.stream,
            database: dialled.stream,
            entered,
        })
        .await
}

/// Chooses the backend behind a virtual address. None: the address is a database's own, or no
/// backend takes new connections. The kernel asks the same before it hands a connection to the
/// agent.
fn backend(shared: &ProxyContext, arrived: &Arrived, candidate: &Candidate) -> Option<SocketAddr> {
    if !arrived.is_virtual() {
        return None;
    }
    let policy = shared.policy.borrow().clone();
    let rule = policy.balances(candidate)?;
    let ends = (arrived.client.socket_addr(), arrived.orig_dst.socket_addr());
    // A clone, because a table may have to be made, and whoever reports the next change must not
    // wait for that.
    let choice = shared.backends.choice().borrow().clone();
    choice.as_the_edge(rule, ends)
}
