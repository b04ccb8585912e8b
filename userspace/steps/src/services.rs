//! The services that steps need of the agent.

use std::sync::Arc;

use cql::PreparedStatements;
use prometheus::Registry;
use telemetry::Metrics;

use crate::{
    cache::{CacheMetrics, Caches},
    capture::Captures,
    coalesce::CoalesceMetrics,
    containers::Containers,
    fenced,
    fold::{FoldMetrics, Folds},
    frames::FrameMetrics,
    journal::{JournalMetrics, Journals},
    lookup::Lookups,
    mirror::{MirrorMetrics, Mirrors},
    otlp::{Collectors, OtlpMetrics},
    pipeline_metrics::PipelineMetrics,
    protect::{ProtectMetrics, Rings},
    statements::Statements,
    stats,
    tail::Tails,
};

/// The services that reporters and effects need of the agent. They outlive reporters and effects,
/// of which a reload makes new ones.
#[derive(Debug)]
pub struct Services {
    /// The journals of `audit` and `slowlog`.
    pub journals: Journals,
    /// The collectors that get spans, log records and metrics.
    pub collectors: Collectors,
    /// The Redis servers of `cache`.
    pub caches: Caches,
    /// The second clusters of `mirror`.
    pub mirrors: Mirrors,
    /// The metrics of `coalesce` (write batching).
    pub coalesce: CoalesceMetrics,
    /// The shared connections of `fold` (connection multiplexing).
    pub folds: Folds,
    /// The metrics of `count` and `debug`.
    pub frames: FrameMetrics,
    /// The counts of `stats`.
    pub stats: stats::Counted,
    /// The statements of all flows, as they are counted without a step.
    pub statements: Arc<Statements>,
    /// The watchers of statements as they pass.
    pub tails: Arc<Tails>,
    /// The captures of some flows' requests.
    pub captures: Arc<Captures>,
    /// Statements by prepared id. One store for all databases, each of which is believed as far as [`cql::Told`] says.
    pub prepared: Arc<PreparedStatements>,
    /// The threads of `lookup`.
    pub lookups: Lookups,
    /// The keys of transforms that encrypt.
    pub rings: Rings,
    /// The containers that run, which records name.
    pub containers: Arc<Containers>,
}

impl Services {
    /// Declares and registers the services' metrics. `agents` and `pipelines`: the agent's own metrics, and those of
    /// pipelines, which some services share. `labels`: the keys of containers' labels that metrics have.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(
        registry: &Registry,
        agents: &Metrics,
        pipelines: &PipelineMetrics,
        labels: &[String],
    ) -> prometheus::Result<Self> {
        fenced::register(registry)?;
        let prepared = Arc::<PreparedStatements>::default();
        Ok(Self {
            lookups: Lookups::new(prepared.clone(), pipelines.clone()),
            prepared,
            journals: Journals::new(JournalMetrics::register(registry)?),
            collectors: Collectors::new(OtlpMetrics::register(registry)?, registry.clone()),
            caches: Caches::new(CacheMetrics::register(registry)?),
            mirrors: Mirrors::new(MirrorMetrics::register(registry)?),
            coalesce: CoalesceMetrics::register(registry)?,
            folds: Folds::new(FoldMetrics::register(registry, agents)?),
            frames: FrameMetrics::register(registry)?,
            stats: stats::Counted::register(registry, labels)?,
            statements: Arc::new(Statements::register(registry)?),
            tails: Arc::new(Tails::register(registry)?),
            captures: Arc::new(Captures::register(registry)?),
            rings: Rings::new(ProtectMetrics::register(registry)?),
            containers: Arc::default(),
        })
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.caches.declare_for_docs();
        self.mirrors.declare_for_docs();
        self.coalesce.declare_for_docs();
        self.folds.declare_for_docs();
        self.frames.declare_for_docs();
        self.stats.declare_for_docs();
        self.journals.metrics.declare_for_docs();
        self.statements.declare_for_docs();
    }
}
