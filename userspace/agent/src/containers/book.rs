//! The containers that runtimes have named.

use std::collections::BTreeMap;

use policy::{Container, KUBELETS, MAX_CONTAINER_TEXT_BYTES, Pod};
use policy_source::{PodFacts, Pods};

/// The most labels of one container that are kept. Docker and Kubernetes have no limit; people have
/// twenty.
pub(super) const MAX_LABELS: usize = 256;

/// The containers of each runtime.
#[derive(Clone, Debug, Default)]
pub struct Book(pub(super) Vec<Page>);

/// The containers of one runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) containers: Vec<Container>,
    /// The number of running containers without a cgroup of their own.
    pub(super) shared: usize,
    /// The number of containers beyond the limit.
    pub(super) too_many: usize,
}

impl Book {
    /// Returns all running containers.
    pub fn running(&self) -> impl Iterator<Item = &Container> + Clone {
        self.0.iter().flat_map(|page| &page.containers)
    }
}

impl Page {
    /// Adds what an API server knows of the containers' pods: labels as they are by now, service account and owner.
    pub(super) fn learn(&mut self, pods: &Pods) {
        for container in &mut self.containers {
            let pod = container.pod.as_mut();
            if let Some((pod, facts)) =
                pod.and_then(|pod| pods.get(&pod.uid).map(|facts| (pod, facts)))
            {
                settle(pod, &mut container.labels, facts);
            }
        }
    }
}

/// A label like those of a kubelet says nothing: a pod can have any.
fn settle(pod: &mut Pod, labels: &mut BTreeMap<String, String>, facts: &PodFacts) {
    pod.service_account = Some(facts.service_account.clone());
    pod.owner.clone_from(&facts.owner);
    labels.retain(|key, _| key.starts_with(KUBELETS));
    let fits = |text: &str| text.len() <= MAX_CONTAINER_TEXT_BYTES;
    let known = facts
        .labels
        .iter()
        .filter(|(key, value)| !key.starts_with(KUBELETS) && fits(key) && fits(value));
    labels.extend(
        known
            .take(MAX_LABELS)
            .map(|(key, value)| (key.clone(), value.clone())),
    );
}

/// A container as it is listed.
pub(super) struct Running {
    pub id: String,
    pub names: Vec<String>,
    pub labels: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_server_knows_comes_before_what_the_runtime_does_and_is_not_believed_to_be_a_kubelets()
     {
        let labels = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let of_runtime = labels(&[
            ("io.kubernetes.pod.name", "web-1"),
            ("io.kubernetes.pod.namespace", "shop"),
            ("io.kubernetes.pod.uid", "u1"),
            ("app", "old"),
            ("gone", "1"),
        ]);
        let mut page = Page::default();
        page.containers.push(Container {
            names: Vec::new(),
            pod: Pod::of_labels(&of_runtime),
            labels: of_runtime,
            cgroup: "/c".into(),
            pid: 1,
        });
        let facts = PodFacts {
            labels: labels(&[("app", "web"), ("io.kubernetes.pod.namespace", "bank")]),
            service_account: "web".to_owned(),
            owner: Some("deployment/web".to_owned()),
        };
        page.learn(&[("u2".to_owned(), facts.clone())].into());
        assert_eq!(page.containers[0].labels["app"], "old");
        page.learn(&[("u1".to_owned(), facts)].into());
        let found = &page.containers[0];
        let pod = found.pod.as_ref().unwrap();
        assert_eq!(pod.namespace, "shop");
        assert_eq!(pod.owner.as_deref(), Some("deployment/web"));
        assert_eq!(pod.service_account.as_deref(), Some("web"));
        assert_eq!(found.labels["app"], "web");
        assert_eq!(found.labels["io.kubernetes.pod.namespace"], "shop");
        assert!(!found.labels.contains_key("gone"));
    }
}
