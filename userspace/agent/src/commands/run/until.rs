//! A running agent, until somebody says that it is enough, or another agent has taken over.

use std::{
    cell::Cell,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use dataplane::{Dataplane, Splicer};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use proxy::{
    ProxyContext,
    keeper::{ADOPTION_LIMIT, ADOPTION_LIMIT_OF_UPGRADES},
};
use tokio::{
    sync::{mpsc, watch},
    time,
};

use super::{
    Serving,
    early::{Stops, Taken},
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

/// An agent that is told to stop while another one takes over waits this long until that one has, or has failed: for longer
/// than it has until it is ready, and to end. One that hangs behind that is left what it may have taken.
const DECIDED_WITHIN: Duration = Duration::from_secs(70);

impl Serving {
    /// Runs until somebody says that it is enough.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (shared, attached) = (self.shared.clone(), self.attached.clone());
        let ready = self.admin.ready.clone();
        let leads = watch::Sender::new(None);
        let ended = self.until_one_ends(&leads).await;
        ready.store(false, Relaxed);
        let ended = match ended {
            // As if it had been killed: the agent that takes over goes on with what it finds.
            ended if leads.borrow().is_some() => ended,
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

    /// `leads`: the process that is taking over.
    async fn until_one_ends(self, leads: &watch::Sender<Option<u32>>) -> anyhow::Result<Ending> {
        let Self {
            ready: begun,
            signals,
            listeners,
            admin_hosts,
            mut control_socket,
            control_path,
            log,
            admin,
            desk,
            mut control,
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
            has_left,
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
            leads: leads.clone(),
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
        let (hangups, mut stops) = (signals.hangups, signals.stops);
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
        let takes_over = link.is_some();
        let [mut of_policies, mut of_others, mut of_stops] = [(); 3].map(|()| has_left.subscribe());
        // Until the agent before has left edge and sockets, nobody else can take over, and no other policy comes into force; but
        // connections are taken.
        let in_force_here = async move {
            let _ = of_policies.wait_for(|has_left| *has_left).await;
            begun.say();
            if takes_over {
                control.carry_on_alone().await;
            }
            tokio::select! {
                ended = edge::tend(edge, choice) => failed(ended, "looking after the edge"),
                () = control.run(hangups) => Err(anyhow::anyhow!("reloading ended")),
            }
        };
        let succeeded = async {
            let _ = of_others.wait_for(|has_left| *has_left).await;
            successor.wait(&control_path).await
        };
        // These another agent has, once it has taken over.
        let serving = async move {
            let _speaks = speaks;
            tokio::select! {
                () = admin::serve(listeners, &admin_hosts, admin) => {
                    Err(anyhow::anyhow!("the admin interface ended"))
                }
                ended = marks::serve(&mut control_socket, desk) => failed(ended, "the control socket"),
                () = owner.run() => Err(anyhow::anyhow!("checking backends ended")),
                ended = in_force_here => ended,
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
            }
        };
        let taken = {
            let mut serving = pin!(serving);
            let decided = async {
                let decided = decided(&mut stops, leads.subscribe()).await;
                // The agent before either has its hooks, or knows that it has none: it hears of the end as one that has left.
                let has_left = of_stops.wait_for(|has_left| *has_left);
                let _ = time::timeout(DECIDED_WITHIN, has_left).await;
                decided
            };
            tokio::select! {
                // A stop that has waited for the end of a take-over comes before visitors, who ask who goes on.
                biased;
                signal = told_to_stop(decided, shared, &attached, &ready, link.as_deref()) => {
                    return signal.map(Ending::Told);
                }
                ended = &mut carrying => return ended,
                ended = &mut serving => return ended,
                taken = succeeded => taken,
            }
        };
        leads.send_replace(None);
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
        upgrade::reached("gave");
        let longest = in_force.borrow().config.drain;
        let drained = async {
            let is_the_service = Cell::new(service_manager::is_there());
            let told_manager = async {
                service_manager::follows(taken.pid).await;
                is_the_service.set(false);
                std::future::pending::<()>().await;
            };
            let why = tokio::select! {
                () = told_manager => DrainEnd::Told,
                why = upgrade::drain(shared, &taken, longest) => why,
                _ = stops.wait() => {
                    if is_the_service.get() {
                        stop_too(taken.pid);
                    }
                    DrainEnd::Told
                }
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

/// Waits for a signal, and then until it is decided whether an agent that is taking over has connections. Where this one is the service,
/// that one is told to stop, too. Returns the signal, and whether it is decided.
async fn decided(
    stops: &mut Stops,
    mut leads: watch::Receiver<Option<u32>>,
) -> (&'static str, bool) {
    let signal = stops.wait().await;
    let takes_over = *leads.borrow();
    if let Some(pid) = takes_over {
        tracing::info!(
            signal,
            pid,
            "another agent is taking over: this one stops once it has, or has failed"
        );
        if service_manager::is_there() {
            stop_too(pid);
        }
    }
    let decided = leads.wait_for(Option::is_none);
    let is_decided = time::timeout(DECIDED_WITHIN, decided).await.is_ok();
    (signal, is_decided)
}

/// Has another agent stop with this one, which is the service to the service manager.
fn stop_too(pid: u32) {
    // It may have ended.
    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM);
}

/// Waits until this agent is to stop, and ends what has to end before any flow's task is dropped.
async fn told_to_stop(
    decided: impl Future<Output = (&'static str, bool)>,
    shared: &ProxyContext,
    attached: &SharedDataplane,
    ready: &AtomicBool,
    before: Option<&Link>,
) -> anyhow::Result<&'static str> {
    let (signal, is_decided) = decided.await;
    service_manager::stopping();
    if let Some(keeper) = shared.keeper.get() {
        keeper.leave();
    }
    // Whoever is closed now connects again, past the agent.
    ready.store(false, Relaxed);
    let stopped = match is_decided {
        true => stop(attached),
        false => Ok(()),
    };
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
