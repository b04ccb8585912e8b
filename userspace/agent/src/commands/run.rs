//! `underpass run`.
//!
//! - `begin`: the policy with which the agent begins.
//! - `early`: what is made and attached before the tasks run.
//! - `limits`: what the host allows of what the file asks for.
//! - `splicing`: the splice's trial, and the keeper.

mod begin;
mod early;
mod limits;
mod splicing;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use dataplane::{Dataplane, IncomingListener, Splicer};
use flow::Flows;
use policy::{Policy, Timestamp};
use policy_source::{Fragments, Pods, Verdict};
use proxy::{
    self, Admission, Choice, ProxyContext, QuotaLimits, Unsettled,
    paths::{PathsAvailable, Splicing},
    tap::TapThread,
};
use steps::pipelines::Pipelines;
use tls::TlsRules;
use tokio::{
    runtime,
    signal::unix::Signal,
    sync::{mpsc, watch},
};

use self::{
    begin::{Beginning, begin},
    early::{Attachment, Doors, Early, Signals, Taken, attach},
    limits::allow_flows,
    splicing::{keeper, splice},
};
use crate::{
    admin::{self, Admin},
    backends::{self, Backends, HealthCheck},
    config::{Config, InForce},
    confine,
    containers::Watch,
    control::{Control, Heard, Told, wanted_names},
    edge::{self, SharedEdge},
    fleet, incoming,
    log::{Log, LogFormat},
    marks::{self, Desk},
    namespaces::{self, NamespacesGauge},
    observed::{self, SharedDataplane},
    overhead::OverheadMetrics,
    service_manager, shortcuts,
    socket_file::SocketFile,
};

/// A journal's disk, and a collector of spans, are waited for at most this long when the agent ends.
const FINISH: Duration = Duration::from_secs(2);

/// And for its flows to say what was not answered.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs the agent until it is told to stop. `format` comes before that of the file. `dry`: rules only count.
///
/// # Errors
/// It cannot start; nothing is attached then.
pub fn run(file: &Path, format: Option<LogFormat>, dry: bool) -> anyhow::Result<ExitCode> {
    let Beginning {
        sources,
        mut config,
        cached,
        why_not,
    } = begin(file, dry)?;
    config.log_format = format.unwrap_or(config.log_format);
    let log = Log::begin(config.log_format, &config.log_level);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(why) = why_not {
        tracing::error!("the fleet's last policy cannot be used until it is read anew: {why}");
    }
    if dry {
        tracing::warn!("dry run: rules match and count, and nothing is done");
    }
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "attaching BPF programs needs root: run as root; `underpass doctor` shows what is missing"
        );
    }
    // Before there is a second thread.
    confine::cut_capabilities().context("cannot give up capabilities")?;
    let max_flows = allow_flows(config.max_flows, config.max_namespaces)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let in_force = InForce::of(sources, config);
    runtime.block_on(serve(file, in_force, cached, log, max_flows))?;
    Ok(ExitCode::SUCCESS)
}

/// Serves. `max_flows`: as many as this host allows of those that the file wants.
async fn serve(
    file: &Path,
    in_force: InForce,
    cached: Arc<Fragments>,
    log: Log,
    max_flows: usize,
) -> anyhow::Result<()> {
    let doors = Doors::open(&in_force.config).await?;
    let mut config = in_force.config.clone();
    config.policy = config.policy.open_at(Timestamp::now());
    let names = wanted_names(&in_force.config);
    let mut early = Early::make(&mut config, max_flows, &names).await?;
    let attached = attach(&config, &mut early)?;
    Serving::assemble(
        file,
        config,
        (in_force, cached),
        log,
        doors,
        early,
        attached,
    )?
    .run()
    .await
}

