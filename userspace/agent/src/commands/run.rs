//! `underpass run`.
//!
//! - `begin`: the policy with which the agent begins.
//! - `early`: what is made and attached before the tasks run.
//! - `limits`: what the host allows of what the file asks for.
//! - `splicing`: the splice's trial, and the keeper.
//! - `until`: the tasks of the agent, and its end.

mod begin;
mod early;
mod limits;
mod splicing;
mod until;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use anyhow::{Context as _, bail};
use dataplane::{AttachError, Dataplane, IncomingListener};
use flow::Flows;
use policy::Policy;
use policy_source::{Pods, Verdict};
use proxy::{
    self, Admission, Choice, Handed, ProxyContext, QuotaLimits, Unsettled, Workers,
    paths::{PathsAvailable, Splicing},
    tap::TapThread,
};
use steps::pipelines::Pipelines;
use tls::TlsRules;
use tokio::{
    runtime,
    sync::{mpsc, watch},
};

use self::{
    begin::{Beginning, begin},
    early::{Attachment, Doors, Early, Signals, Taken, attach},
    limits::allow_flows,
    splicing::{HeardSplices, hear},
};
use crate::{
    admin::{self, Admin},
    backends::{self, Backends, HealthCheck},
    config::{Config, InForce},
    confine,
    containers::Watch,
    control::{Control, Heard, Told, wanted_names},
    edge::SharedEdge,
    fleet,
    log::{Log, LogFormat},
    marks::Desk,
    namespaces::NamespacesGauge,
    observed::{self, SharedDataplane},
    overhead::OverheadMetrics,
    service_manager,
    socket_file::SocketFile,
    upgrade::{self, Draining, Given, Link, Offered, Predecessor},
};

