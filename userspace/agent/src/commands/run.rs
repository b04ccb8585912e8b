//! `underpass run`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use dataplane::{
    Answers, Attached, Calls, DESCRIPTORS_PER_NAMESPACE, Dataplane, Holds, IncomingListener,
    MAX_NAMESPACES, NetnsAgents, NewNetnsListeners, Options, ProbeResult, Remembered,
    ServeRequests, Splicer,
    backends::{Probe, Severed},
    host,
};
use flow::{CloseReason, Flows};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use policy::Policy;
use prometheus::{IntCounterVec, Registry};
use proxy::{
    self, Admission, Choice, IncomingListeners, ProxyContext, QuotaLimits, STRAGGLERS, Unsettled,
    keeper::{self, Adopted, Keeper},
    paths::{self, PathsAvailable, Splicing},
};
use steps::{
    Services,
    pipelines::{PipelineMetrics, Pipelines},
};
use telemetry::Metrics;
use tls::TlsRules;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot, watch},
};
use tracing_subscriber::EnvFilter;

use crate::{
    admin::{self, Admin},
    backends::{self, BackendMetrics, Backends, BalancedCounters, HealthCheck},
    config::Config,
    confine,
    containers::{ContainerMetrics, Watch},
    control::{Control, Heard, Told},
    edge::{self, EdgeControl, EdgeMetrics, SharedEdge},
    incoming,
    kernel_counters::KernelCounters,
    marks::{self, Desk},
    namespaces::{self, NamespacesGauge},
    observed::{ObservedCounters, SharedDataplane},
    remembered::RememberedGauge,
    shortcuts::{self, ShortcutCounters},
    socket_file::{Door, SocketFile},
};

/// Descriptors for everything that is not one of `max_flows`: listeners, maps, programs, logs,
/// the admin interface, checks of backends, flows that arrive while the hook is being told, and those that are on their
/// way to the keeper.
const OTHER_DESCRIPTORS: u64 =
    256 + (backends::MAX_CHECKED + 2 * (STRAGGLERS + keeper::WAITING)) as u64;

/// A journal's disk, and a collector of spans, are waited for at most this long when the agent ends.
const FINISH: Duration = Duration::from_secs(2);

/// And for its flows to say what was not answered.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs the agent until it is told to stop.
///
/// # Errors
/// It cannot start; nothing is attached then.
pub fn run(file: &Path) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    log_to_stderr();
    for warning in &config.warnings {
        tracing::warn!("{warning}");
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
    runtime.block_on(serve(file, config, max_flows))?;
    Ok(ExitCode::SUCCESS)
}

/// Serves. `max_flows`: as many as this host allows of those that the file wants.
async fn serve(file: &Path, mut config: Config, max_flows: usize) -> anyhow::Result<()> {
    let doors = Doors::open(&config).await?;
    let mut early = Early::make(&mut config, max_flows).await?;
    let attached = attach(&config, &mut early)?;
    Serving::assemble(file, config, doors, early, attached)?
        .run()
        .await
}

/// Signals and sockets, from before anything is attached: so that a signal is never one that kills, and a port
/// in use is found before the host is touched.
struct Doors {
    signals: Signals,
    admin: admin::Listeners,
    control: SocketFile,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangups: Signal,
}

impl Doors {
    async fn open(config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            signals: Signals {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
                hangups: signal(SignalKind::hangup())?,
            },
            admin: admin::Listeners::bind(config).await?,
            control: SocketFile::bind(Door::Control, &config.control)?,
        })
    }
}

/// All that can fail before the host is touched.
struct Early {
    options: Options,
    max_flows: usize,
    /// The dataplane, once it is attached.
    attached: SharedDataplane,
    registry: Registry,
    backend_metrics: BackendMetrics,
    edge: SharedEdge,
    edge_control: EdgeControl,
    metrics: Metrics,
    pipeline_metrics: PipelineMetrics,
    refused: IntCounterVec,
    services: Arc<Services>,
    tls: TlsRules,
    available: PathsAvailable,
    container_metrics: ContainerMetrics,
    containers: Watch,
}

