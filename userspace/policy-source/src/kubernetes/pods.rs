//! Pods on a node, as the API server knows them.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::collection::{Object, Objects};

/// Pods of a node: an order above what kubelets run. Of more, those whose names come last are known by the runtime alone.
pub const MAX_PODS: usize = 2048;

/// The label by which a ReplicaSet of a Deployment knows its pods: the end of its name.
const TEMPLATE: &str = "pod-template-hash";

/// Facts of a pod that a container runtime does not know, or not as they are by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The service account.
    pub service_account: String,
    /// The owner, which made it: `deployment/shop`.
    pub owner: Option<String>,
}

/// The pods of a node by their ids.
pub type Pods = HashMap<String, PodFacts>;

#[derive(Clone, Debug, Deserialize)]
pub(super) struct PodBody {
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    service_account_name: String,
}

pub(super) fn facts(pods: &Objects<PodBody>) -> Pods {
    let pods = pods.values().map(|pod| {
        let facts = PodFacts {
            labels: pod.metadata.labels.clone(),
            service_account: pod.body.spec.service_account_name.clone(),
            owner: owner(pod),
        };
        (pod.metadata.uid.clone(), facts)
    });
    pods.collect()
}

/// The owner that people know: of a ReplicaSet's pod the Deployment, of a Job's the CronJob, by how these name what they make.
fn owner(pod: &Object<PodBody>) -> Option<String> {
    let owners = &pod.metadata.owner_references;
    let owner = owners.iter().find(|owner| owner.controller)?;
    let kind = owner.kind.to_ascii_lowercase();
    let above = match kind.as_str() {
        "replicaset" => {
            let hash = pod.metadata.labels.get(TEMPLATE);
            let name = hash.and_then(|hash| owner.name.strip_suffix(hash.as_str()));
            let name = name.and_then(|name| name.strip_suffix('-'));
            name.map(|name| format!("deployment/{name}"))
        }
        // `NAME-MINUTES`, where minutes since 1970 have eight digits.
        "job" => owner.name.rsplit_once('-').and_then(|(name, minutes)| {
            let is_scheduled = minutes.len() == 8 && minutes.bytes().all(|b| b.is_ascii_digit());
            is_scheduled.then(|| format!("cronjob/{name}"))
        }),
        _ => None,
    };
    Some(above.unwrap_or_else(|| format!("{kind}/{}", owner.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_those_that_people_know() {
        let pod = |kind: &str, name: &str, hash: &str| {
            let pod = serde_json::json!({
                "metadata": {
                    "name": "p",
                    "labels": {TEMPLATE: hash},
                    "ownerReferences": [
                        {"kind": "Other", "name": "x"},
                        {"kind": kind, "name": name, "controller": true},
                    ],
                },
                "spec": {"serviceAccountName": "web"},
            });
            owner(&serde_json::from_value(pod).unwrap())
        };
        for (kind, name, hash, known) in [
            (
                "ReplicaSet",
                "shop-5d9c7b",
                "5d9c7b",
                Some("deployment/shop"),
            ),
            ("StatefulSet", "db", "", Some("statefulset/db")),
            ("Job", "nightly-29384756", "", Some("cronjob/nightly")),
            ("Job", "once-1", "", Some("job/once-1")),
            ("DaemonSet", "agent", "", Some("daemonset/agent")),
        ] {
            assert_eq!(pod(kind, name, hash).as_deref(), known, "{kind} {name}");
        }
        let alone = serde_json::from_value(serde_json::json!({"metadata": {"name": "p"}}));
        assert_eq!(owner(&alone.unwrap()), None);
    }
}
