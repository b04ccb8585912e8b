//! The comparison as metrics.

use std::sync::Arc;

use policy::Policy;
use prometheus::{
    GaugeVec, Opts,
    core::{Collector, Desc},
    proto,
};
use tokio::sync::watch;

use super::{
    QUANTILES,
    estimate::{self, Group, HELD_OUT, Interval, TREATED},
    ledgers,
};
use crate::observed::SharedDataplane;

/// The comparison of rules with a holdout. It is made when somebody asks.
pub struct OverheadMetrics {
    dataplane: SharedDataplane,
    policy: watch::Receiver<Arc<Policy>>,
    families: Families,
}

struct Families {
    connections: GaugeVec,
    requests: GaugeVec,
    errors: GaugeVec,
    latency: GaugeVec,
    seconds: [GaugeVec; 3],
    error_ratio: [GaugeVec; 3],
}

impl Families {
    fn new() -> prometheus::Result<Self> {
        let gauge = |name: &str, help: String, labels: &[&str]| {
            GaugeVec::new(
                Opts::new(format!("underpass_overhead_{name}"), help),
                labels,
            )
        };
        let group = ["rule", "group"];
        let three = |name: &str,
                     what: &str,
                     labels: &[&str]|
         -> prometheus::Result<[GaugeVec; 3]> {
            let one = |part: &str, about: &str| {
                let help = format!(
                    "{about}how much more {what} connections have that are treated as their rule says than those that it leaves alone \
                     (`holdout`). Absent while there is not enough to compare."
                );
                gauge(&format!("{part}_{name}"), help, labels)
            };
            Ok([
                one("added", "Estimate of ")?,
                one("added_low", "Lower end of the 95 % confidence interval of ")?,
                one(
                    "added_high",
                    "Upper end of the 95 % confidence interval of ",
                )?,
            ])
        };
        Ok(Self {
            connections: gauge("connections", "Connections that are compared, by rule and group: those that go on, and the last of those that have ended.".into(), &group)?,
            requests: gauge("requests", "Requests on these connections whose latency is known.".into(), &group)?,
            errors: gauge("errors", "ERROR responses on these connections.".into(), &group)?,
            latency: gauge("latency_seconds", "Latency on these connections, by quantile.".into(), &["rule", "group", "quantile"])?,
            seconds: three("seconds", "latency (by quantile)", &["rule", "quantile"])?,
            error_ratio: three("errors_ratio", "ERROR responses (as a share of requests)", &["rule"])?,
        })
    }

    fn all(&self) -> impl Iterator<Item = &GaugeVec> {
        let counts = [
            &self.connections,
            &self.requests,
            &self.errors,
            &self.latency,
        ];
        counts
            .into_iter()
            .chain(&self.seconds)
            .chain(&self.error_ratio)
    }

    fn add(&self, rule: &str, held_out: &Group, treated: &Group) {
        for (name, group) in [(HELD_OUT, held_out), (TREATED, treated)] {
            let labels = [rule, name];
            self.connections
                .with_label_values(&labels)
                .set(group.connections() as f64);
            self.requests
                .with_label_values(&labels)
                .set(group.requests() as f64);
            self.errors
                .with_label_values(&labels)
                .set(group.errors() as f64);
            for share in QUANTILES {
                if let Some(latency) = group.quantile(share) {
                    let labels = [rule, name, &share.to_string()];
                    self.latency.with_label_values(&labels).set(latency);
                }
            }
        }
        for share in QUANTILES {
            if let Ok(found) = estimate::difference(treated, held_out, share) {
                set(&self.seconds, &[rule, &share.to_string()], found);
            }
        }
        if let Ok(found) = estimate::errors(treated, held_out) {
            set(&self.error_ratio, &[rule], found);
        }
    }
}

fn set(of: &[GaugeVec; 3], labels: &[&str], found: Interval) {
    for (gauge, value) in of.iter().zip([found.value, found.low, found.high]) {
        gauge.with_label_values(labels).set(value);
    }
}

impl OverheadMetrics {
    /// Makes the metrics over the data plane, which may have been detached.
    ///
    /// # Errors
    /// Two metrics of one name: a mistake in this file.
    pub fn new(
        dataplane: SharedDataplane,
        policy: watch::Receiver<Arc<Policy>>,
    ) -> prometheus::Result<Self> {
        Ok(Self {
            dataplane,
            policy,
            families: Families::new()?,
        })
    }

    /// Returns each metric with one sample that says zero: for documentation.
    ///
    /// # Errors
    /// As [`OverheadMetrics::new`].
    pub fn declared() -> prometheus::Result<Vec<proto::MetricFamily>> {
        let families = Families::new()?;
        for gauge in families.all() {
            let labels = gauge
                .desc()
                .first()
                .map_or(0, |desc| desc.variable_labels.len());
            gauge.with_label_values(&vec![""; labels]);
        }
        Ok(families.all().flat_map(Collector::collect).collect())
    }
}

impl Collector for OverheadMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.families.all().flat_map(|gauge| gauge.desc()).collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let policy = self.policy.borrow().clone();
        // Rules and quantiles of an earlier look may be gone.
        let Ok(families) = Families::new() else {
            return Vec::new();
        };
        for of in ledgers(&self.dataplane, &policy) {
            let [held_out, treated] =
                [&of.groups.held_out, &of.groups.treated].map(|group| Group::new(group));
            families.add(of.rule.as_str(), &held_out, &treated);
        }
        let all = families.all().flat_map(Collector::collect);
        all.filter(|family| !family.get_metric().is_empty())
            .collect()
    }
}
