//! A running agent, until somebody says that it is enough, or another agent has taken over.

use std::{
    pin::pin,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use dataplane::{Dataplane, Splicer};
use proxy::{
    ProxyContext,
    keeper::{ADOPTION_LIMIT, ADOPTION_LIMIT_OF_UPGRADES},
};
use tokio::{signal::unix::Signal, sync::mpsc, time};

use super::{
    Serving,
    early::Taken,
    splicing::{keeper, splice},
    stop, stop_because, with,
};
use crate::{
    admin, edge, incoming, marks, namespaces,
    observed::SharedDataplane,
    service_manager, shortcuts,
    upgrade::{self, DrainEnd, Link, Message, Successor},
};

/// A journal's disk, and a collector of spans, are waited for at most this long when the agent ends.
const FINISH: Duration = Duration::from_secs(2);

/// And for its flows to say what was not answered.
const LAST_WORDS: Duration = Duration::from_millis(500);

impl Serving {
    /// Runs until somebody says that it is enough.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (shared, attached) = (self.shared.clone(), self.attached.clone());
        let ready = self.admin.ready.clone();
        let ended = self.until_one_ends().await;
        ready.store(false, Relaxed);
        let ended = match ended {
            Ok(ending) => stop(&attached).map(|()| ending),
            Err(error) => Err(stop_because(error, &attached)),
        };
        shared.services.journals.finish(FINISH);
        shared.services.collectors.finish(FINISH);
        match ended? {
            Ending::Told(signal) => tracing::info!(
                signal,
                "detached: flows that the agent carried are closed, flows that the kernel carries go on"
            ),
            Ending::Drained(why) => {
                tracing::info!(?why, "this agent has ended, another one has taken over")
            }
        }
        Ok(())
    }

    async fn until_one_ends(self) -> anyhow::Result<Ending> {
        let Self {
            signals,
            listeners,
            admin_hosts,
            mut control_socket,
            control_path,
            log,
            admin,
            desk,
            control,
            owner,
            choice,
            containers,
            names,
            wanted_names,
            dial_names,
            pods,
            edge,
            attached,
            available,
            shared,
            taken,
            workers,
            splicing,
            splices,
            offered,
            in_force,
            pins,
            speaks,
            link,
            draining,
            hands: _hands,
            handed,
            ..
        } = self;
        let Taken {
            entrances,
            holds,
            netns_agents,
            serve_requests,
            denials,
            settle,
        } = taken;
        let shared = &shared;
        let metrics = &shared.metrics;
        let (give, adopted) = mpsc::unbounded_channel();
        let limit = match link.is_some() {
            true => ADOPTION_LIMIT_OF_UPGRADES,
            false => ADOPTION_LIMIT,
        };
        let keeper = || keeper(&control_path, limit, &log, shared, &give);
        let keep_spliced = |splices: &Splicer| {
            if let Some(keeper) = keeper() {
                keeper.has(splices);
            }
        };
        let keep_shortcut = |descriptors| {
            if let Some(keeper) = keeper() {
                keeper.keep_shortcut(descriptors);
            }
        };
        let ready = admin.ready.clone();
        let successor = Successor {
            offered,
            dataplane: attached.clone(),
            netns_agents: netns_agents.clone(),
            backends: admin.backends.clone(),
            marks: admin.marks.clone(),
            shared: shared.clone(),
            in_force: in_force.clone(),
            before: draining.subscribe(),
            pins,
            failed: None,
        };
        let named = namespaces::serve_named(
            netns_agents.clone(),
            containers.book(),
            shared.policy.clone(),
            settle.clone(),
            metrics.clone(),
        );
        let callers = namespaces::serve(netns_agents, serve_requests, settle, metrics.clone());
        let splicing = splice(shared, splices, splicing, available.clone(), keep_spliced);
        let hangups = signals.hangups;
        let mut told = (signals.terminate, signals.interrupt);
        // Flows need these.
        let carrying = async {
            tokio::select! {
                ended = proxy::run(shared.clone(), entrances, holds, adopted, handed, workers) => {
                    Err(ended.err().unwrap_or_else(|| anyhow::anyhow!("the proxy ended")))
                }
                ended = splicing => failed(ended, "the kernel's calls"),
                ended = shortcuts::tend(attached.clone(), available.clone(), keep_shortcut) => {
                    Err(ended.err().unwrap_or_else(|| anyhow::anyhow!("tending the shortcut ended")))
                }
                ended = proxy::tell_denials(denials, metrics) => failed(ended, "the kernel's denials"),
            }
        };
        let mut carrying = pin!(carrying);
        let (tended, drains) = (attached.clone(), draining.subscribe());
        // These another agent has, once it has taken over.
        let serving = async move {
            let _speaks = speaks;
            tokio::select! {
                () = admin::serve(listeners, &admin_hosts, admin) => {
                    Err(anyhow::anyhow!("the admin interface ended"))
                }
                ended = marks::serve(&mut control_socket, desk) => failed(ended, "the control socket"),
                () = owner.run() => Err(anyhow::anyhow!("checking backends ended")),
                ended = edge::tend(edge, choice) => failed(ended, "looking after the edge"),
                ended = named => failed(ended, "serving containers"),
                ended = callers => failed(ended, "serving namespaces"),
                never = incoming::tend(tended) => match never {},
                never = service_manager::tend(shared, drains) => match never {},
                () = containers.run(shared.policy.clone(), pods) => {
                    Err(anyhow::anyhow!("asking for containers ended"))
                }
                () = names.run(dial_names, wanted_names) => {
                    Err(anyhow::anyhow!("following names ended"))
                }
                () = control.run(hangups) => Err(anyhow::anyhow!("reloading ended")),
            }
        };
        let taken = {
            let mut serving = pin!(serving);
            tokio::select! {
                signal = told_to_stop(&mut told, shared, &attached, &ready, link.as_deref()) => {
                    return signal.map(Ending::Told);
                }
                ended = &mut carrying => return ended,
                ended = &mut serving => return ended,
                taken = successor.wait(&control_path) => taken,
            }
        };
        tracing::info!(
            pid = taken.pid,
            "another agent has taken over, and this one drains"
        );
        shared.tap.finish();
        if let Err(error) = with(&attached, Dataplane::hand_over) {
            tracing::error!("the kernel does not forget this agent's rules: {error:#}");
        }
        // What is left here is not this host's any more.
        if let Err(why) = shared.services.collectors.push_metrics(None) {
            tracing::warn!("metrics are sent by this agent, too: {why}");
        }
        upgrade::dies_at("gave");
        let longest = in_force.borrow().config.drain;
        let drained = async {
            let told_manager = async {
                service_manager::follows(taken.pid).await;
                std::future::pending::<()>().await;
            };
            let why = tokio::select! {
                () = told_manager => DrainEnd::Told,
                why = upgrade::drain(shared, &taken, longest) => why,
                _ = told.0.recv() => DrainEnd::Told,
                _ = told.1.recv() => DrainEnd::Told,
            };
            end_flows(shared).await;
            Ok(Ending::Drained(why))
        };
        tokio::select! {
            ended = carrying => ended,
            drained = drained => drained,
        }
    }
}

