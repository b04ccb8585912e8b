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
use dataplane::{Attached, Calls, Dataplane, Options, Splices, host};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use prometheus::Registry;
use tokio::{
    net::TcpListener,
    runtime,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot, watch},
};
use tracing_subscriber::EnvFilter;

use crate::{
    admin::{self, Admin},
    config::Config,
    control::Control,
    flows::Flows,
    keeper::{self, Keeper},
    marks::{self, ControlSocket, Desk},
    metrics::{KernelCounters, Metrics},
    observed::ObservedCounters,
    paths::{self, PathsAvailable, Splicing, Tried},
    proxy::{self, Admission, STRAGGLERS, Shared},
    remembered::RememberedGauge,
    shortcuts::{self, ShortcutCounters},
    statements::Statements,
};

/// Descriptors for everything that is not one of `max_flows`: listeners, maps, programs, logs,
/// the admin interface, flows that arrive while the hook is being told, and those that are on their
/// way to the keeper.
const OTHER_DESCRIPTORS: u64 = 256 + 2 * (STRAGGLERS + keeper::WAITING) as u64;

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
        bail!("attaching BPF programs needs root: run as root, or see `underpass doctor`");
    }
    config.max_flows = allow_flows(config.max_flows)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(file, config))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(file: &Path, config: Config) -> anyhow::Result<()> {
    // Before anything is attached: so that a signal is never one that kills, and a port in
    // use is found before the host is touched.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
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
    let metrics = Metrics::register(&registry)?;
    let statements = Statements::register(&registry)?;
    let available = PathsAvailable::register(&registry)?;
    let Attached {
        dataplane,
        listeners,
        holds,
        answers,
        remembered,
        splices,
    } = Dataplane::attach(&options, &config.policy)?;
    *attached.lock().unwrap_or_else(PoisonError::into_inner) = Some(dataplane);
    let (in_force, policy) = watch::channel(Arc::new(config.policy.clone()));
    let shared = Arc::new(Shared {
        answers,
        remembered,
        splices: OnceLock::new(),
        keeper: OnceLock::new(),
        flows: Flows::default(),
        metrics,
        statements,
        admission: Arc::new(Admission::new(config.max_flows, attached.clone())),
        policy,
        prepared: Arc::default(),
    });
    let ready = Arc::new(AtomicBool::new(true));
    let admin = Admin {
        registry,
        shared: shared.clone(),
        dataplane: attached.clone(),
        ready: ready.clone(),
    };
    let (workers, splicing) = (config.workers, config.splice);
    let control_path = config.control.clone();
    let (give, adopted) = mpsc::unbounded_channel();
    let rules = config.policy.rules.len();
    // Looks at the file before anybody is told that changes to it are seen.
    let (desk, asked) = Desk::new(shared.clone(), attached.clone());
    let control = Control::new(
        file.to_owned(),
        config,
        attached.clone(),
        shared.clone(),
        in_force,
        asked,
    );
    tracing::info!(
        cgroup = %options.cgroup.display(),
        admin = %admin_address,
        rules,
        workers,
        "ready"
    );
    // Before any flow's task is dropped.
    let told_to_stop = async {
        let signal = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        if let Some(keeper) = shared.keeper.get() {
            keeper.leave();
        }
        signal
    };
    let start_keeper =
        |splices: &Splices| match Keeper::start(&control_path, &shared.metrics, give.clone()) {
            Ok(keeper) => {
                keeper.has(splices);
                drop(shared.keeper.set(keeper));
            }
            Err(error) => tracing::warn!(%error, "spliced flows end with this agent"),
        };
    let ended = tokio::select! {
        signal = told_to_stop => Ok(signal),
        ended = proxy::run(shared.clone(), listeners, holds, adopted, workers) => {
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
        ended = control.run() => {
            Err(ended.err().map_or_else(|| anyhow::anyhow!("reloading ended"), Into::into))
        }
    };
    ready.store(false, Relaxed);
    stop(&attached)?;
    let signal = ended?;
    tracing::info!(
        signal,
        "detached; flows that the agent carried are closed, those that the kernel carries go on"
    );
    Ok(())
}

/// Tries the splice out, and from then on has flows take it.
async fn splice(
    shared: &Shared,
    splices: Result<(Splices, Calls), String>,
    splicing: Splicing,
    available: PathsAvailable,
    mut start_keeper: impl FnMut(&Splices),
) -> std::io::Result<()> {
    let (splices, calls) = match splices {
        _ if splicing == Splicing::Off => {
            let _ = shared.splices.set(Err("the file says so".into()));
            return std::future::pending().await;
        }
        Ok(both) => both,
        Err(reason) => {
            let _ = shared.splices.set(Err(reason.clone()));
            available.note(&Tried {
                path: "splice".into(),
                took: Duration::ZERO,
                failure: Some(reason),
            });
            return std::future::pending().await;
        }
    };
    let try_out = async {
        let use_it = |splices| {
            start_keeper(&splices);
            drop(shared.splices.set(Ok(splices)));
        };
        let tried = paths::try_engines(&splices, splicing, use_it).await;
        tried.iter().for_each(|path| available.note(path));
        let reasons = tried.iter().filter_map(|path| path.failure.as_deref());
        // Unless one works.
        let _ = shared
            .splices
            .set(Err(reasons.collect::<Vec<_>>().join("; ")));
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

/// On purpose: hooks go, whatever a rule's `fail`. A crash leaves them.
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
            .context("no cgroup2 is mounted: `mount -t cgroup2 none /sys/fs/cgroup/unified`")?,
    };
    Ok(Options {
        cgroup,
        pins: config.pins.clone(),
    })
}

/// Two for each flow. Returns how many flows there may be: fewer than asked for where the
/// host does not give that many descriptors.
fn allow_flows(wanted_flows: usize) -> anyhow::Result<usize> {
    let wanted = wanted_flows as u64 * 2 + OTHER_DESCRIPTORS;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).is_ok();
    if raised {
        return Ok(wanted_flows);
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let fit = (hard.saturating_sub(OTHER_DESCRIPTORS) / 2) as usize;
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
