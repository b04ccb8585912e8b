//! Requests by the container, and the pod, that they come from.

use std::sync::Arc;

use cql::Completed;
use policy::RuleName;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Registry};
use telemetry::{counter, counters_by};

use crate::{
    bounded::{self, Bounded},
    containers::Contained,
};

/// The most series of containers, by rule. A further one takes the place of the one that was not used for longest, in the namespace that has
/// most: a node has about a hundred pods, and those that are gone leave their series.
pub const MAX_CONTAINER_SERIES: usize = 128;

/// The histogram's buckets in seconds. There are as many histograms as containers, so there are few.
const BUCKETS: [f64; 9] = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.02, 0.1, 0.5, 2.0];

/// The labels of all metrics here, before those that operators have chosen.
const LABELS: [&str; 5] = ["rule", "namespace", "owner", "pod", "container"];

/// The values of [`LABELS`], and of those that were chosen.
type Values = Arc<[String]>;

/// The series of a container.
pub(super) type Series = bounded::Series<Values, String, Counts>;

/// The metrics of all containers.
#[derive(Debug)]
pub(super) struct ContainerMetrics {
    series: Bounded<Values, String, Counts>,
    /// Keys of the labels that were chosen.
    keys: Vec<String>,
    seconds: HistogramVec,
    errors: IntCounterVec,
    replaced: IntCounter,
}

/// The counts of one container under one rule.
#[derive(Debug)]
pub(super) struct Counts {
    seconds: Histogram,
    errors: IntCounter,
}

impl ContainerMetrics {
    /// Declares and registers the metrics. `keys`: the keys of containers' labels that they have.
    pub(super) fn register(registry: &Registry, keys: &[String]) -> prometheus::Result<Self> {
        let chosen = names(keys);
        let labels: Vec<&str> = LABELS
            .into_iter()
            .chain(chosen.iter().map(String::as_str))
            .collect();
        let opts = HistogramOpts::new(
            "underpass_container_seconds",
            "From a request's header to the last byte of its response, of rules with `stats`, by the client's container and its pod; also by \
             `label_KEY` for each key of containers.record_labels.",
        );
        let seconds = HistogramVec::new(opts.buckets(BUCKETS.to_vec()), &labels)?;
        registry.register(Box::new(seconds.clone()))?;
        Ok(Self {
            series: Bounded::new(MAX_CONTAINER_SERIES),
            keys: keys.to_vec(),
            seconds,
            errors: counters_by(
                registry,
                "underpass_container_errors_total",
                "ERROR responses, likewise.",
                &labels,
            )?,
            replaced: counter(
                registry,
                "underpass_container_series_replaced_total",
                "Series of containers that made room for further ones: the least recently used of the namespace that has most.",
            )?,
        })
    }

    pub(super) fn declare_for_docs(&self) {
        self.make(&[const { String::new() }; LABELS.len()]);
    }

    /// Returns the series of a container, which is made if there is none.
    pub(super) fn of(&self, rule: &RuleName, container: &Contained) -> Arc<Series> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let namespace = text(&container.namespace);
        let own = [
            rule.to_string(),
            namespace.clone(),
            text(&container.owner),
            text(&container.pod),
            text(&container.container),
        ];
        let chosen = self
            .keys
            .iter()
            .map(|key| container.labels.get(key).cloned().unwrap_or_default());
        let values = own.into_iter().chain(chosen).collect();
        self.series.find(
            values,
            namespace,
            |values| self.make(values),
            |leaves| self.forget(leaves),
        )
    }

    /// Counts a response.
    pub(super) fn record(&self, series: &Series, completed: &Completed<'_>) {
        series.seconds.observe(completed.latency_ns as f64 / 1e9);
        if completed.error.is_some() {
            series.errors.inc();
        }
        self.series.note_use(series);
    }

    fn make(&self, values: &[String]) -> Counts {
        Counts {
            seconds: self.seconds.with_label_values(values),
            errors: self.errors.with_label_values(values),
        }
    }

    fn forget(&self, leaves: &Series) {
        // They are there as long as their series.
        let _ = self.seconds.remove_label_values(&leaves.key);
        let _ = self.errors.remove_label_values(&leaves.key);
        self.replaced.inc();
    }
}

/// Names of labels for these keys, as Prometheus allows them. Keys that would have one name are numbered.
fn names(keys: &[String]) -> Vec<String> {
    let mut names = Vec::<String>::new();
    for key in keys {
        let safe = key.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let numbered = (2..).map(|n| format!("label_{safe}_{n}"));
        let mut free = std::iter::once(format!("label_{safe}")).chain(numbered);
        names.extend(free.find(|name| !names.contains(name)));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, pod: &str) -> Contained {
        Contained {
            pod: Some(pod.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            ..Contained::default()
        }
    }

    #[test]
    fn labels_have_names_that_prometheus_allows() {
        let keys = ["app", "app.kubernetes.io/name", "app-kubernetes-io/name"].map(str::to_owned);
        assert_eq!(
            names(&keys),
            [
                "label_app",
                "label_app_kubernetes_io_name",
                "label_app_kubernetes_io_name_2"
            ]
        );
    }

    #[test]
    fn a_namespace_of_many_pods_pushes_out_its_own() {
        let registry = Registry::new();
        let metrics = ContainerMetrics::register(&registry, &["app".to_owned()]).unwrap();
        let rule = RuleName::new("r");
        let one = metrics.of(&rule, &pod("shop", "web-1"));
        for n in 0..2 * MAX_CONTAINER_SERIES {
            metrics.of(&rule, &pod("jobs", &format!("job-{n}")));
        }
        assert!(!one.is_gone());
        assert_eq!(metrics.series.all().len(), MAX_CONTAINER_SERIES);
        assert_eq!(metrics.replaced.get(), MAX_CONTAINER_SERIES as u64 + 1);
        let shown = registry.gather();
        let seconds = shown
            .iter()
            .find(|family| family.name() == "underpass_container_seconds");
        assert_eq!(seconds.unwrap().get_metric().len(), MAX_CONTAINER_SERIES);
    }
}
