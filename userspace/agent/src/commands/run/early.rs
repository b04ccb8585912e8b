//! Everything that is made before the agent's tasks run: sockets and signals, metrics, and what is attached
//! to the kernel.

use std::{
    slice,
    sync::{Arc, PoisonError},
};

use anyhow::bail;
use dataplane::{
    Answers, Attached, Before, Calls, Dataplane, Holds, IncomingListener, KernelDenials, Legs,
    MAX_NAMESPACES, NetnsAgents, NewNetnsListeners, Options, Remembered, ServeRequests, Splicer,
    backends::{Probe, Severed},
    host,
};
use flow::CloseReason;
use names::{Files, Follower, NameMetrics, Resolver, dial_plainly};
use policy::{RuleName, Timestamp};
use prometheus::{IntCounterVec, Registry};
use proxy::{IncomingListeners, paths::PathsAvailable, tap::TapMetrics};
use steps::{Services, pipelines::PipelineMetrics};
use telemetry::Metrics;
use tls::TlsRules;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use super::{begin::Beginning, limits, stop_because};
use crate::{
    admin,
    backends::{BackendMetrics, BalancedCounters},
    config::{Config, PolicySource, Store},
    containers::{ContainerMetrics, Naming, Watch},
    control::wanted_names,
    edge::{self, EdgeControl, EdgeMetrics, SharedEdge},
    fleet::{FleetMetrics, sharing::SharingMetrics},
    kernel_counters::KernelCounters,
    log::Log,
    observed::{ObservedCounters, SharedDataplane},
    process_metrics,
    remembered::RememberedGauge,
    shortcuts::ShortcutCounters,
    socket_file::{Door, SocketFile},
    upgrade::{Given, Listener, Offered},
};

/// Signals and sockets, from before anything is attached: so that a signal is never one that kills, and a port
/// in use is found before the host is touched.
pub(super) struct Doors {
    pub(super) signals: Signals,
    pub(super) admin: admin::Listeners,
    pub(super) control: SocketFile,
}

pub(super) struct Signals {
    pub(super) stops: Stops,
    pub(super) hangups: Signal,
}

/// SIGTERM and SIGINT, and which of the two has come.
pub(super) struct Stops {
    terminate: Signal,
    interrupt: Signal,
    come: Option<&'static str>,
}

impl Stops {
    /// Waits until one of them has come, now or before.
    pub(super) async fn wait(&mut self) -> &'static str {
        if let Some(come) = self.come {
            return come;
        }
        let come = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        };
        self.come = Some(come);
        come
    }
}

impl Doors {
    /// `given`: sockets of the agent that runs.
    pub(super) async fn open(config: &Config, given: &mut Given) -> anyhow::Result<Self> {
        Ok(Self {
            signals: Signals {
                stops: Stops {
                    terminate: signal(SignalKind::terminate())?,
                    interrupt: signal(SignalKind::interrupt())?,
                    come: None,
                },
                hangups: signal(SignalKind::hangup())?,
            },
            admin: admin::Listeners::bind(config, given).await?,
            control: given.socket(Door::Control, &config.control)?,
        })
    }

    /// The sockets, for an agent that takes over.
    pub(super) fn offered(&self) -> std::io::Result<Offered> {
        let control = self.control.path().to_owned();
        let control = (Listener::Control(control), self.control.descriptor()?);
        let mut listeners = self.admin.descriptors()?;
        listeners.push(control);
        Ok(Offered {
            listeners,
            files: vec![self.admin.is_given(), self.control.is_given()],
        })
    }
}

/// All that can fail before the host is touched.
pub(super) struct Early {
    pub(super) options: Options,
    pub(super) max_flows: usize,
    /// The dataplane, once it is attached.
    pub(super) attached: SharedDataplane,
    pub(super) registry: Registry,
    pub(super) backend_metrics: BackendMetrics,
    pub(super) edge: SharedEdge,
    pub(super) edge_control: EdgeControl,
    pub(super) metrics: Metrics,
    pub(super) pipeline_metrics: PipelineMetrics,
    pub(super) tap_metrics: TapMetrics,
    pub(super) refused: IntCounterVec,
    pub(super) services: Arc<Services>,
    pub(super) tls: TlsRules,
    pub(super) available: PathsAvailable,
    pub(super) container_metrics: ContainerMetrics,
    pub(super) fleet_metrics: FleetMetrics,
    pub(super) sharing_metrics: SharingMetrics,
    pub(super) containers: Watch,
    pub(super) name_metrics: NameMetrics,
    pub(super) names: Follower,
}