/// The tasks of a running agent, before they run.
struct Serving {
    signals: Signals,
    listeners: admin::Listeners,
    admin_hosts: Vec<String>,
    control_socket: SocketFile,
    control_path: PathBuf,
    log: Log,
    admin: Admin,
    desk: Desk,
    control: Control,
    owner: backends::Owner,
    choice: watch::Receiver<Choice>,
    containers: Watch,
    names: names::Follower,
    wanted_names: watch::Receiver<Arc<names::Wanted>>,
    dial_names: names::Dial,
    pods: watch::Receiver<Arc<Pods>>,
    edge: SharedEdge,
    attached: SharedDataplane,
    available: PathsAvailable,
    shared: Arc<ProxyContext>,
    taken: Taken,
    workers: proxy::WorkerOptions,
    splicing: Splicing,
}

impl Serving {
    fn assemble(
        file: &Path,
        config: Config,
        (in_force, cached): (InForce, Arc<Fragments>),
        log: Log,
        doors: Doors,
        early: Early,
        attachment: Attachment,
    ) -> anyhow::Result<Self> {
        let file_policy = in_force.config.policy.clone();
        let fleet = fleet::Channels::default();
        let verdicts = fleet.verdicts.clone();
        let (told, heard_by_flows) = tell(
            &config,
            in_force,
            early.tls,
            (attachment.give_listener, verdicts),
        );
        if let Some(source) = &config.source {
            let dial = fleet::dial_by(attachment.probes.0);
            let metrics = early.fleet_metrics.clone();
            fleet::start(source, &config.host, dial, &fleet, metrics)?;
        }
        if let Some(store) = &config.limits {
            let dial = fleet::dial_by(attachment.probes.0);
            let pipelines = heard_by_flows.pipelines.clone();
            let metrics = early.sharing_metrics.clone();
            fleet::sharing::start(store, &config.host, dial, pipelines, metrics)?;
        }
        let dial_names = fleet::dial_by(attachment.probes.0);
        let (backends, asked_of_backends, tell_choice) = Backends::new();
        let choice = backends.choice();
        let shared = Arc::new(ProxyContext {
            answers: attachment.answers,
            remembered: attachment.remembered,
            splices: OnceLock::new(),
            legs: attachment.legs,
            keeper: OnceLock::new(),
            flows: Flows::default(),
            metrics: early.metrics,
            admission: Arc::new(Admission::new(
                early.max_flows,
                QuotaLimits::new(early.max_flows, config.user_share, config.cgroup_share),
                early.attached.clone(),
            )),
            unsettled: Unsettled::new(config.handshake_timeout),
            policy: heard_by_flows.policy,
            pipelines: heard_by_flows.pipelines,
            tls: heard_by_flows.tls,
            pipeline_metrics: early.pipeline_metrics,
            services: early.services,
            tap: TapThread::new(early.tap_metrics, config.tap_cpu),
            backends: proxy::Backends::new(backends.choice(), {
                let backends = backends.clone();
                move |backend, why| backends.suspect(backend, why)
            }),
        });
        start_tap(&shared, &early.attached, config.adopt)?;
        let owner = backends::Owner::new(
            attachment.probes,
            shared.clone(),
            (early.attached.clone(), early.edge.clone()),
            early.backend_metrics,
            heard_by_flows.health,
            (asked_of_backends, tell_choice),
        );
        let taken = attachment.taken;
        let gauge = NamespacesGauge::new(Some(taken.netns_agents.clone()))?;
        early.registry.register(Box::new(gauge))?;
        let overhead = OverheadMetrics::new(early.attached.clone(), shared.policy.clone())?;
        early.registry.register(Box::new(overhead))?;
        let (desk, asked) = Desk::new(
            shared.clone(),
            backends.clone(),
            early.attached.clone(),
            log.clone(),
        );
        let admin = Admin {
            registry: early.registry,
            shared: shared.clone(),
            backends,
            dataplane: early.attached.clone(),
            netns_agents: taken.netns_agents.clone(),
            refused: early.refused,
            ready: Arc::new(AtomicBool::new(true)),
            containers: early.containers.book(),
            names: early.names.book(),
            tail_values: config.tail_values,
            live: Arc::default(),
            in_force: heard_by_flows.in_force,
            marks: desk.reader(),
        };
        let shown = doors.admin.shown();
        let (cgroup, rules) = (early.options.cgroup, file_policy.rules.len());
        let (workers, busy_poll, splicing) = (config.workers, config.busy_poll, config.splice);
        let (control_path, admin_hosts) = (config.control.clone(), config.admin_hosts.clone());
        let heard = Heard {
            log: log.clone(),
            asked,
            containers: early.containers.book(),
            names: early.names.book(),
            name_metrics: early.name_metrics,
            container_metrics: early.container_metrics,
            offers: fleet.offers.subscribe(),
            cached,
            fleet_metrics: early.fleet_metrics,
        };
        let dataplane = early.attached.clone();
        let config = Config {
            policy: file_policy,
            ..config
        };
        // Looks at the file before anybody is told that changes to it are seen.
        let control = Control::new(
            file.to_owned(),
            config,
            dataplane,
            early.edge_control,
            shared.clone(),
            told,
            heard,
        );
        let rings = proxy::SendRings::make(workers, shared.metrics.sends.clone());
        if let Err(error) = confine::filter_calls() {
            tracing::warn!("system calls are not filtered: {error:#}");
        }
        tracing::info!(cgroup = %cgroup.display(), admin = %shown, rules, workers, "ready");
        service_manager::ready();
        Ok(Self {
            signals: doors.signals,
            listeners: doors.admin,
            admin_hosts,
            control_socket: doors.control,
            control_path,
            log,
            admin,
            desk,
            control,
            owner,
            choice,
            containers: early.containers,
            names: early.names,
            wanted_names: heard_by_flows.names,
            dial_names,
            pods: fleet.pods.subscribe(),
            edge: early.edge,
            attached: early.attached,
            available: early.available,
            shared,
            taken,
            workers: proxy::WorkerOptions { rings, busy_poll },
            splicing,
        })
    }