/// Runs the agent until it is told to stop. `format` comes before that of the file. `dry`: rules only count. `takes_over`: an
/// agent that runs is not in the way, it drains.
///
/// # Errors
/// The agent cannot start; nothing is attached then, and one that runs goes on.
pub fn run(
    file: &Path,
    format: Option<LogFormat>,
    dry: bool,
    takes_over: bool,
) -> anyhow::Result<ExitCode> {
    let mut beginning = begin(file, dry)?;
    let config = &mut beginning.config;
    config.log_format = format.unwrap_or(config.log_format);
    let log = Log::begin(config.log_format, &config.log_level);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(why) = &beginning.why_not {
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
    runtime.block_on(async {
        let before = match takes_over {
            true => Predecessor::meet(&beginning.config.control).await?,
            false => None,
        };
        let link = before.as_ref().map(Predecessor::link);
        let served = serve(file, beginning, log, max_flows, before).await;
        if let (Err(error), Some(link)) = (&served, link) {
            upgrade::tell_failure(&link, error).await;
        }
        served
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Serves. `max_flows`: as many as this host allows of those that the file wants. `before`: the agent that runs.
async fn serve(
    file: &Path,
    mut beginning: Beginning,
    log: Log,
    max_flows: usize,
    mut before: Option<Predecessor>,
) -> anyhow::Result<()> {
    let mut none = Given::default();
    let given = before
        .as_mut()
        .map_or(&mut none, |before| &mut before.given);
    let doors = Doors::open(&beginning.config, given).await?;
    let is_first = before.is_none();
    let (mut early, config) = Early::make(&mut beginning, max_flows, is_first).await?;
    let terms = before.as_mut().map(|before| before.before(&early.options));
    let attached = attach(&config, &mut early, terms.transpose()?)?;
    upgrade::reached("attached");
    let dataplane = early.attached.clone();
    let assembled = Serving::assemble(file, config, beginning, log, doors, early, attached, before);
    let begun = match assembled {
        Ok(serving) => serving.begin().await,
        Err(error) => Err(error),
    };
    match begun {
        Ok(serving) => serving.run().await,
        Err(error) => Err(stop_because(error, &dataplane)),
    }
}

/// The line that says that an agent is ready.
struct Ready {
    cgroup: PathBuf,
    shown: String,
    rules: usize,
    workers: usize,
}

impl Ready {
    fn say(&self) {
        let Self {
            cgroup,
            shown,
            rules,
            workers,
        } = self;
        tracing::info!(cgroup = %cgroup.display(), admin = %shown, rules, workers, "ready");
        service_manager::ready();
    }
}

/// The tasks of a running agent, before they run.
struct Serving {
    ready: Ready,
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
    workers: Workers,
    splicing: Splicing,
    splices: Result<HeardSplices, String>,
    offered: Offered,
    in_force: watch::Receiver<Arc<InForce>>,
    pins: PathBuf,
    /// While it is held, the fleet hears of this agent.
    speaks: watch::Sender<()>,
    before: Option<Predecessor>,
    /// The connection to that agent, for one that is told to stop.
    link: Option<Arc<Link>>,
    draining: watch::Sender<Option<Draining>>,
    /// Whether the agent before has left edge, files and connections that are read from copies to this one.
    has_left: watch::Sender<bool>,
    /// The way to the proxy for flows of the agent before, and its other end.
    hands: mpsc::Sender<Handed>,
    handed: mpsc::Receiver<Handed>,
}

impl Serving {
    #[expect(clippy::too_many_arguments, reason = "each is made by somebody else")]
    fn assemble(
        file: &Path,
        config: Config,
        beginning: Beginning,
        log: Log,
        doors: Doors,
        early: Early,
        attachment: Attachment,
        before: Option<Predecessor>,
    ) -> anyhow::Result<Self> {
        let offered = doors.offered()?;
        let (speaks, until) = watch::channel(());
        let draining = watch::Sender::new(None);
        let has_left = watch::Sender::new(before.is_none());
        // One is answered before the next one comes.
        let (hands, handed) = mpsc::channel(1);
        let file_policy = beginning.config.policy.clone();
        let fleet = fleet::Channels::offering(beginning.as_kept.clone());
        let in_force = InForce::of(beginning.sources, beginning.config);
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
            fleet::start(source, &config.host, dial, &fleet, metrics, until.clone())?;
        }
        if let Some(store) = &config.limits {
            let dial = fleet::dial_by(attachment.probes.0);
            let pipelines = heard_by_flows.pipelines.clone();
            let metrics = early.sharing_metrics.clone();
            fleet::sharing::start(store, &config.host, dial, pipelines, metrics, until)?;
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
            handing: OnceLock::new(),
            tap: TapThread::new(early.tap_metrics, config.tap_cpu),
            backends: proxy::Backends::new(backends.choice(), {
                let backends = backends.clone();
                move |backend, why| backends.suspect(backend, why)
            }),
        });
        // The agent before reads the connections that there are until it drains.
        start_tap(&shared, &early.attached, config.adopt && before.is_none())?;
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
            names: early.names.book(),
            tail_values: config.tail_values,
            live: Arc::default(),
            in_force: heard_by_flows.in_force.clone(),
            marks: desk.reader(),
            before: draining.subscribe(),
        };
        let shown = doors.admin.shown();
        let rules = file_policy.rules.len();
        let pins = config.pins.clone();
        let (workers, busy_poll, splicing) = (config.workers, config.busy_poll, config.splice);
        let (control_path, admin_hosts) = (config.control.clone(), config.admin_hosts.clone());
        let heard = Heard {
            log: log.clone(),
            asked,
            containers: early.containers.book(),
            names: early.names.book(),
            name_metrics: early.name_metrics,
            container_metrics: early.container_metrics,
            offers: fleet.offers(),
            cached: beginning.cached,
            as_kept: beginning.as_kept,
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
        // An agent for which there are no threads or descriptors says so before it is ready.
        let busy_polls = busy_poll.then_some(&shared.metrics.busy_polls);
        let started = Workers::start(rings, busy_polls).context("cannot start the workers")?;
        let splices = hear(attachment.splices, splicing);
        let splices = splices.context("cannot hear what the splice calls for")?;
        let ready = Ready {
            cgroup: early.options.cgroup,
            shown,
            rules,
            workers,
        };
        Ok(Self {
            ready,
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
            workers: started,
            splicing,
            splices,
            offered,
            in_force: heard_by_flows.in_force,
            pins,
            speaks,
            link: before.as_ref().map(Predecessor::link),
            before,
            draining,
            has_left,
            hands,
            handed,
        })
    }

    /// Takes over from the agent that runs, if there is one.
    async fn begin(mut self) -> anyhow::Result<Self> {
        if let Some(before) = self.before.take() {
            self.take_over(before).await?;
        }
        Ok(self)
    }

    async fn take_over(&mut self, mut before: Predecessor) -> anyhow::Result<()> {
        self.control.carry_on(before.marks())?;
        self.admin.backends.carry_on(before.orders());
        // A signal that has come by now is one that the runtime has seen.
        tokio::task::yield_now().await;
        tokio::select! {
            biased;
            signal = self.signals.stops.wait() => bail!("{signal} has come before it has taken over"),
            goes = before.may_go() => goes?,
        }
        with(&self.attached, Dataplane::take_over)?;
        upgrade::reached("taken");
        // From here on this agent goes on, whatever becomes of the other one; and takes connections, though that one may hang.
        let (draining, attached) = (self.draining.clone(), self.attached.clone());
        let (hands, shared) = (self.hands.clone(), self.shared.clone());
        let (files, has_left) = (self.offered.files.clone(), self.has_left.clone());
        draining.send_replace(Some(before.draining()));
        tokio::spawn(async move {
            let first = before.tell_taken().await;
            upgrade::reached("handed");
            for file in &files {
                file.store(false, Relaxed);
            }
            has_left.send_replace(true);
            before
                .follow(first, draining, hands, attached, shared)
                .await
        });
        Ok(())
    }
}

/// Does something with what is attached. Nothing is, once the agent has been told to stop.
fn with(
    dataplane: &SharedDataplane,
    body: impl FnOnce(&mut Dataplane) -> Result<(), AttachError>,
) -> anyhow::Result<()> {
    let mut dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
    let dataplane = dataplane.as_mut().context("the agent stops")?;
    Ok(body(dataplane)?)
}

/// Starts to read tapped flows, if a rule taps from the beginning, and running connections, if `adopts`.
fn start_tap(
    shared: &Arc<ProxyContext>,
    dataplane: &SharedDataplane,
    adopts: bool,
) -> std::io::Result<()> {
    let started = {
        let mut dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
        let attached = dataplane.as_mut();
        attached.map(|dataplane| observed::start_tap(shared, dataplane))
    };
    started.transpose()?;
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

/// Stops because of an error, which it returns: one of stopping comes behind it, in the log.
fn stop_because(error: anyhow::Error, dataplane: &Mutex<Option<Dataplane>>) -> anyhow::Error {
    if let Err(besides) = stop(dataplane) {
        tracing::error!("cannot detach: {besides:#}");
    }
    error
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
