//! `underpass run`.

use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use dataplane::{
    Attached, Calls, DESCRIPTORS_PER_NAMESPACE, Dataplane, MAX_NAMESPACES, Options, ProbeResult,
    Splicer, host,
};
use flow::{CloseReason, Flows};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use prometheus::Registry;
use proxy::{
    self, Admission, IncomingListeners, ProxyContext, STRAGGLERS,
    keeper::{self, Keeper},
    paths::{self, PathsAvailable, Splicing},
};
use steps::{Services, pipelines::PipelineMetrics};
use telemetry::Metrics;
use tls::TlsRules;
use tokio::{
    net::TcpListener,
    runtime,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot, watch},
};
use tracing_subscriber::EnvFilter;

use crate::{
    admin::{self, Admin},
    backends::{self, BackendMetrics, Backends, BalancedCounters},
    config::Config,
    containers::{ContainerMetrics, Watch},
    control::{Control, Heard, Told},
    edge::{self, EdgeControl, EdgeMetrics, SharedEdge},
    incoming,
    kernel_counters::KernelCounters,
    marks::{self, ControlSocket, Desk},
    namespaces::{self, NamespacesGauge},
    observed::ObservedCounters,
    remembered::RememberedGauge,
    shortcuts::{self, ShortcutCounters},
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
    let mut config = Config::load(file)?;
    log_to_stderr();
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "attaching BPF programs needs root: run as root; `underpass doctor` shows what is missing"
        );
    }
    config.max_flows = allow_flows(config.max_flows, config.max_namespaces)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(file, config))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(file: &Path, mut config: Config) -> anyhow::Result<()> {
    // Before anything is attached: so that a signal is never one that kills, and a port in
    // use is found before the host is touched.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let hangups = signal(SignalKind::hangup())?;
    let listener = TcpListener::bind(config.admin).await.with_context(|| {
        format!(
            "cannot listen on {} for the admin interface: choose another `admin` in {}",
            config.admin,
            file.display()
        )
    })?;
    let mut control_socket = ControlSocket::bind(&config.control)?;
    let admin_address = listener.local_addr()?;
    let options = options(&config)?;
    // Whatever can fail comes before the host is touched.
    let attached = Arc::new(Mutex::new(None));
    let registry = Registry::new();
    registry.register(Box::new(KernelCounters::new(attached.clone())?))?;
    registry.register(Box::new(ObservedCounters::new(attached.clone())?))?;
    registry.register(Box::new(ShortcutCounters::new(attached.clone())?))?;
    registry.register(Box::new(RememberedGauge::new(attached.clone())?))?;
    registry.register(Box::new(BalancedCounters::new(attached.clone())?))?;
    let backend_metrics = BackendMetrics::register(&registry)?;
    let edge = SharedEdge::default();
    registry.register(Box::new(EdgeMetrics::new(edge.clone())?))?;
    let mut edge_control =
        EdgeControl::new(edge.clone(), config.pins.clone(), config.max_forwarded);
    let metrics = Metrics::register(&registry, &CloseReason::labels())?;
    let pipeline_metrics = PipelineMetrics::register(&registry)?;
    let means = Arc::new(Services::register(&registry, &metrics)?);
    config.pipelines.open(&means)?;
    let tls = TlsRules::load(&config.tls)?;
    let available = PathsAvailable::register(&registry)?;
    let container_metrics = ContainerMetrics::register(&registry)?;
    let containers = Watch::new(
        &config.containers,
        &mut config.policy,
        container_metrics.clone(),
    )
    .await;
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
    } = Dataplane::attach(&options, &config.policy)?;
    *attached.lock().unwrap_or_else(PoisonError::into_inner) = Some(dataplane);
    means.caches.dial_by(probe);
    means.folds.dial_by(probe);
    means.mirrors.dial_by(probe);
    // Beneath the pins, which are ours alone by now.
    if let Err(error) = edge_control.apply(&config.xdp, &config.policy) {
        stop(&attached)?;
        return Err(error);
    }
    let (in_force, policy) = watch::channel(Arc::new(config.policy.clone()));
    let (pipelines_in_force, pipelines) = watch::channel(Arc::new(config.pipelines.clone()));
    let (tls_in_force, tls) = watch::channel(Arc::new(tls));
    let (set_health, health) = watch::channel(config.health.clone());
    let (backends, asked_of_backends, tell_choice) = Backends::new();
    let choice = backends.choice();
    let shared = Arc::new(ProxyContext {
        answers,
        remembered,
        splices: OnceLock::new(),
        keeper: OnceLock::new(),
        flows: Flows::default(),
        metrics,
        admission: Arc::new(Admission::new(config.max_flows, attached.clone())),
        policy,
        pipelines,
        tls,
        pipeline_metrics,
        means,
        prepared: Arc::default(),
        backends: proxy::Backends::new(backends.choice(), {
            let backends = backends.clone();
            move |backend, why| backends.suspect(backend, why)
        }),
    });
    let owner = backends::Owner::new(
        (probe, severed),
        shared.clone(),
        (attached.clone(), edge.clone()),
        backend_metrics,
        health,
        (asked_of_backends, tell_choice),
    );
    registry.register(Box::new(NamespacesGauge::new(Some(netns_agents.clone()))?))?;
    let (settle, settled) = mpsc::channel(MAX_NAMESPACES);
    let (give_listener, given_listeners) = mpsc::unbounded_channel();
    let mut incoming_listeners = incoming_listeners.into_iter();
    incoming_listeners.try_for_each(|listener| give_listener.send(listener))?;
    let entrances = IncomingListeners {
        listeners,
        incoming_listeners: given_listeners,
        settled,
    };
    let ready = Arc::new(AtomicBool::new(true));
    let admin = Admin {
        registry,
        shared: shared.clone(),
        backends: backends.clone(),
        dataplane: attached.clone(),
        netns_agents: netns_agents.clone(),
        ready: ready.clone(),
    };
    let (workers, splicing) = (config.workers, config.splice);
    let control_path = config.control.clone();
    let (give, adopted) = mpsc::unbounded_channel();
    let rules = config.policy.rules.len();
    // Looks at the file before anybody is told that changes to it are seen.
    let (desk, asked) = Desk::new(shared.clone(), backends, attached.clone());
    let control = Control::new(
        file.to_owned(),
        config,
        attached.clone(),
        edge_control,
        shared.clone(),
        Told {
            policy: in_force,
            pipelines: pipelines_in_force,
            tls: tls_in_force,
            health: set_health,
            incoming_listeners: give_listener,
        },
        Heard {
            asked,
            containers: containers.book(),
            container_metrics,
        },
    );
    tracing::info!(
        cgroup = %options.cgroup.display(),
        admin = %admin_address,
        rules,
        workers,
        "ready"
    );
    // Before any flow's task is dropped.
    let book = containers.book();
    let told_to_stop = async {
        let signal = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        if let Some(keeper) = shared.keeper.get() {
            keeper.leave();
        }
        // Whoever is closed now connects again, past the agent.
        ready.store(false, Relaxed);
        stop(&attached)?;
        proxy::end_all(&shared.flows, LAST_WORDS).await;
        Ok(signal)
    };
    let start_keeper = |splices: &Splicer| match Keeper::start(
        &control_path,
        &shared.metrics,
        give.clone(),
    ) {
        Ok(keeper) => {
            keeper.has(splices);
            drop(shared.keeper.set(keeper));
        }
        Err(error) => {
            tracing::warn!(%error, "cannot start the keeper: spliced flows will end with this agent")
        }
    };
    let ended = tokio::select! {
        signal = told_to_stop => signal,
        ended = proxy::run(shared.clone(), entrances, holds, adopted, workers) => {
            Err(ended.err().unwrap_or_else(|| anyhow::anyhow!("the proxy ended")))
        }
        ended = admin::serve(listener, admin) => {
            Err(ended.err().map_or_else(|| anyhow::anyhow!("the admin interface ended"), Into::into))
        }
        ended = marks::serve(&mut control_socket, desk) => {
            Err(ended.err().map_or_else(|| anyhow::anyhow!("the control socket ended"), Into::into))
        }
        ended = splice(&shared, splices, splicing, available.clone(), start_keeper) => {
            Err(ended.err().map_or_else(|| anyhow::anyhow!("the kernel's calls ended"), Into::into))
        }
        ended = shortcuts::tend(attached.clone(), available.clone()) => {
            Err(ended.err().unwrap_or_else(|| anyhow::anyhow!("tending the shortcut ended")))
        }
        () = owner.run() => Err(anyhow::anyhow!("checking backends ended")),
        ended = edge::tend(edge, choice) => {
            Err(ended.err().map_or_else(|| anyhow::anyhow!("looking after the edge ended"), Into::into))
        }
        ended = namespaces::serve_named(
            netns_agents.clone(), book, shared.policy.clone(), settle.clone(), shared.metrics.clone(),
        ) => {
            Err(ended.err().map_or_else(|| anyhow::anyhow!("serving containers ended"), Into::into))
        }
        ended = namespaces::serve(netns_agents, serve_requests, settle, shared.metrics.clone()) => {
            Err(ended.err().map_or_else(|| anyhow::anyhow!("serving namespaces ended"), Into::into))
        }
        never = incoming::tend(attached.clone()) => match never {},
        () = containers.run(shared.policy.clone()) => Err(anyhow::anyhow!("asking for containers ended")),
        () = control.run(hangups) => Err(anyhow::anyhow!("reloading ended")),
    };
    ready.store(false, Relaxed);
    stop(&attached)?;
    shared.means.journals.finish(FINISH);
    shared.means.collectors.finish(FINISH);
    let signal = ended?;
    tracing::info!(
        signal,
        "detached: flows that the agent carried are closed, flows that the kernel carries go on"
    );
    Ok(())
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
