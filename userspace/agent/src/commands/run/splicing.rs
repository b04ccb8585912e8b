//! The splice, from its trial on, and the keeper that goes with it and with the shortcut.

use std::{io, path::Path, sync::Arc, thread, time::Duration};

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

/// The splice, whose calls are heard. The channel tells of the end of that.
pub(super) type HeardSplices = (Splicer, oneshot::Receiver<io::Result<()>>);

/// Hears the splice's calls on a thread of their own: a flow that has called waits, and nothing else may keep its call from
/// it.
///
/// # Errors
/// There is no thread or no descriptor for it.
pub(super) fn hear(
    splices: Result<(Splicer, Calls), String>,
    splicing: Splicing,
) -> io::Result<Result<HeardSplices, String>> {
    if splicing == Splicing::Off {
        return Ok(Err("the file says so".into()));
    }
    let (splicer, calls) = match splices {
        Ok(both) => both,
        Err(reason) => return Ok(Err(reason)),
    };
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (done, ended) = oneshot::channel();
    thread::Builder::new()
        .name("calls".into())
        .spawn(move || drop(done.send(runtime.block_on(calls.run()))))?;
    Ok(Ok((splicer, ended)))
}

/// Tries the splice out, and from then on has flows take it.
pub(super) async fn splice(
    shared: &ProxyContext,
    splices: Result<HeardSplices, String>,
    splicing: Splicing,
    available: PathsAvailable,
    keep: impl FnOnce(&Splicer),
) -> io::Result<()> {
    let (splices, ended) = match splices {
        Ok(both) => both,
        Err(reason) => {
            let _ = shared.splices.set(Err(reason.clone()));
            if splicing != Splicing::Off {
                available.note(&ProbeResult {
                    path: "splice".into(),
                    took: Duration::ZERO,
                    failure: Some(reason),
                });
            }
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
        ended = ended => ended.map_err(io::Error::other)?,
        never = try_out => never,
    }
}