impl Early {
    async fn make(config: &mut Config, max_flows: usize) -> anyhow::Result<Self> {
        let options = options(config)?;
        let attached = SharedDataplane::default();
        let registry = Registry::new();
        registry.register(Box::new(KernelCounters::new(attached.clone())?))?;
        registry.register(Box::new(ObservedCounters::new(attached.clone())?))?;
        registry.register(Box::new(ShortcutCounters::new(attached.clone())?))?;
        registry.register(Box::new(RememberedGauge::new(attached.clone())?))?;
        registry.register(Box::new(BalancedCounters::new(attached.clone())?))?;
        let backend_metrics = BackendMetrics::register(&registry)?;
        let edge = SharedEdge::default();
        registry.register(Box::new(EdgeMetrics::new(edge.clone())?))?;
        let edge_control =
            EdgeControl::new(edge.clone(), config.pins.clone(), config.max_forwarded);
        let metrics = Metrics::register(&registry, &CloseReason::labels())?;
        let pipeline_metrics = PipelineMetrics::register(&registry)?;
        let refused = admin::register(&registry)?;
        let services = Arc::new(Services::register(&registry, &metrics)?);
        config.pipelines.open(&services)?;
        let tls = TlsRules::load(&config.tls)?;
        let available = PathsAvailable::register(&registry)?;
        let container_metrics = ContainerMetrics::register(&registry)?;
        let containers = Watch::new(
            &config.containers,
            &mut config.policy,
            container_metrics.clone(),
        )
        .await;
        Ok(Self {
            options,
            max_flows,
            attached,
            registry,
            backend_metrics,
            edge,
            edge_control,
            metrics,
            pipeline_metrics,
            refused,
            services,
            tls,
            available,
            container_metrics,
            containers,
        })
    }
}

/// The kernel's part of what tasks work with.
struct Taken {
    entrances: IncomingListeners,
    holds: Holds,
    netns_agents: Arc<NetnsAgents>,
    serve_requests: ServeRequests,
    splices: Result<(Splicer, Calls), String>,
    settle: mpsc::Sender<NewNetnsListeners>,
}

/// Where everything is that the tasks have in common.
struct Attachment {
    taken: Taken,
    answers: Answers,
    remembered: Arc<Remembered>,
    probes: (Probe, Severed),
    give_listener: mpsc::UnboundedSender<IncomingListener>,
}

/// Attaches to the kernel, and then to the interfaces.
fn attach(config: &Config, early: &mut Early) -> anyhow::Result<Attachment> {
    let Attached {
        dataplane,
        listeners,
        holds,
        netns_agents,
        serve_requests,
        answers,
        incoming_listeners,
        remembered,
        splices,
        probe,
        severed,
    } = Dataplane::attach(&early.options, &config.policy)?;
    *early
        .attached
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some(dataplane);
    early.services.caches.dial_by(probe);
    early.services.folds.dial_by(probe);
    early.services.mirrors.dial_by(probe);
    // Beneath the pins, which are ours alone by now.
    if let Err(error) = early.edge_control.apply(&config.xdp, &config.policy) {
        stop(&early.attached)?;
        return Err(error);
    }
    let (settle, settled) = mpsc::channel(MAX_NAMESPACES);
    let (give_listener, given_listeners) = mpsc::unbounded_channel();
    let mut incoming_listeners = incoming_listeners.into_iter();
    incoming_listeners.try_for_each(|listener| give_listener.send(listener))?;
    Ok(Attachment {
        taken: Taken {
            entrances: IncomingListeners {
                listeners,
                incoming_listeners: given_listeners,
                settled,
            },
            holds,
            netns_agents,
            serve_requests,
            splices,
            settle,
        },
        answers,
        remembered,
        probes: (probe, severed),
        give_listener,
    })
}