/// How an agent ends, unless something is wrong.
enum Ending {
    /// A signal.
    Told(&'static str),
    /// Another agent has taken over.
    Drained(DrainEnd),
}

/// The error of a task that should have run for ever.
fn failed<T, U>(ended: std::io::Result<T>, task: &str) -> anyhow::Result<U> {
    Err(ended
        .err()
        .map_or_else(|| anyhow::anyhow!("{task} ended"), Into::into))
}

/// Waits for a signal, and ends what has to end before any flow's task is dropped.
async fn told_to_stop(
    (terminate, interrupt): &mut (Signal, Signal),
    shared: &ProxyContext,
    attached: &SharedDataplane,
    ready: &AtomicBool,
    before: Option<&Link>,
) -> anyhow::Result<&'static str> {
    let signal = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    service_manager::stopping();
    if let Some(keeper) = shared.keeper.get() {
        keeper.leave();
    }
    // Whoever is closed now connects again, past the agent.
    ready.store(false, Relaxed);
    let stopped = stop(attached);
    if let Some(before) = before {
        // It has ended, or does.
        let end = (Message::End, Vec::new());
        let _ = time::timeout(LAST_WORDS, before.send(&end)).await;
    }
    end_flows(shared).await;
    stopped.map(|()| signal)
}

/// Ends flows, but for those that the kernel carries.
async fn end_flows(shared: &ProxyContext) {
    if let Some(keeper) = shared.keeper.get() {
        keeper.leave();
    }
    shared.tap.finish();
    let settled = async {
        if let Some(keeper) = shared.keeper.get() {
            keeper.settle().await;
        }
    };
    tokio::join!(proxy::end_all(&shared.flows, LAST_WORDS), settled);
}
