//! Limits that the fleet shares: a thread publishes what this host's tenants want, and hears what they may have
//! ([`policy_source::Sharer`]). Nothing of a flow waits for it.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use limits::{Held, Limit};
use policy_source::{Dial, Failure, Pace, Settings, Sharer, Sharing};
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use steps::pipelines::Pipelines;
use tokio::{runtime, sync::watch};

use crate::config::Host;

/// The handles of the metrics.
#[derive(Clone, Debug)]
pub struct SharingMetrics {
    share: GaugeVec,
    wanted: GaugeVec,
    tenants: GaugeVec,
    hosts: GaugeVec,
    left_out: GaugeVec,
    in_step: IntGauge,
    leads: IntGauge,
    failures: IntCounterVec,
    beyond: IntCounter,
    /// The limits that have samples.
    shown: Arc<Mutex<Vec<String>>>,
}

impl SharingMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name: a mistake in this file.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let of_limit = |name: &str, help: &str| {
            let gauge = GaugeVec::new(
                Opts::new(format!("underpass_limits_{name}"), help),
                &["limit"],
            )?;
            registry.register(Box::new(gauge.clone()))?;
            prometheus::Result::Ok(gauge)
        };
        let metrics = Self {
            share: of_limit(
                "share",
                "Requests a second that this host may let pass of a limit that the fleet shares, for all its tenants together.",
            )?,
            wanted: of_limit(
                "wanted",
                "Requests a second that are asked for here, likewise.",
            )?,
            tenants: of_limit(
                "tenants",
                "Tenants of the limit that have asked on this host in the last minute.",
            )?,
            hosts: of_limit(
                "hosts",
                "Hosts that share the limit, as this one has heard.",
            )?,
            left_out: of_limit(
                "left_out",
                "Tenants of the fleet whose demand is not looked at, because there are too many: each host has an equal share.",
            )?,
            in_step: IntGauge::new(
                "underpass_limits_in_step",
                "1 while shares of the fleet's limits follow what is asked for, by etcd; 0 while they stay as they were, and without such a limit.",
            )?,
            leads: IntGauge::new(
                "underpass_limits_leads",
                "1 while this host computes for all how the fleet's limits are shared.",
            )?,
            failures: IntCounterVec::new(
                Opts::new(
                    "underpass_limits_failures_total",
                    "Sessions with etcd for the fleet's limits that ended or did not begin, by cause.",
                ),
                &["cause"],
            )?,
            beyond: IntCounter::new(
                "underpass_limits_beyond_total",
                "Requests of tenants that are more than a host tells the fleet of: of these, each has an equal share.",
            )?,
            shown: Arc::default(),
        };
        registry.register(Box::new(metrics.in_step.clone()))?;
        registry.register(Box::new(metrics.leads.clone()))?;
        registry.register(Box::new(metrics.failures.clone()))?;
        registry.register(Box::new(metrics.beyond.clone()))?;
        for cause in Failure::LABELS {
            metrics.failures.with_label_values(&[cause]);
        }
        Ok(metrics)
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        for gauge in self.of_limits() {
            gauge.with_label_values(&["shop.user"]);
        }
    }

    fn of_limits(&self) -> [&GaugeVec; 5] {
        [
            &self.share,
            &self.wanted,
            &self.tenants,
            &self.hosts,
            &self.left_out,
        ]
    }

    /// Shows the limits that there are now.
    fn show(&self, held: &[Held]) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        // A limit that has gone leaves nothing behind.
        for gone in shown
            .iter()
            .filter(|name| held.iter().all(|limit| limit.name != **name))
        {
            for gauge in self.of_limits() {
                // It was there.
                let _ = gauge.remove_label_values(&[gone]);
            }
        }
        *shown = held.iter().map(|limit| limit.name.clone()).collect();
        for limit in held {
            let of = [limit.name.as_str()];
            self.share.with_label_values(&of).set(limit.share);
            self.wanted.with_label_values(&of).set(limit.wanted);
            self.tenants
                .with_label_values(&of)
                .set(limit.tenants as f64);
            self.hosts.with_label_values(&of).set(limit.hosts as f64);
            self.left_out
                .with_label_values(&of)
                .set(limit.left_out as f64);
        }
        if held.is_empty() {
            self.in_step.set(0);
        }
    }

    fn hear(&self, news: Sharing) {
        match news {
            Sharing::InStep => {
                if self.in_step.get() == 0 {
                    tracing::info!("the fleet's limits are shared by etcd");
                }
                self.in_step.set(1);
            }
            Sharing::Failed(failure) => {
                self.failures.with_label_values(&[failure.label()]).inc();
                match self.in_step.get() {
                    0 => tracing::debug!("the fleet's limits are still not shared: {failure}"),
                    _ => tracing::warn!("the fleet's limits stay shared as they are: {failure}"),
                }
                self.in_step.set(0);
                self.leads.set(0);
            }
            Sharing::Looked {
                held,
                beyond,
                leads,
            } => {
                self.show(&held);
                self.beyond.inc_by(beyond);
                self.leads.set(i64::from(leads));
            }
        }
    }
}

/// Starts to share, on a thread of its own. There is a session with etcd while some pipeline has a limit of the fleet.
///
/// # Errors
/// The system gives no thread, or no descriptors.
pub fn start(
    settings: &Settings,
    host: &Host,
    dial: Dial,
    mut pipelines: watch::Receiver<Arc<Pipelines>>,
    metrics: SharingMetrics,
    until: super::Until,
) -> io::Result<()> {
    let limits_of =
        |pipelines: &Pipelines| -> Vec<Arc<Limit>> { pipelines.limits().cloned().collect() };
    let held = watch::Sender::new(limits_of(&pipelines.borrow_and_update()));
    let sharer = Sharer {
        settings: settings.clone(),
        host: host.name.clone(),
        pace: Pace::default(),
        dial,
        limits: held.subscribe(),
        tell: Box::new(move |news| metrics.hear(news)),
    };
    let follow = async move {
        while pipelines.changed().await.is_ok() {
            held.send_replace(limits_of(&pipelines.borrow_and_update()));
        }
    };
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(super::LOOK_UPS)
        .build()?;
    let share = move || {
        runtime.block_on(async {
            let sharing = async { tokio::join!(sharer.run(), follow) };
            tokio::select! {
                _ = sharing => {}
                () = super::over(until) => {}
            }
        });
    };
    thread::Builder::new().name("limits".into()).spawn(share)?;
    Ok(())
}