/// The tasks of a running agent, before they run.
struct Serving {
    signals: Signals,
    listeners: admin::Listeners,
    admin_hosts: Vec<String>,
    control_socket: SocketFile,
    control_path: PathBuf,
    admin: Admin,
    desk: Desk,
    control: Control,
    owner: backends::Owner,
    choice: watch::Receiver<Choice>,
    containers: Watch,
    edge: SharedEdge,
    attached: SharedDataplane,
    available: PathsAvailable,
    shared: Arc<ProxyContext>,
    taken: Taken,
    workers: usize,
    splicing: Splicing,
}

impl Serving {
    fn assemble(
        file: &Path,
        config: Config,
        doors: Doors,
        early: Early,
        attachment: Attachment,
    ) -> anyhow::Result<Self> {
        let (told, heard_by_flows) = tell(&config, early.tls, attachment.give_listener);
        let (backends, asked_of_backends, tell_choice) = Backends::new();
        let choice = backends.choice();
        let shared = Arc::new(ProxyContext {
            answers: attachment.answers,
            remembered: attachment.remembered,
            splices: OnceLock::new(),
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
            prepared: Arc::default(),
            backends: proxy::Backends::new(backends.choice(), {
                let backends = backends.clone();
                move |backend, why| backends.suspect(backend, why)
            }),
        });
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
        let admin = Admin {
            registry: early.registry,
            shared: shared.clone(),
            backends: backends.clone(),
            dataplane: early.attached.clone(),
            netns_agents: taken.netns_agents.clone(),
            refused: early.refused,
            ready: Arc::new(AtomicBool::new(true)),
        };
        let shown = doors.admin.shown();
        let (cgroup, rules) = (early.options.cgroup, config.policy.rules.len());
        let (workers, splicing) = (config.workers, config.splice);
        let (control_path, admin_hosts) = (config.control.clone(), config.admin_hosts.clone());
        // Looks at the file before anybody is told that changes to it are seen.
        let (desk, asked) = Desk::new(shared.clone(), backends, early.attached.clone());
        let heard = Heard {
            asked,
            containers: early.containers.book(),
            container_metrics: early.container_metrics,
        };
        let dataplane = early.attached.clone();
        let control = Control::new(
            file.to_owned(),
            config,
            dataplane,
            early.edge_control,
            shared.clone(),
            told,
            heard,
        );
        if let Err(error) = confine::filter_calls() {
            tracing::warn!("system calls are not filtered: {error:#}");
        }
        tracing::info!(cgroup = %cgroup.display(), admin = %shown, rules, workers, "ready");
        Ok(Self {
            signals: doors.signals,
            listeners: doors.admin,
            admin_hosts,
            control_socket: doors.control,
            control_path,
            admin,
            desk,
            control,
            owner,
            choice,
            containers: early.containers,
            edge: early.edge,
            attached: early.attached,
            available: early.available,
            shared,
            taken,
            workers,
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
            splices,
            settle,
        } = self.taken;
        let shared = &self.shared;
        let metrics = &shared.metrics;
        let (give, adopted) = mpsc::unbounded_channel();
        let start_keeper = |splices: &Splicer| keep(&self.control_path, shared, splices, &give);
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
            start_keeper,
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
            ended = shortcuts::tend(self.attached.clone(), self.available.clone()) => {
                Err(ended.err().unwrap_or_else(|| anyhow::anyhow!("tending the shortcut ended")))
            }
            () = self.owner.run() => Err(anyhow::anyhow!("checking backends ended")),
            ended = edge::tend(self.edge, self.choice) => failed(ended, "looking after the edge"),
            ended = named => failed(ended, "serving containers"),
            ended = callers => failed(ended, "serving namespaces"),
            never = incoming::tend(self.attached.clone()) => match never {},
            () = self.containers.run(shared.policy.clone()) => {
                Err(anyhow::anyhow!("asking for containers ended"))
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
    if let Some(keeper) = shared.keeper.get() {
        keeper.leave();
    }
    // Whoever is closed now connects again, past the agent.
    ready.store(false, Relaxed);
    stop(attached)?;
    proxy::end_all(&shared.flows, LAST_WORDS).await;
    Ok(signal)
}

/// Starts the keeper, which outlives the agent with the flows that the kernel carries.
fn keep(
    control: &Path,
    shared: &ProxyContext,
    splices: &Splicer,
    give: &mpsc::UnboundedSender<Adopted>,
) {
    match Keeper::start(control, &shared.metrics, give.clone()) {
        Ok(keeper) => {
            keeper.has(splices);
            drop(shared.keeper.set(keeper));
        }
        Err(error) => {
            tracing::warn!(%error, "cannot start the keeper: spliced flows will end with this agent");
        }
    }
}

/// The receivers of what is in force, for flows.
struct InForce {
    policy: watch::Receiver<Arc<Policy>>,
    pipelines: watch::Receiver<Arc<Pipelines>>,
    tls: watch::Receiver<Arc<TlsRules>>,
    health: watch::Receiver<HealthCheck>,
}

/// Makes the channels by which changes of the file become known.
fn tell(
    config: &Config,
    tls: TlsRules,
    incoming_listeners: mpsc::UnboundedSender<IncomingListener>,
) -> (Told, InForce) {
    let (policy, policy_in_force) = watch::channel(Arc::new(config.policy.clone()));
    let (pipelines, pipelines_in_force) = watch::channel(Arc::new(config.pipelines.clone()));
    let (tls, tls_in_force) = watch::channel(Arc::new(tls));
    let (health, health_in_force) = watch::channel(config.health.clone());
    let told = Told {
        policy,
        pipelines,
        tls,
        health,
        incoming_listeners,
    };
    let in_force = InForce {
        policy: policy_in_force,
        pipelines: pipelines_in_force,
        tls: tls_in_force,
        health: health_in_force,
    };
    (told, in_force)
}

/// Tries the splice out, and from then on has flows take it.
async fn splice(
    shared: &ProxyContext,
    splices: Result<(Splicer, Calls), String>,
    splicing: Splicing,
    available: PathsAvailable,
    mut start_keeper: impl FnMut(&Splicer),
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
                start_keeper(&splices);
                Ok(splices)
            }
        };
        drop(shared.splices.set(outcome));
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

fn options(config: &Config) -> anyhow::Result<Options> {
    let cgroup = match &config.cgroup {
        Some(path) => path.clone(),
        None => host::cgroup2_root()?
            .context("no cgroup2 is mounted: run `mount -t cgroup2 none /sys/fs/cgroup/unified`")?,
    };
    Ok(Options {
        cgroup,
        pins: config.pins.clone(),
        incoming: config.incoming.clone(),
        max_namespaces: max_namespaces(config.max_namespaces),
        taken: edge::taken(&config.xdp, &config.policy),
    })
}

/// None where callers could not be found.
fn max_namespaces(wanted: usize) -> usize {
    if wanted > 0 && !host::sees_every_process() {
        tracing::warn!(
            "other network namespaces are not served: the agent does not see their processes; run it in the host's PID namespace"
        );
        return 0;
    }
    wanted
}

/// Two for each flow. Returns how many flows there may be: fewer than asked for where the
/// host does not give that many descriptors.
fn allow_flows(wanted_flows: usize, namespaces: usize) -> anyhow::Result<usize> {
    let others = OTHER_DESCRIPTORS + (namespaces * DESCRIPTORS_PER_NAMESPACE) as u64;
    let wanted = wanted_flows as u64 * 2 + others;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).is_ok();
    if raised {
        return Ok(wanted_flows);
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let fit = (hard.saturating_sub(others) / 2) as usize;
    if fit < wanted_flows {
        tracing::warn!(
            "max_flows is {fit} instead of {wanted_flows}: only {hard} descriptors are allowed \
             (raise LimitNOFILE)"
        );
    }
    Ok(fit.clamp(1, wanted_flows))
}

pub(super) fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}
