//! The metrics of the fleet's policy.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use policy_source::Failure;
use prometheus::{
    Gauge, IntCounterVec, IntGauge, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// The results of a change: it is put into force, or refused, or put into force and not kept on disk.
const RESULTS: [&str; 3] = ["applied", "refused", "not_kept"];

/// The handles of the metrics.
#[derive(Clone, Debug)]
pub struct FleetMetrics {
    changes: IntCounterVec,
    failures: IntCounterVec,
    in_step: IntGauge,
    is_refused: IntGauge,
    revision: IntGauge,
    has_namesake: IntGauge,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the store was heard last; before that, when the agent began. None: no source is named.
    heard: Mutex<Option<Instant>>,
    /// Whether the policy is not followed, which was said.
    is_away: AtomicBool,
}

/// The age, which is that of the moment in which it is asked for.
struct Age {
    gauge: Gauge,
    state: Arc<State>,
}

impl FleetMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name: a mistake in this file.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            changes: IntCounterVec::new(
                Opts::new(
                    "underpass_policy_source_changes_total",
                    "Policies of the fleet that were read in etcd or Kubernetes, by result: applied; refused (the old one stays in force; of Kubernetes, that of each refused object); not_kept (applied, and not written to the cache).",
                ),
                &["result"],
            )?,
            failures: IntCounterVec::new(
                Opts::new(
                    "underpass_policy_source_failures_total",
                    "Sessions with etcd or the API server that ended or did not begin, by cause.",
                ),
                &["cause"],
            )?,
            in_step: IntGauge::new(
                "underpass_policy_source_in_step",
                "1 while the fleet's policy is watched in etcd or Kubernetes; 0 while the last one that was read stays in force.",
            )?,
            is_refused: IntGauge::new(
                "underpass_policy_source_refused",
                "1 while the policy that is in etcd or Kubernetes, or an object of it, is not the one in force, because it was refused.",
            )?,
            revision: IntGauge::new(
                "underpass_policy_source_revision",
                "Revision of etcd, or version of Kubernetes, at which the fleet's policy in force was changed last.",
            )?,
            has_namesake: IntGauge::new(
                "underpass_policy_source_namesake",
                "1 while another agent that is alive writes the status of a host of this name into etcd, as a clone of this host does.",
            )?,
            state: Arc::default(),
        };
        let age = Age {
            gauge: Gauge::new(
                "underpass_policy_source_age_seconds",
                "Time since etcd, or the API server, has said that the fleet's policy is known as it is. 0 without a source.",
            )?,
            state: metrics.state.clone(),
        };
        registry.register(Box::new(metrics.changes.clone()))?;
        registry.register(Box::new(metrics.failures.clone()))?;
        registry.register(Box::new(metrics.in_step.clone()))?;
        registry.register(Box::new(metrics.is_refused.clone()))?;
        registry.register(Box::new(metrics.revision.clone()))?;
        registry.register(Box::new(metrics.has_namesake.clone()))?;
        registry.register(Box::new(age))?;
        for result in RESULTS {
            metrics.changes.with_label_values(&[result]);
        }
        for cause in Failure::LABELS {
            metrics.failures.with_label_values(&[cause]);
        }
        Ok(metrics)
    }

    /// Notes that a source is named: from now on, what is known ages.
    pub(super) fn begin(&self) {
        self.hear();
    }

    /// Notes that the policy was read. Returns whether that is new.
    pub(super) fn in_step(&self) -> bool {
        self.hear();
        let was_in_step = self.in_step.get() == 1;
        self.in_step.set(1);
        self.state.is_away.store(false, Relaxed);
        !was_in_step
    }

    pub(super) fn heard(&self) {
        self.hear();
    }

    /// Counts a failure. Returns whether it is the first one in a row.
    pub(super) fn failed(&self, cause: &str) -> bool {
        self.failures.with_label_values(&[cause]).inc();
        self.in_step.set(0);
        !self.state.is_away.swap(true, Relaxed)
    }

    /// Notes that a policy is in force.
    pub fn applied(&self, revision: i64) {
        self.changes.with_label_values(&["applied"]).inc();
        self.in_force(revision);
    }

    /// Notes which policy is in force, which is no change.
    pub fn in_force(&self, revision: i64) {
        self.is_refused.set(0);
        self.revision.set(revision);
    }

    /// Notes that a policy is refused.
    pub fn refused(&self) {
        self.changes.with_label_values(&["refused"]).inc();
        self.still_refused();
    }

    /// Notes that a policy is refused that was so before.
    pub fn still_refused(&self) {
        self.is_refused.set(1);
    }

    pub(super) fn not_kept(&self) {
        self.changes.with_label_values(&["not_kept"]).inc();
    }

    /// Notes whether another agent says that it is this host. Returns whether one does, and that is new.
    pub(super) fn namesake(&self, is_there: bool) -> bool {
        let was_there = self.has_namesake.get() == 1;
        self.has_namesake.set(i64::from(is_there));
        is_there && !was_there
    }

    fn hear(&self) {
        let mut heard = self
            .state
            .heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *heard = Some(Instant::now());
    }
}

impl Collector for Age {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let heard = *self
            .state
            .heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let age = heard.map_or(0.0, |heard| heard.elapsed().as_secs_f64());
        self.gauge.set(age);
        self.gauge.collect()
    }
}
