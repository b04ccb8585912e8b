//! Status of a node: what its agent says of each policy, in an object of its own, so that nobody waits for anybody else. `UnderpassNode`, in the namespace of the
//! agent's pod, which owns it: it goes when that pod goes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{GROUP, KubernetesSettings, VERSION, objects::Read, settings::OwnPod};
use crate::{MAX_ERROR_BYTES, Verdict, status::cut};

/// Refused policies of which the reason is told. Of further ones only that they are refused.
const MAX_REASONS: usize = 32;

/// The path of what an agent says, and what it says. None: nobody asks, or the verdict is not on what was read last.
pub(super) fn said(
    settings: &KubernetesSettings,
    agent: &str,
    read: &Read,
    verdict: &Verdict,
) -> Option<(String, Value)> {
    let pod = settings.pod.as_ref()?;
    if verdict.digest != read.fragments.digest() {
        return None;
    }
    let mut in_force = BTreeMap::new();
    let mut refused = BTreeMap::new();
    for (name, generation) in &read.generations {
        match verdict.refused.get(name).or(verdict.error.as_ref()) {
            None => drop(in_force.insert(name.clone(), *generation)),
            Some(why) => {
                let why = match refused.len() < MAX_REASONS {
                    true => cut(why),
                    false => String::new(),
                };
                let why = json!({"generation": generation, "message": why});
                refused.insert(name.clone(), why);
            }
        }
    }
    let object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "UnderpassNode",
        "metadata": {
            "name": settings.node,
            "namespace": pod.namespace,
            "ownerReferences": [owner(pod)],
        },
        "state": {
            "agent": agent,
            "policies": in_force.len(),
            "refusals": refused.len(),
            "inForce": in_force,
            "refused": refused,
        },
    });
    let path = format!(
        "/apis/{GROUP}/{VERSION}/namespaces/{}/underpassnodes/{}",
        pod.namespace, settings.node
    );
    const {
        assert!(
            MAX_REASONS * MAX_ERROR_BYTES <= 64 << 10,
            "far below what etcd takes"
        )
    };
    Some((path, object))
}

fn owner(pod: &OwnPod) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid})
}