    /// Runs until somebody says that it is enough.
    async fn run(self) -> anyhow::Result<()> {
        let (shared, attached) = (self.shared.clone(), self.attached.clone());
        let ready = self.admin.ready.clone();
        let ended = self.until_one_ends().await;
        ready.store(false, Relaxed);
        stop(&attached)?;
        shared.services.journals.finish(FINISH);
        shared.services.collectors.finish(FINISH);
        let signal = ended?;
        tracing::info!(
            signal,
            "detached: flows that the agent carried are closed, flows that the kernel carries go on"
        );
        Ok(())
    }

    async fn until_one_ends(mut self) -> anyhow::Result<&'static str> {
        let Taken {
            entrances,
            holds,
            netns_agents,
            serve_requests,
            denials,
            splices,
            settle,
        } = self.taken;
        let shared = &self.shared;
        let metrics = &shared.metrics;
        let (give, adopted) = mpsc::unbounded_channel();
        let keeper = || keeper(&self.control_path, &self.log, shared, &give);
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
        let ready = self.admin.ready.clone();
        let named = namespaces::serve_named(
            netns_agents.clone(),
            self.containers.book(),
            shared.policy.clone(),
            settle.clone(),
            metrics.clone(),
        );
        let callers = namespaces::serve(netns_agents, serve_requests, settle, metrics.clone());
        let splicing = splice(
            shared,
            splices,
            self.splicing,
            self.available.clone(),
            keep_spliced,
        );
        let hangups = self.signals.hangups;
        let mut told = (self.signals.terminate, self.signals.interrupt);
        tokio::select! {
            signal = told_to_stop(&mut told, shared, &self.attached, &ready) => signal,
            ended = proxy::run(shared.clone(), entrances, holds, adopted, self.workers) => {
                Err(ended.err().unwrap_or_else(|| anyhow::anyhow!("the proxy ended")))
            }
            () = admin::serve(self.listeners, &self.admin_hosts, self.admin) => {
                Err(anyhow::anyhow!("the admin interface ended"))
            }
            ended = marks::serve(&mut self.control_socket, self.desk) => failed(ended, "the control socket"),
            ended = splicing => failed(ended, "the kernel's calls"),
            ended = shortcuts::tend(self.attached.clone(), self.available.clone(), keep_shortcut) => {
                Err(ended.err().unwrap_or_else(|| anyhow::anyhow!("tending the shortcut ended")))
            }
            () = self.owner.run() => Err(anyhow::anyhow!("checking backends ended")),
            ended = edge::tend(self.edge, self.choice) => failed(ended, "looking after the edge"),
            ended = named => failed(ended, "serving containers"),
            ended = proxy::tell_denials(denials, metrics) => failed(ended, "the kernel's denials"),
            ended = callers => failed(ended, "serving namespaces"),
            never = incoming::tend(self.attached.clone()) => match never {},
            never = service_manager::tend(shared) => match never {},
            () = self.containers.run(shared.policy.clone(), self.pods) => {
                Err(anyhow::anyhow!("asking for containers ended"))
            }
            () = self.names.run(self.dial_names, self.wanted_names) => {
                Err(anyhow::anyhow!("following names ended"))
            }
            () = self.control.run(hangups) => Err(anyhow::anyhow!("reloading ended")),
        }
    }
}

