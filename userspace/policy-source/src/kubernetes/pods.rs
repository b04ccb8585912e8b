//! Pods on a node, as the API server knows them.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::collection::{Kept, Metadata};

/// Pods of a node: an order above what kubelets run. Of more, those whose names come last are known by the runtime alone.
pub const MAX_PODS: usize = 2048;

/// The label by which a ReplicaSet of a Deployment knows its pods: the end of its name.
const TEMPLATE: &str = "pod-template-hash";

/// Minutes between a CronJob's time and a pod of its Job, at most: a week, for Jobs that wait or try again.
const MOST_MINUTES_LATE: i64 = 7 * 24 * 60;

/// Minutes by which the clock of who makes Jobs may be ahead of the API server's.
const MOST_MINUTES_EARLY: i64 = 10;

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

#[derive(Default, Deserialize)]
struct PodBody {
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    service_account_name: String,
}

/// The id of a pod, and what is kept of it.
pub(super) type Pod = (String, PodFacts);

/// Makes of an object what is kept of it, and says how many bytes that has. A pod whose specification is not understood has no service account.
pub(super) fn pod(metadata: &Metadata, object: &RawValue) -> (Pod, usize) {
    let body: PodBody = serde_json::from_str(object.get()).unwrap_or_default();
    let facts = PodFacts {
        labels: metadata.labels.clone(),
        service_account: body.spec.service_account_name,
        owner: owner(metadata),
    };
    let labels = facts.labels.iter();
    let bytes = labels.map(|(key, value)| key.len() + value.len()).sum();
    ((metadata.uid.clone(), facts), bytes)
}

pub(super) fn facts(pods: &Kept<Pod>) -> Pods {
    pods.iter().map(|(_, _, pod)| pod.clone()).collect()
}

/// The owner that people know: of a ReplicaSet's pod the Deployment, of a Job's the CronJob, by how these name what they make.
fn owner(pod: &Metadata) -> Option<String> {
    let owners = &pod.owner_references;
    let owner = owners.iter().find(|owner| owner.controller)?;
    let kind = owner.kind.to_ascii_lowercase();
    let above = match kind.as_str() {
        "replicaset" => {
            let hash = pod.labels.get(TEMPLATE);
            let name = hash.and_then(|hash| owner.name.strip_suffix(hash.as_str()));
            let name = name.and_then(|name| name.strip_suffix('-'));
            name.map(|name| format!("deployment/{name}"))
        }
        "job" => owner.name.rsplit_once('-').and_then(|(name, minutes)| {
            is_scheduled(minutes, pod).then(|| format!("cronjob/{name}"))
        }),
        _ => None,
    };
    Some(above.unwrap_or_else(|| format!("{kind}/{}", owner.name)))
}

/// Whether the end of a Job's name is that of a CronJob's: the minutes since 1970 for which it is scheduled, a while before its pod was made. A day,
/// as people end names with one, is another number of as many digits.
fn is_scheduled(minutes: &str, pod: &Metadata) -> bool {
    let is_number = minutes.bytes().all(|b| b.is_ascii_digit());
    let minutes = minutes.parse::<i64>().ok().filter(|_| is_number);
    let made = pod.creation_timestamp.as_deref();
    let made = made.and_then(|made| made.parse::<Timestamp>().ok());
    let (Some(minutes), Some(made)) = (minutes, made) else {
        return false;
    };
    let ago = made.as_second().div_euclid(60) - minutes;
    (-MOST_MINUTES_EARLY..=MOST_MINUTES_LATE).contains(&ago)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_those_that_people_know() {
        let pod = |kind: &str, name: &str, hash: &str| {
            let metadata = serde_json::json!({
                "name": "p",
                "creationTimestamp": "2025-11-13T21:17:05Z",
                "labels": {TEMPLATE: hash},
                "ownerReferences": [
                    {"kind": "Other", "name": "x"},
                    {"kind": kind, "name": name, "controller": true},
                ],
            });
            owner(&serde_json::from_value(metadata).unwrap())
        };
        for (kind, name, hash, known) in [
            (
                "ReplicaSet",
                "shop-5d9c7b",
                "5d9c7b",
                Some("deployment/shop"),
            ),
            ("StatefulSet", "db", "", Some("statefulset/db")),
            // 2025-11-13T20:37, and six days earlier.
            ("Job", "nightly-29384437", "", Some("cronjob/nightly")),
            ("Job", "nightly-29375797", "", Some("cronjob/nightly")),
            ("Job", "import-20240615", "", Some("job/import-20240615")),
            ("Job", "import-31122025", "", Some("job/import-31122025")),
            ("Job", "years-29000000", "", Some("job/years-29000000")),
            ("Job", "signed-+9384437", "", Some("job/signed-+9384437")),
            ("Job", "once-1", "", Some("job/once-1")),
            ("DaemonSet", "agent", "", Some("daemonset/agent")),
        ] {
            assert_eq!(pod(kind, name, hash).as_deref(), known, "{kind} {name}");
        }
        let alone = serde_json::from_value(serde_json::json!({"name": "p"}));
        assert_eq!(owner(&alone.unwrap()), None);
    }
}
