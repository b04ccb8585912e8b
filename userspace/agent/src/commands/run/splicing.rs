//! The splice, from its trial on, and the keeper that goes with it and with the shortcut.

use std::{path::Path, sync::Arc, thread, time::Duration};

use dataplane::{Calls, ProbeResult, Splicer};
use policy::Policy;
use proxy::{
    ProxyContext,
    keeper::{Adopted, Keeper},
    paths::{self, PathsAvailable, Splicing},
};
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
};

use crate::log::Log;

/// Returns the keeper, which outlives the agent with the flows that the kernel carries. Starts it, if it is not yet, once
/// those of an agent before have been asked for `limit`. None, which is logged, where no thread can be started for it.
pub(super) fn keeper<'a>(
    control: &Path,
    limit: Duration,
    log: &Log,
    shared: &'a ProxyContext,
    give: &mpsc::UnboundedSender<Adopted>,
) -> Option<&'a Keeper> {
    if shared.keeper.get().is_none() {
        match Keeper::start(
            control,
            limit,
            log.format().as_str(),
            &shared.metrics,
            give.clone(),
        ) {
            Ok(keeper) => drop(shared.keeper.set(keeper)),
            Err(error) => {
                tracing::warn!(%error, "cannot start the keeper: spliced flows will end with this agent");
            }
        }
    }
    shared.keeper.get()
}

/// Tries the splice out, and from then on has flows take it.
pub(super) async fn splice(
    shared: &ProxyContext,
    splices: Result<(Splicer, Calls), String>,
    splicing: Splicing,
    available: PathsAvailable,
    keep: impl FnOnce(&Splicer),
) -> std::io::Result<()> {
    if splicing == Splicing::Off {
        let _ = shared.splices.set(Err("the file says so".into()));
        return std::future::pending().await;
    }
    let (splices, calls) = match splices {
        Ok(both) => both,
        Err(reason) => {
            let _ = shared.splices.set(Err(reason.clone()));
            available.note(&ProbeResult {
                path: "splice".into(),
                took: Duration::ZERO,
                failure: Some(reason),
            });
            return std::future::pending().await;
        }
    };
    let try_out = async {
        // Until then no flow may be spliced, and nothing needs trying out.
        let mut policy = shared.policy.clone();
        let opts_in = |policy: &Arc<Policy>| policy.opts_in();
        if policy.wait_for(opts_in).await.is_err() {
            return std::future::pending().await;
        }
        let (mut working, mut failures) = (Vec::new(), Vec::new());
        for down in splicing.engines() {
            let tried = paths::try_engine(&splices, down).await;
            available.note(&tried);
            match tried.failure {
                None => working.push(down),
                Some(reason) => failures.push(reason),
            }
        }
        let outcome = match working.as_slice() {
            [] => Err(failures.join("; ")),
            some => {
                let splices = splices.by(some);
                keep(&splices);
                Ok(splices)
            }
        };
        drop(shared.splices.set(outcome));
        // Flows over which nothing goes may wait for that.
        for flow in shared.flows.all() {
            flow.commands.wake();
        }
        std::future::pending().await
    };
    tokio::select! {
        ended = on_its_own_thread(calls) => ended,
        never = try_out => never,
    }
}

/// A flow that has called waits: nothing else may keep its call from it.
async fn on_its_own_thread(calls: Calls) -> std::io::Result<()> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (done, ended) = oneshot::channel();
    thread::Builder::new()
        .name("calls".into())
        .spawn(move || drop(done.send(runtime.block_on(calls.run()))))?;
    ended.await.map_err(std::io::Error::other)?
}