/// The error of a task that should have run for ever.
fn failed<T>(ended: std::io::Result<T>, task: &str) -> anyhow::Result<&'static str> {
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
    stop(attached)?;
    shared.tap.finish();
    let settled = async {
        if let Some(keeper) = shared.keeper.get() {
            keeper.settle().await;
        }
    };
    tokio::join!(proxy::end_all(&shared.flows, LAST_WORDS), settled);
    Ok(signal)
}

/// Starts to read tapped flows, if a rule taps from the beginning, and running connections, if `adopts`.
fn start_tap(
    shared: &Arc<ProxyContext>,
    dataplane: &SharedDataplane,
    adopts: bool,
) -> std::io::Result<()> {
    let mut dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(dataplane) = dataplane.as_mut() else {
        return Ok(());
    };
    if let Some(reader) = dataplane.tap_reader() {
        shared.tap.start(shared, reader)?;
    }
    if adopts {
        observed::adopt(shared, dataplane, &shared.policy.borrow());
    }
    Ok(())
}

/// The receivers of what is in force.
struct Heeded {
    policy: watch::Receiver<Arc<Policy>>,
    in_force: watch::Receiver<Arc<InForce>>,
    pipelines: watch::Receiver<Arc<Pipelines>>,
    tls: watch::Receiver<Arc<TlsRules>>,
    health: watch::Receiver<HealthCheck>,
    names: watch::Receiver<Arc<names::Wanted>>,
}

/// Makes the channels by which changes of the file become known.
fn tell(
    config: &Config,
    in_force: InForce,
    tls: TlsRules,
    (incoming_listeners, verdicts): (
        mpsc::UnboundedSender<IncomingListener>,
        watch::Sender<Option<Verdict>>,
    ),
) -> (Told, Heeded) {
    let (policy, heed_policy) = watch::channel(Arc::new(config.policy.clone()));
    let wanted = Arc::new(wanted_names(&in_force.config));
    let (names, heed_names) = watch::channel(wanted);
    let (in_force, heed_in_force) = watch::channel(Arc::new(in_force));
    let (pipelines, heed_pipelines) = watch::channel(Arc::new(config.pipelines.clone()));
    let (tls, heed_tls) = watch::channel(Arc::new(tls));
    let (health, heed_health) = watch::channel(config.health.clone());
    let told = Told {
        policy,
        in_force,
        pipelines,
        tls,
        health,
        incoming_listeners,
        verdicts,
        names,
    };
    let heeded = Heeded {
        policy: heed_policy,
        in_force: heed_in_force,
        pipelines: heed_pipelines,
        tls: heed_tls,
        health: heed_health,
        names: heed_names,
    };
    (told, heeded)
}

/// On purpose: hooks go, whatever a rule's `fail`; the edge stays. A crash leaves them all.
fn stop(dataplane: &Mutex<Option<Dataplane>>) -> anyhow::Result<()> {
    let attached = dataplane
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(attached) = attached {
        attached.detach()?;
    }
    Ok(())
}