impl Early {
    /// Makes it, and what the rules mean with the containers and names that are known. `is_first`: no agent runs that goes on if this one fails.
    pub(super) async fn make(
        beginning: &mut Beginning,
        max_flows: usize,
        is_first: bool,
    ) -> anyhow::Result<(Self, Config)> {
        let config = &beginning.config;
        let options = options(config)?;
        let attached = SharedDataplane::default();
        let registry = Registry::new();
        process_metrics::register(&registry)?;
        Log::register(&registry)?;
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
        let tap_metrics = TapMetrics::register(&registry)?;
        let refused = admin::register(&registry)?;
        let services = Services::register(
            &registry,
            &metrics,
            &pipeline_metrics,
            &config.record_labels,
        )?;
        let services = Arc::new(services);
        let pushed = services
            .collectors
            .push_metrics(config.metrics_push.as_ref());
        pushed.map_err(|why| anyhow::anyhow!("[otlp]: {why}"))?;
        let tls = match open(config, &services) {
            Err(_) if is_first && beginning.is_fleets() => {
                beginning.treat_by_fail(&unopened(&beginning.config, &services))?;
                open(&beginning.config, &services)?
            }
            opened => opened?,
        };
        let mut config = beginning.config.clone();
        config.policy = config.policy.open_at(Timestamp::now());
        let available = PathsAvailable::register(&registry)?;
        let container_metrics = ContainerMetrics::register(&registry)?;
        let fleet_metrics = FleetMetrics::register(&registry)?;
        let sharing_metrics = SharingMetrics::register(&registry)?;
        let of_kubernetes = |source: &PolicySource| matches!(source.store, Store::Kubernetes(_));
        let naming = Naming {
            containers: services.containers.clone(),
            labels: config.record_labels.clone().into(),
            is_wanted: !config.record_labels.is_empty()
                || config.source.as_ref().is_some_and(of_kubernetes),
        };
        let containers = Watch::new(
            &config.containers,
            &mut config.policy,
            naming,
            container_metrics.clone(),
        )
        .await;
        let name_metrics = NameMetrics::register(&registry)?;
        let resolver = Resolver::new(files(), dial_plainly());
        let wanted = wanted_names(&beginning.config);
        let names = Follower::begin(&wanted, resolver, name_metrics.clone()).await;
        let known = names.book();
        name_metrics.left_out(
            config
                .policy
                .find_names(|name| known.borrow().endpoints(name)),
        );
        let early = Self {
            options,
            max_flows,
            attached,
            registry,
            backend_metrics,
            edge,
            edge_control,
            metrics,
            pipeline_metrics,
            tap_metrics,
            refused,
            services,
            tls,
            available,
            container_metrics,
            fleet_metrics,
            sharing_metrics,
            containers,
            name_metrics,
            names,
        };
        Ok((early, config))
    }
}

/// Opens what the rules need: keys, journals and certificates.
fn open(config: &Config, services: &Arc<Services>) -> anyhow::Result<TlsRules> {
    config.pipelines.open(services)?;
    TlsRules::load(&config.tls)
}

/// Returns the rules for which that fails, each with the reason.
fn unopened(config: &Config, services: &Arc<Services>) -> Vec<(RuleName, anyhow::Error)> {
    let mut unopened = config.pipelines.open_each(services);
    for one in &config.tls {
        if let Err(why) = TlsRules::load(slice::from_ref(one)) {
            unopened.push((one.0.clone(), why));
        }
    }
    unopened
}

/// The kernel's part of what tasks work with.
pub(super) struct Taken {
    pub(super) entrances: IncomingListeners,
    pub(super) holds: Holds,
    pub(super) netns_agents: Arc<NetnsAgents>,
    pub(super) serve_requests: ServeRequests,
    pub(super) denials: KernelDenials,
    pub(super) settle: mpsc::Sender<NewNetnsListeners>,
}

/// Where everything is that the tasks have in common.
pub(super) struct Attachment {
    pub(super) taken: Taken,
    pub(super) splices: Result<(Splicer, Calls), String>,
    pub(super) answers: Answers,
    pub(super) remembered: Arc<Remembered>,
    pub(super) legs: Legs,
    pub(super) probes: (Probe, Severed),
    pub(super) give_listener: mpsc::UnboundedSender<IncomingListener>,
}

/// Attaches to the kernel, and then to the interfaces. `before`: the agent that runs, which has the interfaces, and new
/// connections.
pub(super) fn attach(
    config: &Config,
    early: &mut Early,
    before: Option<Before>,
) -> anyhow::Result<Attachment> {
    let is_first = before.is_none();
    let Attached {
        dataplane,
        listeners,
        holds,
        netns_agents,
        serve_requests,
        denials,
        answers,
        incoming_listeners,
        remembered,
        splices,
        probe,
        severed,
        served,
    } = Dataplane::attach_after(&early.options, &config.policy, before)?;
    let legs = dataplane.legs();
    *early
        .attached
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some(dataplane);
    early.services.caches.dial_by(probe);
    early.services.folds.dial_by(probe, legs.clone());
    early.services.lookups.dial_by(probe);
    early.services.mirrors.dial_by(probe);
    early.services.collectors.dial_by(probe);
    // Beneath the pins, which are ours alone by now.
    if is_first && let Err(error) = early.edge_control.apply(&config.xdp, &config.policy) {
        return Err(stop_because(error, &early.attached));
    }
    let (settle, settled) = mpsc::channel(MAX_NAMESPACES);
    // There is room for as many as there can be.
    served
        .into_iter()
        .try_for_each(|served| settle.try_send(served))?;
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
            denials,
            settle,
        },
        splices,
        answers,
        remembered,
        legs,
        probes: (probe, severed),
        give_listener,
    })
}

/// The system's files, or those of a test.
fn files() -> Files {
    let hook = &test_hooks::get().resolv_conf;
    Files {
        resolv_conf: hook.clone().unwrap_or(Files::default().resolv_conf),
        ..Files::default()
    }
}

fn options(config: &Config) -> anyhow::Result<Options> {
    let cgroup = match &config.cgroup {
        Some(path) => path.clone(),
        None => match host::cgroup2_root()? {
            Some(root) => root,
            None => bail!(host::no_cgroup2()?),
        },
    };
    Ok(Options {
        cgroup,
        pins: config.pins.clone(),
        incoming: config.incoming.clone(),
        max_namespaces: limits::max_namespaces(config.max_namespaces),
        tap_ring_bytes: config.tap_ring_bytes,
        taken: edge::taken(&config.xdp, &config.policy),
    })
}
